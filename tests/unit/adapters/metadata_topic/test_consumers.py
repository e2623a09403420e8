"""Which partitions of the topic the main consumer is sent to, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from aiokafka import TopicPartition

from tests.support.manual_clock import ManualClock
from tests.unit.adapters.metadata_topic.replicas import Topic, owner, partition_of
from tiersidecar.adapters.internal_topics import TopicFacts
from tiersidecar.adapters.metadata_topic.consumer import MetadataConsumers
from tiersidecar.adapters.metadata_topic.settings import MetadataTopicSettings
from tiersidecar.domain.errors import BrokerUnreachableError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import NO_EPOCH, Offset
from tiersidecar.ports.broker import OffsetAnswer, OffsetSpec

COUNT = 50
POLL_S = 0.2


class EmptyTopic:
    """A broker whose topic has nothing, and its consumers, which tell what is assigned to them."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.opened, self.is_bootstrap_away = 0, False
        self.assigned: list[set[int]] = []
        self._positions: dict[TopicPartition, int] = {}

    async def list_offsets(
        self, asked: Mapping[TopicIdPartition, int], spec: OffsetSpec
    ) -> dict[TopicIdPartition, OffsetAnswer]:
        return dict.fromkeys(asked, OffsetAnswer(offset=Offset(0), timestamp_ms=-1, leader_epoch=NO_EPOCH))

    def producer(self) -> Any:
        raise AssertionError("nothing is written")

    def open_consumer(self) -> AbstractAsyncContextManager[Any]:
        return self._opened()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[EmptyTopic]:
        if self.is_bootstrap_away:
            raise BrokerUnreachableError(address="localhost:9092", reason="connection refused")
        self.opened += 1
        yield self

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned.append({one.partition for one in partitions})

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._positions[partition] = offset

    async def position(self, partition: TopicPartition) -> int:
        return self._positions[partition]

    def move_on(self, number: int, offset: int) -> None:
        """Stand at ``offset``, as after control batches."""
        for partition in self._positions:
            if partition.partition == number:
                self._positions[partition] = offset

    async def getmany(self, *, timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Any]]:
        await self.clock.sleep(timeout_ms / 1000)
        return {}


@asynccontextmanager
async def reading(newcomer: int) -> AsyncIterator[tuple[ManualClock, Topic, EmptyTopic]]:
    clock = ManualClock()
    held, topic = Topic(partition_count=COUNT), EmptyTopic(clock)
    consumers = MetadataConsumers(
        MetadataTopicSettings(
            bootstrap_servers="localhost:9092", topic="metadata", partitions=COUNT, watch_interval_ms=60_000
        ),
        held.replica,
        broker=topic,  # type: ignore[arg-type]  # the rest of it is not asked
        clients=topic,
        clock=clock,
    )
    facts = TopicFacts(cluster_id="cluster", topic_id=Uuid(b"metadata-topicid"), leader_epochs={})
    held.start([owner(newcomer)], facts)
    running = asyncio.create_task(consumers.run())
    yield clock, held, topic
    assert not running.done()
    running.cancel()
    await asyncio.wait([running])


def of_other_metadata_partitions(count: int) -> list[int]:
    one_of_each = {partition_of(number, COUNT): number for number in range(1000)}
    return list(one_of_each.values())[:count]


async def test_newcomers_one_after_the_other_are_added_at_most_once_a_second() -> None:
    """Each time by another consumer: the broker holds the Fetch of the one before for seconds."""
    newcomers = of_other_metadata_partitions(13)
    async with reading(newcomers[0]) as (clock, held, topic):
        for count in range(1, len(newcomers) + 1):
            held.replica.assign(owner(number) for number in newcomers[:count])
            await clock.advance(POLL_S)
        await clock.advance(1)
    assert [len(one) for one in topic.assigned] == [1, 2, 7, 12, 13]
    assert topic.opened == len(topic.assigned)
    assert topic.assigned[-1] == {partition_of(number, COUNT) for number in newcomers}
    assert all(held.is_ready(number) for number in newcomers)


async def test_what_comes_back_does_not_wait_for_the_fetch_without_it() -> None:
    first, second = of_other_metadata_partitions(2)
    async with reading(first) as (clock, held, topic):
        for numbers in ([first], [first, second], [first], [first, second], [], [first]):
            held.replica.assign(map(owner, numbers))
            await clock.advance(2)
        assert held.is_ready(first)
    one, other = partition_of(first, COUNT), partition_of(second, COUNT)
    assert topic.assigned == [{one}, {one, other}, {one}, {one, other}, {one}]
    assert topic.opened == 3, "with fewer partitions, the same consumer reads on"


async def test_another_position_in_the_same_metadata_partition_does_not_wait_for_the_held_fetch() -> None:
    """Its topic was deleted and another one is made, both at the same place of the metadata topic."""
    first = 0
    second = next(number for number in range(1, 1000) if partition_of(number, COUNT) == partition_of(first, COUNT))
    async with reading(first) as (clock, held, topic):
        await clock.advance(2)
        topic.move_on(partition_of(first, COUNT), 5)
        await clock.advance(2)
        held.replica.assign([owner(second)])
        await clock.advance(2)
        assert held.is_ready(second)
    assert topic.opened == 2


async def test_where_no_other_consumer_can_be_opened_the_one_that_reads_is_kept() -> None:
    first, second = of_other_metadata_partitions(2)
    async with reading(first) as (clock, held, topic):
        await clock.advance(2)
        topic.is_bootstrap_away = True
        held.replica.assign([owner(first), owner(second)])
        await clock.advance(2)
        assert held.is_ready(first)
        assert held.is_ready(second)
    assert topic.opened == 1
