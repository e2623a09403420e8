"""The main job on a real S3 server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_daemon import the_main_job
from tests.support.daemon import Daemon
from tests.support.kafka_cluster import KafkaCluster
from tests.support.s3_server import running_s3_server, s3_store_section

pytestmark = [pytest.mark.broker, pytest.mark.server, pytest.mark.timeout(400)]


@pytest.mark.parametrize(
    ("sealed", "verified", "reads_all"),
    [
        pytest.param(False, "auto", True, id="plain"),
        pytest.param(
            True, "checksum", True, id="compressed and encrypted: the server's checksum is not of the broker's bytes"
        ),
        pytest.param(False, "checksum", False, id="plain, trimmed by the server's checksums"),
    ],
)
def test_segments_go_to_s3_and_come_back(
    kafka: KafkaCluster, tmp_path: Path, rsa_key_files: dict[str, str], sealed: bool, verified: str, reads_all: bool
) -> None:
    def assert_read(daemon: Daemon) -> None:
        fetched, put = (daemon.metric("tiersidecar_store_bytes_total", verb=verb) for verb in ("fetch", "put"))
        assert (fetched > put / 2) is reads_all, (fetched, put)

    with running_s3_server(tmp_path / "s3") as server:
        bucket = server.directory / "kafka-tier"
        bucket.mkdir()
        store = s3_store_section(server.url, bucket.name) | {"verify.read.back": verified}
        if sealed:
            store |= {
                "compression.enabled": True,
                "encryption.enabled": True,
                "encryption.key.pair.id": "one",
                "encryption.key.pairs": {"one": rsa_key_files},
                "chunk.size": "16KiB",
            }
        topic = f"s3-job-{'sealed' if sealed else 'plain'}-{verified}"
        the_main_job(kafka, tmp_path, topic, store=store, objects=bucket, when_trimmed=assert_read)
