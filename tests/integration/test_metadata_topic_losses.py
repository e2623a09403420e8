"""A metadata topic that loses its end while a sidecar runs, on a real broker: killed, its file cut, started again (S-094)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.test_metadata_topic import opened, owner, ready, settings_of, until, write
from tests.support.kafka_cluster import KafkaCluster
from tests.support.metadata_events import FINISHED, added, updated
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.segments import MetadataEvent
from tiersidecar.formats.metadata.partitioner import metadata_partition
from tiersidecar.formats.metadata.serde import write_event

pytestmark = [pytest.mark.broker, pytest.mark.timeout(200)]

TOPIC = "rlm-cut"
OWNER = owner(0)
NUMBER = metadata_partition(OWNER, 3)


def beside() -> TopicIdPartition:
    """Another user partition of the same metadata partition."""
    return next(owner(number) for number in range(1, 100) if metadata_partition(owner(number), 3) == NUMBER)


def log_file(cluster: KafkaCluster) -> Path:
    return cluster.brokers[0].partition_dir(TOPIC, NUMBER) / "00000000000000000000.log"


def cut_last_batch(cluster: KafkaCluster) -> bytes:
    """What a power cut does; returns the whole file as it was."""
    cluster.brokers[0].kill9()
    whole, begins, at = log_file(cluster).read_bytes(), [], 0
    while at + 12 <= len(whole) and (size := int.from_bytes(whole[at + 8 : at + 12], "big")):
        begins.append(at)
        at += 12 + size
    with log_file(cluster).open("r+b") as file:
        file.truncate(begins[-1])
    cluster.brokers[0].start()
    return whole[:at]


def put_back(cluster: KafkaCluster, whole: bytes) -> None:
    cluster.brokers[0].kill9()
    log_file(cluster).write_bytes(whole)
    cluster.brokers[0].start()


def bytes_of(*events: MetadataEvent) -> list[tuple[int, bytes]]:
    return [(NUMBER, write_event(event, knows_txn_index_empty=True)) for event in events]


async def test_the_lost_end_of_a_copy_stays_lost_when_others_write_on(
    kafka_cluster: Callable[..., KafkaCluster],
) -> None:
    """Else the halt ends, and a day later the objects of the copy that never ended are deleted."""
    cluster = await asyncio.to_thread(kafka_cluster)
    async with opened(settings_of(cluster, TOPIC)) as log:
        await ready(log, OWNER)
        await log.publish(added(1, 0, 9))
        await log.publish(updated(1, FINISHED))
        await asyncio.to_thread(cut_last_batch, cluster)
        await until(lambda: "ends at offset 1, but was read up to 2" in str(log.halted_reason), "the halt")
        other = beside()
        await write(cluster, TOPIC, *bytes_of(added(2, 0, 9, owner=other), updated(2, FINISHED, owner=other)))
        await asyncio.to_thread(cluster.brokers[0].restart)
        await until(lambda: "was truncated and written on: 1 finished" in str(log.halted_reason), "the halt goes on")
        assert [one.state for one in log.list_remote_log_segments(OWNER)] == [FINISHED]


async def test_who_is_assigned_while_the_end_is_lost_is_read_once_it_is_back(
    kafka_cluster: Callable[..., KafkaCluster],
) -> None:
    cluster, other = await asyncio.to_thread(kafka_cluster), beside()
    async with opened(settings_of(cluster, TOPIC)) as log:
        await ready(log, OWNER)
        await log.publish(added(1, 0, 9))
        await write(cluster, TOPIC, *bytes_of(added(2, 0, 9, owner=other), updated(2, FINISHED, owner=other)))
        await log.publish(updated(1, FINISHED))
        whole = await asyncio.to_thread(cut_last_batch, cluster)
        await until(lambda: "ends at offset 3, but was read up to 4" in str(log.halted_reason), "the halt")
        await log.assign([other])
        await asyncio.to_thread(put_back, cluster, whole)
        await until(lambda: log.is_ready(other), "the other one is read")
        assert [one.state for one in log.list_remote_log_segments(other)] == [FINISHED]
        await until(lambda: log.halted_reason is None, "the end of the halt")
