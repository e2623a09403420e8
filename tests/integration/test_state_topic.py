"""The state topic over a real broker."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from tests.support.kafka_cluster import KafkaCluster
from tests.support.metadata_events import ORDERS
from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.adapters.kafka.broker import open_broker
from tiersidecar.adapters.state_topic.codec import partition_key, write_state
from tiersidecar.adapters.state_topic.log import TopicBasedStateLog, open_state_topic
from tiersidecar.adapters.state_topic.settings import StateTopicSettings
from tiersidecar.domain.errors import BrokerUnreachableError, MetadataNotReadyError, PartitionCountError
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.ports.state_log import PartitionState, TopicState
from tiersidecar.ports.telemetry import NoTelemetry

pytestmark = pytest.mark.broker

MOVED = PartitionState(remote_log_start_offset=Offset(20), remote_log_start_epoch=LeaderEpoch(3))
STALE = PartitionState(remote_log_start_offset=Offset(10), remote_log_start_epoch=LeaderEpoch(2))
TRIMMED = PartitionState(trim_offset=Offset(40), trim_epoch=LeaderEpoch(3))
TOPIC = TopicState(topic="orders", mode="strict", former_settings={"retention.ms": "604800000"})


@asynccontextmanager
async def opened(cluster: KafkaCluster, topic: str, **changes: Any) -> AsyncIterator[TopicBasedStateLog]:
    defaults: dict[str, Any] = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "topic": topic,
        "replication_factor": 1,
        "min_insync_replicas": 1,
        "consume_wait_ms": 20_000,
        "watch_interval_ms": 500,
        "retry_max_interval_ms": 500,
        "mend_after_ms": 200,
    }
    settings = StateTopicSettings(**(defaults | changes))
    async with (
        open_broker(settings.bootstrap_servers) as broker,
        open_state_topic(settings, broker=broker, clock=SystemClock(), ids=SystemIds(), telemetry=NoTelemetry()) as log,
    ):
        yield log


async def until(condition: Callable[[], object], what: str, *, timeout_s: float = 40) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - it becomes true in another process
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"{what} did not happen in {timeout_s} s")


async def test_state_is_written_read_back_and_found_by_others_and_after_a_restart(kafka: KafkaCluster) -> None:
    topic = "state-basic"
    async with opened(kafka, topic) as log, opened(kafka, topic) as other:
        with pytest.raises(MetadataNotReadyError):
            log.partition_state(ORDERS)
        await until(lambda: log.readiness_reason is None and other.readiness_reason is None, "readiness")
        assert log.partition_state(ORDERS) == PartitionState()
        await asyncio.gather(
            log.publish_partition_state(ORDERS, MOVED),
            log.publish_partition_state(ORDERS, TRIMMED),
            log.publish_topic_state(ORDERS.topic_id, TOPIC),
        )
        both = PartitionState(
            remote_log_start_offset=Offset(20),
            remote_log_start_epoch=LeaderEpoch(3),
            trim_offset=Offset(40),
            trim_epoch=LeaderEpoch(3),
        )
        assert log.partition_state(ORDERS) == both
        await log.publish_partition_state(ORDERS, STALE)
        assert log.partition_state(ORDERS) == both
        await until(lambda: other.topic_state(ORDERS.topic_id) == TOPIC, "the other's read")
        assert (log.halted_reason, log.partitions()) == (None, (ORDERS,))
        elsewhere = replace(ORDERS, partition=1)
        await log.publish_partition_state(elsewhere, MOVED)
        for _ in range(2):
            await log.forget_partition(elsewhere)
        assert log.partitions() == (ORDERS,)
    async with opened(kafka, topic) as log:
        await until(lambda: log.is_ready, "readiness")
        assert log.partition_state(ORDERS) == both
        assert log.topic_state(ORDERS.topic_id) == TOPIC
    async with open_broker(kafka.bootstrap_servers) as broker:
        configs = (await broker.describe_topic_configs([topic]))[topic]
    assert (configs["cleanup.policy"], configs["unclean.leader.election.enable"]) == ("compact", "false")


async def test_what_a_deposed_leader_lowers_is_written_again(kafka: KafkaCluster) -> None:
    topic = "state-mend"
    async with opened(kafka, topic) as log:
        await until(lambda: log.is_ready, "readiness")
        await log.publish_partition_state(ORDERS, MOVED)
        producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
        await producer.start()
        await producer.send_and_wait(topic, write_state(STALE, {}), key=partition_key(ORDERS), partition=0)
        await producer.stop()
        await asyncio.sleep(1.5)
        assert log.partition_state(ORDERS) == MOVED
    # As if compacted: the last record alone.
    printed = await asyncio.to_thread(
        kafka.run_tool,
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server",
        kafka.bootstrap_servers,
        "--topic",
        topic,
        "--from-beginning",
        "--timeout-ms",
        "4000",
        check=False,
    )
    assert [f'"remote_log_start_offset":{offset},' in line for offset, line in zip(
        (20, 10, 20), printed.stdout.splitlines(), strict=True)] == [True] * 3  # fmt: skip


async def test_a_topic_with_more_partitions_is_refused(kafka: KafkaCluster) -> None:
    await asyncio.to_thread(kafka.create_topic, "state-many", partitions=2)
    with pytest.raises(PartitionCountError):
        async with opened(kafka, "state-many"):
            await asyncio.sleep(30)


async def test_a_topic_that_deletes_by_time_halts(kafka: KafkaCluster) -> None:
    await asyncio.to_thread(kafka.create_topic, "state-weak", partitions=1)
    async with opened(kafka, "state-weak") as log:
        await until(lambda: log.is_ready, "readiness")
        assert "state-weak has cleanup.policy delete, it must be compact" in str(log.halted_reason)


async def test_a_topic_that_is_made_anew_halts_and_what_was_known_stays(kafka: KafkaCluster) -> None:
    topic = "state-anew"
    async with opened(kafka, topic) as log:
        await until(lambda: log.is_ready, "readiness")
        await log.publish_partition_state(ORDERS, MOVED)
        await asyncio.to_thread(kafka.admin.delete_topic, topic)
        await until(lambda: log.readiness_reason is not None, "the loss to be seen")
        await asyncio.to_thread(kafka.create_topic, topic, partitions=1, configs={"cleanup.policy": "compact"})
        await until(lambda: "created again" in str(log.halted_reason), "the halt")
        assert log.partition_state(ORDERS) == MOVED
        with pytest.raises(BrokerUnreachableError):
            await log.publish_partition_state(ORDERS, TRIMMED)


async def test_a_topic_that_lost_its_end_and_was_written_on_halts(kafka_cluster: Callable[..., KafkaCluster]) -> None:
    """The broker dies, comes back without the last records, and another sidecar writes: the offsets are there, the records are
    others."""
    cluster, topic = await asyncio.to_thread(kafka_cluster), "state-cut"
    async with opened(cluster, topic) as log:
        await until(lambda: log.is_ready, "readiness")
        await log.publish_partition_state(ORDERS, MOVED)
        await log.publish_partition_state(ORDERS, TRIMMED)
        broker = cluster[1]
        await asyncio.to_thread(broker.kill9)
        cut_last_batches(broker.partition_dir(topic, 0), count=1)
        await asyncio.to_thread(broker.start)
        async with AIOKafkaProducer(**cluster.client_settings) as producer:
            for number in range(2):
                await producer.send_and_wait(topic, key=f"another/{number}".encode(), value=b"{}", partition=0)
        await until(lambda: "has another record at offset" in str(log.halted_reason), "the halt")
        assert log.partition_state(ORDERS).trim_offset == TRIMMED.trim_offset
        with pytest.raises(BrokerUnreachableError):
            await log.publish_partition_state(ORDERS, replace(TRIMMED, trim_offset=Offset(50)))


def cut_last_batches(partition_dir: Path, *, count: int) -> None:
    """Take the last ``count`` batches off the only segment of a log whose broker does not run."""
    (segment,) = partition_dir.glob("*.log")
    data, starts, position = segment.read_bytes(), [], 0
    while position < len(data) and (size := struct.unpack_from(">i", data, position + 8)[0]):
        starts.append(position)
        position += 12 + size
    segment.write_bytes(data[: starts[-count]])
