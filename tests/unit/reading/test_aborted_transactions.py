"""Aborted transactions across segments (S-155, S-156, S-157, S-159)."""

from __future__ import annotations

from dataclasses import replace

from tests.support.remote_builder import RemoteBuilder, SegmentSource
from tests.support.remote_runs import open_run
from tests.unit.reading.test_histories import EPOCHS, between, history_below, with_epoch
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction


def aborted(producer_id: int, first: int, last: int, stable: int) -> AbortedTransaction:
    return AbortedTransaction(producer_id, Offset(first), Offset(last), Offset(stable))


# While LONG is open the last stable offset stays at its first record: SHORT's entry says so, and the search goes on.
LONG = aborted(1, 10, 180, 181)
SHORT = aborted(2, 40, 60, 10)
LATE = aborted(3, 185, 190, 191)


async def built() -> RemoteBuilder:
    """The marker that ends LONG stands three segments after its first record; the segment between has no index at all."""
    builder = RemoteBuilder()
    for start, stop, entries in ((0, 35, ()), (35, 70, (SHORT,)), (70, 140, ()), (140, 210, (LONG, LATE))):
        await builder.add(
            SegmentSource(
                batches=between(start, stop), start_offset=start, end_offset=stop - 1, aborted_transactions=entries
            )
        )
    return builder


async def found(builder: RemoteBuilder, offset: int, max_bytes: int) -> tuple[AbortedTransaction, ...] | None:
    async with open_run(builder.run) as path:
        fetched = await path.reader.read_batches(builder.partition, offset, max_bytes=max_bytes, read_committed=True)
        assert fetched.slices
        return fetched.aborted_transactions


async def test_a_transaction_whose_marker_is_segments_later_is_found() -> None:
    assert await found(await built(), 10, 1) == (LONG,)


async def test_one_that_ended_before_what_is_read_is_left_out_and_so_is_one_that_begins_later() -> None:
    builder = await built()
    assert await found(builder, 70, 1) == (LONG,)
    assert await found(builder, 180, 1) == (LONG,)
    assert await found(builder, 185, 1) == (LATE,)
    assert await found(builder, 195, 1) == ()
    assert await found(builder, 0, 1) == ()


async def test_a_read_over_several_segments_lists_each_transaction_once() -> None:
    assert set(await found(await built(), 0, 1 << 20) or ()) == {LONG, SHORT, LATE}
    assert len(await found(await built(), 0, 1 << 20) or ()) == 3


async def test_nobody_who_reads_uncommitted_pays_for_the_search() -> None:
    builder = await built()
    async with open_run(builder.run) as path:
        fetched = await path.reader.read_batches(builder.partition, 0, max_bytes=1)
        assert fetched.aborted_transactions is None


async def test_metadata_that_claim_an_index_that_is_not_there_are_read_as_an_empty_one() -> None:
    """S-159: older brokers do not say that it is empty."""
    builder = RemoteBuilder()
    source = SegmentSource(batches=between(0, 35), start_offset=0, end_offset=34)
    metadata = replace(await builder.add(source), txn_index_empty=False)
    async with open_run(builder.run) as path:
        indexes = await path.indexes.indexes(metadata)
        assert indexes.aborted_transactions == ()


async def test_markers_of_a_history_that_was_cut_off_are_looked_past() -> None:
    """After an unclean election: a deposed leader's segment wholly past the point where its epoch ended told of its own aborted
    transactions, which hid records of a producer, and ended the search before the markers of the real history."""
    builder, history = RemoteBuilder(), {0: 0, 2: 35, 4: 70, 6: 105}
    diverged, real = aborted(9, 36, 90, 91), aborted(7, 36, 80, 81)
    for start, stop in ((0, 35), (35, 50), (50, 70)):
        await builder.add(of_epochs(start, stop, history_below(history, stop)))
    batches = [with_epoch(batch, 2) for batch in between(70, 140, EPOCHS)]
    deposed = SegmentSource(batches=batches, start_offset=70, end_offset=139, epochs={0: 0, 2: 35})
    await builder.add(replace(deposed, aborted_transactions=(diverged,)))
    await builder.add(replace(of_epochs(70, 105, history_below(history, 105)), aborted_transactions=(real,)))
    await builder.add(of_epochs(105, 140, history))
    assert await found(builder, 35, 1) == (real,)
    assert await found(builder, 70, 1) == (real,)


def of_epochs(start: int, stop: int, epochs: dict[int, int]) -> SegmentSource:
    return SegmentSource(batches=between(start, stop, EPOCHS), start_offset=start, end_offset=stop - 1, epochs=epochs)
