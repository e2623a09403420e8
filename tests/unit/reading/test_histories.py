"""Reads along histories that no fixture has: gaps of compaction, overlaps, deposed leaders, many chunks.

Shown here: T-48, T-49, T-50, T-52, T-53, T-54.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from tests.simulation.records import data_batch
from tests.support.faulty_store import Bend, FaultyStore, flip_bit
from tests.support.local_batches import LocalBatch, batches_between, local_batches
from tests.support.manual_clock import ManualClock
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.remote_builder import RemoteBuilder, SegmentSource
from tests.support.remote_runs import load_run, open_run
from tests.unit.reading.test_lineage import FixedLog
from tests.unit.reading.test_remote_log_reader import records_of, whole
from tiersidecar.domain.errors import CorruptDataError, HistoryChangedError, OffsetInHoleError, OffsetOutOfRangeError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.kafka.record_batches import read_batch_header
from tiersidecar.formats.kafka.records import Record
from tiersidecar.ports.metrics.reading import (
    FETCH_BYTES,
    READ_CACHE_BYTES,
    READ_HOLES,
    READ_REQUESTED_BYTES,
    READ_STORE_BYTES,
)
from tiersidecar.reading.holes import SETTLED_S
from tiersidecar.reading.read_path import ReadPath, ReadSettings

BATCHES = local_batches("plain-0")
EPOCHS = local_batches("epochs-0")
WINDOW = 40


def between(start: int, stop: int, batches: tuple[LocalBatch, ...] = BATCHES) -> list[LocalBatch]:
    return [batch for batch in batches if start <= batch.header.base_offset < stop]


def source(start: int, stop: int, epochs: Mapping[int, int] | None = None, **changes: object) -> SegmentSource:
    """Offsets ``start`` up to ``stop`` of plain-0 as one segment."""
    made = SegmentSource(
        batches=between(start, stop), start_offset=start, end_offset=stop - 1, epochs=dict(epochs or {0: 0})
    )
    return replace(made, **changes)  # type: ignore[arg-type]


async def streamed(path: ReadPath, builder: RemoteBuilder, offset: int, stop: int | None = None) -> bytes:
    async with aclosing(path.reader.stream_batches(builder.partition, offset, stop_offset=stop)) as parts:
        return b"".join([bytes(part.batches.buffer) async for part in parts])


@pytest.mark.parametrize("chunk_size", [pytest.param(300, marks=pytest.mark.slow), 1024, 4096, 1 << 20])
@pytest.mark.parametrize("transform", ["plain", "compressed", "encrypted", "both"])
@pytest.mark.parametrize("index_interval", [100, 5000])
async def test_chunks_of_any_size_and_transform_give_the_batches_from_every_offset(
    chunk_size: int, transform: str, index_interval: int
) -> None:
    builder = RemoteBuilder(
        chunk_size=chunk_size,
        compression=transform in {"compressed", "both"},
        encrypted=transform in {"encrypted", "both"},
        index_interval=index_interval,
    )
    for start, stop in ((0, 70), (70, 105), (105, 245)):
        await builder.add(source(start, stop))
    async with open_run(builder.run, settings=ReadSettings(chunk_cache_bytes=3 * chunk_size)) as path:
        for offset in range(0, 245, 11):
            # Whole from the first offset, a window from each later one: what comes after it is the same read again.
            stop = 245 if offset == 0 else min(offset + WINDOW, 245)
            assert await streamed(path, builder, offset, stop) == batches_between("plain-0", offset, stop)


async def test_a_segment_that_compaction_emptied_from_the_offset_on_is_passed_over() -> None:
    """T-54, S-145."""
    builder = RemoteBuilder()
    await builder.add(source(0, 35, batches=between(0, 20)))
    await builder.add(source(35, 70, batches=[]))
    await builder.add(source(70, 105, batches=between(80, 105)))
    async with open_run(builder.run) as path:
        fetched = await path.reader.read_batches(builder.partition, 25, max_bytes=100)
        assert [one.base_offset for one in fetched.slices] == [80]
        assert await streamed(path, builder, 40) == batches_between("plain-0", 80, 105)


async def test_where_nothing_is_left_from_the_offset_on_the_answer_is_empty() -> None:
    """T-52: not an error; for read_committed the aborted list is there, and empty."""
    builder = RemoteBuilder()
    await builder.add(source(0, 35, batches=between(0, 20)))
    async with open_run(builder.run) as path:
        fetched = await path.reader.read_batches(builder.partition, 25, max_bytes=100, read_committed=True)
        assert (fetched.slices, fetched.next_offset, fetched.aborted_transactions) == ((), 25, ())


async def test_segments_that_overlap_give_each_batch_once() -> None:
    """Replicas roll differently, so that a new leader's first segment may overlap the old one's last."""
    builder = RemoteBuilder()
    for start, stop in ((0, 50), (35, 90), (80, 130), (100, 245)):
        await builder.add(source(start, stop))
    async with open_run(builder.run) as path:
        for offset in (0, 34, 49, 50, 89, 129, 130, 244):
            assert await streamed(path, builder, offset) == batches_between("plain-0", offset, 245)


async def test_a_deposed_leaders_segment_is_read_only_as_far_as_it_is_history() -> None:
    """Epoch 1 went on to 99 on the old leader; the new one began epoch 2 at 70."""
    builder = RemoteBuilder()
    history = {0: 0, 2: 35, 4: 70, 6: 105}
    await builder.add(
        SegmentSource(batches=between(0, 40, EPOCHS), start_offset=0, end_offset=39, epochs=history_below(history, 40))
    )
    divergent = [with_epoch(batch, 2) for batch in between(40, 100, EPOCHS)]
    await builder.add(SegmentSource(batches=divergent, start_offset=40, end_offset=99, epochs={0: 0, 2: 35}))
    await builder.add(SegmentSource(batches=between(60, 140, EPOCHS), start_offset=60, end_offset=139, epochs=history))
    async with open_run(builder.run) as path:
        for offset in range(0, 140, 7):
            assert await streamed(path, builder, offset) == batches_between("epochs-0", offset, 140)


def history_below(history: Mapping[int, int], stop: int) -> dict[int, int]:
    return {epoch: start for epoch, start in history.items() if start < stop}


def with_epoch(batch: LocalBatch, epoch: int) -> LocalBatch:
    """The leader epoch is outside of the checksum."""
    data = batch.data[:12] + epoch.to_bytes(4, "big") + batch.data[16:]
    return LocalBatch(replace(batch.header, partition_leader_epoch=epoch), data)  # type: ignore[arg-type]


async def test_a_read_ends_where_an_election_has_undone_what_it_went_by() -> None:
    """Simulation, cluster seed 617: where it ends, and which transactions were aborted, was decided by the other history."""
    builder, live = RemoteBuilder(), FixedLog({0: 0})
    for start, stop in ((0, 70), (70, 105), (105, 245)):
        await builder.add(source(start, stop))
    async with open_run(builder.run, live=live) as path:
        seen = (await path.reader.bounds(builder.partition)).history
        async with aclosing(path.reader.stream_batches(builder.partition, 0, history=seen)) as parts:
            assert (await anext(parts)).batches.base_offset == 0
            live.epochs = {0: 0, 1: 300}
            assert (await anext(parts)).batches.base_offset == 5, "elected past it: nothing is undone"
            live.epochs = {0: 0, 1: 200}
            with pytest.raises(HistoryChangedError, match="another history below 245"):
                await anext(parts)
        with pytest.raises(HistoryChangedError):
            await path.reader.read_batches(builder.partition, 0, max_bytes=100, history=seen)
        assert (await path.reader.read_batches(builder.partition, 0, max_bytes=100)).slices


async def test_a_gap_between_remote_segments_is_out_of_range() -> None:
    builder = RemoteBuilder()
    await builder.add(source(0, 35))
    await builder.add(source(70, 105))
    async with open_run(builder.run) as path:
        with pytest.raises(OffsetOutOfRangeError):
            await path.reader.read_batches(builder.partition, 50, max_bytes=100)
        assert await streamed(path, builder, 70) == batches_between("plain-0", 70, 105)


async def test_a_stream_ends_with_an_error_at_a_gap_and_a_bounded_read_before_it() -> None:
    """What lies past the gap must not look like what follows; a reader of bounded answers is told by the next one."""
    builder = RemoteBuilder()
    await builder.add(source(0, 35))
    await builder.add(source(70, 105))
    async with open_run(builder.run) as path:
        with pytest.raises(OffsetOutOfRangeError) as error:
            await streamed(path, builder, 0)
        assert error.value.offset == 35
        fetched = await path.reader.read_batches(builder.partition, 0, max_bytes=1_000_000)
        assert fetched.next_offset == 35


FIRST_MS = 1_700_000_000_000


async def test_a_timestamp_finds_the_first_record_that_is_not_earlier() -> None:
    """T-48."""
    builder = RemoteBuilder()
    await builder.add(source(0, 35))
    await builder.add(source(35, 70))
    async with open_run(builder.run) as path:
        for offset in range(70):
            exact = await path.timestamps.find(builder.partition, FIRST_MS + offset * 1000)
            assert exact is not None
            assert (exact.offset, exact.timestamp_ms, exact.leader_epoch) == (offset, FIRST_MS + offset * 1000, 0)
            earlier = await path.timestamps.find(builder.partition, FIRST_MS + offset * 1000 - 999)
            assert earlier is not None
            assert earlier.offset == offset
        assert await path.timestamps.find(builder.partition, FIRST_MS + 69_001) is None


async def test_a_timestamp_finds_nothing_below_the_remote_log_start() -> None:
    builder = RemoteBuilder()
    await builder.add(source(0, 35))
    builder.run.log_starts.offsets[builder.partition] = 12
    async with open_run(builder.run) as path:
        found = await path.timestamps.find(builder.partition, FIRST_MS)
        assert found is not None
        assert found.offset == 12


@pytest.mark.parametrize("topic", ["logappend-0", "compressed-0", "transactions-0", "fine-index-0"])
async def test_the_largest_timestamp_is_one_of_those_at_or_above_the_remote_log_start(topic: str) -> None:
    """The metadata of the segment around it tell the largest of all its records, that of a deleted one, too."""
    run = await load_run("plain")
    partition = run.partition(topic)
    async with open_run(run) as path:
        bounds = await path.reader.bounds(partition)
        records = records_of(batches_between(topic, bounds.start, bounds.end))
        for start in range(bounds.start, bounds.end):
            run.log_starts.offsets[partition] = start
            left = [record for record in records if record.offset >= start]
            found = await path.timestamps.find_latest(partition)
            if not left:  # markers alone
                continue
            latest = max(one.timestamp_ms for one in left)
            assert found is not None, start
            first = next(one.offset for one in left if one.timestamp_ms == latest)
            assert (found.offset, found.timestamp_ms) == (first, latest), start


async def test_what_is_left_of_a_segment_may_be_earlier_than_what_was_deleted_of_it() -> None:
    """Timestamps as producers give them: the largest was deleted, and no index tells the largest of the others."""
    times = [10, 90, 20, 30, 50, 40, 50, 5, 60, 1]
    batches = [
        data_batch(at, [(FIRST_MS + time, b"a") for time in times[at : at + 2]], leader_epoch=0, producer_id=-1)
        for at in range(0, len(times), 2)
    ]
    made = [LocalBatch(read_batch_header(batch.data), batch.data) for batch in batches]
    builder = RemoteBuilder()
    await builder.add(SegmentSource(batches=made[:4], start_offset=0, end_offset=7))
    await builder.add(SegmentSource(batches=made[4:], start_offset=8, end_offset=9))
    async with open_run(builder.run) as path:
        for start in range(len(times)):
            for stop in (None, 8):
                builder.run.log_starts.offsets[builder.partition] = start
                left = times[start : stop if start < 8 else None]
                found = await path.timestamps.find_latest(builder.partition, stop_offset=stop)
                if start >= 8 and stop == 8:
                    assert found is None
                    continue
                assert found is not None
                assert (found.timestamp_ms - FIRST_MS, found.offset) == (max(left), start + left.index(max(left)))


async def test_a_timestamp_is_found_in_the_front_of_a_segment_that_an_election_has_cut() -> None:
    """And never past the cut, whatever the metadata and the time index of the whole segment say (U17)."""
    builder = RemoteBuilder()
    divergent = [with_epoch(batch, 2) for batch in between(40, 100, EPOCHS)]
    await builder.add(SegmentSource(batches=divergent, start_offset=40, end_offset=99, epochs={0: 0, 2: 35}))
    history = {0: 0, 2: 35, 4: 70, 6: 105}
    await builder.add(SegmentSource(batches=between(80, 140, EPOCHS), start_offset=80, end_offset=139, epochs=history))
    kept = [record for record in records_of(batches_between("epochs-0", 40, 140)) if not 70 <= record.offset < 80]
    async with open_run(builder.run) as path:
        for time_ms in sorted({one.timestamp_ms + near for one in kept for near in (-1, 0)}):
            found = await path.timestamps.find(builder.partition, time_ms)
            first = next(one for one in kept if one.timestamp_ms >= time_ms)
            assert found is not None
            assert (found.offset, found.timestamp_ms) == (first.offset, first.timestamp_ms)
        latest = await path.timestamps.find_latest(builder.partition, stop_offset=80)
        expected = max((one for one in kept if one.offset < 80), key=lambda one: one.timestamp_ms)
        assert latest is not None
        assert (latest.offset, latest.timestamp_ms) == (expected.offset, expected.timestamp_ms)


async def test_a_timestamp_finds_nothing_in_segments_outside_the_lineage() -> None:
    """T-49."""
    builder = RemoteBuilder()
    await builder.add(source(0, 35))
    async with open_run(builder.run, live=FixedLog({3: 0})) as path:
        assert await path.timestamps.find(builder.partition, FIRST_MS) is None


@pytest.mark.parametrize(
    "state", [RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.DELETE_SEGMENT_STARTED]
)
async def test_a_timestamp_finds_nothing_in_segments_that_are_not_finished(state: RemoteLogSegmentState) -> None:
    """T-50."""
    builder = RemoteBuilder()
    await builder.add(source(0, 35, state=state))
    async with open_run(builder.run, live=FixedLog({0: 0})) as path:
        assert await path.timestamps.find(builder.partition, FIRST_MS) is None
        assert await path.timestamps.find_latest(builder.partition) is None


@pytest.mark.parametrize("topic", ["logappend-0", "compressed-0", "transactions-0", "fine-index-0"])
async def test_every_timestamp_of_a_real_topic_finds_the_first_such_record(topic: str) -> None:
    run = await load_run("plain")
    partition = run.partition(topic)
    async with open_run(run) as path:
        bounds = await path.reader.bounds(partition)
        records = records_of(batches_between(topic, bounds.start, bounds.end))
        for wanted in {record.timestamp_ms for record in records}:
            first = next(one for one in records if one.timestamp_ms >= wanted)
            found = await path.timestamps.find(partition, wanted)
            assert found is not None
            assert (found.offset, found.timestamp_ms) == (first.offset, first.timestamp_ms)
        latest = max(record.timestamp_ms for record in records)
        found = await path.timestamps.find_latest(partition)
        assert found is not None
        assert found.offset == next(one.offset for one in records if one.timestamp_ms == latest)


async def test_no_flipped_bit_of_an_offset_index_leaves_batches_out() -> None:
    """The index has no checksum: an entry that leads too far must be noticed where it leads to (U23)."""
    builder = RemoteBuilder(index_interval=1000)
    await builder.add(source(0, 70))
    for bit in range(8 * 8 * 4):

        def damage(key: str, byte_range: ByteRange | None, data: bytes, bit: int = bit) -> bytes:
            # Whole entries lie at the front of the blob.
            return flip_bit(data, bit) if key.endswith(".indexes") and byte_range and byte_range.start == 0 else data

        async with open_run(builder.run, store=FaultyStore(builder.run.store, damage)) as path:
            for offset in range(0, 50, 6):
                try:
                    found = await path.reader.read_batches(builder.partition, offset, max_bytes=6000)
                except CorruptDataError:
                    continue
                assert whole(found) == batches_between("plain-0", offset, found.next_offset), f"bit {bit} from {offset}"
                assert found.next_offset > offset


async def test_a_hole_is_named_to_reader_and_operator_and_told_once() -> None:
    """An offset that is lost is asked for without end: the log says which offsets, a metric that readers come there."""
    builder, telemetry, clock = RemoteBuilder(), RecordedTelemetry(), ManualClock()
    await builder.add(source(0, 70))
    await builder.add(source(105, 245))
    async with open_run(builder.run, telemetry=telemetry, clock=clock) as path:
        with capture_logs() as logs:
            for offset in (70, 90, 104):
                with pytest.raises(OffsetInHoleError, match=rf"offset {offset} .* hole: .* \[70, 105\)"):
                    await path.reader.read_batches(builder.partition, offset, max_bytes=100)
            assert logs == [], "it may be our metadata that lag behind a copy"
            await clock.advance(SETTLED_S)
            with pytest.raises(OffsetInHoleError):
                await streamed(path, builder, 60)
        told = [(log["event"], log["first_missing_offset"], log["next_offset"]) for log in logs]
        assert told == [("read.hole", 70, 105)]
        assert telemetry.value(READ_HOLES, topic="built") == 4
        for outside in (245 + 1, 10_000):
            with pytest.raises(OffsetOutOfRangeError) as error:
                await path.reader.read_batches(builder.partition, outside, max_bytes=100)
            assert not isinstance(error.value, OffsetInHoleError)


async def test_bytes_asked_for_fetched_served_and_returned_are_four_numbers() -> None:
    """U19."""
    builder, telemetry = RemoteBuilder(chunk_size=1 << 20), RecordedTelemetry()
    metadata = await builder.add(source(0, 245))
    async with open_run(builder.run, telemetry=telemetry) as path:
        first = await path.reader.read_batches(builder.partition, 0, max_bytes=20_000)
        fetched = telemetry.value(READ_STORE_BYTES)
        assert telemetry.value(READ_REQUESTED_BYTES) == 20_000
        assert telemetry.value(FETCH_BYTES, topic="built") == first.size_bytes <= 20_000
        assert fetched is not None
        assert fetched >= metadata.segment_size_in_bytes
        await path.reader.read_batches(builder.partition, 0, max_bytes=20_000)
        assert telemetry.value(READ_STORE_BYTES) == fetched
        assert telemetry.value(READ_CACHE_BYTES, tier="memory") == metadata.segment_size_in_bytes


async def test_a_time_index_with_a_wrong_bit_leads_past_no_record() -> None:
    """Simulation, cluster seed 5: nothing but the batch that an entry names tells whether the entry is right."""
    run = await load_run("plain")
    partition = run.partition("fine-index-0")
    async with open_run(run) as path:
        bounds = await path.reader.bounds(partition)
        segment = max(run.metadata.list_remote_log_segments(partition), key=lambda one: one.segment_size_in_bytes)
        index = (await path.indexes.indexes(segment)).time_index
        records = records_of(batches_between("fine-index-0", bounds.start, bounds.end))
        assert len(index) > 5
        with capture_logs() as logs:
            assert await _found(path, partition, records) == [record.offset for record in records]
        assert not logs, "a real broker's entries are right"
    whole_index, seen = index.write(), 0
    for bit in range(3 * 96, 4 * 96, 3):
        store = FaultyStore(run.store, _instead_of(whole_index, flip_bit(whole_index, bit)))
        async with open_run(run, store=store) as path:
            with capture_logs() as logs:
                try:
                    assert await _found(path, partition, records[::4]) == [record.offset for record in records[::4]], (
                        bit
                    )
                except CorruptDataError:
                    continue  # its entries are not in order any more
            seen += any(entry["event"] == "time.index.wrong" for entry in logs)
    assert seen


def _instead_of(written: bytes, bent: bytes) -> Bend:
    return lambda key, byte_range, data: data.replace(written, bent)


async def _found(path: ReadPath, partition: TopicIdPartition, records: Sequence[Record]) -> list[int]:
    """The offsets found for their timestamps, each of which is another."""
    found = [await path.timestamps.find(partition, record.timestamp_ms) for record in records]
    return [-1 if one is None else one.offset for one in found]
