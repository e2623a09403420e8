"""``tiersidecar serve``: real clients read buckets without any broker, as the broker itself would have answered them."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from ruamel.yaml import YAML

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT, produce, started, wait_until_trimmed
from tests.support.bucket_server import USERS, BucketServer, golden_records, shown, tiered_ends
from tests.support.daemon import get
from tests.support.gateway_clients import CLIENTS
from tests.support.golden import AIVEN_OBJECTS
from tests.support.held_values import HeldValues, held_by
from tests.support.java_clients import JavaClients
from tests.support.kafka_admin import wait_until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_tools import KafkaTools
from tests.support.patience import patient_s
from tests.support.produce import ProducedRecord, Style, produce_mix
from tests.support.read_service import fetch_records, shape_of, shape_of_line
from tests.support.reading import Reading
from tests.support.remote_events import fold, in_state, read_events
from tiersidecar.adapters.stores.filesystem import TEMPORARY_DIRECTORY
from tiersidecar.app.config.keys import all_key_paths
from tiersidecar.app.config.serve import ServeConfig, load_serve_config
from tiersidecar.app.serve_run import serve_bucket
from tiersidecar.domain.states import RemoteLogSegmentState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TOPICS = ("plain", "transactions", "epochs", "compressed")
SERVED, REPLICATED = "served", "replicated"
ISOLATIONS = ("read_uncommitted", "read_committed")
LAST = "transactions-EXGICqv_Q_6R0FmJX3Hk1g/0/00000000000000000133-YP1BNkXtQ0S2eUGcI-LZjw"


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    """A bucket that the real plugin filled."""
    directory = tmp_path_factory.mktemp("serve-plugins")
    root = directory / "bucket"
    shutil.copytree(AIVEN_OBJECTS / "plain", root)
    with BucketServer(directory, root, users=True) as server:
        server.wait_until_ready(120)
        yield server


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("client", CLIENTS)
def test_clients_read_what_the_plugin_wrote(plugins: BucketServer, client: str, isolation: str) -> None:
    for topic in TOPICS:
        ends = tiered_ends(plugins.store_root)[topic]
        seen = CLIENTS[client](plugins.access("auditor"), Reading(topic=topic, ends=ends, isolation=isolation))
        assert sorted(shown(seen)) == golden_records(topic, isolation, below=ends), topic


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_other_mechanisms_let_in_too(plugins: BucketServer, mechanism: str) -> None:
    ends = tiered_ends(plugins.store_root)["plain"]
    seen = CLIENTS["confluent-kafka"](plugins.access("narrow", mechanism), Reading(topic="plain", ends=ends))
    assert sorted(shown(seen)) == golden_records("plain", "read_uncommitted", below=ends)


def _get(server: BucketServer, path: str, user: str) -> bytes:
    secret = base64.b64encode(f"{user}:{USERS[user]}".encode()).decode()
    request = urllib.request.Request(f"{server.http_url}{path}", headers={"Authorization": f"Basic {secret}"})
    with urllib.request.urlopen(request, timeout=60) as response:
        content: bytes = response.read()
        return content


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_http_tells_the_same(plugins: BucketServer, isolation: str) -> None:
    for topic in TOPICS:
        for partition, end in tiered_ends(plugins.store_root)[topic].items():
            query = f"offset=0&stop_offset={end}&limit=100000&isolation={isolation}"
            body = _get(plugins, f"/topics/{topic}/partitions/{partition}/records?{query}", "auditor")
            seen = [(partition, *shape_of_line(line)) for line in body.splitlines()]
            assert sorted(shown(seen)) == golden_records(topic, isolation, below={partition: end})


def test_http_goes_by_the_users_topics(plugins: BucketServer) -> None:
    assert b"transactions" not in _get(plugins, "/topics", "narrow")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        _get(plugins, "/topics/transactions/partitions", "narrow")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{plugins.http_url}/topics", timeout=60)


def test_a_bucket_grows_while_it_is_served(tmp_path: Path) -> None:
    """Without users, on this machine alone; a reader that waits at the end gets what comes."""
    root, later = tmp_path / "bucket", tmp_path / "later"
    shutil.copytree(AIVEN_OBJECTS / "plain", root)
    later.mkdir()
    for path in sorted(root.glob(f"{LAST}.*")):
        path.rename(later / path.name)
    half_written = root / TEMPORARY_DIRECTORY / "half-written"
    half_written.parent.mkdir()
    half_written.write_bytes(b"half")
    os.utime(half_written, (0, 0))
    with BucketServer(tmp_path, root) as server:
        server.wait_until_ready(120)
        before = Reading(topic="transactions", ends={0: 133})
        seen = CLIENTS["confluent-kafka"](server.access(), before)
        assert sorted(shown(seen)) == golden_records("transactions", "read_uncommitted", below={0: 133})
        for path in sorted(later.iterdir()):
            path.rename(root / LAST.rpartition("/")[0] / path.name)
        after = Reading(topic="transactions", ends={0: 180}, isolation="read_committed")
        seen = CLIENTS["confluent-kafka"](server.access(), after)
        assert sorted(shown(seen)) == golden_records("transactions", "read_committed", below={0: 180})
        (root / f"{LAST}.log").unlink()
        wait_until(lambda: '"refused_manifests": 1' in server.status("/status")[1], "the segment is dropped", 30)
        assert [record[0] for record in fetch_records(server.http_url, "transactions", 0, offset=130, stop=180)][
            -1
        ] < 133
        assert half_written.exists(), "nothing in the bucket is changed"
        assert server.stop() == 0
    assert [event["reason"] for event in server.events("bucket.manifest.refused")] == ["missing beside it: .log"]


KEYS: dict[str, Any] = {
    "refresh.ms": 61_013,
    "cluster.id": "every-cluster",
    "users": [{"name": "every-user", "password": "every-password", "topic.prefixes": ["every-prefix"]}],
    "kafka": {
        "advertised": "every.example:19191",
        "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
        "max.connections": 1013,
        "unauthenticated.max.connections": 217,
        "unauthenticated.request.max.bytes": 65_003,
        "request.max.bytes": 2_000_003,
        "request.memory.bytes": 400_000_003,
        "login.timeout.ms": 29_001,
        "connections.max.idle.ms": 599_003,
        "write.timeout.ms": 58_007,
        "write.least.bytes.per.second": 16_001,
        "fetch.max.bytes": 16_000_057,
        "fetch.max.wait.ms": 29_063,
        "response.memory.bytes": 260_000_041,
    },
    "http": {"max.requests": 167, "write.timeout.ms": 57_011, "write.least.bytes.per.second": 4_111},
    "read": {
        "threads": 11,
        "max.pending": 153,
        "chunk.cache.memory.bytes": 130_000_027,
        "index.max.bytes": 201_000_043,
        "opened.memory.bytes": 160_000_037,
        "ahead.reader.max.bytes": 33_000_053,
        "ahead.memory.bytes": 66_000_061,
    },
}


async def _held_while_serving(config: ServeConfig, url: str) -> HeldValues:
    serving = asyncio.create_task(serve_bucket(config))
    try:
        async with asyncio.timeout(patient_s(120)):
            while (await asyncio.to_thread(get, f"{url}/readyz"))[0] != 200:
                assert not serving.done()
        return held_by(task for task in asyncio.all_tasks() if task is not asyncio.current_task())
    finally:
        serving.cancel()
        await asyncio.wait([serving])


def test_each_key_arrives_where_it_has_its_effect(tmp_path: Path) -> None:
    shutil.copytree(AIVEN_OBJECTS / "prefix-custommeta", tmp_path / "bucket")
    server = BucketServer(tmp_path, tmp_path / "bucket", store={"key.prefix": "tiered/some-prefix/"})
    settings = server.settings | KEYS
    for name in ("kafka", "http"):
        settings[name] = KEYS[name] | server.settings[name]
    with server.config_path.open("w") as file:
        YAML().dump(settings, file)
    config = load_serve_config(server.config_path, {})
    held = asyncio.run(_held_while_serving(config, server.status_url))
    wanted = [value for section in KEYS.values() if isinstance(section, dict) for value in section.values()]
    for value in [KEYS["refresh.ms"], KEYS["cluster.id"], *wanted, *KEYS["users"][0].values()]:
        one = value[0] if isinstance(value, list) else str(value).partition(":19191")[0]
        forms = {one, value, value / 1000} if isinstance(value, int) else {one}
        assert forms & held.values, value
    assert ("BucketFollower._key_prefix", "tiered/some-prefix/") in held.attributes
    unseen = {"enabled", "listen", "store", "logging", "status", "ssl.certificate.location", "ssl.key.location"}
    # What `events` has is a sidecar's `broker`, and asked by its own test below.
    elsewhere = ("store", "logging", "status", "events")
    keys = {path[-1] for path in all_key_paths(ServeConfig) if path[0] not in elsewhere}
    told = {*KEYS, *(key for one in KEYS.values() if isinstance(one, dict) for key in one), *KEYS["users"][0]}
    assert keys - told == (unseen | {"ssl.key.password"}) - {"store", "logging", "status"}


@pytest.mark.broker
def test_kafkas_console_consumer_reads_it(plugins: BucketServer, tmp_path: Path) -> None:
    ends = tiered_ends(plugins.store_root)["transactions"]
    with KafkaTools(tmp_path) as tools:
        java = JavaClients(tools, tmp_path)
        for isolation in ISOLATIONS:
            expected = golden_records("transactions", isolation, below=ends)
            visible = {0: [one[1] for one in expected]}
            reading = Reading(topic="transactions", ends=ends, visible=visible, isolation=isolation)
            seen = java.console(plugins.access("auditor"), reading)
            assert [one[1] for one in seen] == visible[0]


def _committed_end(server: BucketServer, topic: str) -> int:
    """How far a read_committed reader gets: a transaction may be open where the bucket ends."""
    settings = {"group.id": "none", "isolation.level": "read_committed", "log_level": 0}
    consumer = confluent_kafka.Consumer({**server.access().librdkafka_settings, **settings})
    try:
        _, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=60)
        return int(end)
    finally:
        consumer.close()


def _compare(server: BucketServer, produced: Sequence[ProducedRecord], end: int, clients: Sequence[str]) -> None:
    """Both isolation levels, by some clients and over HTTP."""
    for isolation in ISOLATIONS:
        stop = end if isolation == "read_uncommitted" else min(end, _committed_end(server, SERVED))
        assert stop > 0
        expected = [
            shape_of(record)
            for record in produced
            if record.offset < stop and not (record.aborted and isolation == "read_committed")
        ]
        assert list(fetch_records(server.http_url, SERVED, 0, stop=stop, isolation=isolation)) == expected
        for client in clients:
            seen = CLIENTS[client](server.access(), Reading(topic=SERVED, ends={0: stop}, isolation=isolation))
            assert [(*one[1:5], tuple(one[5])) for one in seen] == expected, client


@pytest.mark.broker
def test_what_the_product_tiered_reads_without_the_broker(kafka: KafkaCluster, tmp_path: Path) -> None:
    """With transactions of all outcomes; the sidecar goes on, and so does the bucket: by events, within ten seconds and without
    another listing."""
    kafka.create_topic(SERVED, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produced = produce(kafka, SERVED, total_bytes=200_000)
    with started(tmp_path / "sidecar", kafka, SERVED) as daemon:
        daemon.wait_until_ready(120)
        end = wait_until_trimmed(kafka, daemon, SERVED)
        events = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "remote.log.metadata.topic.name": daemon.settings["remote.log.metadata.topic.name"],
        }
        rarely: dict[str, Any] = {"refresh.ms": 3_600_000, "events": events}
        with BucketServer(tmp_path / "serve", daemon.store_root, **rarely) as server:
            server.wait_until_ready(120)
            _compare(server, produced, end, ["confluent-kafka"])
            produced = [*produced, *produce(kafka, SERVED, total_bytes=100_000)]
            grown = wait_until_trimmed(kafka, daemon, SERVED)
            assert grown > end
            wait_until(lambda: tiered_ends(daemon.store_root)[SERVED][0] >= grown, "all is in the bucket", 60)
            stored = len(list(daemon.store_root.rglob("*.rsm-manifest")))
            wait_until(lambda: server.metric("tiersidecar_bucket_segments") == stored, "it is served", 10)
            assert 0 < server.metric("tiersidecar_bucket_serve_delay_seconds") < 10
            assert server.looks() == 1
            _compare(server, produced, grown, ["franz-go"])


class Tail:
    """Reads partition 0 of ``REPLICATED`` from a replica as it comes, and notes when each offset was there."""

    def __init__(self, server: BucketServer) -> None:
        settings = {"group.id": "none", "enable.auto.commit": False, "fetch.wait.max.ms": 100, "log_level": 0}
        self._consumer = confluent_kafka.Consumer({**server.access().librdkafka_settings, **settings})
        self._consumer.assign([confluent_kafka.TopicPartition(REPLICATED, 0, 0)])
        self.seen_ms: dict[int, int] = {}

    def read_until(self, offset: int, timeout_s: float) -> None:
        """Return once ``offset`` was seen."""
        deadline = time.monotonic() + timeout_s
        while offset not in self.seen_ms:
            assert time.monotonic() < deadline, (
                f"offset {offset} did not come; the last is {max(self.seen_ms, default=-1)}"
            )
            message = self._consumer.poll(0.2)
            seen = None if message is None or message.error() is not None else message.offset()
            if seen is not None:
                self.seen_ms[seen] = time.time_ns() // 1_000_000

    def close(self) -> None:
        self._consumer.close()


@pytest.mark.broker
def test_a_replica_serves_what_was_copied_within_ten_seconds_of_its_finished(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    """From the event of each segment to its last record at a client of the replica; the bucket is listed once in all."""
    kafka.create_topic(REPLICATED, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    with started(tmp_path / "sidecar", kafka, REPLICATED) as daemon:
        daemon.wait_until_ready(120)
        grow(kafka, 0)
        wait_until_trimmed(kafka, daemon, REPLICATED)
        metadata_topic = daemon.settings["remote.log.metadata.topic.name"]
        events = {"bootstrap.servers": kafka.bootstrap_servers, "remote.log.metadata.topic.name": metadata_topic}
        rarely: dict[str, Any] = {"refresh.ms": 3_600_000, "events": events}
        with BucketServer(tmp_path / "serve", daemon.store_root, **rarely) as server:
            server.wait_until_ready(120)
            tail, before = Tail(server), finished_ms(kafka, metadata_topic)
            try:
                for seed in range(1, 7):  # copied while the tail reads
                    grow(kafka, seed)
                    copied = wait_until_trimmed(kafka, daemon, REPLICATED)
                    tail.read_until(copied - 1, 60)
            finally:
                tail.close()
            fresh = {end: at_ms for end, at_ms in finished_ms(kafka, metadata_topic).items() if end not in before}
            delays_ms = sorted(tail.seen_ms[end] - at_ms for end, at_ms in fresh.items() if end in tail.seen_ms)
            assert len(delays_ms) >= 10
            print(
                f"{len(delays_ms)} segments at the replica's client after COPY_SEGMENT_FINISHED: "
                f"median {delays_ms[len(delays_ms) // 2]} ms, most {delays_ms[-1]} ms"
            )
            assert delays_ms[-1] < 10_000
            assert server.looks() == 1


def finished_ms(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    """When COPY_SEGMENT_FINISHED was said, by the last offset of the segment."""
    found = fold(read_events(cluster.client_settings, topic))
    return {
        one.end_offset: one.event_timestamp_ms for one in in_state(found, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
    }


def grow(cluster: KafkaCluster, seed: int) -> None:
    """By records alone: the marker of a transaction is never seen by a client."""
    asyncio.run(
        produce_mix(
            cluster.client_settings,
            REPLICATED,
            total_bytes=250_000,
            batch_bytes=16_384,
            styles=[Style(), Style(compression="zstd", idempotent=True)],
            seed=seed,
        )
    )
