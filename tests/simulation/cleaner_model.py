"""What Kafka's log cleaner leaves of a log (``Cleaner``, ``MemoryRecords.filterTo``, ``CleanedTransactionMetadata``), batch by
batch.

It is no part of the product: what the simulated brokers leave, and what is to be expected of the remote log, must not share the
faults of our cleaner.  ``tests/integration/test_kafka_cleaner.py`` holds it against Kafka's own class.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.simulation.batches import batch_bytes, record_bytes
from tests.simulation.records import Marker
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.record_batches import RecordBatchHeader, iter_batch_headers
from tiersidecar.formats.kafka.records import Record, read_records

_HORIZON = 0x40
_EMPTIED = 0x3F & ~0x07

Batches = Sequence[tuple[RecordBatchHeader, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Terms of a round.  From ``first_dirty`` on nothing was cleaned before; ``end`` (exclusive) is where the cleaning ends.
    ``last_data`` has the last offset of data by producer, None where its last record is the marker of epoch
    ``last_epochs``."""

    first_dirty: int
    end: int
    now_ms: int
    delete_retention_ms: int
    last_data: Mapping[int, int | None] = field(default_factory=dict)
    last_epochs: Mapping[int, int] = field(default_factory=dict)


def batches_of(log: bytes) -> list[tuple[RecordBatchHeader, bytes]]:
    """Return header and bytes of each batch of a .log."""
    return [(header, log[at : at + header.size_bytes]) for at, header in iter_batch_headers(log)]


class CleanerModel:
    """One round over ``log``, all batches of it from its start to the round's end; ``aborted`` are its transaction indexes."""

    def __init__(self, log: Batches, aborted: Iterable[AbortedTransaction], terms: Round) -> None:
        self._terms, known = terms, sorted(set(aborted), key=lambda one: one.first_offset)
        self._last = dict(_last_offsets(log, [one for one in known if one.last_offset >= terms.first_dirty], terms))
        self._walk = _Transactions(known)

    def clean(self, header: RecordBatchHeader, data: bytes) -> bytes:
        """Return what is left of the next batch; the same bytes where all of it is, none where nothing is."""
        terms, records = self._terms, read_records(data)
        horizon_ms = header.base_timestamp if header.attributes & _HORIZON else None
        is_due = horizon_ms is not None and horizon_ms <= terms.now_ms
        if header.is_control:
            may_go = self._walk.marker_may_go(header, records)
            kept = [] if may_go and is_due else records
            sets_horizon = may_go
        else:
            is_aborted = self._walk.is_aborted(header)
            kept = [] if is_aborted else [one for one in records if self._stays(one, is_due=is_due)]
            sets_horizon = any(one.value is None for one in kept)
        if not kept:
            return _emptied(header) if self._is_last_of_producer(header) or header.next_offset == terms.end else b""
        if horizon_ms is None and sets_horizon:
            return _written(header, kept, terms.now_ms + terms.delete_retention_ms)
        return data if len(kept) == len(records) else _written(header, kept, horizon_ms)

    def take_retained(self) -> list[AbortedTransaction]:
        """Return the transaction index of what was cleaned since the last call."""
        retained, self._walk.retained = self._walk.retained, []
        return retained

    def _stays(self, record: Record, *, is_due: bool) -> bool:
        if record.key is None or record.offset < self._last.get(record.key, -1):
            return False
        return record.value is not None or not is_due

    def _is_last_of_producer(self, header: RecordBatchHeader) -> bool:
        if header.producer_id not in self._terms.last_data:
            return False
        last = self._terms.last_data[header.producer_id]
        if last is None:
            return header.is_control and header.producer_epoch == self._terms.last_epochs.get(header.producer_id)
        return header.last_offset == last


def _last_offsets(log: Batches, aborted: Sequence[AbortedTransaction], terms: Round) -> Iterator[tuple[bytes, int]]:
    """Yield key and offset of what counts in the dirty part, in its order."""
    walk = _Transactions(aborted)
    for header, data in log:
        if header.last_offset < terms.first_dirty:
            continue
        if header.is_control:
            walk.marker_may_go(header, read_records(data))
        elif not walk.is_aborted(header):
            for record in read_records(data):
                if record.key is not None and record.offset >= terms.first_dirty:
                    yield record.key, record.offset


class _Transactions:
    """``CleanedTransactionMetadata``, over ``aborted`` by their first offsets."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._waiting = list(aborted)
        self._aborted: dict[int, AbortedTransaction] = {}
        self._seen: set[int] = set()
        self._committed: set[int] = set()
        self.retained: list[AbortedTransaction] = []

    def is_aborted(self, header: RecordBatchHeader) -> bool:
        self._begin(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._seen.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def marker_may_go(self, header: RecordBatchHeader, records: Sequence[Record]) -> bool:
        self._begin(header.last_offset)
        if not records:
            return True
        producer = header.producer_id
        if _marker(records[0]) is Marker.COMMIT:
            was_seen = producer in self._committed
            self._committed.discard(producer)
            return not was_seen
        entry, was_seen = self._aborted.pop(producer, None), producer in self._seen
        self._seen.discard(producer)
        if entry is None or not was_seen:
            return True
        self.retained.append(entry)
        return False

    def _begin(self, offset: int) -> None:
        while self._waiting and self._waiting[0].first_offset <= offset:
            entry = self._waiting.pop(0)
            self._aborted.setdefault(entry.producer_id, entry)


def _marker(record: Record) -> Marker:
    assert record.key is not None
    return Marker(struct.unpack(">hh", record.key)[1])


def _emptied(header: RecordBatchHeader) -> bytes:
    """Return ``DefaultRecordBatch.writeEmptyHeader``."""
    return batch_bytes(
        header.base_offset,
        count=0,
        last_offset_delta=header.last_offset_delta,
        epoch=header.partition_leader_epoch,
        attributes=header.attributes & _EMPTIED,
        base_timestamp=-1,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )


def _written(header: RecordBatchHeader, records: Sequence[Record], horizon_ms: int | None) -> bytes:
    """Return the batch with these records, uncompressed; with a delete horizon that is its base timestamp."""
    base_ms = records[0].timestamp_ms if horizon_ms is None else horizon_ms
    body = b"".join(
        record_bytes(
            one.offset - header.base_offset,
            one.key,
            one.value,
            timestamp_delta=one.timestamp_ms - base_ms,
            headers=[(name.encode(), value) for name, value in one.headers],
        )
        for one in records
    )
    return batch_bytes(
        header.base_offset,
        body,
        count=len(records),
        last_offset_delta=header.last_offset_delta,
        epoch=header.partition_leader_epoch,
        attributes=header.attributes & 0x38 | (0 if horizon_ms is None else _HORIZON),
        base_timestamp=base_ms,
        max_timestamp=max(one.timestamp_ms for one in records),
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
