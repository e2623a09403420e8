"""Records of producers in a simulation: batches of a few records, some in transactions, and the markers that end those."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from tests.simulation.batches import batch_bytes, record_bytes

_TRANSACTIONAL, _CONTROL = 0x10, 0x20


class Marker(IntEnum):
    """End of a transaction, as the control record's key says it."""

    ABORT = 0
    COMMIT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch as the leader wrote it; replicas share the very object, so that the same offset with another batch is another
    history.

    ``last_offset`` is inclusive; ``timestamps_ms`` are the records' own, of which ``timestamp_ms`` is the largest, and ``keys``
    and ``values`` as well; ``producer_id`` is -1 outside of transactions.
    """

    base_offset: int
    last_offset: int
    leader_epoch: int
    timestamp_ms: int
    timestamps_ms: tuple[int, ...]
    data: bytes
    keys: tuple[bytes | None, ...] = ()
    values: tuple[bytes | None, ...] = ()
    producer_id: int = -1
    marker: Marker | None = None

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1


def data_batch(
    base_offset: int,
    records: Sequence[tuple[int, bytes | None]],
    *,
    leader_epoch: int,
    producer_id: int = -1,
    keys: Sequence[bytes | None] = (),
) -> Batch:
    """Return a batch with one record per timestamp and value; of a transaction if there is a producer id.  Without ``keys`` no
    record has one."""
    keys = tuple(keys) or (None,) * len(records)
    timestamps_ms = tuple(timestamp_ms for timestamp_ms, _ in records)
    payload = b"".join(
        record_bytes(number, key, value, timestamp_delta=timestamp_ms - timestamps_ms[0])
        for number, (key, (timestamp_ms, value)) in enumerate(zip(keys, records, strict=True))
    )
    data = batch_bytes(
        base_offset,
        payload,
        count=len(records),
        epoch=leader_epoch,
        attributes=_TRANSACTIONAL if producer_id >= 0 else 0,
        base_timestamp=timestamps_ms[0],
        max_timestamp=max(timestamps_ms),
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=base_offset if producer_id >= 0 else -1,
    )
    return Batch(
        base_offset=base_offset,
        last_offset=base_offset + len(records) - 1,
        leader_epoch=leader_epoch,
        timestamp_ms=max(timestamps_ms),
        timestamps_ms=timestamps_ms,
        data=data,
        keys=keys,
        values=tuple(value for _, value in records),
        producer_id=producer_id,
    )


def marker_batch(base_offset: int, marker: Marker, *, leader_epoch: int, timestamp_ms: int, producer_id: int) -> Batch:
    """Return the end of a transaction."""
    record = record_bytes(0, struct.pack(">hh", 0, marker), struct.pack(">hi", 0, 0))
    data = batch_bytes(
        base_offset,
        record,
        epoch=leader_epoch,
        attributes=_TRANSACTIONAL | _CONTROL,
        base_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=0,
    )
    return Batch(
        base_offset=base_offset,
        last_offset=base_offset,
        leader_epoch=leader_epoch,
        timestamp_ms=timestamp_ms,
        timestamps_ms=(timestamp_ms,),
        data=data,
        producer_id=producer_id,
        marker=marker,
    )


def open_transactions(batches: Iterable[Batch], below: int) -> dict[int, int]:
    """Return the first offset by producer id of the transactions that no marker below offset ``below`` has ended."""
    found: dict[int, int] = {}
    for batch in batches:
        if batch.base_offset >= below:
            break
        if batch.producer_id < 0:
            continue
        if batch.marker is None:
            found.setdefault(batch.producer_id, batch.base_offset)
        else:
            found.pop(batch.producer_id, None)
    return found


def aborted_transactions(batches: Iterable[Batch]) -> list[tuple[int, int, int]]:
    """Return producer id, first offset and marker's offset of each that was aborted."""
    began: dict[int, int] = {}
    found = []
    for batch in batches:
        if batch.producer_id < 0:
            continue
        if batch.marker is None:
            began.setdefault(batch.producer_id, batch.base_offset)
        else:
            first = began.pop(batch.producer_id, None)
            if batch.marker is Marker.ABORT and first is not None:
                found.append((batch.producer_id, first, batch.base_offset))
    return found


def visible_offsets(batches: Sequence[Batch], start: int, stop: int) -> list[int]:
    """Return what a read_committed consumer is shown of the offsets from ``start`` up to, not including, ``stop``: nothing of a
    transaction that is aborted, or open at the end of ``batches``."""
    end = batches[-1].next_offset if batches else 0
    hidden = [
        *aborted_transactions(batches),
        *((pid, first, end) for pid, first in open_transactions(batches, end).items()),
    ]
    shown: list[int] = []
    for batch in batches:
        if batch.marker is not None or batch.last_offset < start or batch.base_offset >= stop:
            continue
        if any(pid == batch.producer_id and first <= batch.base_offset < end for pid, first, end in hidden):
            continue
        shown += [offset for offset in range(batch.base_offset, batch.next_offset) if start <= offset < stop]
    return shown
