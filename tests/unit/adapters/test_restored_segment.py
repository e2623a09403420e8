"""A segment that is written anew from the store is the one that the broker had (issue 21)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.inline_blocking import InlineBlocking
from tests.support.remote_runs import RUNS, RemoteRun, key_ring, load_run, segments_of
from tests.unit.adapters.log_dirs_fs.broker_files import GOLDEN
from tiersidecar.adapters.restored_segment import (
    STAGED,
    RestoredSegment,
    RestoredSegmentWriter,
    Span,
    digest_of,
)
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Lineage, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.kafka.indexes import (
    read_offset_index,
    read_time_index,
    read_transaction_index,
    write_transaction_index,
)
from tiersidecar.formats.kafka.log_dir_files import read_leader_epochs
from tiersidecar.formats.kafka.producer_state import read_producer_snapshot, write_producer_snapshot
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.reading.segment_stream import SegmentStream

CLEAN = GOLDEN / "clean"


class AtOnce:
    bytes_per_s = None

    async def grant(self, wanted_bytes: int) -> int:
        return wanted_bytes


def lineage_of(partition: TopicIdPartition) -> Lineage:
    path = CLEAN / str(partition) / "leader-epoch-checkpoint"
    return Lineage.of(read_leader_epochs(path.read_bytes()))


async def restored(
    run: RemoteRun,
    segment: RemoteLogSegmentMetadata,
    directory: Path,
    *,
    span: Span | None = None,
    producers: bytes | None = None,
    lineage: Lineage | None = None,
    transactions: bytes = b"",
) -> RestoredSegment:
    """``segment``, or what of it ``span`` has."""
    like = directory / "like"
    like.touch(0o640)
    writer = RestoredSegmentWriter(
        directory,
        span or Span(start=segment.start_offset, stop=segment.next_offset),
        lineage=lineage or lineage_of(segment.topic_id_partition),
        producers=producers,
        like=like.stat(),
        where="a segment",
    )
    stream = SegmentStream(store=run.store, blocking=InlineBlocking(), key_prefix=run.key_prefix, key_ring=key_ring())
    async for _ in stream.feed_log(segment, writer.take, AtOnce()):
        pass
    return writer.finish(transactions)


def written(directory: Path, name: str) -> bytes:
    return (directory / f"{name}{STAGED}").read_bytes()


@pytest.mark.parametrize("name", RUNS)
async def test_a_log_comes_back_as_the_broker_had_it(name: str, tmp_path: Path) -> None:
    run = await load_run(name)
    for partition in run.partitions:
        directory, producers = tmp_path / str(partition), None
        directory.mkdir()
        for segment in segments_of(run, partition):
            made = await restored(run, segment, directory, producers=producers)
            producers = made.producers
            assert made.base_offset == segment.start_offset
            for file in made.files:
                path = directory / f"{file.name}{STAGED}"
                assert (path.stat().st_size, digest_of(path)) == (file.size_bytes, file.sha256)
                assert path.stat().st_mode & 0o777 == 0o640
            compare(directory, CLEAN / str(partition), segment)


def compare(found: Path, broker: Path, segment: RemoteLogSegmentMetadata) -> None:
    """With the broker's own files: the log byte by byte, the indexes by what they say."""
    base, end = segment.start_offset, segment.end_offset
    stem, following = f"{base:020d}", f"{segment.next_offset:020d}.snapshot"
    log = written(found, f"{stem}.log")
    assert log == (broker / f"{stem}.log").read_bytes()
    offsets = read_offset_index(
        written(found, f"{stem}.index"), base_offset=base, segment_size_bytes=len(log), end_offset=end
    )
    batches = {position: header.last_offset for position, header in iter_batch_headers(log)}
    assert all(batches[entry.position] == entry.offset for entry in offsets.entries)
    times = read_time_index(written(found, f"{stem}.timeindex"), base_offset=base, end_offset=end)
    brokers_times = read_time_index((broker / f"{stem}.timeindex").read_bytes(), base_offset=base)
    assert times.entries[-1:] == brokers_times.entries[-1:], "retention goes by the last one"
    theirs = broker / f"{stem}.txnindex"
    ours = found / f"{stem}.txnindex{STAGED}"
    assert (ours.read_bytes() if ours.exists() else b"") == (theirs.read_bytes() if theirs.exists() else b"")
    if (broker / following).exists():
        states = read_producer_snapshot(written(found, following))
        assert list(states) == sorted(
            read_producer_snapshot((broker / following).read_bytes()), key=lambda one: one.producer_id
        )


async def test_what_lies_outside_of_its_offsets_is_left_out(tmp_path: Path) -> None:
    run = await load_run("plain")
    segment = segments_of(run, run.partition("transactions-0"))[1]
    broker = CLEAN / "transactions-0" / f"{segment.start_offset:020d}.log"
    batches = [header for _, header in iter_batch_headers(broker.read_bytes())]
    start, stop = batches[2].base_offset, batches[-2].base_offset
    made = await restored(run, segment, tmp_path, span=Span(start=start, stop=stop))
    found = [header for _, header in iter_batch_headers(written(tmp_path, f"{start:020d}.log"))]
    assert (made.base_offset, found) == (start, batches[2:-2])


async def test_the_first_batch_of_a_log_is_not_cut(tmp_path: Path) -> None:
    run = await load_run("plain")
    segment = segments_of(run, run.partition("plain-0"))[0]
    batches = [
        header
        for _, header in iter_batch_headers((CLEAN / "plain-0" / f"{segment.start_offset:020d}.log").read_bytes())
    ]
    within = next(one for one in batches[1:] if one.last_offset > one.base_offset)
    span = Span(start=Offset(within.base_offset + 1), stop=segment.next_offset, may_begin_before=True)
    made = await restored(run, segment, tmp_path, span=span)
    assert made.base_offset == within.base_offset
    with pytest.raises(CorruptDataError, match="logs differ"):
        await restored(run, segment, tmp_path, span=replace(span, may_begin_before=False))
    with pytest.raises(CorruptDataError, match="logs differ"):
        await restored(
            run, segment, tmp_path, span=Span(start=segment.start_offset, stop=Offset(within.base_offset + 1))
        )


async def test_batches_of_another_history_are_refused(tmp_path: Path) -> None:
    run = await load_run("plain")
    segment = segments_of(run, run.partition("plain-0"))[0]
    with pytest.raises(CorruptDataError, match="not of this history"):
        await restored(run, segment, tmp_path, lineage=Lineage.of([(7, 0)]))


async def test_offsets_of_which_it_has_nothing_are_an_error(tmp_path: Path) -> None:
    run = await load_run("plain")
    segment = segments_of(run, run.partition("plain-0"))[0]
    with pytest.raises(CorruptDataError, match="no batch"):
        await restored(run, segment, tmp_path, span=Span(start=Offset(10_000), stop=Offset(10_001)))


async def test_a_transaction_that_began_in_a_segment_before_is_known_by_its_producer(tmp_path: Path) -> None:
    """Some begin in one golden segment and are aborted in a later one."""
    run = await load_run("plain")
    partition = run.partition("transactions-0")
    entries = {
        segment: read_transaction_index(
            (CLEAN / str(partition) / f"{segment.start_offset:020d}.txnindex").read_bytes(), base_offset=Offset(0)
        )
        for segment in segments_of(run, partition)
    }
    segment, entry = next(
        (segment, entry)
        for segment, some in entries.items()
        for entry in some
        if entry.first_offset < segment.start_offset
    )
    earlier = (CLEAN / str(partition) / f"{segment.start_offset:020d}.snapshot").read_bytes()
    name = f"{segment.start_offset:020d}.txnindex"
    await restored(run, segment, tmp_path, producers=earlier)
    assert entry in read_transaction_index(written(tmp_path, name), base_offset=Offset(0))
    # Behind a hole nobody knows how it began but the index of the store, which is believed where there is a marker.
    stored = (CLEAN / str(partition) / name).read_bytes()
    await restored(run, segment, tmp_path, producers=write_producer_snapshot(), transactions=stored)
    assert written(tmp_path, name) == stored
    earlier_ones = [
        one._replace(first_offset=Offset(0)) for one in read_transaction_index(stored, base_offset=Offset(0))
    ]
    await restored(run, segment, tmp_path, transactions=write_transaction_index(earlier_ones))
    assert list(read_transaction_index(written(tmp_path, name), base_offset=Offset(0))) == earlier_ones
    forged = bytearray(stored)
    forged[9] ^= 1  # of a producer that aborted nothing
    with pytest.raises(CorruptDataError, match="no such abort marker"):
        await restored(run, segment, tmp_path, transactions=bytes(forged))
