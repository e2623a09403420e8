"""One batch without some of its records (``MemoryRecords.filterTo``).

What stays keeps its offset, its timestamp and the codec.  The batch keeps base and last offset, leader epoch, producer and
sequence, so that a producer's next sequence is still the next one.  A batch of which every record stays is the same bytes.

Delete horizon (KIP-534): a batch with tombstones, or with the marker of a transaction of which nothing is left, is written
with attribute bit 6, and its base timestamp is then the time from which these may go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from crc32c import crc32c

from tiersidecar.formats.compaction.raw_records import RawRecord, iter_raw_records, varint, wrapped
from tiersidecar.formats.kafka.compressing import compress
from tiersidecar.formats.kafka.record_batches import (
    BATCH_HEADER_SIZE,
    COMPRESSION_MASK,
    CRC_START_V2,
    HEADER_V2,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    Buffer,
    RecordBatchHeader,
)

DELETE_HORIZON_FLAG = 0x40
_KEPT_ATTRIBUTES = 0x3F
_PLAIN_ATTRIBUTES = _KEPT_ATTRIBUTES & ~COMPRESSION_MASK

Keeps = Callable[[RawRecord], bool]
"""Returns whether a record stays."""


class Emptied(Enum):
    """Fate of a batch of which no record stays."""

    DROPPED = auto()
    KEPT_EMPTY = auto()
    """Its header stays: only it has its producer's last sequence, or the last offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenBatch:
    """``data`` is empty where the batch is dropped.  Counts are of records."""

    data: Buffer
    read: int
    kept: int


def delete_horizon_ms(header: RecordBatchHeader) -> int | None:
    """Return when the tombstones and markers of the batch may go; None where no cleaner has set it yet."""
    has_one = header.magic >= 2 and header.attributes & DELETE_HORIZON_FLAG
    return header.base_timestamp if has_one else None


def rewrite_batch(
    batch: memoryview,
    header: RecordBatchHeader,
    keeps: Keeps,
    emptied: Emptied,
    *,
    horizon_ms: int | None = None,
    is_horizon_due: bool = False,
    renews_horizon: bool = False,
    span: tuple[int, int] | None = None,
    where: str = "record batch",
    position: int = 0,
) -> RewrittenBatch:
    """Return the batch with the records that ``keeps`` wants; formats 0 and 1 become format 2, as in Kafka.

    ``horizon_ms`` is set where the batch has no delete horizon yet and keeps a tombstone, or ``is_horizon_due``; None sets
    none.  ``renews_horizon``: one that the batch has counts for nothing.  ``span`` is the first and the last offset that a
    batch of format 0 or 1 is to have; None: those of the records that stay.

    Raises:
        CorruptDataError: the records cannot be read.
        ValueError: a batch of format 0 or 1 is to be kept empty, which these formats cannot express.
    """
    kept: list[RawRecord] = []
    read, has_tombstone = 0, False
    for record in iter_raw_records(batch, header, where=where, position=position):
        read += 1
        if keeps(record):
            kept.append(record)
            has_tombstone = has_tombstone or record.is_tombstone
    if not kept:
        data = empty_batch(header) if emptied is Emptied.KEPT_EMPTY else b""
        return RewrittenBatch(data=data, read=read, kept=0)
    found_ms = delete_horizon_ms(header)
    former_ms = None if renews_horizon else found_ms
    sets_horizon = horizon_ms is not None and former_ms is None and (has_tombstone or is_horizon_due)
    if len(kept) == read and header.magic >= 2 and former_ms == found_ms and not sets_horizon:
        return RewrittenBatch(data=batch, read=read, kept=read)
    data = _written(header, kept, horizon_ms if sets_horizon else former_ms, span)
    return RewrittenBatch(data=data, read=read, kept=len(kept))


def empty_batch(header: RecordBatchHeader) -> bytes:
    """Return the batch without any record (``DefaultRecordBatch.writeEmptyHeader``).

    Raises:
        ValueError: it is of format 0 or 1.
    """
    if header.magic < 2:
        raise ValueError(f"a message of format {header.magic} cannot be empty")
    attributes = header.attributes & _PLAIN_ATTRIBUTES
    return new_batch(header, attributes, NO_TIMESTAMP, header.max_timestamp, 0, b"")


def filler_batch(offset: int, leader_epoch: int) -> bytes:
    """Return an empty batch of no producer at ``offset``, for a segment of which no other is left."""
    length = BATCH_HEADER_SIZE - LOG_OVERHEAD
    fields = (offset, length, leader_epoch, 2, 0, 0, 0, NO_TIMESTAMP, NO_TIMESTAMP, -1, -1, -1, 0)
    out = bytearray(HEADER_V2.pack(*fields))
    out[CRC_START_V2 - 4 : CRC_START_V2] = crc32c(memoryview(out)[CRC_START_V2:]).to_bytes(4, "big")
    return bytes(out)


def _written(
    header: RecordBatchHeader, records: list[RawRecord], horizon_ms: int | None, legacy_span: tuple[int, int] | None
) -> bytes:
    """Write the batch like ``MemoryRecordsBuilder``: the first record's timestamp is the base, unless a delete horizon is."""
    is_legacy = header.magic < 2
    base_offset: int = header.base_offset
    last_offset: int = header.last_offset
    if is_legacy:
        base_offset, last_offset = legacy_span or (records[0].offset, records[-1].offset)
    base_ms = records[0].timestamp_ms if horizon_ms is None else horizon_ms
    body = bytearray()
    for record in records:
        tail = varint(record.offset - base_offset) + record.tail if is_legacy else record.tail
        delta = varint(wrapped(record.timestamp_ms - base_ms))
        body += varint(1 + len(delta) + len(tail)) + b"\0" + delta + tail
    attributes = header.attributes & _KEPT_ATTRIBUTES
    if horizon_ms is not None:
        attributes |= DELETE_HORIZON_FLAG
    max_ms = max(NO_TIMESTAMP, *(one.timestamp_ms for one in records))
    span = (base_offset, last_offset - base_offset)
    return new_batch(header, attributes, base_ms, max_ms, len(records), compress(body, header.compression), span)


def new_batch(
    header: RecordBatchHeader,
    attributes: int,
    base_ms: int,
    max_ms: int,
    count: int,
    body: Buffer,
    span: tuple[int, int] | None = None,
) -> bytes:
    """Return the batch with other records: ``count`` of them in ``body``, compressed.  ``span`` is its base offset and its last
    offset delta; None: those that it had."""
    base_offset, last_delta = span or (header.base_offset, header.last_offset_delta)
    length = BATCH_HEADER_SIZE - LOG_OVERHEAD + len(body)
    fields = (base_offset, length, header.partition_leader_epoch, 2, 0, attributes, last_delta, base_ms, max_ms)
    out = bytearray(HEADER_V2.pack(*fields, header.producer_id, header.producer_epoch, header.base_sequence, count))
    out += body
    out[CRC_START_V2 - 4 : CRC_START_V2] = crc32c(memoryview(out)[CRC_START_V2:]).to_bytes(4, "big")
    return bytes(out)
