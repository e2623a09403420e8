"""Fills that are read before they are asked for (U3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.support.gateway_world import World, open_world
from tests.support.local_batches import batches_between
from tests.support.manual_clock import ManualClock, settle
from tests.support.remote_runs import load_run
from tiersidecar.reading.remote_log_reader import FetchedBatches
from tiersidecar.services.gateway.remote_fills import FillWant, RemoteFills

START, END, FILL_BYTES = 200, 245, 3000


@asynccontextmanager
async def fills_of(ready_bytes: int = 2**20) -> AsyncIterator[tuple[World, RemoteFills, FillWant]]:
    run = await load_run("plain")
    async with open_world(run, run.partition("plain-0"), local=(START, END + 1)) as world:
        fills = RemoteFills(reader=world.path.reader, clock=world.clock, ready_bytes=ready_bytes)
        want = FillWant(partition=world.partition, offset=0, max_bytes=FILL_BYTES, read_committed=False)
        try:
            yield world, fills, want
        finally:
            await fills.aclose()


async def test_a_reader_that_goes_on_finds_the_next_fills_read() -> None:
    async with fills_of() as (_, fills, want):
        first = await fills.read(want)
        await settle(300)
        assert not len(fills._ready), "most readers end with their first"
        found = [first]
        while found[-1].next_offset < START:
            found.append(await fills.read(replace(want, offset=found[-1].next_offset)))
            await settle(300)
            if len(found) == 2:
                assert len(fills._ready) == 2
            if len(found) == 3:
                assert len(fills._ready) == 1 + 8
        records = b"".join(bytes(part.buffer) for one in found for part in one.slices)
        assert records == batches_between("plain-0", 0, found[-1].next_offset - 1)


class Hurrying(ManualClock):
    """A millisecond passes between two looks at it."""

    def monotonic_s(self) -> float:
        self.stand_still(0.001)
        return super().monotonic_s()


async def turns_of(work: Coroutine[Any, Any, object]) -> int:
    """How many turns of the loop ``work`` takes."""
    task, turns = asyncio.create_task(work), 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    return turns


async def test_others_have_their_turns_while_many_batches_are_cut_and_none_is_spent_on_few() -> None:
    async with fills_of() as (world, fills, want):
        await fills._read(want, 8)  # what comes from the store now is in the caches for both
        slow = RemoteFills(reader=world.path.reader, clock=Hurrying())
        at_once = await turns_of(fills._read(want, 8))
        assert await turns_of(slow._read(want, 8)) == at_once + 8


@pytest.mark.parametrize(("pause_s", "most"), [(0.01, 11), (0.3, 5), (1.5, 2)])
async def test_a_slow_reader_has_no_more_read_ahead_than_he_comes_for_in_time(pause_s: float, most: int) -> None:
    async with fills_of() as (world, fills, want):
        ahead = list[int]()
        while want.offset < START:
            found = await fills.read(want)
            await settle(300)
            ahead.append(len(fills._ready))
            want = replace(want, offset=found.next_offset)
            await world.clock.advance(pause_s)
        assert max(ahead) <= most, "what is kept too long would be read again, and charged to the quota"


async def test_readers_share_the_room_and_each_has_its_next_fill() -> None:
    async with fills_of(ready_bytes=2 * FILL_BYTES) as (_, fills, want):
        first = await fills.read(want)
        await fills.read(replace(want, offset=first.next_offset))
        await settle(300)
        assert len(fills._ready) == 1


async def test_what_nobody_came_for_is_forgotten() -> None:
    async with fills_of() as (world, fills, want):
        first = await fills.read(want)
        await fills.read(replace(want, offset=first.next_offset))
        await settle(300)
        left = fills._ready.size_bytes
        assert left
        await world.clock.advance(3)
        other = replace(want, max_bytes=FILL_BYTES + 1)
        first = await fills.read(other)
        await fills.read(replace(other, offset=first.next_offset))
        await settle(300)
        kept = fills._ready.keys()
        assert all(key.max_bytes == other.max_bytes for key in kept)


async def test_a_reader_that_could_not_wait_finds_what_its_read_brought() -> None:
    """U2: and what follows is read ahead for it.  With caches smaller than a fill, every read would come too late again."""
    async with fills_of() as (_, fills, want):
        impatient = asyncio.create_task(fills.read(want))
        await settle(1)
        impatient.cancel()
        await settle(300)
        found = fills.take_ready([want])
        assert found is not None
        await settle(300)
        assert fills.take_ready([replace(want, offset=found[0].next_offset)])
        assert not fills._waiting


async def test_what_is_ready_is_taken_at_once_and_all_of_it_or_none() -> None:
    async with fills_of() as (_, fills, want):
        assert fills.take_ready([want]) is None
        first = await fills.read(want)
        second = await fills.read(replace(want, offset=first.next_offset))
        await settle(300)
        third = replace(want, offset=second.next_offset)
        assert fills.take_ready([third, replace(want, offset=7)]) is None
        found = (fills.take_ready([third]) or [first])[0]
        alone = await world_free_read(fills, third)
        assert [bytes(one.buffer) for one in found.slices] == [bytes(one.buffer) for one in alone.slices]
        assert fills.take_ready([third]) is None, "it is taken"


async def world_free_read(fills: RemoteFills, want: FillWant) -> FetchedBatches:
    """What a read of its own gives."""
    return await fills._reader.read_batches(want.partition, want.offset, max_bytes=want.max_bytes)


@pytest.mark.parametrize("fill_bytes", [700, 3000])
async def test_aborted_transactions_of_a_fill_read_ahead_are_those_of_a_read_of_its_own(fill_bytes: int) -> None:
    """S-155: one too many would hide the producer's later records, one too few would show aborted ones."""
    run = await load_run("plain")
    partition = run.partition("transactions-0")
    compared = 0
    async with open_world(run, partition, local=(START, END + 1)) as world:
        fills, reader = RemoteFills(reader=world.path.reader, clock=world.clock), world.path.reader
        stop = await reader.last_stable_offset(partition)
        want = FillWant(partition=partition, offset=0, max_bytes=fill_bytes, read_committed=True)
        while want.offset < stop:
            found = await fills.read(want)
            alone = await reader.read_batches(partition, want.offset, max_bytes=fill_bytes, read_committed=True)
            assert b"".join(bytes(one.buffer) for one in found.slices) == b"".join(
                bytes(one.buffer) for one in alone.slices
            )
            assert set(found.aborted_transactions or ()) == set(alone.aborted_transactions or ())
            compared += len(found.aborted_transactions or ())
            want = replace(want, offset=found.next_offset)
            await settle(300)
        await fills.aclose()
    assert compared, "there were some to compare"
