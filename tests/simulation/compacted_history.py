"""The history of a compacted partition as it was written: which record of a key counts, and what a cleaner may have taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.simulation.records import Batch, aborted_transactions, open_transactions
from tiersidecar.formats.kafka.record_batches import RecordBatchHeader, iter_batch_headers
from tiersidecar.formats.kafka.records import Record, read_records

Table = dict[bytes, tuple[int, bytes]]
"""Key to offset and value of the last record; without tombstones."""


class Written(NamedTuple):
    """A record of data.  ``is_committed`` is None while its transaction is open."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    is_committed: bool | None


@dataclass(frozen=True, slots=True)
class CompactedHistory:
    """``records`` by offset; ``by_key`` has the committed ones of each key, ascending; ``batches`` by base offset."""

    records: dict[int, Written]
    by_key: dict[bytes, list[Written]]
    batches: dict[int, Batch]
    end: int

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> CompactedHistory:
        """Read it off the batches."""
        end = batches[-1].next_offset if batches else 0
        aborted, still_open = aborted_transactions(batches), open_transactions(batches, end)
        records: dict[int, Written] = {}
        by_key: dict[bytes, list[Written]] = {}
        for batch in batches:
            if batch.marker is not None:
                continue
            fate = _fate(batch, aborted, still_open)
            for number, (key, value) in enumerate(zip(batch.keys, batch.values, strict=True)):
                offset = batch.base_offset + number
                one = records[offset] = Written(offset, batch.timestamps_ms[number], key, value, fate)
                if fate and key is not None:
                    by_key.setdefault(key, []).append(one)
        return cls(records, by_key, {batch.base_offset: batch for batch in batches}, end)

    def last(self, key: bytes, stop: int) -> Written | None:
        """Return the committed record of ``key`` that counts below offset ``stop``."""
        return next((one for one in reversed(self.by_key.get(key, ())) if one.offset < stop), None)

    def table(self, stop: int) -> Table:
        """Return what a reader of all below ``stop`` takes for the state of things."""
        last = ((key, self.last(key, stop)) for key in self.by_key)
        return {key: (one.offset, one.value) for key, one in last if one is not None and one.value is not None}

    def difference(self, header: RecordBatchHeader, records: Sequence[Record]) -> str:
        """Return how a batch of a cleaned log differs from what was written, besides what is missing; empty where it does
        not."""
        if header.producer_id < 0 and not header.record_count and header.base_offset == header.last_offset < self.end:
            return ""  # a filler: of a segment no other batch was left
        batch = self.batches.get(header.base_offset)
        if batch is None:
            return f"no batch was written at {header.base_offset}"
        ours, written = header, next(iter_batch_headers(batch.data))[1]
        same = ("last_offset", "partition_leader_epoch", "producer_id", "producer_epoch", "base_sequence")
        for name in same:
            if getattr(ours, name) != getattr(written, name):
                return f"{name} of the batch at {header.base_offset} is {getattr(ours, name)}"
        if (ours.is_control, ours.is_transactional) != (written.is_control, written.is_transactional):
            return f"the batch at {header.base_offset} is of another kind"
        for one in records if not header.is_control else ():
            wrote = self.records.get(one.offset)
            if wrote is None or (one.timestamp_ms, one.key, one.value) != wrote[1:4]:
                return f"the record at {one.offset} is not the one that was written"
        return ""


def table_of(records: Sequence[Record]) -> Table:
    """Return the table that a reader builds of what it was shown, in order."""
    last = {one.key: one for one in records if one.key is not None}
    return {key: (int(one.offset), one.value) for key, one in last.items() if one.value is not None}


def record_offsets(data: memoryview, header: RecordBatchHeader) -> Sequence[int]:
    """Return the offsets of the records of a batch that begins ``data``: a cleaner leaves holes."""
    if header.record_count == header.last_offset_delta + 1:
        return range(header.base_offset, header.next_offset)
    return [int(one.offset) for one in read_records(data[: header.size_bytes])]


def _fate(batch: Batch, aborted: Sequence[tuple[int, int, int]], still_open: dict[int, int]) -> bool | None:
    if batch.producer_id < 0:
        return True
    if batch.base_offset >= still_open.get(batch.producer_id, batch.next_offset):
        return None
    return not any(
        producer == batch.producer_id and first <= batch.base_offset < marker for producer, first, marker in aborted
    )
