"""The broker adapter against real brokers, of the newest Kafka and of 3.9."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import pytest
from aiokafka import AIOKafkaProducer

from tests.support.kafka_admin import wait_until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_jars import KAFKA_3, KAFKA_4
from tests.support.patience import patient_s
from tiersidecar.adapters.kafka.broker import KafkaBroker, open_broker
from tiersidecar.adapters.kafka.connection import ConnectionLimits
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.ports.broker import Broker, EpochAsked, OffsetSpec, ReplicaStarts

pytestmark = pytest.mark.broker

UNFENCED = LeaderEpoch(-1)


@pytest.fixture(scope="module", params=[KAFKA_4, KAFKA_3])
def cluster(request: pytest.FixtureRequest) -> KafkaCluster:
    found: KafkaCluster = request.getfixturevalue("kafka" if request.param == KAFKA_4 else "kafka_39")
    return found


@pytest.fixture
async def broker(cluster: KafkaCluster) -> AsyncIterator[KafkaBroker]:
    async with open_broker(cluster.bootstrap_servers) as opened:
        yield opened


@pytest.fixture
def new_topic(cluster: KafkaCluster, request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """Makes topics of this test's own name, and removes them."""
    made: list[str] = []

    def create(partitions: int = 1, **configs: str) -> str:
        topic = f"adapter-{abs(hash(request.node.name)) % 10**8}-{len(made)}"
        settings = {name.replace("_", "."): value for name, value in configs.items()}
        made.append(cluster.create_topic(topic, partitions=partitions, configs=settings))
        return topic

    yield create
    for topic in made:
        cluster.admin.delete_topic(topic)


async def produce(cluster: KafkaCluster, topic: str, count: int, *, transactional_id: str | None = None) -> None:
    """``count`` records to partition 0, a batch and a millisecond each; with ``transactional_id`` in a transaction that stays
    open.  Answered once all replicas have them, so that the high watermark is above them."""
    began_ms = time.time_ns() // 1_000_000
    producer = AIOKafkaProducer(
        **cluster.client_settings, transactional_id=transactional_id, transaction_timeout_ms=600_000, acks="all"
    )
    await producer.start()
    try:
        if transactional_id is not None:
            await producer.begin_transaction()
        for number in range(count):
            await producer.send_and_wait(topic, b"%d" % number, partition=0, timestamp_ms=began_ms + number)
    finally:
        if transactional_id is None:
            await producer.stop()
        else:
            await producer.client.close()


async def partition_of(broker: Broker, topic: str) -> tuple[TopicIdPartition, LeaderEpoch]:
    (view, *_) = await broker.describe_partitions([topic])
    await all_led(broker, {view.topic_id_partition: view.leader_epoch})
    return view.topic_id_partition, view.leader_epoch


async def all_led(broker: Broker, epochs: Mapping[TopicIdPartition, LeaderEpoch]) -> None:
    """Return when each leader of a new topic has taken its partitions up: Metadata may know earlier."""
    async with asyncio.timeout(patient_s(20)):
        while True:
            answers = await broker.list_offsets(epochs, OffsetSpec.LATEST)
            if not any(answer.error for answer in answers.values()):
                return
            await asyncio.sleep(0.05)


async def settings_once(broker: Broker, topic: str, name: str, value: str) -> dict[str, dict[str, str | None]]:
    """Settings of ``topic`` and of one that is not there, once the broker has heard of a change: the controller answers
    before all brokers have."""
    async with asyncio.timeout(patient_s(20)):
        while True:
            configs = await broker.describe_topic_configs([topic, "no-such-topic"])
            if configs[topic][name] == value:
                return configs
            await asyncio.sleep(0.05)


async def test_cluster_and_brokers_are_described(broker: KafkaBroker, cluster: KafkaCluster) -> None:
    """DESIGN section 5, identity: the cluster id is the one that meta.properties must have."""
    described = await broker.describe_cluster()

    assert described.cluster_id == cluster.cluster_id
    assert described.brokers == {BrokerId(1): cluster.bootstrap_servers}


async def test_the_broker_tells_on_which_side_of_the_change_of_formats_it_is(
    broker: KafkaBroker, cluster: KafkaCluster
) -> None:
    """FORMATS section 3: TxnIndexEmpty is in what Kafka 4 writes, not in what 3.9 writes."""
    assert await broker.kafka_version() == ((4, 0) if cluster.version == KAFKA_4 else (3, 9))


async def test_partitions_come_with_id_leader_epoch_and_replicas(
    broker: KafkaBroker, cluster: KafkaCluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=3)
    expected_id = cluster.admin.describe_topic(topic).topic_id

    views = await broker.describe_partitions([topic, "no-such-topic"])

    assert [view.topic_id_partition.partition for view in views] == [0, 1, 2]
    assert expected_id is not None
    assert {view.topic_id_partition.topic_id for view in views} == {expected_id.bytes}
    assert {(view.leader_id, view.leader_epoch, view.replicas, view.in_sync_replicas) for view in views} == {
        (1, 0, (1,), (1,))
    }
    everything = await broker.describe_partitions()
    assert set(views) <= set(everything)
    assert await broker.describe_partitions([]) == ()


async def test_offsets_show_high_watermark_last_stable_offset_and_log_start(
    broker: KafkaBroker, cluster: KafkaCluster, new_topic: Callable[..., str]
) -> None:
    """FORMATS section 2: the LSO is what ListOffsets(latest, read_committed) gives while a transaction is open."""
    topic = new_topic()
    await produce(cluster, topic, 5)
    await produce(cluster, topic, 3, transactional_id=f"{topic}-open")
    partition, leader_epoch = await partition_of(broker, topic)

    async def offset(spec: OffsetSpec | int, *, read_committed: bool = False) -> tuple[int, str | None]:
        answers = await broker.list_offsets({partition: leader_epoch}, spec, read_committed=read_committed)
        return answers[partition].offset, answers[partition].error

    assert await offset(OffsetSpec.LATEST) == (8, None)
    assert await offset(OffsetSpec.LATEST, read_committed=True) == (5, None)
    assert await offset(OffsetSpec.EARLIEST) == (0, None)
    assert await offset(OffsetSpec.EARLIEST_LOCAL) == (0, None)
    assert await offset(OffsetSpec.MAX_TIMESTAMP) == (7, None)
    assert await offset(OffsetSpec.LATEST_TIERED) == (-1, None)
    assert await offset(0) == (0, None)
    assert await offset(2**62) == (-1, None)


async def test_a_wrong_leader_epoch_is_fenced(
    broker: KafkaBroker, cluster: KafkaCluster, new_topic: Callable[..., str]
) -> None:
    """DESIGN section 5: a trim acts only after ListOffsets with current_leader_epoch succeeded."""
    topic = new_topic()
    partition, leader_epoch = await partition_of(broker, topic)

    ahead = await broker.list_offsets({partition: LeaderEpoch(leader_epoch + 1)}, OffsetSpec.LATEST)
    unfenced = await broker.list_offsets({partition: UNFENCED}, OffsetSpec.LATEST)

    assert ahead[partition].error == "UNKNOWN_LEADER_EPOCH"
    assert unfenced[partition].error is None


async def test_a_leader_tells_where_its_log_ends_an_epoch(
    broker: KafkaBroker, cluster: KafkaCluster, new_topic: Callable[..., str]
) -> None:
    """What tells a log that was moved before the first record of its epoch from another's (DESIGN section 5)."""
    topic = new_topic()
    await produce(cluster, topic, 5)
    partition, leader_epoch = await partition_of(broker, topic)

    async def ask(epoch: int, current: int = leader_epoch) -> tuple[int, int, str | None]:
        asked = EpochAsked(current_epoch=LeaderEpoch(current), epoch=LeaderEpoch(epoch))
        answer = (await broker.end_of_epochs({partition: asked}))[partition]
        return answer.epoch, answer.end_offset, answer.error

    assert await ask(leader_epoch) == (leader_epoch, 5, None)
    assert await ask(leader_epoch + 1) == (-1, -1, None), "one that it does not know"
    assert await ask(leader_epoch, leader_epoch + 1) == (-1, -1, "UNKNOWN_LEADER_EPOCH")


async def test_records_are_deleted_and_offsets_out_of_range_are_told(
    broker: KafkaBroker, cluster: KafkaCluster, new_topic: Callable[..., str]
) -> None:
    topic, compacted = new_topic(), new_topic(cleanup_policy="compact")
    await produce(cluster, topic, 5)
    partition, leader_epoch = await partition_of(broker, topic)
    compacted_partition, _ = await partition_of(broker, compacted)

    other = {partition: LeaderEpoch(leader_epoch + 1)}
    fenced = await broker.delete_records({partition: Offset(2)}, leader_epochs=other)
    before = await broker.list_offsets({partition: leader_epoch}, OffsetSpec.EARLIEST)
    known = {partition: leader_epoch}
    trimmed = await broker.delete_records({partition: Offset(3), compacted_partition: Offset(0)}, leader_epochs=known)
    too_far = await broker.delete_records({partition: Offset(6)})
    earliest = await broker.list_offsets({partition: leader_epoch}, OffsetSpec.EARLIEST)

    assert (fenced[partition].error, before[partition].offset) == ("FENCED_LEADER_EPOCH", 0)
    assert (trimmed[partition].low_watermark, trimmed[partition].error) == (3, None)
    assert trimmed[compacted_partition].error == "POLICY_VIOLATION"
    assert too_far[partition].error == "OFFSET_OUT_OF_RANGE"
    assert earliest[partition].offset == 3


async def test_another_incarnation_of_a_topic_is_never_asked(
    broker: KafkaBroker, cluster: KafkaCluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    await produce(cluster, topic, 5)
    partition, _ = await partition_of(broker, topic)
    stranger = dataclasses.replace(partition, topic_id=Uuid(bytes(15) + b"\x07"))
    missing = dataclasses.replace(partition, topic="no-such-topic")
    beyond = dataclasses.replace(partition, partition=7)

    trimmed = await broker.delete_records({stranger: Offset(3), missing: Offset(3), beyond: Offset(3)})
    listed = await broker.list_offsets({stranger: UNFENCED, partition: UNFENCED}, OffsetSpec.EARLIEST)

    assert [answer.error for answer in trimmed.values()] == [
        "UNKNOWN_TOPIC_ID",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "UNKNOWN_TOPIC_OR_PARTITION",
    ]
    assert listed[stranger].error == "UNKNOWN_TOPIC_ID"
    assert (listed[partition].offset, listed[partition].error) == (0, None)


async def test_single_overrides_change_and_the_others_stay(broker: KafkaBroker, new_topic: Callable[..., str]) -> None:
    """FORMATS section 7: the old AlterConfigs replaces all overrides, IncrementalAlterConfigs does not."""
    topic = new_topic(retention_ms="86400000", max_message_bytes="2000000")

    await broker.alter_topic_configs(topic, {"retention.ms": "-1", "max.message.bytes": None})
    configs = await settings_once(broker, topic, "retention.ms", "-1")

    assert set(configs) == {topic}
    assert configs[topic]["max.message.bytes"] == "1048588"
    assert configs[topic]["internal.segment.bytes" if "internal.segment.bytes" in configs[topic] else "segment.bytes"]
    with pytest.raises(BrokerRefusedError, match="INVALID_CONFIG"):
        await broker.alter_topic_configs(topic, {"retention.ms": "soon"})


async def test_broker_settings_hide_what_is_sensitive(broker: KafkaBroker) -> None:
    configs = await broker.describe_broker_configs(BrokerId(1))

    assert configs["node.id"] == "1"
    assert configs["ssl.keystore.password"] is None
    with pytest.raises(BrokerUnreachableError, match="broker 9"):
        await broker.describe_broker_configs(BrokerId(9))


async def test_a_topic_is_created_once(broker: KafkaBroker, cluster: KafkaCluster) -> None:
    """The metadata topic is created when missing; two sidecars may try at once."""
    topic, configs = "adapter-created", {"cleanup.policy": "compact"}

    await broker.create_topic(topic, partitions=2, replication_factor=1, configs=configs)
    await broker.create_topic(topic, partitions=2, replication_factor=1, configs=configs)

    created = await asyncio.to_thread(wait_until, lambda: _partition_count(cluster, topic) == 2, "the topic is known")
    assert created
    assert (await broker.describe_topic_configs([topic]))[topic]["cleanup.policy"] == "compact"
    with pytest.raises(BrokerRefusedError) as refusal:
        await broker.create_topic("adapter-too-wide", partitions=1, replication_factor=3, configs={})
    assert (refusal.value.error, refusal.value.retriable) == ("INVALID_REPLICATION_FACTOR", True)
    with pytest.raises(BrokerRefusedError, match="INVALID_TOPIC_EXCEPTION"):
        await broker.create_topic("no/topic", partitions=1, replication_factor=1, configs={})
    cluster.admin.delete_topic(topic)


def _partition_count(cluster: KafkaCluster, topic: str) -> int:
    return len(cluster.admin.describe_topic(topic).partitions)


async def test_the_adapter_outlives_a_killed_broker(kafka_cluster: Callable[..., KafkaCluster]) -> None:
    """DESIGN section 5: not reachable means stay up and try again; the same object works once the broker is back."""
    cluster = kafka_cluster()
    topic = cluster.create_topic("survivor")
    limits = ConnectionLimits(connect_timeout_s=2, request_timeout_s=5)
    async with open_broker(cluster.bootstrap_servers, limits=limits) as broker:
        partition, before = await partition_of(broker, topic)
        await asyncio.to_thread(cluster[1].kill9)

        with pytest.raises(BrokerUnreachableError, match=cluster.bootstrap_servers):
            await broker.describe_cluster()
        with pytest.raises(BrokerUnreachableError):
            await broker.list_offsets({partition: before}, OffsetSpec.LATEST)

        await asyncio.to_thread(cluster[1].start)
        _, after = await partition_of(broker, topic)
        fenced = await broker.list_offsets({partition: before}, OffsetSpec.LATEST)
        current = await broker.list_offsets({partition: after}, OffsetSpec.LATEST)

    assert after > before
    assert fenced[partition].error == "FENCED_LEADER_EPOCH"
    assert current[partition].error is None


async def test_a_hung_broker_is_given_up_in_time(kafka_cluster: Callable[..., KafkaCluster]) -> None:
    """DESIGN section 4, rule 8: every wait has a timeout."""
    cluster = kafka_cluster()
    limits = ConnectionLimits(connect_timeout_s=1, request_timeout_s=1)
    async with open_broker(cluster.bootstrap_servers, limits=limits) as broker:
        await broker.describe_cluster()
        cluster[1].sigstop()
        try:
            with pytest.raises(BrokerUnreachableError, match="no answer to Metadata within 1 s"):
                await broker.describe_cluster()
        finally:
            cluster[1].sigcont()
        assert (await broker.describe_cluster()).cluster_id == cluster.cluster_id


async def test_requests_follow_the_leaders_of_three_brokers(kafka_cluster: Callable[..., KafkaCluster]) -> None:
    """ListOffsets and DeleteRecords are a leader's to answer; a dead leader takes only its own partitions with it.  Where its
    own log starts each replica tells."""
    cluster = kafka_cluster(brokers=3)
    topic = cluster.create_topic("spread", partitions=6, replication_factor=1)
    kept = cluster.create_topic("kept", partitions=1, replication_factor=3)
    await produce(cluster, kept, 5)
    limits = ConnectionLimits(connect_timeout_s=2, request_timeout_s=5)
    async with open_broker(cluster.bootstrap_servers, limits=limits) as broker:
        views = await broker.describe_partitions([topic])
        epochs = {view.topic_id_partition: view.leader_epoch for view in views}
        assert {view.leader_id for view in views} == {1, 2, 3}
        await all_led(broker, epochs)
        trimmed = await broker.delete_records({partition: Offset(0) for partition in epochs})
        assert {(answer.low_watermark, answer.error) for answer in trimmed.values()} == {(0, None)}
        assert (await broker.describe_broker_configs(BrokerId(2)))["node.id"] == "2"

        (of_all,) = await broker.describe_partitions([kept])
        partition = of_all.topic_id_partition
        cut = (await broker.delete_records({partition: Offset(3)}))[partition]
        assert (cut.low_watermark, cut.error) == (3, None)
        assert (await broker.replica_log_starts([of_all]))[partition] == ReplicaStarts(
            starts={BrokerId(one): Offset(3) for one in (1, 2, 3)}, silent={}
        )

        await asyncio.to_thread(cluster[3].kill9)
        listed = await broker.list_offsets(epochs, OffsetSpec.LATEST)
        asked = (await broker.replica_log_starts([of_all]))[partition]
        assert (set(asked.starts), set(asked.silent)) == ({1, 2}, {3})

    lost = {view.topic_id_partition for view in views if view.leader_id == 3}
    errors = {partition: answer.error for partition, answer in listed.items()}
    assert {partition for partition, error in errors.items() if error is not None} == lost
    assert {errors[partition] for partition in lost} <= {"BROKER_NOT_AVAILABLE", "LEADER_NOT_AVAILABLE"}


async def test_several_brokers_say_the_same_of_all_partitions_until_something_changes(
    kafka_cluster: Callable[..., KafkaCluster],
) -> None:
    """Issue 20: each answer names a controller that was drawn anew, and nothing is decoded for its sake."""
    cluster = await asyncio.to_thread(kafka_cluster, brokers=3)
    await asyncio.to_thread(cluster.create_topic, "before", partitions=20)
    async with open_broker(cluster.bootstrap_servers) as broker:
        before = await broker.describe_partitions()
        # Followers join their leaders' sets a moment after a topic was made, and not all brokers hear of it at once.
        async with asyncio.timeout(patient_s(20)):
            while (views := await broker.describe_partitions()) is not before or any(
                len(view.in_sync_replicas) < len(view.replicas) for view in views
            ):
                before = views
                await asyncio.sleep(0.2)
        assert [await broker.describe_partitions() is before for _ in range(60)] == [True] * 60

        await asyncio.to_thread(cluster.create_topic, "after", partitions=20)
        async with asyncio.timeout(patient_s(20)):
            while True:
                views = await broker.describe_partitions()
                if views is not before:
                    break
                await asyncio.sleep(0.05)
        assert {"before", "after"} <= {view.topic_id_partition.topic for view in views}
