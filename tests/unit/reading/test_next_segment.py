"""When the segment behind the border is opened ahead: once, near the border, and only for who goes past it (U3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from tests.support.manual_clock import settle
from tests.support.segments import TOPIC_ID_PARTITION, remote_segment
from tiersidecar.domain.errors import StoreError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.reading.read_ahead import ReadAhead
from tiersidecar.reading.remote_log_reader import NextSegment
from tiersidecar.reading.segment_lookup import Located, SegmentLookup
from tiersidecar.reading.segment_reader import SegmentReader

HERE = Located(remote_segment(100, 199, size_bytes=10_000), Offset(200))
"""A hundred offsets of a hundred bytes each."""
NEXT = Located(remote_segment(200, 299), Offset(300))
AFTER = Located(remote_segment(300, 399), Offset(400))


class World:
    """``lookup``, ``segments`` and ``read_ahead`` at once: what lies behind a border, what was opened of it, and what is to
    be read on with."""

    def __init__(self) -> None:
        self.behind: dict[int, Located] = {200: NEXT, 300: AFTER}
        self.opened, self.cancelled = list[tuple[Located, int]](), 0
        self.followed = list[Located]()
        self.window_bytes = 5_000
        self.gate = asyncio.Event()
        self.gate.set()
        self.fault: Exception | None = None

    async def locate(self, topic_id_partition: TopicIdPartition, offset: int) -> Located | None:
        assert topic_id_partition == TOPIC_ID_PARTITION
        return self.behind.get(offset)

    async def open_at(self, located: Located, offset: int) -> tuple[Located, int]:
        self.opened.append((located, offset))
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fault is not None:
            raise self.fault
        return located, 0

    def follow_with(self, located: Located, first: int) -> None:
        self.followed.append(located)


def next_segment(world: World) -> NextSegment:
    return NextSegment(
        lookup=cast("SegmentLookup", world),
        segments=cast("SegmentReader", world),
        read_ahead=cast("ReadAhead", world),
    )


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def following(world: World) -> AsyncIterator[NextSegment]:
    async with next_segment(world) as following:
        yield following


@pytest.mark.parametrize(
    ("next_offset", "stop_offset", "window_bytes", "is_due"),
    [
        pytest.param(150, 1000, 5_001, True, id="the border lies within the window"),
        pytest.param(150, 1000, 5_000, False, id="it lies right behind it"),
        pytest.param(199, 1000, 101, True, id="near the border a small window is enough"),
        pytest.param(100, 1000, 10_001, True, id="a window larger than the segment"),
        pytest.param(100, 1000, 9_999, False, id="a window smaller than the segment"),
        pytest.param(200, 1000, 1, True, id="at the border itself"),
        pytest.param(230, 1000, 1, True, id="past it: the last batch reached over it"),
        pytest.param(199, 1000, 0, False, id="who has not proved to read on has no window"),
        pytest.param(199, 200, 5_000, False, id="who stops at the border"),
        pytest.param(199, 201, 5_000, True, id="who wants one record behind it"),
    ],
)
async def test_when_it_begins(
    world: World, following: NextSegment, next_offset: int, stop_offset: int, window_bytes: int, *, is_due: bool
) -> None:
    world.window_bytes = window_bytes
    following.consider(HERE, next_offset, stop_offset)
    await settle()
    assert (world.opened, world.followed) == (([(NEXT, 200)], [NEXT]) if is_due else ([], []))


async def test_at_one_border_it_begins_once_and_at_the_next_one_again(world: World, following: NextSegment) -> None:
    for next_offset in (198, 199, 200):
        following.consider(HERE, next_offset, 1000)
        await settle()
    following.consider(NEXT, 299, 1000)
    await settle()
    assert world.opened == [(NEXT, 200), (AFTER, 300)]


async def test_who_has_come_to_the_next_border_needs_the_one_before_no_longer(
    world: World, following: NextSegment
) -> None:
    world.gate.clear()
    following.consider(HERE, 199, 1000)
    await settle()
    following.consider(NEXT, 299, 1000)
    await settle()
    assert (len(world.opened), world.cancelled) == (2, 1)


async def test_where_nothing_lies_behind_the_border_nothing_is_opened(world: World, following: NextSegment) -> None:
    world.behind.clear()
    following.consider(HERE, 199, 1000)
    await settle()
    assert world.opened == []


async def test_a_reader_that_leaves_ends_it_and_waits_for_its_end(world: World) -> None:
    world.gate.clear()
    async with next_segment(world) as following:
        following.consider(HERE, 199, 1000)
        await settle()
        assert world.cancelled == 0
    assert world.cancelled == 1
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("segment after")]


async def test_what_goes_wrong_is_left_to_the_read_itself_to_find(world: World) -> None:
    told = list[dict[str, object]]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    world.fault = StoreError(verb="fetch", key="k", reason="away")
    async with next_segment(world) as following:
        following.consider(HERE, 199, 1000)
        await settle()
    await settle()
    assert (len(world.opened), told) == (1, [])
