"""Transactions cut into segments at random, beside a broker that loses its producers' state at borders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.records import (
    Batch,
    Marker,
    aborted_transactions,
    data_batch,
    marker_batch,
    open_transactions,
)
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction, read_transaction_index
from tiersidecar.formats.kafka.producer_state import (
    ProducerState,
    SegmentTransactions,
    TransactionWalk,
    complete_index,
    complete_snapshot,
    lacking_entries,
    lacks_none,
    merge_open,
    open_states,
    read_producer_snapshot,
)
from tiersidecar.formats.kafka.segment_rebuild import SegmentRebuilder
from tiersidecar.formats.kafka.segment_scan import SegmentScanner


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What was written, where it is cut into segments (indexes of batches), and before which of them the broker begins anew."""

    batches: tuple[Batch, ...]
    cuts: tuple[int, ...]
    lost_at: frozenset[int]
    slice_bytes: int

    def segments(self) -> list[tuple[int, Sequence[Batch]]]:
        return [(number, self.batches[start:stop]) for number, (start, stop) in enumerate(pairwise(self.cuts))]


@st.composite
def histories(draw: st.DrawFn) -> Written:
    batches: list[Batch] = []
    open_now: set[int] = set()
    for _ in range(draw(st.integers(1, 40))):
        offset = batches[-1].next_offset if batches else 0
        producer_id = draw(st.integers(-1, 3))
        ends = producer_id in open_now and draw(st.booleans())
        if ends:
            marker = draw(st.sampled_from(Marker))
            batch = marker_batch(offset, marker, leader_epoch=0, timestamp_ms=1_000 + offset, producer_id=producer_id)
            open_now.discard(producer_id)
        else:
            records = [(1_000 + offset, b"value")] * draw(st.integers(1, 3))
            batch = data_batch(offset, records, leader_epoch=0, producer_id=producer_id)
            if producer_id >= 0:
                open_now.add(producer_id)
        batches.append(batch)
    inner = draw(st.sets(st.integers(1, len(batches))))
    cuts = tuple(sorted({0, len(batches), *inner}))
    lost_at = draw(st.frozensets(st.integers(1, max(1, len(cuts) - 2))))
    return Written(
        batches=tuple(batches), cuts=cuts, lost_at=lost_at, slice_bytes=draw(st.sampled_from([7, 61, 100, 1000, 10**6]))
    )


def walk(segment: Sequence[Batch], slice_bytes: int, carried: Sequence[ProducerState]) -> SegmentTransactions:
    log, transactions = b"".join(batch.data for batch in segment), TransactionWalk(carried)
    scanner = SegmentScanner(where="log", base_offset=segment[0].base_offset, transactions=transactions)
    for start in range(0, len(log), slice_bytes):
        scanner.feed(log[start : start + slice_bytes])
    scanner.finish()
    return transactions.finish()


@dataclass(slots=True)
class Broker:
    """Its producers' state by segment, as its files have it."""

    snapshot: bytes | None = None

    def seal(self, segment: Sequence[Batch]) -> tuple[Sequence[AbortedTransaction], Sequence[ProducerState]]:
        base_offset = Offset(segment[0].base_offset)
        rebuilder = SegmentRebuilder(where="log", base_offset=base_offset, earlier_snapshot=self.snapshot)
        rebuilder.feed(b"".join(batch.data for batch in segment))
        made = rebuilder.finish()
        self.snapshot = made.producer_snapshot
        entries = read_transaction_index(made.transaction_index or b"", base_offset=base_offset)
        return entries, read_producer_snapshot(self.snapshot)


@given(histories())
def test_indexes_and_snapshots_are_whole_whatever_the_broker_has_lost(written: Written) -> None:
    """Entry for entry what a broker writes that has lost nothing; and open at each border is what the history has open."""
    broker, kind = Broker(), Broker()
    carried: Sequence[ProducerState] = ()
    seen: list[AbortedTransaction] = []
    for number, segment in written.segments():
        if number in written.lost_at:
            broker.snapshot = None
        earlier = read_producer_snapshot(broker.snapshot) if broker.snapshot else ()
        knew_all = lacks_none(earlier, carried)
        true_entries, true_states = kind.seal(segment)
        entries, states = broker.seal(segment)
        derived = walk(segment, written.slice_bytes, merge_open(carried, earlier))
        uploaded = complete_index(entries, derived.aborted)
        assert list(uploaded) == list(true_entries)
        assert lacking_entries(entries, uploaded) == () or not knew_all
        assert (lacking_entries(uploaded, true_entries), lacking_entries(entries, entries)) == ((), ())
        carried = open_states(complete_snapshot(states, derived.open_at_end))
        stop = segment[-1].next_offset
        assert _transactions(carried) == open_transactions(written.batches, stop)
        assert _rows(carried) == _rows(open_states(true_states)), "a native broker may begin with them"
        seen += uploaded
    assert [
        (transaction.producer_id, transaction.first_offset, transaction.last_offset) for transaction in seen
    ] == aborted_transactions(written.batches)


@given(histories(), st.data())
def test_where_a_segment_overlaps_the_one_before_nothing_is_taken_twice(written: Written, data: st.DataObject) -> None:
    """Replicas roll differently: the producers that were open at the start follow from what the earlier one has."""
    stop = data.draw(st.integers(1, len(written.batches)))
    start = data.draw(st.integers(0, stop - 1))
    before = walk(written.batches[:stop], 10**6, ())
    base_offset = written.batches[start].base_offset
    was_open = [
        ProducerState(producer_id=one.producer_id, current_transaction_first_offset=one.first_offset)
        for one in before.aborted
        if one.first_offset < base_offset <= one.last_offset
    ]
    carried = (*was_open, *open_states(before.open_at_end, below=base_offset))
    derived = walk(written.batches[start:], written.slice_bytes, carried)
    expected = [transaction for transaction in aborted_transactions(written.batches) if transaction[2] >= base_offset]
    assert [(one.producer_id, one.first_offset, one.last_offset) for one in derived.aborted] == expected


def _transactions(states: Sequence[ProducerState]) -> dict[int, int]:
    return {state.producer_id: state.current_transaction_first_offset for state in states}


def _rows(states: Sequence[ProducerState]) -> set[ProducerState]:
    """Without the coordinator's epoch, which only markers have: an earlier transaction's is lost with the broker's state."""
    return {replace(state, coordinator_epoch=-1) for state in states}
