"""read_committed before a hole in which transactions ended: what nobody can know to be committed is not shown (S-156)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

import pytest

from tests.support.faulty_store import FaultyStore
from tests.support.local_batches import as_consumed, consumed_records
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.remote_builder import RemoteBuilder, SegmentSource
from tests.support.remote_runs import RemoteRun, load_run, open_run, segments_of
from tests.unit.reading.test_histories import between
from tests.unit.reading.test_remote_log_reader import committed, first_open_offset
from tiersidecar.domain.errors import OffsetInHoleError, UndecidedTransactionError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import RemotePartitionDeleteMetadata
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.producer_state import ProducerState
from tiersidecar.ports.metrics.reading import READ_HOLES
from tiersidecar.reading.read_path import ReadPath

MIB = 1024 * 1024
BORDERS = (0, 43, 86, 133, 180)
"""Of the four segments of the golden transactions; one is open over each of 43 and 86, none over the others."""


async def without(run: RemoteRun, partition: TopicIdPartition, *starts: int) -> RemoteRun:
    """``run`` as if the segments that begin at ``starts`` had never been copied."""
    metadata = MemoryMetadataLog()
    await metadata.assign([partition])
    kept = {
        segment.remote_log_segment_id for segment in segments_of(run, partition) if segment.start_offset not in starts
    }
    for event in run.metadata.events:
        if not isinstance(event, RemotePartitionDeleteMetadata) and event.remote_log_segment_id in kept:
            await metadata.publish(event)
    return replace(run, metadata=metadata, partitions=(partition,))


async def shown(path: ReadPath, partition: TopicIdPartition, offset: int) -> tuple[dict[int, object], Exception | None]:
    """What a read_committed stream from ``offset`` on shows, and how it ends."""
    found: dict[int, object] = {}
    try:
        async with aclosing(path.reader.stream_batches(partition, offset, read_committed=True)) as parts:
            async for part in parts:
                found |= {one.offset: as_consumed(one) for one in committed(part) if one.offset >= offset}
    except (UndecidedTransactionError, OffsetInHoleError) as error:
        return found, error
    return found, None


@pytest.mark.parametrize(("start", "stop"), [(86, 133), (43, 133)])
async def test_nothing_is_shown_before_a_hole_that_may_have_been_aborted_in_it(start: int, stop: int) -> None:
    """Simulation, cluster seed 405: abort markers lay in the gap, and their records were shown as committed."""
    run = await load_run("plain")
    partition = run.partition("transactions-0")
    expected = consumed_records("transactions-0", "read_committed")
    lost = [border for border in BORDERS if start <= border < stop]
    async with open_run(await without(run, partition, *lost)) as path:
        for offset in range(start):
            found, error = await shown(path, partition, offset)
            limit = first_open_offset(start)
            assert limit < start
            assert found == {at: record for at, record in expected.items() if offset <= at < limit}, offset
            assert isinstance(error, UndecidedTransactionError)
            assert (error.offset, error.first_offset) == (max(offset, limit), limit)
            assert (error.hole_start, error.hole_stop) == (start, stop)
        for offset in range(stop, 180):
            found, error = await shown(path, partition, offset)
            assert found == {at: record for at, record in expected.items() if offset <= at < 180}, offset
            assert error is None


async def test_a_transaction_that_is_aborted_behind_the_hole_is_known_and_all_before_the_hole_is_shown() -> None:
    run = await load_run("plain")
    partition = run.partition("transactions-0")
    expected = consumed_records("transactions-0", "read_committed")
    assert first_open_offset(43) == 42
    async with open_run(await without(run, partition, 43)) as path:
        found, error = await shown(path, partition, 0)
    assert found == {at: record for at, record in expected.items() if at < 43}
    assert isinstance(error, OffsetInHoleError)


async def test_where_no_transaction_is_open_at_a_hole_all_before_it_is_shown() -> None:
    builder = await built((0, 35, (), ()), (70, 105, (), ()))
    async with open_run(builder.run) as path:
        _, error = await shown(path, builder.partition, 3)
    assert isinstance(error, OffsetInHoleError), "the hole itself, and no transaction before it"


async def test_a_bounded_read_ends_before_it_and_the_next_one_is_told_why() -> None:
    run, telemetry = await load_run("plain"), RecordedTelemetry()
    partition = run.partition("transactions-0")
    limit = first_open_offset(86)
    async with open_run(await without(run, partition, 86), telemetry=telemetry) as path:
        offset = 0
        while offset < limit:
            fetched = await path.reader.read_batches(partition, offset, max_bytes=MIB, read_committed=True)
            assert offset < fetched.next_offset <= limit
            offset = fetched.next_offset
        assert telemetry.value(READ_HOLES, topic="transactions") is None
        with pytest.raises(UndecidedTransactionError):
            await path.reader.read_batches(partition, offset, max_bytes=MIB, read_committed=True)
        assert telemetry.value(READ_HOLES, topic="transactions") == 1
        uncommitted = await path.reader.read_batches(partition, offset, max_bytes=MIB)
        assert uncommitted.next_offset == 86, "who reads uncommitted has all there is"


async def test_what_the_broker_tells_of_the_border_does_not_decide_what_a_hole_hides() -> None:
    run = await load_run("plain")
    partition = run.partition("transactions-0")
    async with open_run(await without(run, partition, 86)) as path:
        limit = first_open_offset(86)
        fetched = await path.reader.read_batches(partition, 0, max_bytes=MIB, read_committed=True, aborted_beyond=())
        assert fetched.next_offset == limit


# -- made by hand: one segment before the hole [35, 70), one behind it


ONE = 7
Segment = tuple[int, int, Sequence[AbortedTransaction], Sequence[tuple[int, int]]]


async def built(*segments: Segment) -> RemoteBuilder:
    """Start, stop, index entries, and the transactions open at the end: producer and first offset."""
    builder = RemoteBuilder()
    for start, stop, entries, still_open in segments:
        await builder.add(
            SegmentSource(
                batches=between(start, stop),
                start_offset=start,
                end_offset=stop - 1,
                aborted_transactions=entries,
                producers=[
                    ProducerState(producer_id=producer, current_transaction_first_offset=first)
                    for producer, first in still_open
                ],
            )
        )
    return builder


def aborted(producer_id: int, first: int, last: int) -> AbortedTransaction:
    return AbortedTransaction(producer_id, Offset(first), Offset(last), Offset(last + 1))


@pytest.mark.parametrize(
    ("behind", "limit"),
    [
        pytest.param([(70, 105, (), ())], 30, id="nothing is known of it behind the hole"),
        pytest.param([(70, 105, (), [(ONE, 30)])], None, id="it is still open there: what follows tells"),
        pytest.param([(70, 105, [aborted(ONE, 30, 80)], ())], None, id="it was aborted behind the hole, and is known"),
        pytest.param([(70, 105, [aborted(ONE, 72, 80)], ())], 30, id="another one of the producer was"),
        pytest.param([(70, 105, (), [(ONE, 72)])], 30, id="another one of the producer is open there"),
        pytest.param([(70, 105, (), [(8, 30)])], 30, id="one of another producer is open there"),
        pytest.param([(70, 105, (), [(ONE, 30)]), (140, 175, (), ())], 30, id="it is open at the next hole as well"),
    ],
)  # fmt: skip
async def test_what_is_told_behind_the_hole_counts(behind: list[Segment], limit: int | None) -> None:
    builder = await built((0, 35, (), [(ONE, 30)]), *behind)
    async with open_run(builder.run) as path:
        found = await path.undecided.above(builder.partition, 0)
    assert [one.first_offset for one in found] == ([] if limit is None else [limit])


async def test_holes_below_the_reader_are_none_of_its_business_and_of_several_the_earliest_transaction_counts() -> None:
    builder = await built(
        (0, 35, (), [(1, 20)]), (70, 105, (), [(2, 80)]), (140, 175, (), [(3, 150)]), (210, 245, (), ())
    )
    async with open_run(builder.run) as path:
        firsts = {
            offset: [one.first_offset for one in await path.undecided.above(builder.partition, offset)]
            for offset in (0, 34, 35, 70, 104, 140, 174, 210, 244)
        }
    assert firsts == {
        0: [20, 80, 150], 34: [20, 80, 150], 35: [80, 150], 70: [80, 150], 104: [80, 150], 140: [150], 174: [150],
        210: [], 244: [],
    }  # fmt: skip


async def test_a_hole_is_looked_into_once_and_where_there_is_none_nothing_is_asked_of_the_store() -> None:
    whole = await built((0, 35, (), [(ONE, 30)]), (35, 70, (), ()), (70, 105, (), ()))
    torn = await built((0, 35, (), [(ONE, 30)]), (70, 105, (), ()))
    for builder, is_asked in ((whole, False), (torn, True)):
        store = FaultyStore(builder.run.store)
        async with open_run(builder.run, store=store) as path:
            await path.lookup.bounds(builder.partition)
            before = len(store.fetched)
            await path.undecided.above(builder.partition, 30)
            once = len(store.fetched)
            assert (once > before) == is_asked
            for offset in (0, 5, 30):
                await path.undecided.above(builder.partition, offset)
            assert len(store.fetched) == once


async def test_a_hole_between_leader_epochs_is_one_too() -> None:
    """A deposed leader's copy that goes on past its epoch holds nothing of ours there."""
    builder = RemoteBuilder()
    for start, stop, epochs in ((0, 70, {0: 0}), (105, 140, {0: 0, 1: 50})):
        await builder.add(
            SegmentSource(
                batches=between(start, stop), start_offset=start, end_offset=stop - 1, epochs=epochs,
                producers=[ProducerState(producer_id=1, current_transaction_first_offset=one) for one in (40, 60)],
            )
        )  # fmt: skip
    async with open_run(builder.run) as path:
        assert await path.lookup.holes(builder.partition, 10) == [(50, 105)]
        assert await path.lookup.holes(builder.partition, 50) == []


def test_the_golden_transactions_are_open_where_they_are_said_to_be() -> None:
    assert [first_open_offset(border) < border for border in BORDERS] == [False, True, True, False, False]
