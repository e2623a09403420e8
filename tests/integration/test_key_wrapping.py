"""Data keys under a KMS: a real server of AWS's API (local-kms), keys changed and taken away, and the main job with it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_daemon import (
    SEGMENT_BYTES,
    STRICT,
    assert_reads_back,
    produce,
    started,
    the_main_job,
    wait_until_trimmed,
)
from tests.support.daemon import Daemon, wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kms_server import KmsServer, denying_kms, running_kms
from tiersidecar.adapters.key_wrapping.aws_kms import AwsKms
from tiersidecar.domain.data_keys import WrappedKey, context_of_ids
from tiersidecar.domain.errors import DataKeyError, KeyRefusedError, KeyServiceError

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

CONTEXT = context_of_ids("topic", "segment")
DATA_KEY = bytes(range(32))


@pytest.fixture
def kms(tmp_path: Path) -> Iterator[KmsServer]:
    with running_kms(tmp_path) as server:
        server.point_alias(server.create_key())
        yield server


def test_a_data_key_comes_back_and_a_changed_one_does_not(kms: KmsServer) -> None:
    service = AwsKms(kms.options())
    wrapped = service.wrap(DATA_KEY, CONTEXT)
    assert DATA_KEY not in wrapped.data
    assert service.unwrap(wrapped, CONTEXT) == DATA_KEY
    broken = wrapped.data[:-1] + bytes([wrapped.data[-1] ^ 1])
    with pytest.raises(DataKeyError):
        service.unwrap(WrappedKey(wrapped.key_id, broken), CONTEXT)


def test_a_data_key_opens_for_its_own_segment_alone(kms: KmsServer) -> None:
    service = AwsKms(kms.options())
    wrapped = service.wrap(DATA_KEY, CONTEXT)
    with pytest.raises(DataKeyError):
        service.unwrap(wrapped, context_of_ids("topic", "another"))


def test_after_the_alias_was_pointed_elsewhere_both_keys_open_what_they_wrapped(kms: KmsServer) -> None:
    service = AwsKms(kms.options())
    before = service.wrap(DATA_KEY, CONTEXT)
    following = kms.create_key()
    kms.point_alias(following)
    after = service.wrap(DATA_KEY, CONTEXT)
    assert after.key_id == following != before.key_id
    assert service.unwrap(before, CONTEXT) == service.unwrap(after, CONTEXT) == DATA_KEY
    with pytest.raises(DataKeyError):
        service.unwrap(WrappedKey(following, before.data), CONTEXT)


def test_a_key_that_is_disabled_refuses_until_it_is_enabled(kms: KmsServer) -> None:
    service = AwsKms(kms.options())
    wrapped = service.wrap(DATA_KEY, CONTEXT)
    kms.client.disable_key(KeyId=wrapped.key_id)
    for refused in (lambda: service.unwrap(wrapped, CONTEXT), lambda: service.wrap(DATA_KEY, CONTEXT)):
        with pytest.raises(KeyRefusedError, match="enable the key again"):
            refused()
    kms.client.enable_key(KeyId=wrapped.key_id)
    assert service.unwrap(wrapped, CONTEXT) == DATA_KEY


def test_a_service_that_has_gone_is_away_and_no_more(kms: KmsServer) -> None:
    service = AwsKms(kms.options())
    wrapped = service.wrap(DATA_KEY, CONTEXT)
    kms.stop()
    with pytest.raises(KeyServiceError):
        service.unwrap(wrapped, CONTEXT)


@pytest.mark.broker
def test_segments_under_a_kms_key_go_to_the_store_and_come_back(
    kafka: KafkaCluster, kms: KmsServer, tmp_path: Path
) -> None:
    store = sealed_store(tmp_path, kms.options())
    the_main_job(kafka, tmp_path, "kms-job", store=store)
    manifests = [json.loads(path.read_text()) for path in Path(store["root"]).rglob("*.rsm-manifest")]
    assert manifests
    for manifest in manifests:
        assert manifest["encryption"]["dataKey"].startswith("aws-kms/arn%3Aaws%3Akms%3A")


@pytest.mark.broker
def test_where_no_data_key_may_be_opened_nothing_is_copied_or_trimmed(
    kafka: KafkaCluster, kms: KmsServer, tmp_path: Path
) -> None:
    """The sidecar may Encrypt, but not Decrypt: local data were trimmed, and after a restart nobody could read them."""
    topic = "kms-denied"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produced = produce(kafka, topic)
    with denying_kms(kms.url) as service:
        service.denied = {"Decrypt"}
        store = sealed_store(tmp_path, kms.options() | {"endpoint.url": service.url})
        often = {"remote.log.manager.task.retry.backoff.max.ms": 1000}
        with started(tmp_path, kafka, topic, store=store, **often) as daemon:
            told = wait_for(lambda: daemon.events("lane.halted"), "the copy is halted", daemon)
            assert "give the sidecar's identity kms:Decrypt" in told[0]["error"]
            status, reasons = daemon.status("/readyz")
            assert (status, "kms:Decrypt" in reasons) == (503, True)
            assert "Decrypt" in service.asked
            assert not [*Path(store["root"]).rglob("*.log")]
            assert kafka.admin.earliest_offset(topic, 0) == 0
            assert "kms:Decrypt" in key_finding(daemon)["says"]
            service.denied = set()
            assert key_finding(daemon)["level"] == "ok"
            daemon.wait_until_ready()  # long before the halted copy tries again
            assert not [*Path(store["root"]).rglob("*.log")]
            daemon.stop()
            daemon.start()
            daemon.wait_until_ready()
            stop = wait_until_trimmed(kafka, daemon, topic)
            daemon.stop()  # another process has no data key in memory
            daemon.start()
            daemon.wait_until_ready()
            assert_reads_back(daemon, topic, produced, stop)


def key_finding(daemon: Daemon) -> dict[str, Any]:
    """What ``check-config --connect`` finds of the key service."""
    command = [sys.executable, "-m", "tiersidecar", "check-config", str(daemon.config_path), "--connect", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in {0, 3}, f"{done.stdout}\n{done.stderr}"
    (found,) = (one for one in json.loads(done.stdout)["findings"] if one["check"] == "keys")
    return dict(found)


def sealed_store(directory: Path, options: dict[str, str]) -> dict[str, Any]:
    """A store section whose data keys the service with ``options`` wraps."""
    secret = directory / "secret"
    secret.write_text("only")
    secret.chmod(0o600)
    return {
        "type": "filesystem",
        "root": str(directory / "store"),
        "compression.enabled": True,
        "encryption.enabled": True,
        "encryption.key.wrapping": "aws-kms",
        "encryption.key.wrapping.options": options | {"secret.access.key": {"file": str(secret)}},
        "chunk.size": "16KiB",
    }
