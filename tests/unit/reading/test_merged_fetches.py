"""Neighbouring ranges become one request; no more requests run than may (U3, U4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.manual_clock import settle
from tests.support.recorded_telemetry import RecordedTelemetry
from tiersidecar.domain.errors import StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.reading.merged_fetches import MergedFetches

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

    async def fetch_object(self, key: str, *, max_bytes: int | None = None) -> bytes:
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
