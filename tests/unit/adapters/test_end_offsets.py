"""Many who want to know where a topic ends by now ask once, and nobody is told what was so before (S-180)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.support.manual_clock import settle
from tests.support.scripted import ScriptedBroker
from tests.support.segments import TOPIC_ID_PARTITION
from tiersidecar.adapters.end_offsets import EndOffsets
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.ports.broker import OffsetAnswer, OffsetSpec

PARTITIONS = [replace(TOPIC_ID_PARTITION, partition=number) for number in range(50)]


class SlowBroker(ScriptedBroker):
    """Knows an end when it is asked, and says it when ``gate`` is open; notes who was asked for in each request."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.asked = asyncio.Event(), list[set[int]]()
        self.failure: BrokerUnreachableError | None = None
        self.grow_to(10)

    def grow_to(self, end: int) -> None:
        self.last_stable_offsets = dict.fromkeys(PARTITIONS, end)

    async def list_offsets(
        self,
        partitions: Mapping[TopicIdPartition, LeaderEpoch],
        spec: OffsetSpec | int,
        *,
        read_committed: bool = False,
    ) -> dict[TopicIdPartition, OffsetAnswer]:
        self.asked.append({one.partition for one in partitions})
        answer = await super().list_offsets(partitions, spec, read_committed=read_committed)
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return answer


async def test_thousands_who_ask_at_once_cost_two_requests() -> None:
    """The first goes off at once; all that come meanwhile are the second's."""
    broker = SlowBroker()
    ends = EndOffsets(broker)
    asking = [asyncio.create_task(ends.of(PARTITIONS[number % 50])) for number in range(4000)]
    await settle()
    broker.grow_to(20)
    broker.gate.set()
    assert await asyncio.gather(*asking) == [10, *[20] * 3999]
    assert broker.asked == [{0}, set(range(50))]


async def test_one_who_comes_while_a_request_is_on_its_way_is_not_told_an_end_of_before() -> None:
    broker = SlowBroker()
    ends = EndOffsets(broker)
    first = asyncio.create_task(ends.of(PARTITIONS[0]))
    await settle()
    broker.grow_to(11)
    second = asyncio.create_task(ends.of(PARTITIONS[0]))
    await settle()
    broker.gate.set()
    assert (await first, await second) == (10, 11)


@pytest.mark.parametrize("gone", [0, 1, 2])
async def test_whoever_stops_asking_takes_nobody_s_answer_along(gone: int) -> None:
    """The second of the three is the one that asks for both of the second round."""
    broker = SlowBroker()
    ends = EndOffsets(broker)
    asking = [asyncio.create_task(ends.of(PARTITIONS[number])) for number in range(3)]
    await settle()
    if gone == 1:
        broker.gate.set()
        await asking[0]
        broker.gate.clear()
        await settle()
    asking[gone].cancel()
    await settle()
    broker.gate.set()
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert [one for number, one in enumerate(found) if number != gone] == [10, 10]


async def test_an_unreachable_broker_is_told_to_all_who_waited_by_one_request() -> None:
    broker = SlowBroker()
    broker.failure = BrokerUnreachableError(address="broker:1", reason="nobody answers")
    ends = EndOffsets(broker)
    asking = [asyncio.create_task(ends.of(one)) for one in PARTITIONS]
    await settle()
    broker.gate.set()
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert all(isinstance(one, BrokerUnreachableError) for one in found)
    assert len(broker.asked) == 2
    broker.failure = None
    assert await ends.of(PARTITIONS[3]) == 10


async def test_a_partition_that_is_refused_is_named() -> None:
    broker = SlowBroker()
    broker.gate.set()
    broker.error = "OFFSET_NOT_AVAILABLE"
    with pytest.raises(BrokerRefusedError, match="OFFSET_NOT_AVAILABLE"):
        await EndOffsets(broker).of(PARTITIONS[0])
