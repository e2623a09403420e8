"""Neighbouring ranges become one request; no more requests run than may (U3, U4, U42)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.manual_clock import settle
from tests.support.recorded_telemetry import RecordedTelemetry
from tiersidecar.domain.errors import StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.metrics.reading import READ_STORE_BYTES, READ_STORE_REQUESTS
from tiersidecar.reading.chunk_manager import MergedFetches

DATA = bytes(range(200))


class GatedStore:
    """``FetchRange`` over ``DATA``: requests wait at the gate."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked: list[tuple[str, int, int]] = []
        self.cancelled = 0
        self.fault: Exception | None = None

    async def fetch_range(self, key: str, byte_range: ByteRange) -> bytes:
        self.asked.append((key, byte_range.start, byte_range.stop))
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fault is not None:
            raise self.fault
        return DATA[byte_range.start : byte_range.stop]

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        return DATA


@asynccontextmanager
async def fetches_of(store: GatedStore, *, parallel: int = 2, most: int = 40) -> AsyncIterator[MergedFetches]:
    fetches = MergedFetches(store, max_parallel=parallel, max_bytes=most, timeout_s=60, telemetry=RecordedTelemetry())
    yield fetches
    await fetches.aclose()


def ask(fetches: MergedFetches, *ranges: tuple[str, int, int]) -> list[asyncio.Task[bytes | bytearray | memoryview]]:
    return [asyncio.create_task(fetches.fetch_range(key, ByteRange(start, stop))) for key, start, stop in ranges]


async def test_neighbours_of_one_object_go_together_up_to_the_bound_and_each_gets_its_own_bytes() -> None:
    store = GatedStore()
    store.gate.set()
    async with fetches_of(store) as fetches:
        ranges = [("a", 0, 20), ("a", 20, 40), ("a", 40, 60), ("b", 60, 70), ("a", 80, 90)]
        found = await asyncio.gather(*ask(fetches, *ranges))
    assert [bytes(part) for part in found] == [DATA[start:stop] for _, start, stop in ranges]
    assert store.asked == [("a", 0, 40), ("a", 40, 60), ("b", 60, 70), ("a", 80, 90)]


async def test_what_waits_for_a_place_is_merged_when_it_gets_one() -> None:
    store = GatedStore()
    async with fetches_of(store, parallel=1) as fetches:
        tasks = ask(fetches, ("a", 0, 10))
        await settle()
        tasks += ask(fetches, ("a", 10, 20))
        await settle()
        tasks += ask(fetches, ("a", 20, 30))
        await settle()
        assert store.asked == [("a", 0, 10)]
        store.gate.set()
        assert b"".join(map(bytes, await asyncio.gather(*tasks))) == DATA[:30]
    assert store.asked == [("a", 0, 10), ("a", 10, 30)]


async def test_a_fault_is_told_to_all_who_came_with_it() -> None:
    store = GatedStore()
    store.fault = StoreError(verb="fetch", key="a", reason="away")
    store.gate.set()
    async with fetches_of(store) as fetches:
        answers = await asyncio.gather(*ask(fetches, ("a", 0, 10), ("a", 10, 20)), return_exceptions=True)
        assert answers == [store.fault] * 2
        store.fault = None
        assert await fetches.fetch_range("a", ByteRange(0, 5)) == DATA[:5]


async def test_a_request_ends_with_the_last_who_waits_for_it() -> None:
    store = GatedStore()
    async with fetches_of(store) as fetches:
        first, second = ask(fetches, ("a", 0, 10), ("a", 10, 20))
        await settle()
        first.cancel()
        await settle()
        assert store.cancelled == 0
        second.cancel()
        await settle()
        assert store.cancelled == 1
        store.gate.set()
        assert await fetches.fetch_range("a", ByteRange(0, 5)) == DATA[:5]


async def test_closed_it_gives_up_what_runs_and_what_waits() -> None:
    store = GatedStore()
    async with fetches_of(store, parallel=1) as fetches:
        tasks = ask(fetches, ("a", 0, 10), ("b", 0, 10))
        await settle()
    for task in tasks:
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_never_more_run_than_may_however_many_have_ended() -> None:
    class Crowded(GatedStore):
        running = most = 0

        async def fetch_range(self, key: str, byte_range: ByteRange) -> bytes:
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                return await super().fetch_range(key, byte_range)
            finally:
                self.running -= 1

    store = Crowded()
    async with fetches_of(store, parallel=2) as fetches:
        for _ in range(3):
            store.gate.clear()
            # Small ones, which wait for others, large ones, which go alone, and parts.
            tasks = ask(fetches, *((key, start, start + size) for key in "abc" for start, size in ((0, 5), (50, 30))))
            tasks += [asyncio.create_task(fetches.fetch_part(key, ByteRange(100, 110))) for key in "abc"]
            await settle()
            assert store.running == 2
            store.gate.set()
            assert (
                b"".join(map(bytes, await asyncio.gather(*tasks))) == (DATA[:5] + DATA[50:80]) * 3 + DATA[100:110] * 3
            )
    assert store.most == 2


async def test_a_part_goes_at_once_where_a_place_is_free_and_else_with_its_neighbours() -> None:
    store = GatedStore()
    async with fetches_of(store, parallel=1) as fetches:
        parts = [asyncio.create_task(fetches.fetch_part("a", ByteRange(0, 10)))]
        await asyncio.sleep(0)
        assert store.asked == [("a", 0, 10)], "in the very turn of the loop"
        parts += [asyncio.create_task(fetches.fetch_part("a", ByteRange(start, start + 10))) for start in (10, 20)]
        await settle()
        store.gate.set()
        assert b"".join(map(bytes, await asyncio.gather(*parts))) == DATA[:30]
    assert store.asked == [("a", 0, 10), ("a", 10, 30)]


@pytest.mark.parametrize(
    ("size", "goes_at_once"),
    [pytest.param(20, False, id="two of its size fit into one request"), pytest.param(21, True, id="no other fits")],
)
async def test_only_what_can_have_a_neighbour_waits_a_turn_of_the_loop_for_one(
    size: int, *, goes_at_once: bool
) -> None:
    store = GatedStore()
    async with fetches_of(store, most=40) as fetches:
        tasks = ask(fetches, ("a", 0, size))
        await asyncio.sleep(0)
        assert bool(store.asked) is goes_at_once
        store.gate.set()
        assert bytes(await tasks[0]) == DATA[:size]


async def test_requests_are_counted_and_not_the_askers() -> None:
    store, telemetry = GatedStore(), RecordedTelemetry()
    store.gate.set()
    fetches = MergedFetches(store, max_parallel=2, max_bytes=40, timeout_s=60, telemetry=telemetry)
    await asyncio.gather(*ask(fetches, ("a", 0, 10), ("a", 10, 20), ("b", 0, 5)))
    assert telemetry.value(READ_STORE_REQUESTS, kind="chunk") == 2
    assert telemetry.value(READ_STORE_BYTES) == 25


async def test_a_place_is_free_again_after_a_fault_and_after_the_asker_has_left() -> None:
    store = GatedStore()
    async with fetches_of(store, parallel=1, most=10) as fetches:
        for _ in range(3):
            (leaving,) = ask(fetches, ("a", 0, 10))
            await settle()
            leaving.cancel()
            await settle()
        store.gate.set()
        store.fault = StoreError(verb="fetch", key="a", reason="away")
        for _ in range(3):
            assert await asyncio.gather(*ask(fetches, ("a", 0, 10)), return_exceptions=True) == [store.fault]
        store.fault = None
        assert bytes((await asyncio.gather(*ask(fetches, ("a", 0, 10))))[0]) == DATA[:10]


async def test_who_has_waited_longest_goes_first_and_one_who_left_while_waiting_costs_nothing() -> None:
    store = GatedStore()
    async with fetches_of(store, parallel=1) as fetches:
        first, left, second, third = ask(fetches, ("a", 0, 10), ("b", 0, 10), ("c", 50, 60), ("d", 0, 10))
        await settle()
        left.cancel()
        await settle()
        store.gate.set()
        await asyncio.gather(first, second, third)
    assert [key for key, _, _ in store.asked] == ["a", "c", "d"]


@pytest.mark.parametrize("size", [10, 30], ids=["with others", "alone"])
async def test_a_request_that_hangs_has_a_time_limit_and_gives_its_place_back(size: int) -> None:
    store = GatedStore()
    fetches = MergedFetches(store, max_parallel=1, max_bytes=40, timeout_s=0.05, telemetry=RecordedTelemetry())
    for _ in range(2):
        with pytest.raises(StoreError, match=r"the-key.*did not come within 0\.05 s"):
            await fetches.fetch_range("the-key", ByteRange(0, size))
    assert len(store.asked) == 2
