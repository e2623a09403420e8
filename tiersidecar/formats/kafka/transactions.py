"""Transactions, read from a segment's batches (DESIGN.md rule 14; ``ProducerStateManager``, ``CompletedTxn``).

A broker that has lost its producers' state (a move to another log dir, a new replica, a crash after the last snapshot was
deleted) writes no abort entry for a transaction that began before, and a producer snapshot in which that one is not open.
The batches have the markers, and the segment before has the transactions that are open where this one begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from struct import Struct

from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.producer_snapshots import ProducerState
from tiersidecar.formats.kafka.record_batches import (
    CONTROL_FLAG,
    TRANSACTIONAL_FLAG,
    Buffer,
    incremented_sequence,
    read_batch_header,
)
from tiersidecar.formats.kafka.records import ControlKind, read_control_marker, read_records

TRANSACTION_FLAGS = TRANSACTIONAL_FLAG | CONTROL_FLAG
"""Attribute bits without which a walk can skip a batch."""

_FIELDS = Struct(">q13xhi8xqqhi")
"""Header fields: base offset, attributes, last offset delta, max timestamp, producer id, producer epoch, base sequence."""
_NONE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTransactions:
    """Transactions of a segment by its batches: those whose abort marker is in it, by marker, and the state of the producers
    whose transaction is open where it ends, by producer id."""

    aborted: tuple[AbortedTransaction, ...] = ()
    open_at_end: tuple[ProducerState, ...] = ()


class TransactionWalk:
    """Follow the transactions through the batches of a segment, in their order.

    ``open_at_start`` has the producers whose transaction is open where the segment begins; others in it are left out.
    """

    def __init__(self, open_at_start: Iterable[ProducerState] = ()) -> None:
        carried = [state for state in open_at_start if state.current_transaction_first_offset != _NONE]
        self._carried = {one.producer_id: one for one in carried}
        self._firsts: dict[int, int] = {one.producer_id: one.current_transaction_first_offset for one in carried}
        self._latest: dict[int, tuple[int, int, int, int, int]] = {}
        self._aborted: list[AbortedTransaction] = []

    def take(self, batch: Buffer, *, where: str, position: int) -> None:
        """See :class:`~tiersidecar.domain.segments.FollowTransactions`."""
        base_offset, attributes, delta, timestamp_ms, producer_id, epoch, sequence = _FIELDS.unpack_from(batch)
        if attributes & CONTROL_FLAG:
            self._take_markers(batch, where, position)
        elif producer_id >= 0:
            self._firsts.setdefault(producer_id, base_offset)
            self._latest[producer_id] = (base_offset, delta, epoch, sequence, timestamp_ms)

    def finish(self) -> SegmentTransactions:
        """Return the result, after the last batch."""
        return SegmentTransactions(
            aborted=tuple(self._aborted), open_at_end=tuple(self._state(first) for first in sorted(self._firsts))
        )

    def _take_markers(self, batch: Buffer, where: str, position: int) -> None:
        header = read_batch_header(batch, where=where, position=position)
        for record in read_records(batch, where=where, position=position):
            marker = read_control_marker(record, where=where)
            if marker is None:
                continue
            first_offset = self._firsts.pop(header.producer_id, None)
            if marker.kind is ControlKind.ABORT and first_offset is not None:
                stable = min(self._firsts.values(), default=header.next_offset)
                entry = (header.producer_id, Offset(first_offset), header.base_offset, Offset(stable))
                self._aborted.append(AbortedTransaction(*entry))

    def _state(self, producer_id: int) -> ProducerState:
        carried = self._carried.get(producer_id, ProducerState(producer_id=producer_id))
        carried = replace(carried, current_transaction_first_offset=self._firsts[producer_id])
        latest = self._latest.get(producer_id)
        if latest is None:
            return carried
        base_offset, delta, epoch, sequence, timestamp_ms = latest
        return replace(
            carried,
            epoch=epoch,
            last_sequence=incremented_sequence(sequence, delta),
            last_offset=base_offset + delta,
            offset_delta=delta,
            timestamp_ms=timestamp_ms,
        )


class WalkWithin:
    """Let ``walk`` follow only the batches that begin at ``start`` or above it and below ``stop``."""

    def __init__(self, walk: TransactionWalk, *, start: int, stop: int) -> None:
        self._walk, self._start, self._stop = walk, start, stop

    def take(self, batch: Buffer, *, where: str, position: int) -> None:
        """See :class:`~tiersidecar.domain.segments.FollowTransactions`."""
        if self._start <= _FIELDS.unpack_from(batch)[0] < self._stop:
            self._walk.take(batch, where=where, position=position)


def open_states(states: Iterable[ProducerState], below: int | None = None) -> tuple[ProducerState, ...]:
    """Return those with an open transaction, that begins below offset ``below`` if that is given."""
    return tuple(
        state
        for state in states
        if state.current_transaction_first_offset != _NONE
        and (below is None or state.current_transaction_first_offset < below)
    )


def open_before(
    offset: Offset, entries: Iterable[AbortedTransaction], states_at_end: Iterable[ProducerState]
) -> tuple[ProducerState, ...]:
    """Return what is open at an ``offset`` within a segment by its index and the snapshot of its end: all but what it has
    committed from there on."""
    ended = tuple(
        ProducerState(producer_id=entry.producer_id, current_transaction_first_offset=entry.first_offset)
        for entry in entries
        if entry.first_offset < offset <= entry.last_offset
    )
    return (*ended, *open_states(states_at_end, below=offset))


def merge_open(ours: Iterable[ProducerState], brokers: Iterable[ProducerState]) -> tuple[ProducerState, ...]:
    """Return the producers whose transaction is open by either, by producer id.  If one has lost a transaction's beginning, it
    takes a later batch for the first: the lower offset is the right one."""
    found = {state.producer_id: state for state in open_states(ours)}
    for state in open_states(brokers):
        known = found.get(state.producer_id)
        first_offset = state.current_transaction_first_offset
        if known is not None:
            first_offset = min(first_offset, known.current_transaction_first_offset)
        found[state.producer_id] = replace(state, current_transaction_first_offset=first_offset)
    return tuple(found[producer_id] for producer_id in sorted(found))


def lacks_none(brokers: Iterable[ProducerState], ours: Iterable[ProducerState]) -> bool:
    """Return whether each transaction that is open by ``ours`` is by ``brokers``, from the same offset on or an earlier one."""
    firsts = {state.producer_id: state.current_transaction_first_offset for state in open_states(brokers)}
    return all(
        firsts.get(state.producer_id, state.current_transaction_first_offset + 1)
        <= state.current_transaction_first_offset
        for state in open_states(ours)
    )


def ended_unseen(
    open_at_end: Iterable[ProducerState], before: Sequence[ProducerState], after: Sequence[ProducerState]
) -> tuple[ProducerState, ...]:
    """Return those of ``open_at_end``, by the batches of a segment, that a broker had open where it begins (``before``) and not
    where it ends (``after``): the broker has seen the marker.  A cleaner takes that one away once it meets no batch of the
    transaction any more, so that none of its records is left to be shown or hidden."""
    gone = (state for state in open_at_end if lacks_none(before, (state,)))
    return tuple(state for state in gone if not lacks_none(after, (state,)))


def complete_index(
    brokers: Sequence[AbortedTransaction], derived: Sequence[AbortedTransaction]
) -> tuple[AbortedTransaction, ...]:
    """Return the broker's entries and, where it lacks them, those from the batches, by marker.  Of two for one marker the lower
    first offset and last stable offset count: lost state can only raise them."""
    found = {broker.last_offset: broker for broker in brokers}
    for transaction in derived:
        known = found.get(transaction.last_offset)
        if known is not None and known.producer_id == transaction.producer_id:
            transaction = transaction._replace(
                first_offset=min(transaction.first_offset, known.first_offset),
                last_stable_offset=min(transaction.last_stable_offset, known.last_stable_offset),
            )
        found[transaction.last_offset] = transaction
    return tuple(found[last_offset] for last_offset in sorted(found))


def complete_snapshot(
    brokers: Sequence[ProducerState], open_at_end: Sequence[ProducerState]
) -> tuple[ProducerState, ...]:
    """Return the broker's producers in their order, and those with an open transaction that it does not know, or knows with a
    later first offset."""
    missing = {state.producer_id: state for state in open_at_end}
    found = []
    for broker in brokers:
        known = missing.pop(broker.producer_id, None)
        if known is not None:
            (known,) = merge_open((known,), (broker,)) if open_states((broker,)) else (known,)
            broker = replace(broker, current_transaction_first_offset=known.current_transaction_first_offset)
        found.append(broker)
    return (*found, *missing.values())


def lacking_entries(
    uploaded: Sequence[AbortedTransaction], expected: Sequence[AbortedTransaction]
) -> tuple[AbortedTransaction, ...]:
    """Return those of ``expected``, from the batches, that the ``uploaded`` index does not hide, or not from their first offset
    on: with any of them, read_committed shows aborted records."""
    firsts = {(transaction.producer_id, transaction.last_offset): transaction.first_offset for transaction in uploaded}
    return tuple(
        transaction
        for transaction in expected
        if firsts.get((transaction.producer_id, transaction.last_offset), transaction.first_offset + 1)
        > transaction.first_offset
    )
