"""Producer snapshots: ``<offset>.snapshot``, the producers' state before that offset (``ProducerStateManager``).

``version i16 = 1 | crc u32 | count i32`` and per producer ``producerId i64 | epoch i16 | lastSequence i32 | lastOffset i64
| offsetDelta i32 | timestamp i64 | coordinatorEpoch i32 | currentTxnFirstOffset i64``, big endian; the CRC32C covers all
after itself.  Brokers write them non-atomically: one that fails here may be whole a moment later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields, replace
from struct import Struct
from typing import Any

from crc32c import crc32c

from tiersidecar.domain.errors import CorruptDataError, TruncatedDataError
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.packed_rows import PackedRows
from tiersidecar.formats.kafka.record_batches import Buffer, RecordBatchHeader
from tiersidecar.formats.kafka.records import ControlKind, ControlMarker

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
        raise TruncatedDataError(where=where, position=len(data), reason=f"{len(data)} bytes are no producer snapshot")
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
    """The bytes of a snapshot; without states, the empty one of a partition that no idempotent producer has written to."""
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
