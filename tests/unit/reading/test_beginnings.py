"""Where in a segment reading begins, what a read may still return, and what a broken one takes with it (S-143, S-147)."""

from __future__ import annotations

from contextlib import aclosing
from typing import NamedTuple, cast

import pytest

from tests.support.faulty_store import FaultyStore, flip_bit
from tests.support.remote_builder import RemoteBuilder
from tests.support.remote_runs import open_run, segments_of
from tests.support.segments import remote_segment
from tests.unit.reading.test_histories import source
from tests.unit.reading.test_part_reads import read, remote
from tiersidecar.domain.offsets import ByteRange, Offset
from tiersidecar.reading.index_blobs import RemoteIndexes
from tiersidecar.reading.read_path import ReadSettings
from tiersidecar.reading.segment_lookup import Located
from tiersidecar.reading.segment_reader import Allowance, beginning_of, first_batch


class Entry(NamedTuple):
    offset: Offset
    position: int


class Index:
    """An offset index of a segment from 100 on; before the first entry it is at its start, as Kafka's is."""

    def __init__(self, *entries: tuple[int, int]) -> None:
        self.entries = [Entry(Offset(100), 0), *(Entry(Offset(offset), position) for offset, position in entries)]

    def lookup(self, offset: int) -> Entry:
        return max((entry for entry in self.entries if entry.offset <= offset), default=self.entries[0])


class Indexes(NamedTuple):
    offset_index: Index


SEGMENT = remote_segment(100, 199)


@pytest.mark.parametrize(
    ("entries", "offset", "expected"),
    [
        pytest.param([], 150, (0, 100, 199), id="without an entry: the first byte, and any batch of the segment"),
        pytest.param([(120, 700)], 119, (0, 100, 199), id="below the first entry: the first byte"),
        pytest.param([(120, 700)], 120, (700, 100, 120), id="at the first entry: nothing is known of batches before it"),
        pytest.param([(120, 700), (140, 900)], 150, (900, 121, 140), id="the entry before is of an earlier batch"),
        pytest.param([(120, 700), (140, 900)], 139, (700, 100, 120), id="the last entry at or below it counts"),
        pytest.param([(110, 0), (140, 900)], 150, (900, 111, 140), id="an entry of the first batch tells an offset in it"),
        pytest.param([(110, 0)], 150, (0, 100, 199), id="an entry at the first byte is the first batch"),
        pytest.param([(120, 1)], 120, (1, 100, 120), id="a byte behind it is not"),
    ],
)  # fmt: skip
def test_reading_begins_at_an_entry_with_what_it_tells_of_the_batch_there(
    entries: list[tuple[int, int]], offset: int, expected: tuple[int, int, int]
) -> None:
    indexes = cast("RemoteIndexes", Indexes(Index(*entries)))
    assert beginning_of(indexes, SEGMENT, offset) == expected


def test_the_first_batch_may_have_any_offset_of_the_segment() -> None:
    assert first_batch(SEGMENT) == (0, 100, 199)


@pytest.mark.parametrize(
    ("left_bytes", "taken", "expected"),
    [
        pytest.param(None, [5, 10**9], (None, False), id="without a limit it is never used up"),
        pytest.param(10, [4], (6, False), id="a part"),
        pytest.param(10, [4, 5], (1, False), id="but for a byte"),
        pytest.param(10, [4, 6], (0, True), id="to the last byte"),
        pytest.param(10, [40], (-30, True), id="a first batch that is larger"),
    ],
)
def test_what_a_read_may_still_return(
    left_bytes: int | None, taken: list[int], expected: tuple[int | None, bool]
) -> None:
    allowance = Allowance(left_bytes)
    assert (allowance.takes_any_size, allowance.is_used_up) == (True, False)
    for size_bytes in taken:
        allowance.take(size_bytes)
    assert (allowance.left_bytes, allowance.is_used_up) == expected
    assert not allowance.takes_any_size, "only the very first batch may be larger"


async def test_all_that_the_reading_of_a_broken_segment_rests_on_is_fetched_anew() -> None:
    """Which part was damaged is not known: any chunk, the indexes, the manifest."""
    builder = RemoteBuilder(chunk_size=1000)
    first, _ = await builder.add(source(0, 35)), await builder.add(source(35, 70))
    store = FaultyStore(builder.run.store)
    async with open_run(builder.run, store=store) as path:
        await path.reader.read_batches(builder.partition, 20, max_bytes=1 << 20)
        await path.reader.read_batches(builder.partition, 0, max_bytes=1 << 20)
        everything = {key for key, _ in store.fetched if "00000000000000000000-" in key}
        ranges = {fetch for key, fetch in store.log_fetches() if "00000000000000000000-" in key}
        assert len(everything) == 3
        await path.files._segments.discard(first)
        store.fetched.clear()
        await path.reader.read_batches(builder.partition, 20, max_bytes=1 << 20)
        await path.reader.read_batches(builder.partition, 0, max_bytes=1 << 20)
        assert {key for key, _ in store.fetched} == everything, "and nothing of the other segment"
        assert {fetch for _, fetch in store.log_fetches()} == ranges


@pytest.mark.parametrize("offset", [0, 34])
async def test_a_segment_is_opened_at_the_chunk_that_the_read_begins_with(offset: int) -> None:
    builder = RemoteBuilder(chunk_size=1000, index_interval=100)
    made = source(0, 35)
    metadata = await builder.add(made)
    before = sum(len(batch.data) for batch in made.batches if batch.header.last_offset < offset)
    store = FaultyStore(builder.run.store)
    async with open_run(builder.run, store=store) as path:
        opened = await path.files._segments.open_at(Located(metadata, metadata.next_offset), offset)
        assert opened is not None
        assert before - 2500 < opened[1] * 1000 <= before, "the index entry before it is as near"
        assert not store.log_fetches()
        assert bool([key for key, _ in store.fetched if key.endswith(".indexes")]) is (offset > 0)


async def test_a_log_that_lies_here_is_not_opened_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page cache is its cache."""
    monkeypatch.setattr(FaultyStore, "is_local", True)
    made = await remote(count=5)
    (metadata,) = segments_of(made.builder.run, made.builder.partition)
    async with open_run(made.builder.run, store=made.store) as path:
        assert await path.files._segments.open_at(Located(metadata, metadata.next_offset), 0) is None
        assert made.store.log_fetches() == []


async def test_who_has_had_a_part_and_wants_more_of_it_goes_on_behind_it() -> None:
    """The part ends within a batch, and the chunk is fetched for the rest."""
    made = await remote(20 * 1024, count=40)
    async with open_run(made.builder.run, store=made.store) as path:
        wanted = 10 * 1024
        found = await read(path, made, 13, wanted)
        assert found == made.log[13 * 20 * 1024 :][: 20 * 1024]
        found = await read(path, made, 3, 2 * 20 * 1024 + 100)
        assert found == made.log[3 * 20 * 1024 :][: 2 * 20 * 1024]


@pytest.mark.parametrize("damaged", [1, 3, 7])
async def test_what_was_returned_before_a_broken_chunk_is_not_returned_again(damaged: int) -> None:
    """The read goes on where it was, with the chunk fetched anew."""
    builder = RemoteBuilder(chunk_size=1000)
    made = source(0, 35)
    await builder.add(made)
    broken = list[ByteRange]()

    def once(key: str, byte_range: ByteRange | None, data: bytes) -> bytes:
        if not key.endswith(".log") or byte_range is None or byte_range.start != 1000 * damaged or broken:
            return data
        broken.append(byte_range)
        return flip_bit(data, 8 * 500)

    store = FaultyStore(builder.run.store, once)
    # Each chunk by itself, and none ahead.
    settings = ReadSettings(merged_fetch_bytes=0, read_ahead_bytes=0)
    async with (
        open_run(builder.run, store=store, settings=settings) as path,
        aclosing(path.reader.stream_batches(builder.partition, 0)) as parts,
    ):
        found = [bytes(part.batches.buffer) async for part in parts]
    assert broken
    assert b"".join(found) == b"".join(batch.data for batch in made.batches)
