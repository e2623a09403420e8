"""A read-only mount (issue 21): a second cluster's gateway serves what the first cluster's sidecar goes on to copy."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError
from aiokafka.structs import OffsetAndMetadata
from confluent_kafka import cimpl
from confluent_kafka.admin import AdminClient

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT, active_base
from tests.integration.test_mount import (
    TOPIC,
    beside,
    cluster_snapshot,
    fill,
    owners,
    seed_all,
    shapes,
    write,
)
from tests.integration.test_serve import finished_ms
from tests.support.command_line import answer_of, run_command
from tests.support.daemon import Daemon, daemon_settings, wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_jars import KAFKA_3, KAFKA_4
from tests.support.kafka_properties import ADMIN, Listener
from tests.support.loopback_ports import free_port
from tests.support.produce import ProducedRecord, Style, produce_mix
from tests.support.remote_events import object_keys_in
from tiersidecar.domain.mounts import MOUNTED_START

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

GROUP, LOCAL = "readers", "of-this-cluster"
USERS = {"alice": "alice-secret", "bob": "bob-secret"}
CLIENTS = Listener(name="CLIENTS", security_protocol="SASL_PLAINTEXT", sasl_mechanisms=("PLAIN",))


@dataclass(kw_only=True)
class Replica:
    """Both clusters, their processes, and all that was written at the source."""

    source: KafkaCluster
    sidecar: Daemon
    cluster: KafkaCluster
    gateway: Daemon
    produced: list[ProducedRecord] = field(default_factory=list)

    def login(self, user: str) -> dict[str, Any]:
        """aiokafka's settings, through the gateway."""
        return {
            "bootstrap_servers": str(self.gateway.settings["gateway"]["listeners"][0]["listen"]),
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": user,
            "sasl_plain_password": USERS[user],
        }

    def librdkafka(self, user: str) -> dict[str, Any]:
        """The same for librdkafka."""
        return {
            "bootstrap.servers": str(self.gateway.settings["gateway"]["listeners"][0]["listen"]),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": USERS[user],
            "log_level": 0,
        }

    def copied(self) -> int:
        """The end of what is remote alone at the source, once that is all of its sealed segments."""
        end = active_base(self.source, TOPIC)
        earliest = self.source.admin.earliest_offset
        wait_for(lambda: earliest(TOPIC, 0) == end, "all sealed segments are remote alone", self.sidecar)
        return end

    def local_end(self) -> int:
        """Of the replica's own log of the mounted partition."""
        return self.cluster.admin.latest_offset(TOPIC, 0)


@pytest.fixture(scope="module", params=[KAFKA_4, KAFKA_3])
def replica(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    directory = tmp_path_factory.mktemp("replica")
    store, plan = directory / "store", directory / "mount.json"
    store.mkdir()
    cluster = KafkaCluster(
        directory / "replica", version=request.param, listeners=[CLIENTS], users=USERS, authorizer=True
    )
    source = KafkaCluster(directory / "source")
    with source, beside(source, directory / "sidecar", store) as sidecar:
        source.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES, configs=STRICT)
        sidecar.wait_until_ready()
        produced, _ = asyncio.run(fill(source))
        wait_for(lambda: is_described(store), "the topic is described in the store", sidecar)
        gateway = in_front_of(cluster, directory / "gateway", store, source, plan)
        found = Replica(source=source, sidecar=sidecar, cluster=cluster, gateway=gateway, produced=produced)
        found.copied()
        gateway.write_config()
        shown = answer_of(gateway.config_path, "mount", "plan", "--read-only", "--brokers", "1", "--out", str(plan))
        assert (shown["read_only"], shown["topics"], shown["former_cluster"]) == (True, 1, source.cluster_id)
        (seeded,) = seed_all(cluster, plan)
        assert (seeded["partitions"], seeded["done"]) == (1, True)
        refused = run_command(sidecar.config_path, "mount", "publish", str(plan), "--carry-out")
        assert refused.returncode != 0
        assert "read-only" in refused.stderr
        with cluster, gateway:
            cluster.create_topic(LOCAL)
            for topic in (TOPIC, LOCAL):
                allow(cluster, "alice", "read", "--topic", topic)
                allow(cluster, "alice", "write", "--topic", topic)
                allow(cluster, "alice", "delete", "--topic", topic)
                allow(cluster, "alice", "alter", "--topic", topic)
                allow(cluster, "bob", "describe", "--topic", topic)
            allow(cluster, "alice", "read", "--group", GROUP)
            allow(cluster, "alice", "write", "--transactional-id", "t")
            gateway.wait_until_ready()
            yield found


def is_described(store: Path) -> bool:
    kept = cluster_snapshot(store)
    return kept is not None and TOPIC in kept.topics


def in_front_of(cluster: KafkaCluster, directory: Path, store: Path, source: KafkaCluster, plan: Path) -> Daemon:
    broker = cluster.brokers[0]
    settings = daemon_settings(
        directory,
        bootstrap_servers=cluster.bootstrap_servers,
        log_dirs=list(broker.log_dirs),
        topics=[],
        store={"type": "filesystem", "root": str(store)},
        source={"bootstrap.servers": source.bootstrap_servers, "mount.plan": str(plan)},
        gateway={
            "listeners": [
                {
                    "listen": f"127.0.0.1:{free_port()}",
                    "broker": broker.bootstrap_server_of("CLIENTS"),
                    "broker.tls": "off",
                }
            ]
        },
    )
    settings["broker"] |= {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": ADMIN.username,
        "sasl.password": ADMIN.password,
    }
    return Daemon(directory, settings, roles="gateway")


def allow(cluster: KafkaCluster, user: str, operation: str, *resource: str) -> None:
    cluster.run_tool(
        "kafka.admin.AclCommand" if cluster.version == KAFKA_3 else "org.apache.kafka.tools.AclCommand",
        *("--bootstrap-server", cluster.bootstrap_servers, "--command-config", str(cluster.command_config)),
        *("--add", "--allow-principal", f"User:{user}", "--operation", operation, *resource),
    )


async def read(settings: Mapping[str, Any], isolation: str, start: int, stop: int) -> list[Any]:
    """Offsets, times, keys, values and headers from ``start`` up to ``stop`` of partition 0."""
    place, found = TopicPartition(TOPIC, 0), list[Any]()
    async with AIOKafkaConsumer(**settings, enable_auto_commit=False, isolation_level=isolation) as consumer:
        consumer.assign([place])
        consumer.seek(place, start)
        async with asyncio.timeout(60):
            while await consumer.position(place) < stop:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += [
                        (one.offset, one.timestamp, one.key, one.value, tuple(one.headers))
                        for one in records
                        if one.offset < stop
                    ]
    return found


async def ends(settings: Mapping[str, Any], isolation: str) -> tuple[int, int]:
    """The first offset and the end, as a client of this isolation level is told."""
    place = TopicPartition(TOPIC, 0)
    async with AIOKafkaConsumer(**settings, isolation_level=isolation) as consumer:
        first, last = await consumer.beginning_offsets([place]), await consumer.end_offsets([place])
        return first[place], last[place]


def test_clients_read_what_was_copied_and_what_is_copied_later(replica: Replica) -> None:
    """Both isolation levels; a transaction is open where the copies end, and what ends it comes with the next."""
    alice = replica.login("alice")
    before, claimed = object_keys_in(replica.sidecar.store_root), owners(replica.sidecar.store_root)
    end = replica.copied()
    assert asyncio.run(ends(alice, "read_uncommitted")) == (0, end)
    first, committed_end = asyncio.run(ends(alice, "read_committed"))
    assert first == 0
    assert committed_end < end, "a transaction is open there"
    for isolation, stop in (("read_uncommitted", end), ("read_committed", committed_end)):
        expected = shapes(replica.produced, 0, stop, isolation)
        assert asyncio.run(read(alice, isolation, 0, stop)) == expected
    replica.produced += write(replica.source, 4, seed=7)
    grown = replica.copied()
    assert grown > end
    wait_for(lambda: asyncio.run(ends(alice, "read_uncommitted"))[1] == grown, "it is there", replica.gateway, 10)
    _, committed_end = asyncio.run(ends(alice, "read_committed"))
    assert committed_end > end, "it has ended"
    for isolation, stop in (("read_uncommitted", grown), ("read_committed", committed_end)):
        assert asyncio.run(read(alice, isolation, 0, stop)) == shapes(replica.produced, 0, stop, isolation)
    assert object_keys_in(replica.sidecar.store_root) >= before
    assert owners(replica.sidecar.store_root) == claimed == {replica.source.cluster_id}
    assert replica.local_end() == MOUNTED_START


def test_a_group_commits_and_goes_on(replica: Replica) -> None:
    alice, end, place = replica.login("alice"), replica.copied(), TopicPartition(TOPIC, 0)
    half = shapes(replica.produced, 0, end, "read_uncommitted")[len(replica.produced) // 3][0]

    async def member(stop: int) -> list[int]:
        found = list[int]()
        async with AIOKafkaConsumer(
            TOPIC, **alice, group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer:
            async with asyncio.timeout(60):
                while not found or found[-1] + 1 < stop:
                    for records in (await consumer.getmany(timeout_ms=200)).values():
                        found += [one.offset for one in records]
            kept = [offset for offset in found if offset < stop]
            await consumer.commit({place: OffsetAndMetadata(kept[-1] + 1, "")})
            return kept

    offsets = [one[0] for one in shapes(replica.produced, 0, end, "read_uncommitted")]
    assert asyncio.run(member(half)) == [offset for offset in offsets if offset < half]
    assert asyncio.run(member(offsets[-1] + 1)) == [offset for offset in offsets if offset >= half]


def test_rights_are_those_of_the_replica_s_broker(replica: Replica) -> None:
    """Bob may describe, and not read."""

    async def bob() -> None:
        async with AIOKafkaConsumer(**replica.login("bob")) as consumer:
            consumer.assign([TopicPartition(TOPIC, 0)])
            consumer.seek(TopicPartition(TOPIC, 0), 0)
            with pytest.raises(TopicAuthorizationFailedError):
                async with asyncio.timeout(30):
                    await consumer.getone()

    asyncio.run(bob())


def test_nothing_is_written_through_the_gateway(replica: Replica) -> None:
    """Alice may, says the broker: no record, no transaction and no delete, and a transaction elsewhere ends as ever."""

    async def produce() -> None:
        async with AIOKafkaProducer(**replica.login("alice")) as producer:
            with pytest.raises(TopicAuthorizationFailedError):
                await producer.send_and_wait(TOPIC, b"no", partition=0)
            await producer.send_and_wait(LOCAL, b"yes", partition=0)
        async with AIOKafkaProducer(**replica.login("alice"), transactional_id="t") as producer:
            with pytest.raises(KafkaError):
                async with producer.transaction():
                    await producer.send_and_wait(TOPIC, b"no", partition=0)
        async with AIOKafkaProducer(**replica.login("alice"), transactional_id="t") as producer, producer.transaction():
            await producer.send_and_wait(LOCAL, b"committed", partition=0)

    asyncio.run(produce())
    refusals = list[Any]()
    producer = confluent_kafka.Producer({**replica.librdkafka("alice"), "message.timeout.ms": 20_000})
    producer.produce(TOPIC, b"no", partition=0, on_delivery=lambda error, _: refusals.append(error))
    producer.flush(30)
    assert [one.code() for one in refusals] == [confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED]
    admin = AdminClient(replica.librdkafka("alice"))
    (deleting,) = admin.delete_records([confluent_kafka.TopicPartition(TOPIC, 0, 5)]).values()
    with pytest.raises(confluent_kafka.KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        deleting.result(30)
    assert replica.local_end() == MOUNTED_START
    consumer = confluent_kafka.Consumer({**replica.librdkafka("alice"), "group.id": GROUP})
    try:
        assert consumer.get_watermark_offsets(confluent_kafka.TopicPartition(LOCAL, 0), timeout=30)[1] >= 2
        assert consumer.get_watermark_offsets(confluent_kafka.TopicPartition(TOPIC, 0), timeout=30)[0] == 0
    finally:
        consumer.close()


def test_what_the_source_copies_is_served_within_ten_seconds_of_its_finished(replica: Replica) -> None:
    """From the event of each segment to its last record at a client of the replica, which would wait half a minute."""
    metadata_topic = "__remote_log_metadata"
    replica.copied()
    before = finished_ms(replica.source, metadata_topic)
    consumer = confluent_kafka.Consumer(
        {**replica.librdkafka("alice"), "group.id": GROUP, "enable.auto.commit": False, "fetch.wait.max.ms": 30_000}
    )
    seen_ms: dict[int, int] = {}
    try:
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, max(before) + 1)])
        for seed in range(20, 26):
            replica.produced += asyncio.run(
                produce_mix(
                    replica.source.client_settings,
                    TOPIC,
                    total_bytes=250_000,
                    batch_bytes=16_384,
                    styles=[Style(), Style(compression="zstd", idempotent=True)],
                    seed=seed,
                )
            )
            wanted, until_s = replica.copied() - 1, time.monotonic() + 60
            while wanted not in seen_ms:
                assert time.monotonic() < until_s, f"{wanted} did not come, the last is {max(seen_ms, default=-1)}"
                message = consumer.poll(0.2)
                if message is not None and message.error() is None:
                    seen_ms[message.offset() or 0] = time.time_ns() // 1_000_000
    finally:
        consumer.close()
    fresh = {end: at for end, at in finished_ms(replica.source, metadata_topic).items() if end not in before}
    delays_ms = sorted(seen_ms[end] - at for end, at in fresh.items() if end in seen_ms)
    assert len(delays_ms) >= 10
    print(
        f"{len(delays_ms)} segments at the replica's client after COPY_SEGMENT_FINISHED: "
        f"median {delays_ms[len(delays_ms) // 2]} ms, most {delays_ms[-1]} ms"
    )
    assert delays_ms[-1] < 10_000


def test_a_topic_of_this_cluster_is_not_late_beside_a_mounted_one_at_its_end(replica: Replica) -> None:
    """One Fetch asks for both, and would be waited for half a minute."""
    consumer = confluent_kafka.Consumer(
        {**replica.librdkafka("alice"), "group.id": GROUP, "enable.auto.commit": False, "fetch.wait.max.ms": 30_000}
    )
    producer = confluent_kafka.Producer(replica.librdkafka("alice"))
    try:
        end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(LOCAL, 0), timeout=30)[1]
        consumer.assign(
            [confluent_kafka.TopicPartition(TOPIC, 0, replica.copied()), confluent_kafka.TopicPartition(LOCAL, 0, end)]
        )
        consumer.poll(3)  # both are asked for now, over and over
        delays_s = []
        for _ in range(4):
            producer.produce(LOCAL, b"late?", partition=0)
            producer.flush(30)
            written_s, message = time.monotonic(), None
            while message is None:
                assert time.monotonic() - written_s < 20
                message = consumer.poll(0.1)
            delays_s.append(time.monotonic() - written_s)
    finally:
        consumer.close()
    print(f"records beside a mounted partition at its end after {sorted(delays_s)} s")
    assert max(delays_s) < 3


def test_a_user_s_delete_at_the_source_counts(replica: Replica) -> None:
    alice, offset = replica.login("alice"), replica.produced[len(replica.produced) // 4].offset
    answer_of(replica.sidecar.config_path, "delete-records", TOPIC, "-p", "0", "--offset", str(offset), "--yes")
    wait_for(lambda: asyncio.run(ends(alice, "read_uncommitted"))[0] == offset, "it is gone", replica.gateway, 10)

    async def first(start: int) -> int:
        """The first offset that a client gets who asks for ``start``."""
        place = TopicPartition(TOPIC, 0)
        async with AIOKafkaConsumer(**alice, auto_offset_reset="earliest") as consumer:
            consumer.assign([place])
            consumer.seek(place, start)
            async with asyncio.timeout(30):
                return int((await consumer.getone()).offset)

    assert asyncio.run(first(0)) == offset
    beyond = replica.copied() + 1_000
    assert asyncio.run(first(beyond)) == offset, "out of range, and not waited for"


def test_commands_and_other_roles_refuse_such_a_configuration(replica: Replica) -> None:
    done = run_command(replica.gateway.config_path, "ls", TOPIC)
    assert done.returncode == 2
    assert "read-only mount" in done.stderr
    other = Daemon(replica.gateway.directory / "other", replica.gateway.settings, roles="tier,gateway")
    with other:
        assert other.wait_for_exit() == 2


def test_no_partition_is_added_through_the_gateway(replica: Replica) -> None:
    """Alice may alter both topics; Bob, who may not, is told what the broker tells him of any topic."""
    admins = {user: AdminClient(replica.librdkafka(user)) for user in USERS}
    for user, topic in (("alice", TOPIC), ("bob", TOPIC), ("bob", LOCAL)):
        adding = admins[user].create_partitions([cimpl.NewPartitions(topic, 2)])[topic]
        with pytest.raises(confluent_kafka.KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
            adding.result(30)
    admins["alice"].create_partitions([cimpl.NewPartitions(LOCAL, 2)])[LOCAL].result(30)

    def count(topic: str) -> int:
        return len(admins["alice"].list_topics(timeout=30).topics[topic].partitions)

    wait_for(lambda: count(LOCAL) == 2, "it is added", replica.gateway)
    assert count(TOPIC) == 1


def test_no_marker_is_written_through_the_gateway(replica: Replica, tmp_path: Path) -> None:
    """Alice may end transactions that hang."""
    config = tmp_path / "alice.properties"
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={module} required username="alice" password="{USERS["alice"]}";\n'
    )
    allow(replica.cluster, "alice", "ClusterAction", "--cluster")
    ends_before = replica.cluster.admin.latest_offset(LOCAL, 0)
    codes = list[int]()
    for topic in (TOPIC, LOCAL):
        done = replica.cluster.run_tool(
            "org.apache.kafka.tools.TransactionsCommand",
            *("--bootstrap-server", replica.login("alice")["bootstrap_servers"], "--command-config", str(config)),
            *("abort", "--topic", topic, "--partition", "0"),
            *("--producer-id", "1", "--producer-epoch", "0", "--coordinator-epoch", "0"),
            check=False,
        )
        codes.append(done.returncode)
    assert codes == [1, 0]
    assert replica.local_end() == MOUNTED_START
    assert replica.cluster.admin.latest_offset(LOCAL, 0) == ends_before + 1


def settings_of_another(replica: Replica, directory: Path, source: Mapping[str, str] | None) -> dict[str, Any]:
    """Of a second gateway, whose section ``source`` has other settings; None: it is not there."""
    settings = dict(replica.gateway.settings)
    listener = dict(settings["gateway"]["listeners"][0]) | {"listen": f"127.0.0.1:{free_port()}"}
    settings |= {
        "state.dir": str(directory / "state"),
        "status": {"listen": f"127.0.0.1:{free_port()}"},
        "read": {"listen": f"127.0.0.1:{free_port()}"},
        "gateway": {"listeners": [listener]},
        "source": settings["source"] | (source or {}),
    }
    if source is None:
        del settings["source"]
    return settings


@contextmanager
def another_gateway(replica: Replica, directory: Path, **source: str) -> Iterator[Replica]:
    """The same, by a second gateway whose section ``source`` has other settings."""
    with Daemon(directory, settings_of_another(replica, directory, source), roles="gateway") as gateway:
        wait_for(lambda: gateway.events("gateway.listening"), "clients are taken", gateway)
        yield replace(replica, gateway=gateway)


def watermarks(replica: Replica, topic: str = TOPIC) -> tuple[int, int] | None:
    """Of the topic's partition as a client is told; None where nobody tells it within some seconds."""
    settings = {**replica.librdkafka("alice"), "group.id": GROUP, "isolation.level": "read_uncommitted"}
    consumer = confluent_kafka.Consumer(settings)
    try:
        return consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=5)
    except confluent_kafka.KafkaException:
        return None
    finally:
        consumer.close()


async def records_or_none(replica: Replica, offset: int) -> list[Any]:
    """What a client gets in some seconds who would end at an offset that is out of range."""
    async with AIOKafkaConsumer(**replica.login("alice"), auto_offset_reset="none") as consumer:
        consumer.assign([TopicPartition(TOPIC, 0)])
        consumer.seek(TopicPartition(TOPIC, 0), offset)
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                return [await consumer.getone()]
        return []


def test_of_another_cluster_than_the_plan_s_nothing_is_believed(replica: Replica, tmp_path: Path) -> None:
    """As of a source that was formatted anew: here the replica's own cluster, to which the sidecars' topics are unknown."""
    broker = replica.gateway.settings["broker"]
    with another_gateway(replica, tmp_path, **broker) as other:
        wait_for(lambda: other.gateway.events("internal_topic.unreachable"), "it is said", other.gateway)
        code, body = other.gateway.status("/readyz")
        assert code == 503
        assert f"lead to cluster {replica.cluster.cluster_id}, but source.mount.plan is of" in body
        assert replica.source.cluster_id in body
        assert watermarks(other) is None
        assert asyncio.run(records_or_none(other, 5)) == []
        assert watermarks(other, LOCAL) is not None, "this cluster's own topics need no source"


def test_a_gateway_without_the_cluster_s_plan_serves_and_writes_nothing_of_it(replica: Replica, tmp_path: Path) -> None:
    plan = tmp_path / "mount.json"
    known = json.loads(Path(replica.gateway.settings["source"]["mount.plan"]).read_text())
    plan.write_text(json.dumps(known | {"topics": []}))

    async def produce(other: Replica) -> None:
        async with AIOKafkaProducer(**other.login("alice")) as producer:
            with pytest.raises(TopicAuthorizationFailedError):
                await producer.send_and_wait(TOPIC, b"no", partition=0)
            await producer.send_and_wait(LOCAL, b"yes", partition=0)

    with another_gateway(replica, tmp_path / "other", **{"mount.plan": str(plan)}) as other:
        asyncio.run(produce(other))
        code, body = other.gateway.status("/readyz")
        assert code == 503
        assert "Give this gateway the plan by which the cluster was seeded" in body
        assert watermarks(other) is None
        assert asyncio.run(records_or_none(other, 5)) == []
    assert replica.local_end() == MOUNTED_START


def test_a_gateway_without_a_source_does_not_start_before_a_seeded_broker(replica: Replica, tmp_path: Path) -> None:
    with Daemon(tmp_path, settings_of_another(replica, tmp_path, None), roles="gateway") as gateway:
        gateway.wait_for_exit()
        assert "no section source" in gateway.log_path.read_text()
        assert not gateway.events("gateway.listening")


def test_a_produce_of_many_megabytes_is_not_kept(replica: Replica) -> None:
    """The gateway's limit for requests that it collects is 8 MiB, the broker's for all is 100 MB."""
    replica.cluster.create_topic("large", configs={"max.message.bytes": str(32 * 2**20)})
    allow(replica.cluster, "alice", "write", "--topic", "large")

    async def produce() -> None:
        largest = 24 * 2**20
        async with AIOKafkaProducer(**replica.login("alice"), max_request_size=largest) as producer:
            await producer.send_and_wait("large", bytes(largest // 2), partition=0)

    asyncio.run(produce())
    assert replica.cluster.admin.latest_offset("large", 0) == 1


def test_a_broker_that_was_started_anew_goes_on(replica: Replica) -> None:
    """Its log begins where it did: after an end in order, and after a crash."""
    alice, end = replica.login("alice"), replica.copied()
    for end_it in (replica.cluster.stop, replica.cluster.close):
        end_it()
        replica.cluster.start()
        start = asyncio.run(ends(alice, "read_uncommitted"))[0]
        assert asyncio.run(read(alice, "read_uncommitted", start, end)) == shapes(
            replica.produced, start, end, "read_uncommitted"
        )
        assert replica.local_end() == MOUNTED_START


def test_a_partition_that_is_added_in_this_cluster_is_no_part_of_the_mount(replica: Replica) -> None:
    async def add() -> None:
        admin = AIOKafkaAdminClient(**replica.cluster.client_settings)
        await admin.start()
        try:
            await admin.create_partitions({TOPIC: NewPartitions(total_count=2)})
        finally:
            await admin.close()

    asyncio.run(add())
    said = "is not mounted: source.mount.plan has 1 partitions of its topic"
    wait_for(lambda: said in replica.gateway.status("/status?halted=1")[1], "it is known", replica.gateway, 30)
    code, body = replica.gateway.status("/readyz")
    assert code == 200
    assert said not in body, "nobody has to do anything"

    async def waits() -> None:
        async with AIOKafkaConsumer(**replica.login("alice"), auto_offset_reset="none") as consumer:
            consumer.assign([TopicPartition(TOPIC, 1)])
            consumer.seek(TopicPartition(TOPIC, 1), 0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(3):
                    await consumer.getone()
            assert consumer.highwater(TopicPartition(TOPIC, 1)) is None, "nothing of the broker's log is told"

    asyncio.run(waits())
    alice = replica.login("alice")
    start, end = asyncio.run(ends(alice, "read_uncommitted"))
    assert len(asyncio.run(read(alice, "read_uncommitted", start, end))) > 0, "the other partition is served"


def test_a_source_that_is_away_keeps_nobody_from_reading(replica: Replica) -> None:
    alice, end = replica.login("alice"), replica.copied()
    start = asyncio.run(ends(alice, "read_uncommitted"))[0]
    replica.sidecar.kill9()
    replica.source.close()
    expected = shapes(replica.produced, start, end, "read_committed")
    assert asyncio.run(read(alice, "read_committed", start, end)) == expected
    assert replica.gateway.status("/readyz")[0] == 200


def test_the_start_of_the_empty_log_is_out_of_range(replica: Replica) -> None:
    """A consumer that has been told of it at the broker's own listener would wait there for ever."""

    async def first() -> int:
        place = TopicPartition(TOPIC, 0)
        async with AIOKafkaConsumer(**replica.login("alice"), auto_offset_reset="earliest") as consumer:
            consumer.assign([place])
            consumer.seek(place, MOUNTED_START)
            async with asyncio.timeout(30):
                return int((await consumer.getone()).offset)

    assert asyncio.run(first()) == asyncio.run(ends(replica.login("alice"), "read_uncommitted"))[0]


def test_a_record_that_is_written_past_the_gateway_halts_the_mount(replica: Replica) -> None:
    """The last of these tests: it cannot be undone."""

    async def written() -> int:
        async with AIOKafkaProducer(**replica.cluster.client_settings) as producer:
            return int((await producer.send_and_wait(TOPIC, b"foreign", partition=0)).offset)

    assert asyncio.run(written()) == MOUNTED_START
    wait_for(lambda: halts_of_first(replica), "it is said", replica.gateway, 30)
    code, body = replica.gateway.status("/readyz")
    assert code == 503, "all that is mounted here has halted"
    assert "mounted read-only, and has been written to" in body

    async def reading() -> list[Any]:
        async with AIOKafkaConsumer(**replica.login("alice"), auto_offset_reset="none") as consumer:
            consumer.assign([TopicPartition(TOPIC, 0)])
            consumer.seek(TopicPartition(TOPIC, 0), replica.produced[-1].offset // 2)
            with suppress(TimeoutError):
                async with asyncio.timeout(5):
                    return [await consumer.getone()]
            return []

    assert asyncio.run(reading()) == [], "clients try again, and get neither records nor an offset out of range"
    assert len(halts_of_first(replica)) == 1


def halts_of_first(replica: Replica) -> list[dict[str, Any]]:
    return [event for event in replica.gateway.events("gateway.mount.halted") if event["partition"] == 0]
