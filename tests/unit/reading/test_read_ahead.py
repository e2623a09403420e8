"""Read-ahead: nothing for who reads one chunk, a growing window for who reads on, and never more than the budget (U3, U22)."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from tests.support.faulty_store import FaultyStore
from tests.support.local_batches import batches_between
from tests.support.manual_clock import settle
from tests.support.remote_builder import RemoteBuilder
from tests.support.remote_runs import open_run
from tests.unit.reading.test_histories import source
from tiersidecar.reading.read_ahead import ReadAheadBudget
from tiersidecar.reading.read_path import ReadSettings

CHUNK = 4096


@pytest.fixture
async def builder() -> RemoteBuilder:
    builder = RemoteBuilder(chunk_size=CHUNK)
    await builder.add(source(0, 210))
    await builder.add(source(210, 245))
    return builder


def settings(read_ahead: int, total: int = 1 << 30) -> ReadSettings:
    return ReadSettings(read_ahead_bytes=read_ahead, read_ahead_total_bytes=total, merged_fetch_bytes=0)


async def test_a_read_that_ends_in_its_first_chunk_fetches_no_other(builder: RemoteBuilder) -> None:
    store = FaultyStore(builder.run.store)
    async with open_run(builder.run, store=store, settings=settings(8 * CHUNK)) as path:
        await path.reader.read_batches(builder.partition, 0, max_bytes=100)
        await settle()
        assert len(store.log_fetches()) == 1


async def fetched_after_each_part(builder: RemoteBuilder, read_ahead: ReadSettings, parts: int) -> list[int]:
    """How many chunks were fetched by the time the reader had each of its first ``parts`` parts."""
    store, counts = FaultyStore(builder.run.store), []
    async with (
        open_run(builder.run, store=store, settings=read_ahead) as path,
        aclosing(path.reader.stream_batches(builder.partition, 0)) as stream,
    ):
        for _ in range(parts):
            await anext(stream)
            await settle()
            counts.append(len(store.log_fetches()))
    return counts


async def test_the_window_doubles_while_the_reader_reads_on(builder: RemoteBuilder) -> None:
    counts = await fetched_after_each_part(builder, settings(8 * CHUNK), 16)
    assert counts[0] == 1
    assert sorted(counts) == counts
    ahead = [count - number for number, count in enumerate(sorted(set(counts)))]
    assert ahead[-1] >= 4


async def test_the_window_never_passes_what_one_reader_may_have(builder: RemoteBuilder) -> None:
    most = await fetched_after_each_part(builder, settings(2 * CHUNK), 12)
    least = await fetched_after_each_part(builder, settings(0), 12)
    assert all(0 <= more - fewer <= 2 for more, fewer in zip(most, least, strict=True))
    assert most != least


async def test_small_chunks_do_not_fill_the_requests_that_may_be_in_flight() -> None:
    """A reader's own read-ahead broke its stream off: 16 MiB of chunks of 16 KiB are 1024."""
    small = RemoteBuilder(chunk_size=32)
    await small.add(source(0, 245))
    store, most = FaultyStore(small.run.store), 0
    async with (
        open_run(small.run, store=store, settings=settings(32 * 1024)) as path,
        aclosing(path.reader.stream_batches(small.partition, 0)) as stream,
    ):
        found = b""
        async for part in stream:
            await settle()
            found += part.batches.buffer
            most = max(most, len(store.log_fetches()) - len(found) // 32)
    assert found == batches_between("plain-0", 0, 245)
    assert 64 < most <= 128 + 2


async def test_without_budget_left_it_reads_chunk_by_chunk(builder: RemoteBuilder) -> None:
    none_left = await fetched_after_each_part(builder, settings(8 * CHUNK, total=CHUNK - 1), 12)
    assert none_left == await fetched_after_each_part(builder, settings(0), 12)


async def test_a_reader_gives_its_share_back(builder: RemoteBuilder) -> None:
    async with open_run(builder.run, settings=settings(2 * CHUNK, total=2 * CHUNK)) as path:
        for _ in range(3):
            async with aclosing(path.reader.stream_batches(builder.partition, 0)) as stream:
                assert b"".join([bytes(part.batches.buffer) async for part in stream]) == batches_between(
                    "plain-0", 0, 245
                )
    budget = ReadAheadBudget(reader_bytes=10, total_bytes=10)
    assert budget.take(10)
    assert not budget.take(1)
    budget.give_back(10)
    assert budget.take(10)


async def keys_fetched_until(builder: RemoteBuilder, offset: int, stop_offset: int | None = None) -> set[str]:
    """Which objects a reader from 0 had caused to be fetched when it came to ``offset``."""
    store = FaultyStore(builder.run.store)
    async with (
        open_run(builder.run, store=store, settings=settings(8 * CHUNK)) as path,
        aclosing(path.reader.stream_batches(builder.partition, 0, stop_offset=stop_offset)) as stream,
    ):
        async for part in stream:
            await settle()
            if part.batches.next_offset >= offset:
                break
        return {key.partition("/0/")[2].partition("-")[0] + key[key.rindex(".") :] for key, _ in store.fetched}


async def test_the_next_segment_is_opened_before_the_border_is_reached(builder: RemoteBuilder) -> None:
    keys = await keys_fetched_until(builder, 205)
    assert {f"{210:020d}.rsm-manifest", f"{210:020d}.indexes", f"{210:020d}.log"} <= keys


async def test_a_reader_that_stops_before_the_border_fetches_nothing_of_the_next_segment(
    builder: RemoteBuilder,
) -> None:
    assert f"{210:020d}.log" not in await keys_fetched_until(builder, 208, stop_offset=208)


async def test_far_from_the_border_the_next_segment_is_left_alone(builder: RemoteBuilder) -> None:
    assert f"{210:020d}.log" not in await keys_fetched_until(builder, 100)
