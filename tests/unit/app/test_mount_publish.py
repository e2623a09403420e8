"""What `mount publish` does when all is published."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.scripted import MemoryStateLog
from tests.unit.app.test_repair_run import view_of
from tiersidecar.adapters.kafka.broker import KafkaBroker
from tiersidecar.app.commands.session import Session
from tiersidecar.app.config.config import Config
from tiersidecar.app.mount_file import MountPlan, OpenTransaction
from tiersidecar.app.mount_publish import MountPublisher
from tiersidecar.domain.cluster_topics import NewPartition, NewTopic, TopicPartition
from tiersidecar.domain.errors import BrokerUnreachableError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import NO_OFFSET
from tiersidecar.ports.state_log import PartitionState

ID = Uuid(b"orders-topic-id!")
EPOCH = 1003


def owner(partition: int) -> TopicIdPartition:
    return TopicIdPartition(topic_id=ID, topic="orders", partition=partition)


class Markers:
    """Takes abort markers; ``refused`` is the producer whose marker it does not take."""

    def __init__(self) -> None:
        self.aborted: list[tuple[TopicPartition, int]] = []
        self.refused = -1

    @property
    def mounting(self) -> Markers:
        return self

    async def abort(self, place: TopicPartition, broker_id: int, producer_id: int, producer_epoch: int) -> None:
        if producer_id == self.refused:
            raise BrokerUnreachableError(address="broker:1", reason="it went away")
        self.aborted.append((place, producer_id))


class Together(MemoryStateLog):
    """Answers when ``most`` records have been sent."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._all_sent = asyncio.Barrier(most)

    async def publish_partition_state(self, topic_id_partition: TopicIdPartition, state: PartitionState) -> None:
        async with asyncio.timeout(10):
            await self._all_sent.wait()
        await super().publish_partition_state(topic_id_partition, state)


def publisher(state: MemoryStateLog, broker: Markers, *start_offsets: int) -> MountPublisher:
    partitions = tuple(
        NewPartition(partition=number, replicas=(1,), leader_epoch=1000, start_offset=start)
        for number, start in enumerate(start_offsets)
    )
    plan = MountPlan(
        made_ms=0,
        former_cluster_id="former",
        topics=(NewTopic(name="orders", topic_id=ID, partitions=partitions, configs=()),),
        next_producer_id=0,
        open_transactions={
            ("orders", number): (OpenTransaction(producer_id=number, producer_epoch=0, first_offset=1),)
            for number in range(len(partitions))
        },
    )
    session = Session(
        config=cast("Config", None),
        broker=cast("KafkaBroker", broker),
        state=state,
        metadata=MemoryMetadataLog(),
        clock=ManualClock(),
    )
    return MountPublisher(session, plan, lambda step: None)


def views(count: int) -> dict[TopicPartition, object]:
    return {("orders", number): view_of(owner(number), leader_epoch=EPOCH) for number in range(count)}


async def test_partitions_do_not_wait_for_each_other_when_they_are_settled() -> None:
    state, broker = Together(4), Markers()
    ended = await publisher(state, broker, 10, 20, 0, 30, 40)._settle_all(views(5))  # type: ignore[arg-type]
    assert ended == 4
    assert sorted(broker.aborted) == [(("orders", number), number) for number in (0, 1, 3, 4)]
    starts = [state.partition_state(owner(number)).trim_offset for number in range(5)]
    assert starts == [10, 20, NO_OFFSET, 30, 40], "the one that begins at 0 has nothing remote"


async def test_what_is_said_shows_that_its_transactions_are_ended() -> None:
    state, broker = MemoryStateLog(), Markers()
    broker.refused = 1
    with pytest.raises(BrokerUnreachableError):
        await publisher(state, broker, 10, 20)._settle_all(views(2))  # type: ignore[arg-type]
    assert state.partition_state(owner(1)).trim_epoch < EPOCH
    broker.refused = -1
    await publisher(state, broker, 10, 20)._settle_all(views(2))  # type: ignore[arg-type]
    assert sorted(broker.aborted) == [(("orders", 0), 0), (("orders", 1), 1)], "each once"
