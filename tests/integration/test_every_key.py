"""Each key of the configuration arrives where it has its effect: none is frozen at its default on the way.

The whole daemon runs in this process with a value of its own for every key, beside a real broker, and everything that it
holds is looked through for them.  The configuration itself does not count.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.held_values import HeldValues, held_by
from tests.support.kafka_cluster import KafkaCluster
from tests.support.loopback_ports import free_port
from tests.support.patience import patient_s
from tiersidecar.app.builders.security import broker_security
from tiersidecar.app.builders.store import azure_settings, gcs_settings, s3_settings
from tiersidecar.app.config.broker import BrokerSection
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.document import KeyPath, format_path
from tiersidecar.app.config.keys import all_key_paths
from tiersidecar.app.config.report import WITHOUT_EFFECT
from tiersidecar.app.config.store import S3Store
from tiersidecar.app.config.store_azure import AzureStore
from tiersidecar.app.config.store_gcs import GcsStore
from tiersidecar.app.config.top_level import Role
from tiersidecar.app.stop_signals import BeforeStop
from tiersidecar.app.supervise import _run

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

TOPIC, EXCLUDED = "every-key", "every-not"
TOP_LEVEL: dict[str, Any] = {
    "deletes.max.share.per.round": 0.437,
    "deletes.max.bytes.per.round": 10_000_019,
    "deletes.topic.grace.ms": 777_123,
    "delete.delay": 86_000_123,
    "user.delete.delay": 3_500_123,
    "deletes.brokers.without.sidecar": [71_717],
    "lease.duration.ms": 61_234,
    "pins.max.bytes": 10_000_079,
    "compaction.interval.ms": 17_017,
    "compaction.dedupe.buffer.size": 10_000_103,
    "disk.pressure.policy": "trim-copied",
    "disk.full.alarm.ms": 5_000_321,
    "log.retention.ms": 900_000_001,
    "log.retention.bytes": 900_000_002,
    "log.local.retention.ms": 800_000_003,
    "log.local.retention.bytes": 800_000_004,
    "log.remote.copy.lag.ms": 700_005,
    "log.remote.copy.lag.bytes": 700_006,
    "trim.consumer.groups": ["group-one"],
    "trim.consumer.groups.pattern": "group-.*-x",
    "trim.share.groups": "ignore",
    "remote.log.manager.task.interval.ms": 4_321,
    "remote.log.manager.task.retry.backoff.ms": 611,
    "remote.log.manager.task.retry.backoff.max.ms": 29_111,
    "remote.log.manager.task.retry.jitter": 0.173,
    "remote.log.manager.copier.thread.pool.size": 17,
    "remote.log.manager.expiration.thread.pool.size": 119,
    "remote.log.manager.follower.thread.pool.size": 123,
    "copy.backfill.segments": 129,
    "copy.backfill.max.bytes.per.second": 20_000_003,
    "copy.backfill.order": "newest",
    "remote.log.manager.copy.max.bytes.per.second": 60_000_007,
    "remote.log.manager.copy.quota.window.num": 131,
    "remote.log.manager.copy.quota.window.size.seconds": 137,
    "remote.log.manager.fetch.max.bytes.per.second": 40_000_009,
    "remote.log.manager.fetch.quota.window.num": 141,
    "remote.log.manager.fetch.quota.window.size.seconds": 143,
    "remote.log.reader.threads": 147,
    "remote.log.reader.max.pending.tasks": 153,
    "remote.fetch.max.wait.ms": 593,
    "remote.list.offsets.request.timeout.ms": 33_333,
    "remote.log.index.file.cache.total.size.bytes": 1_073_000_011,
    "remote.log.index.file.cache.ttl.ms": 899_123,
    "remote.log.metadata.custom.metadata.max.bytes": 127,
    "remote.log.metadata.topic.name": "__rlm_every_key",
    "remote.log.metadata.topic.num.partitions": 13,
    "remote.log.metadata.consume.wait.ms": 111_222,
    "remote.log.metadata.initialization.retry.interval.ms": 117,
    "remote.log.metadata.initialization.retry.max.timeout.ms": 999_777,
    "state.topic.name": "__state_every_key",
    "proposals.topic.name": "__proposals_every_key",
    "snapshots.interval.ms": 310_123,
    "snapshots.cluster.interval.ms": 61_234,
    "reconcile.interval.ms": 44_000_123,
    "reconcile.arguments": ["--deep"],
}
"""Values that nothing else has."""
STORE: dict[str, Any] = {
    "key.prefix": "every/key/",
    "chunk.size": 4_000_037,
    "upload.rate.limit.bytes.per.second": 50_000_017,
    "upload.stall.timeout": 118_001,
    "upload.timeout": 3_599_002,
    "request.timeout": 59_003,
}
RULE: dict[str, Any] = {
    "retention.ms": 600_000_001,
    "retention.bytes": 600_000_002,
    "local.retention.ms": 500_000_003,
    "local.retention.bytes": 500_000_004,
    "remote.copy.lag.ms": 400_005,
    "remote.copy.lag.bytes": 400_006,
    "trim.consumer.groups": ["rule-group"],
    "trim.consumer.groups.pattern": "rule-.*",
    "trim.share.groups": "hold",
}
READ: dict[str, Any] = {
    "max.requests": 167,
    "write.timeout.ms": 58_007,
    "write.least.bytes.per.second": 4_111,
    "recheck.ms": 61_009,
    "hedged.fetches.percent": 17,
    "ahead.memory.bytes": 61_000_003,
    "ahead.reader.max.bytes": 59_000_009,
    "index.max.bytes": 201_000_043,
    "opened.memory.bytes": 160_000_037,
    "chunk.cache.memory.bytes": 130_000_027,
    "chunk.cache.disk.bytes": 140_000_029,
}
GATEWAY: dict[str, Any] = {
    "socket.request.max.bytes": 99_000_001,
    "max.in.flight.requests": 97,
    "request.timeout.ms": 28_009,
    "write.timeout.ms": 290_011,
    "write.least.bytes.per.second": 16_411,
    "connect.timeout.ms": 9_013,
    "login.timeout.ms": 31_019,
    "unauthenticated.buffer.bytes": 17_000_021,
    "unauthenticated.max.connections": 2_113,
    "unauthenticated.max.connections.per.ip": 1_117,
    "unauthenticated.request.max.bytes": 70_003,
    "response.memory.bytes": 260_000_033,
    "audit.topic.name": "every-key-audit",
}
LISTENER: dict[str, Any] = {"name": "EVERY", "max.connections": 9_871, "max.connections.per.ip": 9_873}


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What the daemon held with these settings."""

    settings: Mapping[str, Any]
    held: HeldValues


def settings_for(cluster: KafkaCluster, directory: Path) -> dict[str, Any]:
    for name in ("store", "place"):
        (directory / name).mkdir(parents=True)
    return {
        **copy.deepcopy(TOP_LEVEL),
        "log.dirs": [str(path) for path in cluster.brokers[0].log_dirs],
        "state.dir": str(directory / "state-dir"),
        "mode": "enforce",
        "deletes.enabled": False,
        "compaction.enabled": True,
        "compaction.trim.enabled": True,
        "disk.reserve": "7%",
        "kafka.version": "4.2.0",
        "copy.io.priority": "idle",
        "remote.log.metadata.topic.replication.factor": 1,
        "remote.log.metadata.topic.min.isr": 1,
        "broker": {
            "bootstrap.servers": cluster.bootstrap_servers,
            "client.id": "every-key",
            "request.timeout.ms": 27_654,
        },
        "store": {
            "type": "filesystem",
            "root": str(directory / "store"),
            **STORE,
            "objects.readable.by": "owner",
            "compression.enabled": True,
            "compression.heuristic.enabled": True,
            "custom.metadata.fields.include": ["REMOTE_SIZE"],
        },
        "places": {"every": {"root": str(directory / "place"), "key.prefix": "every/place/"}},
        "topics": [{"pattern": "every-.*", "exclude": [EXCLUDED], "mode": "race", "place": "every", **RULE}],
        "read": {"listen": f"127.0.0.1:{free_port()}", "store.requests.per.minute": 7_020, **READ},
        "gateway": {
            "listeners": [
                {
                    "listen": f"127.0.0.1:{free_port()}",
                    "advertised.nodes": {"1": "gateway.every.example:9099"},
                    **LISTENER,
                }
            ],
            **GATEWAY,
        },
        "status": {"listen": f"127.0.0.1:{free_port()}", "per.partition.series": "always"},
    }


async def run_and_look(settings: Mapping[str, Any], source: Path) -> HeldValues:
    """Run all roles until they serve and have looked at the topic; gives what they hold then."""
    config = Config.model_validate(settings, by_alias=True, by_name=False).read_from(source)
    daemon = asyncio.create_task(_run(config, frozenset(Role), lambda: config, BeforeStop()), name="daemon")
    wanted = {"GatewayListener", "HttpServer"} | ({"TieredPartition"} if settings["mode"] != "observe" else set())
    missing, pause_s, ends_s = wanted, 0.2, time.monotonic() + patient_s(120)
    try:
        while time.monotonic() < ends_s:
            await asyncio.sleep(pause_s)
            if daemon.done():
                daemon.result()
            began_s = time.monotonic()
            held = held_by([task for task in asyncio.all_tasks() if task is not asyncio.current_task()])
            missing = wanted - held.named.keys()
            if not missing:
                return held
            # The daemon stands still while it is looked through, and must have most of the time to get anywhere.
            pause_s = max(0.2, 5 * (time.monotonic() - began_s))
        raise TimeoutError(f"the daemon has come to hold no {', '.join(sorted(missing))}")
    finally:
        daemon.cancel()
        await asyncio.wait([daemon])


@pytest.fixture(scope="module")
def running(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Running:
    directory = tmp_path_factory.mktemp("every-key")
    kafka.create_topic(EXCLUDED)
    kafka.create_topic(TOPIC)
    settings = settings_for(kafka, directory)
    return Running(settings=settings, held=asyncio.run(run_and_look(settings, directory / "tiersidecar.yaml")))


def rows(section: KeyPath, settings: Mapping[str, Any]) -> list[Any]:
    return [pytest.param(value, id=format_path((*section, key))) for key, value in settings.items()]


BY_VALUE = [
    *rows((), TOP_LEVEL),
    *rows(("store",), STORE),
    *rows(("topics", 0), RULE),
    *rows(("read",), READ),
    *rows(("gateway",), GATEWAY),
    *rows(("gateway", "listeners", 0), LISTENER),
]


@pytest.mark.parametrize("value", BY_VALUE)
def test_a_value_arrives_as_it_is_or_in_seconds(running: Running, value: Any) -> None:
    wanted = value[0] if isinstance(value, list) else value
    forms = {wanted, wanted / 1000} if isinstance(wanted, (int, float)) else {wanted}
    assert forms & running.held.values


BY_PLACE: dict[str, tuple[str, Any]] = {
    "compaction.enabled": ("TopicChecks._tiers_compacted", True),
    "compaction.trim.enabled": ("CompactedTrims._is_enabled", True),
    "disk.reserve": ("PinLimits.disk_reserve_percent", 7),
    "kafka.version": ("LayoutSettings.kafka_version", (4, 2)),
    "remote.log.metadata.topic.replication.factor": ("MetadataTopicSettings.replication_factor", 1),
    "remote.log.metadata.topic.min.isr": ("MetadataTopicSettings.min_insync_replicas", 1),
    "broker.client.id": ("Connector._client_id", "every-key"),
    "broker.request.timeout.ms": ("ConnectionLimits.request_timeout_s", 27.654),
    "store.compression.enabled": ("LayoutSettings.compression", True),
    "store.compression.heuristic.enabled": ("LayoutSettings.skip_compressed", True),
    "read.store.requests.per.minute": ("RateQuota.bytes_per_s", 117),
}
"""Where the value could be anybody's: the attribute that has it."""


@pytest.mark.parametrize("key", BY_PLACE)
def test_a_value_arrives_in_its_place(running: Running, key: str) -> None:
    assert BY_PLACE[key] in running.held.attributes


def the(held: HeldValues, name: str) -> Any:
    return held.named[name][0]


BY_DEED: dict[str, Callable[[Running], bool]] = {
    "log.dirs": lambda seen: ("LogDirScanner._log_dir", seen.settings["log.dirs"][0]) in seen.held.attributes,
    "state.dir": lambda seen: (Path(seen.settings["state.dir"]) / "tier.lock").exists(),
    "deletes.enabled": lambda seen: "deletes.enabled is false" in the(seen.held, "DeleteGuard").reason_not_to_delete,
    "broker.bootstrap.servers": lambda seen: seen.settings["broker"]["bootstrap.servers"] in seen.held.values,
    "store.root": lambda seen: ("FilesystemStore._root", seen.settings["store"]["root"]) in seen.held.attributes,
    "store.objects.readable.by": lambda seen: the(seen.held, "ObjectModes").file == 0o600,
    "store.custom.metadata.fields.include": lambda seen: (
        len(the(seen.held, "LayoutSettings").custom_metadata_fields) == 1
    ),
    "places": lambda seen: ("FilesystemStore._root", seen.settings["places"]["every"]["root"]) in seen.held.attributes,
    "topics[0].place": lambda seen: (
        the(seen.held, "LayoutSettings").place_key_prefixes == {"every": "every/place/"}
        and the(seen.held, "LayoutSettings").place_of_topic(TOPIC) == "every"
    ),
    "topics[0].pattern": lambda seen: TOPIC in {one.topic for one in the(seen.held, "PartitionTable").assignment},
    "topics[0].exclude": lambda seen: (
        EXCLUDED not in {one.topic for one in the(seen.held, "PartitionTable").assignment}
    ),
    "copy.io.priority": lambda seen: any(one.__name__ == "enter_idle_io_class" for one in seen.held.named["function"]),
    "gateway.listeners[0].advertised.nodes": lambda seen: "gateway.every.example" in str(seen.held.values),
    "topics[0].mode": lambda seen: (
        next(iter(the(seen.held, "PartitionTable").assignment.values())).policy.mode == "race"
    ),
    "read.listen": lambda seen: str(seen.settings["read"]["listen"].rpartition(":")[2]) in str(seen.held.values),
    "gateway.listeners[0].listen": lambda seen: (
        str(the(seen.held, "GatewayListener").port)
        == seen.settings["gateway"]["listeners"][0]["listen"].rpartition(":")[2]
    ),
}


@pytest.mark.parametrize("key", BY_DEED)
def test_a_value_is_seen_by_what_it_does(running: Running, key: str) -> None:
    assert BY_DEED[key](running)


S3: dict[str, Any] = {
    "s3.bucket.name": "every-bucket",
    "s3.region": "every-region-1",
    "s3.endpoint.url": "http://127.0.0.1:9",
    "s3.multipart.upload.part.size": 26_000_003,
    "s3.multipart.upload.parts.in.flight": 6,
    "s3.api.call.timeout": 71_003,
    "s3.api.call.attempt.timeout": 13_003,
    "s3.max.attempts": 9,
    "s3.storage.class": "GLACIER_IR",
    "s3.server.side.encryption": "aws:kms",
    "s3.server.side.encryption.kms.key.id": "every-kms-key",
    "s3.checksum.algorithm": "crc32c",
    "s3.ssl.ca.location": "/every/s3-ca.pem",
    "aws.access.key.id": "every-access-key",
    "aws.secret.access.key": "every-secret-key",
    "key.prefix": "every/key/",
}
BROKER: dict[str, Any] = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "every-user",
    "sasl.password": "every-password",
    "ssl.ca.location": "/every/ca.pem",
    "ssl.certificate.location": "/every/certificate.pem",
    "ssl.key.location": "/every/key.pem",
    "ssl.key.password": "every-key-password",
}
OAUTH: dict[str, Any] = {
    "sasl.oauthbearer.token.endpoint.url": "https://127.0.0.1/every-token",
    "sasl.oauthbearer.client.credentials.client.id": "every-client",
    "sasl.oauthbearer.client.credentials.client.secret": "every-client-secret",
    "sasl.oauthbearer.scope": "every-scope",
    "sasl.oauthbearer.ssl.ca.location": "/every/token-ca.pem",
}


@pytest.mark.parametrize("key", S3)
def test_a_key_of_s3_arrives(key: str) -> None:
    section = S3Store.model_validate(
        {"type": "s3", **S3, "upload.stall.timeout": 118_001}, by_alias=True, by_name=False
    )
    held = held_by([s3_settings(section)])
    assert {S3[key], S3[key] / 1000 if isinstance(S3[key], int) else S3[key]} & held.values


@pytest.mark.parametrize(
    ("key", "value", "place"),
    [
        ("s3.path.style.access.enabled", True, ("S3Settings.addressing", "path")),
        ("s3.path.style.access.enabled", False, ("S3Settings.addressing", "virtual")),
        ("aws.certificate.check.enabled", False, ("S3Settings.verify_tls", False)),
    ],
)
def test_a_switch_of_s3_arrives(key: str, value: object, place: tuple[str, Any]) -> None:
    section = S3Store.model_validate({"type": "s3", **S3, key: value}, by_alias=True, by_name=False)
    assert place in held_by([s3_settings(section)]).attributes


AZURE: dict[str, Any] = {
    "azure.account.name": "everyaccount",
    "azure.container.name": "every-container",
    "azure.endpoint.url": "http://127.0.0.1:9/everyaccount",
    "azure.tenant.id": "every-tenant",
    "azure.client.id": "every-client",
    "azure.authority.host": "https://login.every.example",
    "azure.upload.block.size": 6_000_003,
    "azure.upload.blocks.in.flight": 7,
    "azure.request.attempt.timeout": 17_003,
    "azure.max.attempts": 11,
    "azure.access.tier": "Cool",
    "key.prefix": "every/key/",
}
AZURE_CREDENTIALS: dict[str, Any] = {
    "azure.account.key": "every-account-key",
    "azure.sas.token": "sig=every-token",
    "azure.client.secret": "every-client-secret",
    "azure.federated.token.file": "/every/token",
}


def azure_holds(settings: Mapping[str, Any]) -> HeldValues:
    section = AzureStore.model_validate({"type": "azure", **AZURE, **settings}, by_alias=True, by_name=False)
    return held_by([azure_settings(section)])


@pytest.mark.parametrize("key", AZURE)
def test_a_key_of_azure_arrives(key: str) -> None:
    assert {AZURE[key], AZURE[key] / 1000 if isinstance(AZURE[key], int) else AZURE[key]} & azure_holds({}).values


@pytest.mark.parametrize("key", AZURE_CREDENTIALS)
def test_a_credential_of_azure_arrives(key: str) -> None:
    assert AZURE_CREDENTIALS[key] in azure_holds({key: AZURE_CREDENTIALS[key]}).values


def test_tls_of_azure_arrives(tmp_path: Path) -> None:
    authorities = tmp_path / "ca.pem"
    authorities.write_text("every certificate")
    assert "every certificate" in azure_holds({"azure.ssl.ca.location": str(authorities)}).values
    unchecked = azure_holds({"azure.certificate.check.enabled": False})
    assert ("AzureSettings.verify_tls", False) in unchecked.attributes


def broker_of(settings: Mapping[str, Any]) -> BrokerSection:
    return BrokerSection.model_validate({"bootstrap.servers": "127.0.0.1:9", **settings}, by_alias=True, by_name=False)


@pytest.mark.parametrize("key", BROKER)
def test_a_key_of_the_brokers_security_arrives(key: str) -> None:
    assert BROKER[key] in held_by([broker_security(broker_of(BROKER))]).values


@pytest.mark.parametrize("key", OAUTH)
def test_a_key_of_the_token_endpoint_arrives(key: str) -> None:
    settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", **OAUTH}
    assert OAUTH[key] in held_by([broker_security(broker_of(settings))]).values


def test_host_names_are_not_checked_where_that_is_said() -> None:
    settings = broker_security(broker_of({**BROKER, "ssl.endpoint.identification.algorithm": ""}))
    assert (settings.ssl_check_hostname, broker_security(broker_of(BROKER)).ssl_check_hostname) == (False, True)


ELSEWHERE: dict[str, str] = {
    "pins.enabled": "unit/app/builders/test_follow.py::test_new_pins_are_made_as_configured",
    "mode": "integration/test_daemon.py::test_observe_decides_and_writes_nothing",
    "topics[0].name": "integration/test_daemon.py::test_segments_go_to_the_store_and_come_back",
    "topics[0].remote.log.copy.disable": "unit/app/config/test_topics.py",
    "store.type": "integration/test_daemon_s3.py",
    "store.verify.read.back": "integration/test_daemon_s3.py",
    "store.encryption.enabled": "integration/test_daemon.py::test_compressed_and_encrypted_objects",
    "store.encryption.key.wrapping": "integration/test_key_wrapping.py::"
    "test_segments_under_a_kms_key_go_to_the_store_and_come_back",
    "store.encryption.key.wrapping.options": "integration/test_key_wrapping.py::"
    "test_segments_under_a_kms_key_go_to_the_store_and_come_back",
    "store.encryption.data.key.cache.size": "unit/adapters/key_wrapping/test_service_keys.py::"
    "test_no_more_are_kept_than_may_be_and_the_one_used_longest_ago_goes",
    "store.encryption.data.key.cache.ms": "unit/adapters/key_wrapping/test_service_keys.py::"
    "test_a_data_key_is_asked_for_once_and_again_when_its_time_is_over",
    "store.encryption.key.pair.id": "integration/test_daemon.py::test_compressed_and_encrypted_objects",
    "store.encryption.key.pairs": "integration/test_daemon.py::test_compressed_and_encrypted_objects",
    "store.encryption.key.pairs.public.key.file": "integration/test_daemon.py::test_compressed_and_encrypted_objects",
    "store.encryption.key.pairs.private.key.file": "integration/test_daemon.py::test_compressed_and_encrypted_objects",
    "source.mount.plan": "unit/app/test_wiring.py::test_the_plan_says_what_is_mounted",
    **dict.fromkeys(
        (f"source.{key}" for key in ("bootstrap.servers", "client.id", "request.timeout.ms")),
        "unit/app/test_wiring.py::test_the_topics_of_a_mount_are_reached_as_the_source_says",
    ),
    "gateway.workers": "integration/test_gateway_workers.py::test_clients_read_what_is_remote_through_each_worker",
    "gateway.sasl.raw.tokens": "integration/test_gateway_attacks.py",
    "gateway.remote.log.dir": "integration/test_gateway_clients.py"
    "::test_kafka_log_dirs_shows_remote_sizes_to_those_who_may_describe_the_cluster",
    "gateway.listeners[0].advertised.pattern": "unit/app/config/test_gateway.py::test_patterns",
    "gateway.listeners[0].broker": "integration/test_gateway_security.py::test_every_login_passes",
    "gateway.listeners[0].broker.tls": "unit/app/config/test_gateway.py::test_tls_to_the_broker_is_as_its_listener_has_it",
    "gateway.listeners[0].ssl.certificate.location": "integration/test_gateway_security.py::test_every_login_passes",
    "gateway.listeners[0].ssl.key.location": "integration/test_gateway_security.py::test_every_login_passes",
    "gateway.listeners[0].ssl.key.password": "integration/test_gateway_security.py",
    "gateway.listeners[0].ssl.ca.location": "integration/test_gateway_security.py",
    "gateway.listeners[0].ssl.client.auth": "integration/test_gateway_security.py",
    "remote.fetch.quota": "unit/app/builders/test_read_path.py::test_budgets_are_as_configured",
    "remote.fetch.quota[0].user": "unit/app/builders/test_read_path.py::test_budgets_are_as_configured",
    "remote.fetch.quota[0].client.id": "unit/app/builders/test_read_path.py::test_budgets_are_as_configured",
    "remote.fetch.quota[0].consumer.byte.rate": "unit/app/builders/test_read_path.py::test_budgets_are_as_configured",
    "read.authentication": "integration/test_read_service.py",
    "read.authorization.bootstrap.servers": "unit/app/builders/test_security.py::test_callers_are_tried_with_nothing_of_ours",
    "read.authorization.sasl.mechanism": "unit/app/builders/test_security.py::test_callers_are_tried_with_nothing_of_ours",
    "read.authorization.security.protocol": "unit/app/builders/test_security.py::test_callers_are_tried_with_nothing_of_ours",
    "read.callers": "unit/app/config/test_callers.py::test_each_caller_becomes_a_user_of_the_brokers",
    "read.callers[0].bearer.token": "unit/app/config/test_callers.py::test_each_caller_becomes_a_user_of_the_brokers",
    "read.callers[0].certificate.subject": "unit/app/config/test_callers.py::test_each_caller_becomes_a_user_of_the_brokers",
    "read.callers[0].sasl.username": "unit/app/config/test_callers.py::test_each_caller_becomes_a_user_of_the_brokers",
    "read.callers[0].sasl.password": "unit/app/config/test_callers.py::test_each_caller_becomes_a_user_of_the_brokers",
    "read.ssl.certificate.location": "unit/app/config/test_callers.py",
    "read.ssl.client.auth": "unit/app/config/test_callers.py",
    "read.ssl.client.ca.location": "unit/app/config/test_callers.py",
    "read.ssl.key.location": "unit/app/config/test_callers.py",
    "read.ssl.key.password": "unit/app/config/test_callers.py",
    "status.listen": "unit/services/status/test_server.py",
    "status.advertised": "unit/app/config/test_status.py",
    "status.cluster.secret": "integration/test_cli_cluster.py::test_any_sidecar_shows_the_page_of_all",
    "status.page.password": "unit/services/status/test_cluster_page.py::test_who_is_answered",
    "status.also.ask": "unit/services/status/test_cluster_page.py::test_gateways_without_a_lease_are_asked_by_their_address",
    "status.per.partition.series": "unit/services/status/test_server.py::test_metrics_may_always_have_partitions",
    "logging.format": "unit/app/test_logging.py::test_off_a_terminal_auto_is_json_and_on_one_it_is_for_people",
    "store.options": "integration/test_third_party_store.py::test_its_options_arrive_and_secrets_are_masked",
    "logging.level": "unit/app/test_logging.py::test_only_the_level_and_above_is_written",
}
"""Keys whose effect other tests show, and where."""
UNSHOWN = {"shutdown.grace.ms"}
"""Keys whose effect no test shows yet: it takes a daemon that cannot stop."""
SECTIONS = {"broker", "gateway", "gateway.listeners", "logging", "read", "source", "status", "store", "topics"}


@pytest.mark.parametrize("test", sorted(set(ELSEWHERE.values())))
def test_what_is_shown_elsewhere_is_there(test: str) -> None:
    path, _, function = test.partition("::")
    text = (Path(__file__).parents[1] / path).read_text()
    assert not function or f"def {function}(" in text


GCS: dict[str, Any] = {
    "gcs.bucket.name": "every-bucket",
    "gcs.endpoint.url": "http://127.0.0.1:9",
    "gcs.resumable.upload.chunk.size": 7 * 256 * 1024,
    "gcs.request.attempt.timeout": 17_003,
    "gcs.max.attempts": 11,
    "gcs.storage.class": "COLDLINE",
    "key.prefix": "every/key/",
}
GCS_CREDENTIALS: dict[str, Any] = {
    "gcs.credentials.path": "/every/credentials.json",
    "gcs.credentials.json": "every-credential",
    "gcs.credentials.default": False,
}


def gcs_holds(settings: Mapping[str, Any]) -> HeldValues:
    section = GcsStore.model_validate({"type": "gcs", **GCS, **settings}, by_alias=True, by_name=False)
    return held_by([gcs_settings(section)])


@pytest.mark.parametrize("key", GCS)
def test_a_key_of_gcs_arrives(key: str) -> None:
    assert {GCS[key], GCS[key] / 1000 if isinstance(GCS[key], int) else GCS[key]} & gcs_holds({}).values


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("gcs.credentials.path", ("GcsSettings.login", "path")),
        ("gcs.credentials.path", ("GcsSettings.credentials_path", "/every/credentials.json")),
        ("gcs.credentials.json", ("GcsSettings.login", "json")),
        ("gcs.credentials.json", ("GcsSettings.credentials_json", "every-credential")),
        ("gcs.credentials.default", ("GcsSettings.login", "anonymous")),
    ],
)
def test_a_credential_of_gcs_arrives(key: str, place: tuple[str, Any]) -> None:
    assert place in gcs_holds({key: GCS_CREDENTIALS[key]}).attributes


def test_tls_of_gcs_arrives(tmp_path: Path) -> None:
    authorities = tmp_path / "ca.pem"
    authorities.write_text("every certificate")
    assert "every certificate" in gcs_holds({"gcs.ssl.ca.location": str(authorities)}).values
    assert ("GcsSettings.verify_tls", False) in gcs_holds({"gcs.certificate.check.enabled": False}).attributes


def test_no_key_is_left_out() -> None:
    """A new key has its row here, or a test that shows its effect in the list of those."""
    shown = {
        *TOP_LEVEL,
        *BY_PLACE,
        *BY_DEED,
        *ELSEWHERE,
        *UNSHOWN,
        *SECTIONS,
        *map(format_path, WITHOUT_EFFECT),
        *("store.s3.path.style.access.enabled", "store.aws.certificate.check.enabled"),
        *(f"{section}.ssl.endpoint.identification.algorithm" for section in ("broker", "source")),
        *(f"store.{key}" for key in (*STORE, *S3, *AZURE, *AZURE_CREDENTIALS, *GCS, *GCS_CREDENTIALS)),
        *("store.azure.ssl.ca.location", "store.azure.certificate.check.enabled"),
        *("store.gcs.ssl.ca.location", "store.gcs.certificate.check.enabled"),
        *(f"topics[0].{key}" for key in RULE),
        *(f"read.{key}" for key in READ),
        *(f"gateway.{key}" for key in GATEWAY),
        *(f"gateway.listeners[0].{key}" for key in LISTENER),
        *(f"{section}.{key}" for section in ("broker", "source") for key in (*BROKER, *OAUTH)),
    }
    of_places = [path for path in all_key_paths(Config) if path[0] == "places"]
    keys = {format_path(path) for path in all_key_paths(Config) if path not in of_places[1:]}
    assert sorted(keys - shown) == []
    assert sorted(shown - keys) == []
    assert {path[1:] for path in of_places} == {path[1:] for path in all_key_paths(Config) if path[0] == "store"}
