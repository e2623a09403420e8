"""Readers of a segment that a cleaner replaces under them, more than once (issue 23; S-258, S-259, S-263)."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import pytest

from tests.property.test_compaction_model import Writing, segment_of
from tests.support.clean_world import CleanWorld
from tests.support.compacted_logs import ABORT, COMMIT, LogSegment
from tests.support.remote_builder import RemoteBuilder
from tests.support.remote_runs import open_run
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import read_records
from tiersidecar.reading.batch_cutter import BatchSlice
from tiersidecar.reading.remote_log_reader import RemoteBatches

PRODUCER, CHUNK_BYTES, MANY = 2, 400, 1 << 20


@pytest.fixture
def world(tmp_path: Path) -> CleanWorld:
    return CleanWorld(scratch=tmp_path / "cleaned", builder=RemoteBuilder(chunk_size=CHUNK_BYTES))


def an_aborted_transaction() -> tuple[LogSegment, ...]:
    """Its records in the first segment, some chunks from the start, its marker in the second; then its producer goes on."""
    log = Writing()
    for number in range(10):
        log.data([(b"key-%d" % number, bytes(40))], 0, -1)
    log.data([(b"aborted", b"never")], 0, PRODUCER)
    log.data([(b"last", b"1")], 0, -1)
    first = segment_of(log.batches)
    log.batches.clear()
    log.end(PRODUCER, ABORT)
    log.data([(b"key-0", b"2")], 0, -1)
    second = segment_of(log.batches)
    log.batches.clear()
    log.data([(b"x", b"0")], 0, PRODUCER)
    log.end(PRODUCER, COMMIT)
    return first, second, segment_of(log.batches)


async def cleaned_twice(world: CleanWorld) -> None:
    """Once the records of the transaction go, and once the entry of its marker."""
    before = world.given(0)
    for number in range(2):
        world.clock.jump(2)
        log = Writing(offset=16 + number)
        log.data([(b"x", b"%d" % number)], 0, -1)
        await world.add(segment_of(log.batches))
        assert (await world.clean()).left == ""
    assert world.given(0) != before
    marker = world.given(12)
    assert marker is not None
    assert marker.txn_index_empty, "or nothing would be shown"


def shown(parts: list[RemoteBatches]) -> list[bytes | None]:
    """Keys of what a read_committed consumer takes for committed."""
    found: list[bytes | None] = []
    for part in parts:
        aborted = part.aborted_transactions or ()
        for batch in batches_of(part.batches):
            for record in read_records(batch):
                hides = any(one.first_offset <= record.offset <= one.last_offset for one in aborted)
                if not record.is_control and not (hides and record.key == b"aborted"):
                    found.append(record.key)
    return found


def batches_of(part: BatchSlice) -> list[bytes]:
    data = bytes(part.buffer)
    return [data[at : at + header.size_bytes] for at, header in iter_batch_headers(data)]


async def test_a_stream_that_straddles_two_rounds_shows_nothing_that_was_aborted(world: CleanWorld) -> None:
    await world.add(*an_aborted_transaction())
    parts = list[RemoteBatches]()
    async with open_run(world.builder.run) as path:
        stream = path.reader.stream_batches(world.owner, 0, read_committed=True)
        async with aclosing(stream):
            parts.append(await anext(stream))
            assert parts[0].batches.next_offset < 10, "it is in the midst of the first segment"
            await cleaned_twice(world)
            async for part in stream:
                parts.append(part)
    keys = shown(parts)
    assert b"aborted" not in keys
    assert keys[-2:] == [b"last", b"key-0"]


@pytest.mark.parametrize("max_bytes", [1, MANY])
async def test_a_bounded_read_whose_segment_is_replaced_before_its_aborts_are_looked_up_returns_what_took_its_place(
    world: CleanWorld, monkeypatch: pytest.MonkeyPatch, max_bytes: int
) -> None:
    await world.add(*an_aborted_transaction())
    async with open_run(world.builder.run) as path:
        collect, was_cleaned = path.reader._aborted.collect, False  # the moment between the two has no other name

        async def late(*arguments: object) -> object:
            nonlocal was_cleaned
            if not was_cleaned:
                was_cleaned = True
                await cleaned_twice(world)
            return await collect(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(path.reader._aborted, "collect", late)
        fetched = await path.reader.read_batches(world.owner, 10, max_bytes=max_bytes, read_committed=True)
    assert fetched.slices, "as much as was asked for, from the new segment"
    found = [RemoteBatches(batches=one, aborted_transactions=fetched.aborted_transactions) for one in fetched.slices]
    assert shown(found)[:1] == [b"last"]
