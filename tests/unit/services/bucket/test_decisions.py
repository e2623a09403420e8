"""What ListOffsets, Fetch and OffsetForLeaderEpoch make of a partition's bounds."""

from __future__ import annotations

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from tiersidecar.domain.offsets import Lineage, Offset
from tiersidecar.services.bucket.answers import epoch_fault
from tiersidecar.services.bucket.fetch_api import FetchStep, decide_fetch
from tiersidecar.services.bucket.memory_budget import MemoryBudget
from tiersidecar.services.bucket.offsets_api import LogBounds, decide_epoch_end, decide_offset

LOG = LogBounds(start=Offset(40), end=Offset(160), last_stable=Offset(150))
EMPTY = LogBounds(start=Offset(0), end=Offset(0), last_stable=Offset(0))


@pytest.mark.parametrize(
    ("timestamp", "log", "read_committed", "offset"),
    [
        pytest.param(-1, LOG, False, 160, id="the latest is the end"),
        pytest.param(-1, LOG, True, 150, id="the latest of read_committed is the last stable offset"),
        pytest.param(-2, LOG, False, 40, id="the earliest is the start"),
        pytest.param(-4, LOG, False, 160, id="nothing is local, so local records begin at the end"),
        pytest.param(-5, LOG, False, 159, id="the last tiered offset is inclusive"),
        pytest.param(-5, EMPTY, False, -1, id="nothing is tiered"),
        pytest.param(-6, LOG, False, 160, id="nothing waits for its upload"),
        pytest.param(-3, LOG, False, None, id="the largest timestamp is looked up"),
        pytest.param(1_700_000_000_000, LOG, False, None, id="a time is looked up"),
    ],
)
def test_special_timestamps(timestamp: int, log: LogBounds, read_committed: bool, offset: int | None) -> None:
    assert decide_offset(timestamp, log, read_committed=read_committed) == offset


@pytest.mark.parametrize(
    ("offset", "readable_to", "step"),
    [
        pytest.param(39, 160, FetchStep.OUT_OF_RANGE, id="before the first segment"),
        pytest.param(40, 160, FetchStep.READ, id="the first offset"),
        pytest.param(159, 160, FetchStep.READ, id="the last offset"),
        pytest.param(160, 160, FetchStep.NOTHING_YET, id="the end, where a consumer waits"),
        pytest.param(161, 160, FetchStep.OUT_OF_RANGE, id="past the end"),
        pytest.param(150, 150, FetchStep.NOTHING_YET, id="read_committed waits at the last stable offset"),
        pytest.param(149, 150, FetchStep.READ, id="read_committed below it"),
    ],
)
def test_where_a_fetch_reads(offset: int, readable_to: int, step: FetchStep) -> None:
    assert decide_fetch(offset, start=40, end=160, readable_to=readable_to) is step


@pytest.mark.parametrize(
    ("epoch", "end"),
    [
        pytest.param(-1, (-1, -1), id="no epoch has no end"),
        pytest.param(1, (1, 40), id="an epoch before the first one ends where that begins"),
        pytest.param(2, (2, 100), id="an epoch ends where the next one begins"),
        pytest.param(4, (2, 100), id="of an epoch that wrote nothing, the one before it counts"),
        pytest.param(5, (5, 160), id="the latest ends with the log"),
        pytest.param(6, (-1, -1), id="an epoch that the bucket does not know yet"),
    ],
)
def test_ends_of_leader_epochs(epoch: int, end: tuple[int, int]) -> None:
    assert decide_epoch_end(Lineage.of([(2, 40), (5, 100)]), epoch, Offset(160)) == end


def test_the_leader_epoch_that_a_client_goes_by() -> None:
    assert epoch_fault(-1, 5) is None
    assert epoch_fault(5, 5) is None
    assert epoch_fault(4, 5) is ErrorCode.fenced_leader_epoch
    assert epoch_fault(6, 5) is ErrorCode.unknown_leader_epoch


async def test_one_user_gets_half_of_the_memory_of_responses() -> None:
    memory = MemoryBudget(100)
    async with memory.taken("greedy", 80, 1.0) as first:
        assert first.has_room
        assert memory.free_bytes == 50
        async with memory.taken("greedy", 1, 0.0) as second:
            assert not second.has_room
        async with memory.taken("other", 50, 1.0) as third:
            assert third.has_room
            waiting = asyncio.create_task(_take(memory, "third", 10))
            await asyncio.sleep(0)
            assert not waiting.done()
        assert await waiting
    assert memory.free_bytes == 100


async def _take(memory: MemoryBudget, owner: str, size_bytes: int) -> bool:
    async with memory.taken(owner, size_bytes, 10.0) as share:
        return share.has_room


async def test_what_a_response_does_not_need_is_given_back_at_once() -> None:
    memory = MemoryBudget(100)
    async with memory.taken("one", 50, 1.0) as share:
        memory.keep(share, 20)
        assert memory.free_bytes == 80
        memory.keep(share, 90)
        assert memory.free_bytes == 80
        assert await _take(memory, "one", 30)
    assert memory.free_bytes == 100


async def test_a_reader_that_gives_up_leaves_its_place() -> None:
    memory = MemoryBudget(100)
    async with memory.taken("one", 50, 1.0), memory.taken("two", 50, 1.0):
        waiting = asyncio.create_task(_take(memory, "three", 10))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert memory.free_bytes == 100
    assert await _take(memory, "four", 50)
