"""Reads of what the real plugin wrote, against what the real broker has on its disk.

Shown here: S-142, S-143, S-144, S-145, S-146, S-147, S-155; T-52, T-53, T-54.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

import pytest

from tests.support.faulty_store import FaultyStore, away
from tests.support.local_batches import as_consumed, batches_between, consumed_records, local_batches
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.remote_runs import RUNS, RemoteRun, load_run, open_run, segments_of
from tiersidecar.domain.errors import OffsetOutOfRangeError, StoreError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import RemotePartitionDeleteMetadata
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import Record, aborted_ranges, read_records
from tiersidecar.ports.metrics.reading import FETCH_BYTES, FETCH_ERRORS, FETCH_REQUESTS
from tiersidecar.reading.read_path import ReadPath
from tiersidecar.reading.remote_log_reader import FetchedBatches, RemoteBatches

MIB = 1024 * 1024
WINDOW = 40


async def streamed(
    path: ReadPath, partition: TopicIdPartition, offset: int, *, stop_offset: int | None = None
) -> bytes:
    async with aclosing(path.reader.stream_batches(partition, offset, stop_offset=stop_offset)) as parts:
        return b"".join([bytes(part.batches.buffer) async for part in parts])


def bounds_of(run: RemoteRun, partition: TopicIdPartition) -> tuple[int, int]:
    segments = segments_of(run, partition)
    return segments[0].start_offset, segments[-1].next_offset


def whole(fetched: FetchedBatches) -> bytes:
    return b"".join(bytes(one.buffer) for one in fetched.slices)


@pytest.mark.parametrize("name", RUNS)
async def test_a_stream_from_every_offset_has_the_brokers_batches(name: str) -> None:
    run = await load_run(name)
    assert run.partitions
    async with open_run(run) as path:
        for partition in run.partitions:
            bounds = await path.reader.bounds(partition)
            start, end = bounds.start, bounds.end
            for offset in range(start, end, 97 if partition.topic == "plain1m" else 1):
                # Whole from the first offset, a window from each later one: what comes after it is the same read again.
                stop = end if offset == start else min(offset + WINDOW, end)
                expected = batches_between(str(partition), offset, stop)
                found = await streamed(path, partition, offset, stop_offset=stop)
                assert found == expected, f"{partition} from {offset}"


@pytest.mark.parametrize("name", RUNS)
async def test_bounded_reads_from_offset_to_next_offset_visit_every_batch_once(name: str) -> None:
    run = await load_run(name)
    async with open_run(run) as path:
        for partition in run.partitions:
            bounds = await path.reader.bounds(partition)
            offset, end = bounds.start, bounds.end
            expected, found = batches_between(str(partition), offset, end), b""
            while offset < end:
                fetched = await path.reader.read_batches(partition, offset, max_bytes=5000)
                assert 0 < fetched.size_bytes <= max(5000, len(fetched.slices[0]))
                found += whole(fetched)
                offset = fetched.next_offset
            assert found == expected


async def test_the_records_are_those_that_the_console_consumer_printed() -> None:
    run = await load_run("plain")
    async with open_run(run) as path:
        for partition in run.partitions:
            expected = consumed_records(str(partition), "read_uncommitted")
            bounds = await path.reader.bounds(partition)
            start, end = bounds.start, bounds.end
            if partition.topic == "plain1m":
                continue  # Its records were not printed: the batches above stand for them.
            found = records_of(await streamed(path, partition, start))
            printed = {offset: record for offset, record in expected.items() if start <= offset < end}
            visible = {one.offset: as_consumed(one) for one in found if not one.is_control and one.offset in printed}
            assert visible == printed
            # What is not printed lies below the log start of the source.
            assert all(one.offset < min(printed) for one in found if not one.is_control and one.offset not in printed)


def records_of(data: bytes) -> list[Record]:
    return [
        record
        for position, header in iter_batch_headers(data)
        for record in read_records(data[position : position + header.size_bytes])
    ]


@pytest.mark.parametrize("name", ["plain", "compressed", "encrypted"])
async def test_read_committed_from_every_offset_shows_what_the_consumer_saw(name: str) -> None:
    run = await load_run(name)
    partition = run.partition("transactions-0")
    expected = consumed_records("transactions-0", "read_committed")
    async with open_run(run) as path:
        stable = await path.reader.last_stable_offset(partition)
        assert stable == 180, "every transaction begun in the remote segments has ended in them"
        for offset in range(stable):
            found: dict[int, object] = {}
            async with aclosing(path.reader.stream_batches(partition, offset, read_committed=True)) as parts:
                async for part in parts:
                    found |= {one.offset: as_consumed(one) for one in committed(part) if one.offset >= offset}
            assert found == {at: record for at, record in expected.items() if offset <= at < stable}


def committed(part: RemoteBatches) -> list[Record]:
    hidden = aborted_ranges(part.aborted_transactions or ())
    data = bytes(part.batches.buffer)
    return [
        record
        for position, header in iter_batch_headers(data)
        if not hidden.hides(header) and not header.is_control
        for record in read_records(data[position : position + header.size_bytes])
    ]


@pytest.mark.parametrize("end", [43, 86, 133])
async def test_read_committed_ends_before_a_transaction_that_is_open_at_the_end_of_the_remote_tier(end: int) -> None:
    """S-156: the marker that decides it may still be local, so what follows its first record cannot be told apart."""
    run = await load_run("plain")
    partition = run.partition("transactions-0")
    expected = consumed_records("transactions-0", "read_committed")
    async with open_run(await only_until(run, partition, end)) as path:
        stable = await path.reader.last_stable_offset(partition)
        assert stable == first_open_offset(end)
        found: dict[int, object] = {}
        async with aclosing(path.reader.stream_batches(partition, 0, read_committed=True)) as parts:
            async for part in parts:
                found |= {one.offset: as_consumed(one) for one in committed(part)}
        assert found == {at: record for at, record in expected.items() if at < stable}
        fetched = await path.reader.read_batches(partition, stable, max_bytes=MIB, read_committed=True)
        assert (fetched.slices, fetched.aborted_transactions) == ((), ())


def test_the_cuts_above_have_open_transactions() -> None:
    assert [first_open_offset(end) < end for end in (43, 86, 133, 180)] == [True, True, False, False]


def first_open_offset(end: int) -> int:
    """By the batches themselves: the first one of a transaction whose marker lies at or above ``end``."""
    opened: dict[int, int] = {}
    for batch in local_batches("transactions-0"):
        header = batch.header
        if header.base_offset >= end:
            break
        if header.is_control:
            opened.pop(header.producer_id, None)
        elif header.is_transactional:
            opened.setdefault(header.producer_id, header.base_offset)
    return min(opened.values(), default=end)


async def only_until(run: RemoteRun, partition: TopicIdPartition, end: int) -> RemoteRun:
    """``run`` as it was when the segments below ``end`` had been copied."""
    metadata = MemoryMetadataLog()
    await metadata.assign([partition])
    kept = {segment.remote_log_segment_id for segment in segments_of(run, partition) if segment.end_offset < end}
    for event in run.metadata.events:
        if not isinstance(event, RemotePartitionDeleteMetadata) and event.remote_log_segment_id in kept:
            await metadata.publish(event)
    return replace(run, metadata=metadata, partitions=(partition,))


async def test_a_first_batch_larger_than_the_limit_is_returned_whole_or_not_at_all() -> None:
    """T-53, S-147: only minOneMessage lets the limit be passed."""
    run = await load_run("plain")
    partition = run.partition("plain-0")
    first = local_batches("plain-0")[0]
    async with open_run(run) as path:
        fetched = await path.reader.read_batches(partition, 0, max_bytes=1)
        assert whole(fetched) == first.data
        assert fetched.next_offset == first.header.next_offset
        nothing = await path.reader.read_batches(partition, 0, max_bytes=1, min_one_message=False)
        assert nothing.slices == ()
        assert nothing.next_offset == 0


async def test_a_read_goes_on_into_the_next_segments_up_to_its_limit() -> None:
    run = await load_run("plain")
    partition = run.partition("plain-0")
    async with open_run(run) as path:
        fetched = await path.reader.read_batches(partition, 30, max_bytes=40_000)
        expected = batches_between("plain-0", 30, fetched.next_offset)
        assert whole(fetched) == expected
        assert len({one.base_offset for one in fetched.slices}) >= 3
        assert len(expected) <= 40_000 < len(batches_between("plain-0", 30, fetched.next_offset + 5))


async def test_a_stream_stops_at_the_offset_that_it_is_given() -> None:
    run = await load_run("plain")
    partition = run.partition("plain-0")
    async with open_run(run) as path:
        assert await streamed(path, partition, 3, stop_offset=41) == batches_between("plain-0", 3, 41)


async def test_at_the_end_of_the_remote_tier_a_read_is_empty_and_past_it_out_of_range() -> None:
    """T-52, S-142, S-234."""
    run = await load_run("plain")
    partition = run.partition("plain-0")
    _, end = bounds_of(run, partition)
    async with open_run(run) as path:
        assert (await path.reader.read_batches(partition, end, max_bytes=MIB)).slices == ()
        for offset in (end + 1, 10**12):
            with pytest.raises(OffsetOutOfRangeError) as error:
                await path.reader.read_batches(partition, offset, max_bytes=MIB)
            assert (error.value.start, error.value.stop) == (0, end)


async def test_below_the_remote_log_start_nothing_is_read_although_its_segment_is_there() -> None:
    """A user's delete moved it into the middle of a segment."""
    run = await load_run("plain")
    partition = run.partition("plain-0")
    run.log_starts.offsets[partition] = 40
    async with open_run(run) as path:
        with pytest.raises(OffsetOutOfRangeError) as error:
            await path.reader.read_batches(partition, 39, max_bytes=MIB)
        assert error.value.start == 40
        assert (await path.reader.bounds(partition)).start == Offset(40)
        assert await streamed(path, partition, 40) == batches_between("plain-0", 40, 245)


async def test_reads_that_begin_return_and_fail_are_counted_by_topic() -> None:
    """S-222: RemoteFetchRequestsPerSec, RemoteFetchBytesPerSec, RemoteFetchErrorsPerSec."""
    run, telemetry = await load_run("plain"), RecordedTelemetry()
    partition = run.partition("plain-0")
    store = FaultyStore(run.store)
    async with open_run(run, store=store, telemetry=telemetry) as path:
        read = await path.reader.read_batches(partition, 0, max_bytes=MIB)
        store.bend = away
        with pytest.raises(StoreError):
            await path.reader.read_batches(run.partition("plain-1"), 0, max_bytes=MIB)
    assert telemetry.by_label(FETCH_REQUESTS, "topic") == {"plain": 2}
    assert telemetry.by_label(FETCH_BYTES, "topic") == {"plain": read.size_bytes}
    assert telemetry.by_label(FETCH_ERRORS, "topic") == {"plain": 1}
