"""State of producers and their transactions (``ProducerStateManager``): producer snapshots, and what a segment's batches show.

A snapshot, ``<offset>.snapshot``, is the producers' state before that offset: ``version i16 = 1 | crc u32 | count i32`` and per
producer ``producerId i64 | epoch i16 | lastSequence i32 | lastOffset i64 | offsetDelta i32 | timestamp i64 | coordinatorEpoch
i32 | currentTxnFirstOffset i64``, big endian; the CRC32C covers all after itself.  Brokers write them non-atomically: one that
fails here may be whole a moment later.

Transactions are read from a segment's batches too (docs/design/0011; ``CompletedTxn``).  A broker that has lost its producers'
state (a move to another log dir, a new replica, a crash after the last snapshot was deleted) writes no abort entry for a
transaction that began before, and a producer snapshot in which that one is not open.  The batches have the markers, and the
segment before has the transactions that are open where this one begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from struct import Struct
from typing import Any

from crc32c import crc32c

from tiersidecar.domain.errors import CorruptDataError, TruncatedDataError
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction, PackedRows
from tiersidecar.formats.kafka.record_batches import (
    CONTROL_FLAG,
    TRANSACTIONAL_FLAG,
    Buffer,
    RecordBatchHeader,
    incremented_sequence,
    read_batch_header,
)
from tiersidecar.formats.kafka.records import ControlKind, ControlMarker, read_control_marker, read_records

_HEAD = Struct(">hIi")
_ENTRY = Struct(">qhiqiqiq")
_VERSION = 1
_CRC_END = 6
_NONE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """The broker's state of one producer, in the order of the file; -1 for a missing value.

    ``last_offset`` is inclusive, and of data.
    """

    producer_id: int
    epoch: int = _NONE
    last_sequence: int = _NONE
    last_offset: int = _NONE
    offset_delta: int = 0
    timestamp_ms: int = _NONE
    coordinator_epoch: int = _NONE
    current_transaction_first_offset: int = _NONE


_FIELD_NAMES = tuple(field.name for field in fields(ProducerState))


def read_producer_snapshot(data: Buffer, *, where: str = "producer snapshot") -> PackedRows[ProducerState]:
    """Return all producers, in the order of the file.

    Raises:
        TruncatedDataError: shorter than its count says.
        CorruptDataError: another version, or the checksum differs.
    """
    return PackedRows(bytes(_rows(data, where)), _ENTRY, _state)


def read_open_producers(data: Buffer, *, where: str = "producer snapshot") -> tuple[ProducerState, ...]:
    """Return those of :func:`read_producer_snapshot` with an open transaction: mostly few of many."""
    return tuple(_state(row) for row in _ENTRY.iter_unpack(_rows(data, where)) if row[-1] != _NONE)


def _rows(data: Buffer, where: str) -> memoryview:
    if len(data) < _HEAD.size:
        raise TruncatedDataError(
            where=where, position=len(data), reason=f"{len(data)} bytes are not a producer snapshot"
        )
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptDataError(where=where, position=0, reason=f"unknown version {version}")
    expected = _HEAD.size + max(count, 0) * _ENTRY.size
    if len(data) < expected:
        reason = f"{count} producers take {expected} bytes, {len(data)} are there"
        raise TruncatedDataError(where=where, position=len(data), reason=reason)
    actual = crc32c(memoryview(data)[_CRC_END:])
    if actual != crc or count < 0 or len(data) != expected:
        reason = f"checksum is {actual:#010x}, the file says {crc:#010x}; {len(data)} bytes for {count} producers"
        raise CorruptDataError(where=where, position=_CRC_END, reason=reason)
    return memoryview(data)[_HEAD.size :]


def _state(row: tuple[Any, ...]) -> ProducerState:
    return ProducerState(**dict(zip(_FIELD_NAMES, row, strict=True)))


def write_producer_snapshot(states: Iterable[ProducerState] = ()) -> bytes:
    """Return the bytes of a snapshot; without states, the empty one of a partition without idempotent producers."""
    entries = [_ENTRY.pack(*astuple(state)) for state in states]
    body = len(entries).to_bytes(4, "big") + b"".join(entries)
    return _VERSION.to_bytes(2, "big") + crc32c(body).to_bytes(4, "big") + body


class ProducerStates:
    """Producers' states, moved on batch by batch: from a segment's snapshot to that of the next (U9).

    Like ``ProducerStateManager`` for replicated batches, it refuses nothing.  ``aborted`` gathers the transactions
    whose abort marker went past, as the segment's transaction index has them.
    """

    def __init__(self, states: Iterable[ProducerState] = ()) -> None:
        self._states = {state.producer_id: state for state in states}
        self.aborted: list[AbortedTransaction] = []

    @property
    def states(self) -> tuple[ProducerState, ...]:
        """Return the states by producer id."""
        return tuple(self._states[producer_id] for producer_id in sorted(self._states))

    def add_batch(self, header: RecordBatchHeader) -> None:
        """Add a batch of data; those of producers without id change nothing."""
        if header.producer_id < 0:
            return
        state = self._states.get(header.producer_id, ProducerState(producer_id=header.producer_id))
        first_offset = state.current_transaction_first_offset
        if header.is_transactional and first_offset == _NONE:
            first_offset = header.base_offset
        self._states[header.producer_id] = replace(
            state,
            epoch=header.producer_epoch,
            last_sequence=header.last_sequence,
            last_offset=header.last_offset,
            offset_delta=header.last_offset_delta,
            timestamp_ms=header.max_timestamp,
            current_transaction_first_offset=first_offset,
        )

    def add_marker(self, header: RecordBatchHeader, marker: ControlMarker, timestamp_ms: int) -> None:
        """Add a batch with the marker that ends a transaction; ``timestamp_ms`` is the marker record's."""
        state = self._states.get(header.producer_id, ProducerState(producer_id=header.producer_id))
        if state.epoch != header.producer_epoch:
            # A bumped epoch starts its sequences anew.
            state = ProducerState(producer_id=state.producer_id, epoch=header.producer_epoch)
            state = replace(state, current_transaction_first_offset=self._open_transaction(header.producer_id))
        first_offset = state.current_transaction_first_offset
        self._states[header.producer_id] = replace(
            state,
            timestamp_ms=timestamp_ms,
            coordinator_epoch=marker.coordinator_epoch,
            current_transaction_first_offset=_NONE,
        )
        if marker.kind is ControlKind.ABORT and first_offset != _NONE:
            self.aborted.append(
                AbortedTransaction(
                    header.producer_id,
                    Offset(first_offset),
                    header.base_offset,
                    self._stable_offset(header.next_offset),
                )
            )

    def _open_transaction(self, producer_id: int) -> int:
        state = self._states.get(producer_id)
        return state.current_transaction_first_offset if state is not None else _NONE

    def _stable_offset(self, next_offset: Offset) -> Offset:
        """Return the first offset of the oldest transaction still open, or ``next_offset``."""
        open_offsets = [state.current_transaction_first_offset for state in self._states.values()]
        return Offset(min((offset for offset in open_offsets if offset != _NONE), default=next_offset))


TRANSACTION_FLAGS = TRANSACTIONAL_FLAG | CONTROL_FLAG
"""Attribute bits without which a walk can skip a batch."""

_FIELDS = Struct(">q13xhi8xqqhi")
"""Header fields: base offset, attributes, last offset delta, max timestamp, producer id, producer epoch, base sequence."""


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
        """Take the next batch, of format 2, whose checksum holds."""
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
        """Take the next batch, of format 2, whose checksum holds."""
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
