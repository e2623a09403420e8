"""The main job on a real S3 server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_daemon import the_main_job
from tests.support.kafka_cluster import KafkaCluster
from tests.support.s3_server import running_s3_server, s3_store_section

pytestmark = [pytest.mark.broker, pytest.mark.server, pytest.mark.timeout(400)]


@pytest.mark.parametrize("sealed", [pytest.param(False, id="plain"), pytest.param(True, id="compressed and encrypted")])
def test_segments_go_to_s3_and_come_back(
    kafka: KafkaCluster, tmp_path: Path, rsa_key_files: dict[str, str], sealed: bool
) -> None:
    with running_s3_server(tmp_path / "s3") as server:
        bucket = server.directory / "kafka-tier"
        bucket.mkdir()
        store = s3_store_section(server.url, bucket.name)
        if sealed:
            store |= {
                "compression.enabled": True,
                "encryption.enabled": True,
                "encryption.key.pair.id": "one",
                "encryption.key.pairs": {"one": rsa_key_files},
                "chunk.size": "16KiB",
            }
        the_main_job(kafka, tmp_path, f"s3-job-{'sealed' if sealed else 'plain'}", store=store, objects=bucket)
