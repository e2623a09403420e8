"""Reading of a .log that lies here: the same batches as by chunks, little fetched, one step ahead at most (U3, U4, U22)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import pairwise

import pytest

from tests.support.faulty_store import FaultyStore
from tests.support.manual_clock import settle
from tests.support.remote_runs import open_run, segments_of
from tests.unit.reading.test_part_reads import BATCH, Remote, read, remote
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.reading.read_path import ReadPath, ReadSettings
from tiersidecar.reading.segment_reader import EndedReads

COUNT = 400
FIRST_STEP = 1024 * 1024
PARTITION = TopicIdPartition(topic_id=Uuid(bytes(16)), topic="orders", partition=0)


@pytest.fixture
async def made(monkeypatch: pytest.MonkeyPatch) -> Remote:
    monkeypatch.setattr(FaultyStore, "is_local", True)
    return await remote(count=COUNT)


def ranges_of(made: Remote) -> list[ByteRange]:
    return [byte_range for _, byte_range in made.store.log_fetches() if byte_range is not None]


async def stream(path: ReadPath, made: Remote, offset: int) -> bytes:
    async with aclosing(path.reader.stream_batches(made.builder.partition, offset)) as parts:
        return b"".join([bytes(part.batches.buffer) async for part in parts])


@pytest.mark.parametrize("offset", [0, 1, 127, 128, 129, 300, COUNT - 1])
async def test_every_batch_from_an_offset_on_is_read_once(made: Remote, offset: int) -> None:
    async with open_run(made.builder.run, store=made.store) as path:
        assert await stream(path, made, offset) == made.log[offset * BATCH :]
        ranges = ranges_of(made)
        again = [before.stop - after.start for before, after in pairwise(ranges)]
        assert set(again) <= {0, BATCH}, (
            "no batch leaves before the offset behind it is there: the last one comes again"
        )


@pytest.mark.parametrize("wanted", [1, BATCH, 10 * BATCH + 1, 3 * FIRST_STEP])
async def test_a_bounded_read_fetches_little_more_than_it_returns(made: Remote, wanted: int) -> None:
    async with open_run(made.builder.run, store=made.store) as path:
        found = await read(path, made, 7, wanted)
        assert found == made.log[7 * BATCH :][: max(wanted // BATCH, 1) * BATCH]
        assert made.fetched_bytes <= wanted + 64 * 1024


@pytest.mark.parametrize("wanted", [BATCH, 5 * BATCH + 1, 2 * FIRST_STEP])
async def test_bounded_reads_that_go_on_fetch_no_batch_but_those_that_did_not_fit_twice(
    made: Remote, wanted: int
) -> None:
    """Nor the index: it is known where the last one ended.  A read of up to 8 MiB is one visit to the store."""
    async with open_run(made.builder.run, store=made.store) as path:
        offset, reads, first = 0, 0, -1
        while offset < COUNT:
            found = await read(path, made, offset, wanted)
            assert found == made.log[offset * BATCH :][: max(wanted // BATCH, 1) * BATCH]
            offset, reads = offset + len(found) // BATCH, reads + 1
            first = len(made.store.fetched) if first < 0 else first
        assert len(made.store.fetched) - first == reads - 1
        ranges = ranges_of(made)
        assert all(range_.start % BATCH == 0 for range_ in ranges)
        assert made.fetched_bytes <= len(made.log) + reads * 64 * 1024


@pytest.mark.parametrize("layout", [{}, {"compression": True}, {"encrypted": True}], ids=str)
async def test_where_a_read_ended_is_forgotten_with_a_segment_that_was_found_broken(
    made: Remote, layout: dict[str, bool]
) -> None:
    made = await remote(count=COUNT, **layout)
    async with open_run(made.builder.run, store=made.store) as path:
        assert await read(path, made, 0, 10 * BATCH) == made.log[: 10 * BATCH]
        (metadata,) = segments_of(made.builder.run, made.builder.partition)
        segments = path.files._segments
        ended = segments._ended
        assert ended.position_of(metadata.remote_log_segment_id, 10) == 10 * BATCH
        await segments.discard(metadata)
        assert ended.position_of(metadata.remote_log_segment_id, 10) is None
        assert await read(path, made, 10, 10 * BATCH) == made.log[10 * BATCH : 20 * BATCH]


def test_of_ended_reads_the_last_are_remembered() -> None:
    ended = EndedReads(most_places=2)
    ids = [RemoteLogSegmentId(topic_id_partition=PARTITION, uuid=Uuid(bytes([n]) * 16)) for n in range(2)]
    ended.add(ids[0], 5, 50)
    ended.add(ids[1], 5, 70)
    ended.add(ids[0], 5, 50)
    ended.add(ids[0], 9, 90)
    assert [ended.position_of(ids[0], 5), ended.position_of(ids[0], 9), ended.position_of(ids[1], 5)] == [50, 90, None]
    ended.forget(ids[0])
    assert ended.position_of(ids[0], 5) is None


@pytest.mark.parametrize(
    ("batch_size", "most_slices"),
    [
        pytest.param(3000, 2, id="small batches: what a step ends in is read again, so each step is one slice"),
        pytest.param(300_000, 8, id="batches that are a large part of a step are put together instead"),
        pytest.param(1_500_000, 8, id="batches larger than the first step, too"),
    ],
)
async def test_where_steps_end_in_a_batch_each_batch_comes_once(
    monkeypatch: pytest.MonkeyPatch, batch_size: int, most_slices: int
) -> None:
    monkeypatch.setattr(FaultyStore, "is_local", True)
    made = await remote(batch_size, count=max(2_000_000 // batch_size, 4))
    async with (
        open_run(made.builder.run, store=made.store) as path,
        aclosing(path.reader.stream_batches(made.builder.partition, 0)) as parts,
    ):
        found = [bytes(part.batches.buffer) async for part in parts]
    assert b"".join(found) == made.log
    assert len(found) <= most_slices
    assert made.fetched_bytes <= len(made.log) * 17 // 16


async def test_the_next_step_is_read_while_a_reader_that_leaves_the_loop_no_turn_has_this_one(made: Remote) -> None:
    async with open_run(made.builder.run, store=made.store) as path:
        parts = path.reader.stream_batches(made.builder.partition, 0)
        await anext(parts)
        assert len(ranges_of(made)) == 2, "without a turn of the loop in between"
        await parts.aclose()


async def test_a_reader_that_stops_asking_has_one_step_ahead_and_gives_it_up(made: Remote) -> None:
    async with open_run(made.builder.run, store=made.store) as path:
        parts = path.reader.stream_batches(made.builder.partition, 0)
        first = await anext(parts)
        assert len(first.batches) <= FIRST_STEP
        await settle()
        assert [len(range_) for range_ in ranges_of(made)] == [FIRST_STEP, len(made.log) - FIRST_STEP + BATCH]
        made.store.gate.clear()
        await parts.aclose()
        made.store.gate.set()
        assert await stream(path, made, 0) == made.log, "its share of the budget is free again"
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("next of")]


async def test_without_budget_left_nothing_is_read_ahead(made: Remote) -> None:
    settings = ReadSettings(read_ahead_total_bytes=0)
    async with (
        open_run(made.builder.run, store=made.store, settings=settings) as path,
        aclosing(path.reader.stream_batches(made.builder.partition, 0)) as parts,
    ):
        await anext(parts)
        await settle()
        assert [len(range_) for range_ in ranges_of(made)] == [FIRST_STEP]


async def test_any_bytes_of_the_log_file_are_those_that_were_asked_for(made: Remote) -> None:
    (metadata,) = segments_of(made.builder.run, made.builder.partition)
    async with open_run(made.builder.run, store=made.store) as path:
        for byte_range in (ByteRange(0, 10), ByteRange(BATCH - 1, FIRST_STEP + 5), ByteRange(0, len(made.log))):
            async with aclosing(path.files.stream_log(metadata, byte_range)) as parts:
                found = b"".join([bytes(part) async for part in parts])
            assert found == made.log[byte_range.start : byte_range.stop]


@pytest.mark.parametrize("layout", ["compression", "encrypted"])
async def test_what_is_stored_otherwise_than_the_broker_had_it_comes_by_chunks(
    monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    monkeypatch.setattr(FaultyStore, "is_local", True)
    made = await remote(count=COUNT, **{layout: True})
    async with open_run(made.builder.run, store=made.store) as path:
        assert await stream(path, made, 0) == made.log
        fetches = len(made.store.log_fetches())
        assert await stream(path, made, 0) == made.log
        assert len(made.store.log_fetches()) == fetches, "they are kept"
