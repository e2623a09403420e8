"""Remote log metadata over a real broker (S-083 S-084 S-086 S-087 S-088 S-090 S-091 S-095 S-103, T-69 T-71 T-73)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.support.kafka_cluster import KafkaCluster
from tests.support.metadata_events import DELETED, DELETING, FINISHED, added, updated
from tests.support.patience import patient_s
from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
from tiersidecar.adapters.kafka.broker import open_broker
from tiersidecar.adapters.metadata_topic.log import TopicBasedMetadataLog, open_metadata_topic
from tiersidecar.adapters.metadata_topic.settings import MetadataTopicSettings
from tiersidecar.adapters.metadata_topic.snapshot import SnapshotHead, load_snapshot, save_snapshot
from tiersidecar.domain.errors import (
    BrokerUnreachableError,
    IllegalTransitionError,
    MetadataNotReadyError,
    PartitionCountError,
)
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.metadata.partitioner import metadata_partition
from tiersidecar.formats.metadata.serde import read_event, write_event
from tiersidecar.ports.telemetry import NoTelemetry

pytestmark = pytest.mark.broker


def owner(number: int) -> TopicIdPartition:
    return TopicIdPartition(topic_id=Uuid(b"orders-topic-id!"), topic="orders", partition=number)


def settings_of(cluster: KafkaCluster, topic: str, **changes: Any) -> MetadataTopicSettings:
    defaults: dict[str, Any] = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "topic": topic,
        "partitions": 3,
        "replication_factor": 1,
        "min_insync_replicas": 1,
        "consume_wait_ms": 20_000,
        "watch_interval_ms": 500,
        "retry_max_interval_ms": 500,
    }
    return MetadataTopicSettings(**(defaults | changes))


@asynccontextmanager
async def opened(settings: MetadataTopicSettings) -> AsyncIterator[TopicBasedMetadataLog]:
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(open_broker(settings.bootstrap_servers))
        blocking = await stack.enter_async_context(ThreadBlocking(max_threads=2))
        yield await stack.enter_async_context(
            open_metadata_topic(
                settings,
                broker=broker,
                clock=SystemClock(),
                ids=SystemIds(),
                telemetry=NoTelemetry(),
                blocking=blocking,
            )
        )


async def until(condition: Callable[[], object], what: str, *, timeout_s: float = 40) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - it becomes true in another process
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"{what} did not happen in {timeout_s} s")


async def ready(log: TopicBasedMetadataLog, *owners: TopicIdPartition) -> None:
    await log.assign(owners)
    async with asyncio.timeout(patient_s(40)):
        for one in owners:
            await log.wait_until_ready(one)


async def records_of(cluster: KafkaCluster, topic: str) -> list[Any]:
    consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap_servers, group_id=None)
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, number) for number in range(3)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        count = sum((await consumer.end_offsets(partitions)).values())
        found: list[Any] = []
        async with asyncio.timeout(patient_s(20)):
            while len(found) < count:
                found.extend(r for records in (await consumer.getmany(timeout_ms=200)).values() for r in records)
        return found
    finally:
        await consumer.stop()


async def write(cluster: KafkaCluster, topic: str, *values: tuple[int, bytes]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    await producer.start()
    try:
        for partition, value in values:
            await producer.send_and_wait(topic, value, partition=partition)
    finally:
        await producer.stop()


async def test_published_events_are_read_back_and_are_what_kafka_would_write(kafka: KafkaCluster) -> None:
    """S-087, S-090, S-091, S-092."""
    topic = "rlm-publish"
    async with opened(settings_of(kafka, topic)) as log:
        with pytest.raises(MetadataNotReadyError):
            await log.publish(added(1, 0, 9, owner=owner(0)))
        await ready(log, owner(0), owner(1))
        await log.publish(added(1, 0, 9, owner=owner(0)))
        assert log.remote_log_segment_metadata(owner(0), 0, 5) is None
        await log.publish(updated(1, FINISHED, owner=owner(0), custom=b"\x01\x02"))
        metadata = log.remote_log_segment_metadata(owner(0), 0, 5)
        assert metadata == added(1, 0, 9, owner=owner(0)).with_update(
            updated(1, FINISHED, owner=owner(0), custom=b"\x01\x02")
        )
        assert log.highest_offset_for_epoch(owner(0), 0) == 9
        with pytest.raises(IllegalTransitionError):
            await log.publish(added(1, 0, 9, owner=owner(0)))
        await asyncio.gather(*(log.publish(added(n, 10 * n, 10 * n + 9, owner=owner(1))) for n in range(2, 40)))
        assert len(list(log.list_remote_log_segments(owner(1)))) == 38
        assert (log.halted_reason, log.readiness_reason) == (None, None)
    records = await records_of(kafka, topic)
    assert len(records) == 40
    for record in records:
        event = read_event(record.value, where="topic")
        where = event.topic_id_partition if isinstance(event, RemoteLogSegmentMetadata) else owner(0)
        assert (record.key, record.headers, record.timestamp_type) == (None, (), 0)
        assert record.partition == metadata_partition(where, 3)


async def test_many_events_of_a_partition_are_written_together(kafka: KafkaCluster) -> None:
    """S-087, S-090, S-091: in their order, as single ones are, and beside those of another partition and single ones."""
    topic, numbers = "rlm-together", range(2, 3000)
    async with opened(settings_of(kafka, topic)) as log:
        await ready(log, owner(0), owner(1))
        await log.publish(added(1, 0, 9))
        many = [
            [
                event
                for number in numbers
                for event in (
                    added(number, 10 * number, 10 * number + 9, owner=owner(partition)),
                    updated(number, FINISHED, owner=owner(partition), custom=b"\x01"),
                )
            ]
            for partition in (0, 1)
        ]
        await asyncio.gather(*(log.publish_all(events) for events in many), log.publish(updated(1, FINISHED)))
        for partition in (0, 1):
            assert log.finished_runs(owner(partition), 0)[-1] == (20, 30_000)
        with pytest.raises(IllegalTransitionError):
            await log.publish_all([updated(1, DELETING), added(2, 20, 29)])
    records = await records_of(kafka, topic)
    assert {(one.key, one.headers, one.timestamp_type) for one in records} == {(None, (), 0)}
    values = [one.value for one in records]
    for events in many:
        written = [write_event(event, knows_txn_index_empty=True) for event in events]
        ours = set(written)
        assert [value for value in values if value in ours] == written
    assert len(values) == 2 + sum(map(len, many))


async def test_deleting_again_what_is_gone_writes_nothing(kafka: KafkaCluster) -> None:
    topic = "rlm-idempotent"
    async with opened(settings_of(kafka, topic)) as log:
        await ready(log, owner(0))
        for event in (added(1, 0, 9), updated(1, FINISHED), updated(1, DELETING), updated(1, DELETED)):
            await log.publish(event)
        await log.publish(updated(1, DELETED))
        assert list(log.list_remote_log_segments(owner(0))) == []
    assert len(await records_of(kafka, topic)) == 4


async def test_the_topic_is_created_as_a_broker_would(kafka: KafkaCluster) -> None:
    """S-086."""
    topic = "rlm-created"
    async with opened(settings_of(kafka, topic)) as log:
        await until(lambda: log.readiness_reason is None, "readiness")
    described = kafka.admin.describe_topic(topic)
    assert len(described.partitions) == 3
    async with open_broker(kafka.bootstrap_servers) as broker:
        configs = (await broker.describe_topic_configs([topic]))[topic]
    wanted = {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "min.insync.replicas": "1",
        "unclean.leader.election.enable": "false",
    }
    assert wanted.items() <= configs.items()


async def test_another_partition_count_ends_the_log_with_both_numbers(kafka: KafkaCluster) -> None:
    """S-103."""
    kafka.create_topic("rlm-drift", partitions=4)
    with pytest.raises(PartitionCountError, match="has 4 partitions but 3 are configured"):
        async with opened(settings_of(kafka, "rlm-drift")):
            await asyncio.sleep(30)


async def test_weak_settings_halt_deletes_and_are_named_until_they_are_mended(kafka: KafkaCluster) -> None:
    topic = "rlm-weak"
    kafka.create_topic(topic, partitions=3, configs={"retention.ms": "3600000", "min.insync.replicas": "1"})
    async with opened(settings_of(kafka, topic)) as log:
        await ready(log, owner(0))
        assert log.halted_reason is not None
        assert "rlm-weak has retention.ms 3600000, it must be -1" in log.halted_reason
        await log.publish(added(1, 0, 9))
        changes = {"retention.ms": "-1", "unclean.leader.election.enable": "false"}
        await asyncio.to_thread(kafka.admin.alter_topic, topic, changes)
        await until(lambda: log.halted_reason is None, "the end of the halt")


async def test_too_few_brokers_for_the_replication_factor_is_tried_again(kafka: KafkaCluster) -> None:
    """Issue 4: a retriable error, never a smaller factor."""
    async with opened(settings_of(kafka, "rlm-factor", replication_factor=3)) as log:
        await until(
            lambda: log.readiness_reason is not None and "REPLICATION_FACTOR" in log.readiness_reason, "the refusal"
        )
        await log.assign([owner(0)])
        assert not log.is_ready(owner(0))
    async with open_broker(kafka.bootstrap_servers) as broker:
        assert await broker.describe_partitions(["rlm-factor"]) == ()


@pytest.mark.parametrize("with_snapshot", [True, False], ids=["from a snapshot", "by a full replay"])
async def test_a_restart_gives_identical_answers(kafka: KafkaCluster, tmp_path: Path, *, with_snapshot: bool) -> None:
    """T-73, S-093."""
    topic = f"rlm-restart-{with_snapshot}"
    path = str(tmp_path / "snapshot.db") if with_snapshot else None
    settings = settings_of(kafka, topic, snapshot_path=path)
    owners = [owner(n) for n in range(6)]
    async with opened(settings) as log:
        await ready(log, *owners)
        for n, one in enumerate(owners):
            for number in range(5):
                await log.publish(added(10 * n + number, 10 * number, 10 * number + 14, owner=one))
                await log.publish(updated(10 * n + number, FINISHED, owner=one, custom=b"x" * number))
            await log.publish(updated(10 * n, DELETING, owner=one))
        before = [list(log.list_remote_log_segments(one)) for one in owners]
    await write(
        kafka,
        topic,
        (metadata_partition(owner(0), 3), write_event(updated(0, DELETED), knows_txn_index_empty=True)),
    )
    async with opened(settings) as log:
        await ready(log, *owners)
        assert [list(log.list_remote_log_segments(one)) for one in owners[1:]] == before[1:]
        assert list(log.list_remote_log_segments(owner(0))) == before[0][1:]
        await log.publish(updated(11, DELETING, owner=owner(1)))


async def test_a_newly_assigned_partition_replays_while_the_others_go_on(kafka: KafkaCluster) -> None:
    """T-69, T-70 (KAFKA-16105), S-094."""
    topic = "rlm-newcomer"
    same = [owner(n) for n in range(40) if metadata_partition(owner(n), 3) == 1][:3]
    async with opened(settings_of(kafka, topic)) as writer, opened(settings_of(kafka, topic)) as log:
        await ready(writer, *same)
        await ready(log, same[0])
        for n, one in enumerate(same):
            await writer.publish(added(n, 0, 9, owner=one))
            await writer.publish(updated(n, FINISHED, owner=one))
        await until(lambda: log.remote_log_segment_metadata(same[0], 0, 5), "the first one's event")
        await log.assign(same)
        assert log.is_ready(same[0])
        await log.publish(added(7, 10, 19, owner=same[0]))
        await ready(log, *same)
        for one in same:
            assert log.remote_log_segment_metadata(one, 0, 5) is not None
            assert (
                list(log.list_remote_log_segments(one)) == list(writer.list_remote_log_segments(one)) or one == same[0]
            )
        await ready(log, same[2])
        with pytest.raises(MetadataNotReadyError):
            log.remote_log_segment_metadata(same[0], 0, 5)
        await ready(log, same[0], same[2])
        await until(lambda: len(list(log.list_remote_log_segments(same[0]))) == 2, "the whole past of the first")


async def test_bad_records_are_passed_over(kafka: KafkaCluster) -> None:
    """Bad input never crashes the daemon; illegal moves are dropped (S-100)."""
    topic = "rlm-garbage"
    number = metadata_partition(owner(0), 3)
    async with opened(settings_of(kafka, topic)) as log:
        await ready(log, owner(0))
        good = write_event(added(1, 0, 9), knows_txn_index_empty=False)
        await write(
            kafka,
            topic,
            (number, b""),
            (number, b"\x01"),
            (number, b"\x01\x00\x00\xff"),
            (number, good[:-3]),
            (number, b'{"json": 1}'),
            (number, good),
            (number, write_event(updated(1, DELETED), knows_txn_index_empty=True)),
        )
        await until(lambda: list(log.list_remote_log_segments(owner(0))), "the good record")
        await log.publish(updated(1, FINISHED))
        assert log.remote_log_segment_metadata(owner(0), 0, 5) is not None


async def test_a_cancelled_publish_can_be_done_again(kafka: KafkaCluster) -> None:
    topic = "rlm-cancel"
    async with opened(settings_of(kafka, topic)) as log:
        await ready(log, owner(0))
        for delay in (0.0, 0.001, 0.002, 0.004, 0.008, 0.016):
            attempt = asyncio.create_task(log.publish(added(1, 0, 9)))
            await asyncio.sleep(delay)
            attempt.cancel()
            await asyncio.gather(attempt, return_exceptions=True)
        await log.publish(added(1, 0, 9))
        await log.publish(updated(1, FINISHED))
        assert log.remote_log_segment_metadata(owner(0), 0, 5) is not None


async def test_the_broker_may_be_away_at_start_and_in_between(
    kafka_cluster: Callable[..., KafkaCluster], tmp_path: Path
) -> None:
    """The daemon stays up, says why, and goes on when the broker is back."""
    cluster = await asyncio.to_thread(kafka_cluster)
    settings = settings_of(cluster, "__remote_log_metadata", snapshot_path=str(tmp_path / "snapshot.db"))
    await asyncio.to_thread(cluster[1].stop)
    async with opened(settings) as log:
        await log.assign([owner(0)])
        await until(lambda: "could not be reached" in str(log.readiness_reason), "a reason")
        with pytest.raises(MetadataNotReadyError):
            log.remote_log_segment_metadata(owner(0), 0, 5)
        await asyncio.to_thread(cluster[1].start)
        await ready(log, owner(0))
        await log.publish(added(1, 0, 9))
        await log.publish(updated(1, FINISHED))
        await asyncio.to_thread(cluster[1].kill9)
        await until(lambda: log.readiness_reason is not None, "a reason again")
        assert log.remote_log_segment_metadata(owner(0), 0, 5) is not None
        with pytest.raises(BrokerUnreachableError):
            await log.publish(added(2, 10, 19))
        await asyncio.to_thread(cluster[1].start)
        await until(lambda: log.readiness_reason is None, "readiness again")
        await log.publish(added(2, 10, 19))
        assert log.halted_reason is None


async def test_kafkas_formatter_prints_what_we_published(kafka: KafkaCluster) -> None:
    """Issue 3, Must show."""
    topic = "rlm-formatter"
    async with opened(settings_of(kafka, topic)) as log:
        await ready(log, owner(0))
        await log.publish(added(1, 0, 99, {0: 0, 2: 50}, txn_index_empty=True))
        await log.publish(updated(1, FINISHED, custom=b"\x01\x02\x03"))
        await log.publish(updated(1, DELETING))
    printed = await asyncio.to_thread(
        kafka.run_tool,
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server",
        kafka.bootstrap_servers,
        "--topic",
        topic,
        "--from-beginning",
        "--max-messages",
        "3",
        "--timeout-ms",
        "20000",
        "--formatter",
        "org.apache.kafka.server.log.remote.metadata.storage.serialization"
        ".RemoteLogMetadataSerde$RemoteLogMetadataFormatter",
    )
    lines = [line for line in printed.stdout.splitlines() if line.startswith("partition: ")]
    assert [line.split("value: ")[1].split("{")[0] for line in lines] == [
        "RemoteLogSegmentMetadata",
        "RemoteLogSegmentMetadataUpdate",
        "RemoteLogSegmentMetadataUpdate",
    ]
    for text in ("orders-0", "startOffset=0, endOffset=99", "segmentLeaderEpochs={0=0, 2=50}", "txnIdxEmpty=true"):
        assert text in lines[0]
    assert "state=COPY_SEGMENT_FINISHED" in lines[1]
    assert "customMetadata=Optional[CustomMetadata{3 bytes}]" in lines[1]
    assert "state=DELETE_SEGMENT_STARTED" in lines[2]


async def test_a_snapshot_of_a_topic_that_was_made_anew_is_kept_and_read_from(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    """Issue 4: keep it, serve reads, halt, name the recovery."""
    topic, path = "rlm-lost", tmp_path / "snapshot.db"
    settings = settings_of(kafka, topic, snapshot_path=str(path))
    async with opened(settings) as log:
        await ready(log, owner(0))
        await log.publish(added(1, 0, 9))
        await log.publish(updated(1, FINISHED))
    await asyncio.to_thread(kafka.admin.delete_topic, topic)
    for attempt in ("while it is gone", "after it was made anew"):
        async with opened(settings) as log:
            await ready(log, owner(0))
            await until(partial(getattr, log, "halted_reason"), "the halt")
            assert log.remote_log_segment_metadata(owner(0), 0, 5) is not None, attempt
            assert log.halted_reason is not None
            assert f"remove {path}" in log.halted_reason
            with pytest.raises(BrokerUnreachableError):
                await log.publish(added(2, 10, 19))
        if attempt == "while it is gone":
            await asyncio.to_thread(kafka.create_topic, topic, partitions=3)
    path.unlink()
    async with opened(settings) as log:
        await ready(log, owner(0))
        assert list(log.list_remote_log_segments(owner(0))) == []


async def test_a_snapshot_ahead_of_the_topic_is_kept_and_read_from(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic, path = "rlm-ahead", tmp_path / "snapshot.db"
    settings = settings_of(kafka, topic, snapshot_path=str(path))
    async with opened(settings) as log:
        await ready(log, owner(0))
        await log.publish(added(1, 0, 9))
        await log.publish(updated(1, FINISHED))
    restored = load_snapshot(path, topic=topic, partition_count=3)
    assert restored is not None
    ahead = {  # as if the topic had been cut back by two records
        number: replace(at, position=at.position + 2, last=at.last and replace(at.last, offset=at.last.offset + 2))
        for number, at in restored.positions.items()
    }
    head = SnapshotHead(cluster_id=restored.cluster_id, topic=topic, topic_id=restored.topic_id, partition_count=3)
    save_snapshot(path, head, ahead, [], [owner(0)])
    async with opened(settings) as log:
        await ready(log, owner(0))
        assert log.remote_log_segment_metadata(owner(0), 0, 5) is not None
        assert "ends at offset 2, but was read up to 4 before" in str(log.halted_reason)
        with pytest.raises(BrokerUnreachableError, match="ends at offset 2"):
            await log.publish(updated(1, DELETING))
    kept = load_snapshot(path, topic=topic, partition_count=3)
    assert kept is not None
    assert kept.positions == ahead
