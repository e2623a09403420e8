"""Data keys under a KMS: a real server of AWS's API (local-kms), keys changed and taken away, and the main job with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_daemon import the_main_job
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kms_server import KmsServer, running_kms
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
    root, secret = tmp_path / "store", tmp_path / "secret"
    secret.write_text("only")
    secret.chmod(0o600)
    store = {
        "type": "filesystem",
        "root": str(root),
        "compression.enabled": True,
        "encryption.enabled": True,
        "encryption.key.wrapping": "aws-kms",
        "encryption.key.wrapping.options": kms.options() | {"secret.access.key": {"file": str(secret)}},
        "chunk.size": "16KiB",
    }
    the_main_job(kafka, tmp_path, "kms-job", store=store)
    manifests = [json.loads(path.read_text()) for path in root.rglob("*.rsm-manifest")]
    assert manifests
    for manifest in manifests:
        assert manifest["encryption"]["dataKey"].startswith("aws-kms/arn%3Aaws%3Akms%3A")
