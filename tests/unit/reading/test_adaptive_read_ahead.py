"""Read-ahead that follows the store: far and near ones, narrow ones, slow readers, several readers, segment borders (U3).

Stores are links of a latency and a bandwidth that all fetches share, in a time that only the test moves.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from tests.support.manual_clock import ManualClock, settle
from tests.support.recorded_telemetry import RecordedTelemetry
from tiersidecar.domain.errors import StoreError
from tiersidecar.formats.aiven.transforms import ChunkIndex
from tiersidecar.ports.metrics.reading import READ_AHEAD_BYTES, READ_AHEAD_WINDOWS
from tiersidecar.ports.store import Buffer
from tiersidecar.reading.chunk_manager import ChunkManager, FetchLatency
from tiersidecar.reading.read_ahead import ReadAhead, ReadAheadBudget
from tiersidecar.reading.remote_objects import RemoteSegment

MIB = 1024 * 1024
CHUNK = 4 * MIB
TICK_S = 0.001


def segment(name: str, chunks: int, *, chunk_bytes: int = CHUNK) -> RemoteSegment:
    """A segment of so many chunks, as far as read-ahead looks at one."""
    index = ChunkIndex(
        original_chunk_size=chunk_bytes,
        original_file_size=chunks * chunk_bytes,
        transformed_chunk_size=chunk_bytes,
        final_transformed_chunk_size=chunk_bytes,
    )
    return cast("RemoteSegment", SimpleNamespace(id=name, keys=SimpleNamespace(log=name), chunk_index=index))


@dataclass
class Link:
    """``ChunkManager.get_chunk`` over a link.  ``most`` is how many fetches were under way at once."""

    clock: ManualClock
    latency: FetchLatency
    latency_s: float
    mib_per_s: float
    free_s: float = 0.0
    now: int = 0
    most: int = 0
    fetched: list[tuple[str, int]] = field(default_factory=list)
    faults: list[StoreError] = field(default_factory=list)

    async def get_chunk(self, of: RemoteSegment, index: int) -> Buffer:
        self.fetched.append((cast("str", of.id), index))
        self.now += 1
        self.most = max(self.most, self.now)
        began_s = self.clock.monotonic_s()
        self.free_s = max(self.free_s, began_s) + CHUNK / MIB / self.mib_per_s
        try:
            await self.clock.sleep(self.free_s + self.latency_s - began_s)
        finally:
            self.now -= 1
        if self.faults:
            raise self.faults.pop()
        self.latency.fetched(of.keys.log, CHUNK, began_s)
        return bytes(CHUNK)


class World:
    """One link and one budget; readers come and go."""

    def __init__(self, *, latency_s: float, mib_per_s: float, most: int = 64 * MIB, total: int = 1024 * MIB) -> None:
        self.clock, self.telemetry = ManualClock(), RecordedTelemetry()
        latency = FetchLatency(self.clock)
        self.link = Link(self.clock, latency, latency_s, mib_per_s)
        self.budget = ReadAheadBudget(reader_bytes=most, total_bytes=total, latency=latency, telemetry=self.telemetry)

    def reader(self) -> ReadAhead:
        return ReadAhead(cast("ChunkManager", self.link), self.budget)

    @asynccontextmanager
    async def time_passes(self) -> AsyncIterator[None]:
        """While inside, whoever sleeps is woken in time, as fast as the test can."""

        async def tick() -> None:
            while True:
                await settle(8)
                await self.clock.advance(TICK_S)

        ticking = asyncio.create_task(tick())
        try:
            yield
        finally:
            ticking.cancel()

    async def read(
        self,
        reader: ReadAhead,
        chunks: int,
        *,
        pause_s: float = 0.0,
        name: str = "one",
        following: RemoteSegment | None = None,
    ) -> float:
        """Seconds that it takes to read a segment, with a pause after each chunk; the reader goes on with ``following``."""
        began_s = self.clock.monotonic_s()
        async with aclosing(reader.read(segment(name, chunks), 0)) as parts:
            async for _ in parts:
                if following is not None:
                    reader.follow_with(following, 0)
                    following = None
                if pause_s:
                    await self.clock.sleep(pause_s)
        return self.clock.monotonic_s() - began_s


async def test_a_store_of_50_ms_is_read_as_fast_as_its_bandwidth_allows() -> None:
    world = World(latency_s=0.05, mib_per_s=800)
    async with world.time_passes():
        with world.reader() as reader:
            took_s = await world.read(reader, 400)
    assert 1600 * MIB / took_s >= 0.85 * 800 * MIB
    assert world.link.most <= 25, "twice 44 MiB, and a little"


async def test_an_eighth_of_that_bandwidth_needs_far_less_in_flight() -> None:
    world = World(latency_s=0.05, mib_per_s=100)
    async with world.time_passes():
        with world.reader() as reader:
            took_s = await world.read(reader, 400)
    assert 1600 * MIB / took_s >= 0.95 * 100 * MIB
    assert world.link.most <= 8, "and it stays so after many periods"


async def test_a_slow_reader_holds_little() -> None:
    world = World(latency_s=0.05, mib_per_s=800)
    async with world.time_passes():
        with world.reader() as reader:
            await world.read(reader, 60, pause_s=0.2)
            held_bytes = reader.window_bytes
    assert held_bytes == 3 * CHUNK
    bounds = world.telemetry.by_label(READ_AHEAD_WINDOWS, "bound")
    assert bounds["reader"] > 10 > bounds["store"]


async def test_what_is_held_is_told_and_given_back() -> None:
    world = World(latency_s=0.05, mib_per_s=800)
    async with world.time_passes():
        with world.reader() as reader:
            await world.read(reader, 40)
            assert (world.telemetry.value(READ_AHEAD_BYTES) or 0) >= reader.window_bytes > 0
    assert world.telemetry.value(READ_AHEAD_BYTES) == 0
    assert world.budget.free_bytes == 1024 * MIB


async def test_two_readers_share_the_memory_though_one_came_first() -> None:
    world = World(latency_s=0.05, mib_per_s=10_000, total=64 * MIB)
    async with world.time_passes():
        with world.reader() as first, world.reader() as second:
            await world.read(first, 60)
            assert first.window_bytes == 48 * MIB
            both = asyncio.gather(world.read(first, 150), world.read(second, 150))
            await world.clock.sleep(0.4)
            windows = sorted((first.window_bytes, second.window_bytes))
            await both
    assert windows[0] >= 20 * MIB
    assert sum(windows) <= 64 * MIB
    assert world.telemetry.by_label(READ_AHEAD_WINDOWS, "bound")["memory"] > 0


async def test_behind_a_border_a_reader_goes_on_at_the_same_rate() -> None:
    """Segments of 16 chunks: a pause of one latency at each border would cost a third."""
    world = World(latency_s=0.05, mib_per_s=800)
    async with world.time_passes():
        with world.reader() as reader:
            await world.read(reader, 64, name="0", following=segment("1", 16))
            began_s = world.clock.monotonic_s()
            for number in range(1, 9):
                await world.read(reader, 16, name=f"{number}", following=segment(f"{number + 1}", 16))
            rate = 8 * 16 * CHUNK / (world.clock.monotonic_s() - began_s)
    assert rate >= 0.9 * 800 * MIB
    assert len(world.link.fetched) == len(set(world.link.fetched)), "nothing is fetched twice"


class Shelf:
    """``ChunkManager.get_chunk`` that has everything at once.  Keeps what was asked for, by segment."""

    def __init__(self) -> None:
        self.fetched = defaultdict[object, list[int]](list)

    async def get_chunk(self, of: RemoteSegment, index: int) -> Buffer:
        self.fetched[of.id].append(index)
        await asyncio.sleep(0)
        return bytes(of.chunk_index.original_chunk_size)


@pytest.mark.parametrize(
    ("before_bytes", "behind_bytes", "begun"),
    [
        pytest.param(CHUNK, CHUNK, 3, id="chunks as large as before: as many as the window has left"),
        pytest.param(MIB // 4, CHUNK, 3, id="large ones behind small ones: as many as fill the rest, no more"),
        pytest.param(CHUNK, MIB // 4, 48, id="small ones behind large ones: as many as fill the rest, no fewer"),
    ],
)
async def test_what_is_begun_behind_the_border_fills_the_window_in_bytes(
    before_bytes: int, behind_bytes: int, begun: int
) -> None:
    shelf, budget = Shelf(), ReadAheadBudget(reader_bytes=16 * MIB, total_bytes=16 * MIB)
    before = segment("before", 64 * MIB // before_bytes, chunk_bytes=before_bytes)
    behind = segment("behind", 64 * MIB // behind_bytes, chunk_bytes=behind_bytes)
    with ReadAhead(cast("ChunkManager", shelf), budget) as reader:
        left_bytes = 64 * MIB
        async with aclosing(reader.read(before, 0)) as parts:
            async for part in parts:
                left_bytes -= len(part)
                if left_bytes == 16 * MIB:
                    reader.follow_with(behind, 0)
                if left_bytes == 0:
                    await settle()
                    break
        assert reader.window_bytes == 12 * MIB
        assert shelf.fetched["behind"] == list(range(begun))
        assert budget.free_bytes == 4 * MIB
    assert budget.free_bytes == 16 * MIB


async def test_behind_the_border_nothing_is_begun_for_which_no_memory_is_left() -> None:
    shelf, budget = Shelf(), ReadAheadBudget(reader_bytes=16 * MIB, total_bytes=16 * MIB)
    assert budget.take(13 * MIB)
    with ReadAhead(cast("ChunkManager", shelf), budget) as reader:
        reader.follow_with(segment("two", 4), 0)
        await settle()
    assert shelf.fetched == {}
    assert budget.free_bytes == 3 * MIB


async def test_a_window_that_is_fitted_to_steps_gives_nothing_back_of_what_was_begun() -> None:
    shelf, budget = Shelf(), ReadAheadBudget(reader_bytes=16 * MIB, total_bytes=16 * MIB)
    with ReadAhead(cast("ChunkManager", shelf), budget) as reader:
        reader.follow_with(segment("two", 4), 0)
        assert reader.fit(MIB, most_steps=2) == 2
        assert budget.free_bytes == 16 * MIB - CHUNK


@pytest.mark.parametrize(
    ("readers", "steps"),
    [
        pytest.param(2, [2, 2], id="few"),
        pytest.param(3, [1, 1, 2], id="more"),
        pytest.param(4, [1, 1, 1, 1], id="many, whoever came first"),
        pytest.param(9, [0, 1, 1, 1, 1, 1, 1, 1, 1], id="one too many"),
    ],
)
def test_the_more_read_the_fewer_steps_each_has_ahead(readers: int, steps: list[int]) -> None:
    budget = ReadAheadBudget(reader_bytes=16 * MIB, total_bytes=8 * MIB)
    crowd = [ReadAhead(cast("ChunkManager", Shelf()), budget) for _ in range(readers)]
    rounds = [[reader.fit(MIB, most_steps=2) for reader in crowd] for _ in range(4)]
    assert sorted(rounds[-1]) == steps
    assert budget.free_bytes == (8 - sum(steps)) * MIB
    for reader in crowd[1:]:
        with reader:
            pass
    assert crowd[0].fit(MIB, most_steps=2) == 2, "there is room again"


@pytest.mark.parametrize(
    ("reader_bytes", "steps"),
    [(16 * MIB, 2), (2 * MIB, 2), (2 * MIB - 1, 1), (MIB - 1, 0), (0, 0)],
)
def test_no_more_steps_are_ahead_than_one_reader_may_have(reader_bytes: int, steps: int) -> None:
    budget = ReadAheadBudget(reader_bytes=reader_bytes, total_bytes=16 * MIB)
    with ReadAhead(cast("ChunkManager", Shelf()), budget) as reader:
        assert reader.fit(MIB, most_steps=2) == steps
        assert budget.free_bytes == 16 * MIB - steps * MIB


async def test_a_chunk_behind_the_border_that_failed_meanwhile_is_fetched_anew() -> None:
    world = World(latency_s=0.05, mib_per_s=800)
    async with world.time_passes():
        with world.reader() as reader:
            world.link.faults = [StoreError(verb="fetch", key="two", reason="away")]
            reader.follow_with(segment("two", 4), 0)
            await world.clock.sleep(1)
            await world.read(reader, 4, name="two")
    assert world.link.fetched[:2] == [("two", 0), ("two", 0)]


async def test_a_reader_that_leaves_waits_for_nothing_behind_the_border() -> None:
    told = list[dict[str, object]]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    world = World(latency_s=0.05, mib_per_s=800)
    with world.reader() as reader:
        reader.follow_with(segment("two", 4), 0)
        await settle()
        assert world.link.now == 1
    await settle()
    assert (world.link.now, told) == (0, [])


async def test_a_near_place_tells_nothing_of_a_far_one() -> None:
    clock = ManualClock()
    latency = FetchLatency(clock, lambda key: key.partition("/")[0])
    for key, took_s in (("near/a", 0.002), ("far/a", 0.1)):
        began_s = clock.monotonic_s()
        await clock.advance(took_s)
        latency.fetched(key, CHUNK, began_s)
    assert latency.usual_s("near/b", CHUNK) == pytest.approx(0.002)
    assert latency.usual_s("far/b", CHUNK) == pytest.approx(0.1)
    assert latency.usual_s("another/b", CHUNK) is None
