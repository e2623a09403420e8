"""The records inside a batch: for the NDJSON of the read service, and for markers of transactions (``DefaultRecord``).

A record of format 2, all integers zig-zag varints of 32 bits but the attributes byte and timestampDelta, a varint of 64::

    length | attributes i8 | timestampDelta | offsetDelta | keyLength key | valueLength value | headerCount headers

Brokers accept what clients write.  So bits beyond those are dropped, and a timestamp wraps, as in Java (``ByteUtils``,
``DefaultRecord.readFrom``): otherwise offsets and times would differ from those that a consumer of the broker sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.compression import DecompressionError, open_pieces
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.legacy_records import LegacyOpening, LegacyRecord, iter_legacy_records
from tiersidecar.formats.kafka.opened_bytes import OpenedBytes
from tiersidecar.formats.kafka.opened_memory import UNLIMITED, OpenedMemory
from tiersidecar.formats.kafka.record_batches import (
    BATCH_HEADER_SIZE,
    Buffer,
    RecordBatchHeader,
    TimestampType,
    check_batch,
    read_batch_header,
)

MAX_OPENED_BYTES = 256 * 1024 * 1024
"""Most bytes that one batch's records may open to where all of them are in memory at once."""
MAX_STREAMED_BYTES = (1 << 32) - 1
"""Most bytes that they may open to one after the other: it costs only time."""

_COPIES = 3
"""Copies of a large record: the pieces it came in, itself, and its key and value."""
_MOST_VARINT_BYTES, _MOST_VARLONG_BYTES = 5, 10
_INT_BITS, _LONG_BITS = (1 << 32) - 1, (1 << 64) - 1
_MOST_HEAD_BYTES = 1 + _MOST_VARLONG_BYTES + _MOST_VARINT_BYTES
"""Attributes, timestamp and offset of a record."""
_HEADER_COST_BYTES, _FEW_HEADERS = 600, 1000
"""A record header of two bytes as objects and as text; a few are not counted."""

_CONTROL_KEY = Struct(">hh")
_END_TRANSACTION_VALUE = Struct(">hi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record.  A None key or value is Kafka's null (a None value: a tombstone).

    Brokers accept header keys of any bytes.  Bytes that are not UTF-8 become U+FFFD here, as in Kafka's own clients.
    """

    offset: Offset
    timestamp_ms: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    is_control: bool = False


class ControlKind(IntEnum):
    """Types of control records that end a transaction (``ControlRecordType``)."""

    ABORT = 0
    COMMIT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlMarker:
    """Content of an end-transaction marker (``EndTransactionMarker``)."""

    kind: ControlKind
    coordinator_epoch: int


@dataclass(frozen=True, slots=True)
class AbortedRanges:
    """Transactional batches that a read_committed reader is not shown: offsets, inclusive, per producer id."""

    ranges: dict[int, tuple[tuple[int, int], ...]]

    def hides(self, header: RecordBatchHeader) -> bool:
        """Return whether the batch belongs to an aborted transaction.  Markers are for no reader, whatever this returns."""
        if not header.is_transactional:
            return False
        ranges = self.ranges.get(header.producer_id, ())
        return any(first <= header.base_offset <= last for first, last in ranges)


def aborted_ranges(transactions: Iterable[AbortedTransaction]) -> AbortedRanges:
    """Return the filter by the entries of transaction indexes; each spans its first record to its abort marker."""
    ranges: dict[int, tuple[tuple[int, int], ...]] = {}
    for transaction in transactions:
        span = (transaction.first_offset, transaction.last_offset)
        ranges[transaction.producer_id] = (*ranges.get(transaction.producer_id, ()), span)
    return AbortedRanges(ranges)


def read_records(
    batch: Buffer, *, where: str = "record batch", position: int = 0, max_bytes: int = MAX_OPENED_BYTES
) -> list[Record]:
    """Return all records of the batch at the front of ``batch``.  Raise what :func:`iter_records` does."""
    return list(iter_records(batch, where=where, position=position, max_bytes=max_bytes))


def iter_records(
    batch: Buffer,
    *,
    where: str = "record batch",
    position: int = 0,
    max_bytes: int = MAX_STREAMED_BYTES,
    memory: OpenedMemory = UNLIMITED,
    copies: int = _COPIES,
) -> Iterator[Record]:
    """Yield the records of the batch at the front of ``batch``; its checksum is compared before the first.

    As objects they take many times their size in the batch: small records 30 times, and more.  The opened bytes
    are in memory piece by piece; a record of more than a MiB counts ``copies`` times in ``memory`` until the next is asked
    for.

    Raises:
        CorruptDataError: checksum, codec or record structure, which may show at a later record; or the records open to more
            than ``max_bytes``.
        TruncatedDataError: the buffer ends within the batch.
        NoMemoryLeftError: other readers have taken ``memory``.
        TooLargeToOpenError: it is not enough for this batch.
    """
    with _opening(where, position), memory.lease() as lease:
        header, view = _checked(batch, where, position)
        if header.magic < 2:
            opening = LegacyOpening(max_bytes=max_bytes, lease=lease, copies=copies)
            for record in iter_legacy_records(view, header, opening):
                yield _from_legacy(record, header)
            return
        pieces = open_pieces(view[BATCH_HEADER_SIZE:], header.compression, lease)
        yield from _decode_records(OpenedBytes(pieces, lease, max_bytes=max_bytes, copies=copies), header)


def iter_record_times(
    batch: Buffer, *, where: str = "record batch", position: int = 0, memory: OpenedMemory = UNLIMITED
) -> Iterator[tuple[int, int]]:
    """Yield offset and timestamp of each record; keys, values and headers are skipped, and never in memory whole.

    Raises:
        As :func:`iter_records`.
    """
    with _opening(where, position), memory.lease() as lease:
        header, view = _checked(batch, where, position)
        if header.magic < 2:
            opening = LegacyOpening(max_bytes=MAX_STREAMED_BYTES, lease=lease, copies=_COPIES)
            for record in iter_legacy_records(view, header, opening):
                yield record.offset, record.timestamp_ms
            return
        pieces = open_pieces(view[BATCH_HEADER_SIZE:], header.compression, lease)
        yield from _decode_times(OpenedBytes(pieces, lease, max_bytes=MAX_STREAMED_BYTES, copies=1), header)


@contextmanager
def _opening(where: str, position: int) -> Iterator[None]:
    try:
        yield
    except (DecompressionError, _MalformedRecordError) as error:
        raise CorruptDataError(where=where, position=position, reason=str(error)) from error
    except IndexError as error:
        raise CorruptDataError(where=where, position=position, reason="the last record ends too early") from error


def _checked(batch: Buffer, where: str, position: int) -> tuple[RecordBatchHeader, memoryview]:
    header = read_batch_header(batch, where=where, position=position)
    check_batch(batch, header, where=where, position=position)
    return header, memoryview(batch)[: header.size_bytes]


def read_control_marker(record: Record, *, where: str = "record batch") -> ControlMarker | None:
    """Return the marker of a control record; None for other kinds (of the metadata log, of later versions).

    Raises:
        CorruptDataError: key or value too short.
    """
    key, value = record.key or b"", record.value or b""
    if len(key) < _CONTROL_KEY.size:
        raise CorruptDataError(where=where, position=0, reason=f"control key of {len(key)} bytes at {record.offset}")
    kind = _CONTROL_KEY.unpack_from(key)[1]
    if kind not in (ControlKind.ABORT, ControlKind.COMMIT):
        return None
    if len(value) < _END_TRANSACTION_VALUE.size:
        raise CorruptDataError(where=where, position=0, reason=f"marker of {len(value)} bytes at {record.offset}")
    return ControlMarker(kind=ControlKind(kind), coordinator_epoch=_END_TRANSACTION_VALUE.unpack_from(value)[1])


class _MalformedRecordError(ValueError):
    pass


def _from_legacy(record: LegacyRecord, header: RecordBatchHeader) -> Record:
    return Record(
        offset=Offset(record.offset),
        timestamp_ms=record.timestamp_ms,
        timestamp_type=header.timestamp_type,
        key=record.key,
        value=record.value,
    )


def _decode_records(opened: OpenedBytes, header: RecordBatchHeader) -> Iterator[Record]:
    for _ in range(header.record_count):
        length = _next_length(opened)
        if not opened.fill(length):
            raise _MalformedRecordError(f"record of {length} bytes where {opened.at_hand} are left")
        record, stop = _decode_record(opened, header, length)
        if stop != opened.offset + length:
            raise _MalformedRecordError(f"record of {length} bytes has {stop - opened.offset}")
        opened.offset = stop
        yield record
    _check_end(opened, header)


def _decode_times(opened: OpenedBytes, header: RecordBatchHeader) -> Iterator[tuple[int, int]]:
    for _ in range(header.record_count):
        length = _next_length(opened)
        opened.fill(min(length, _MOST_HEAD_BYTES))
        timestamp_delta, offset = _read_varlong(opened.data, opened.offset + 1)
        offset_delta, _ = _read_varint(opened.data, offset)
        yield _offset(header, offset_delta), _timestamp(header, timestamp_delta)
        if not opened.skip(length):
            raise _MalformedRecordError(f"record of {length} bytes where fewer are left")
    _check_end(opened, header)


def _next_length(opened: OpenedBytes) -> int:
    opened.next_record()
    if opened.at_hand < _MOST_VARINT_BYTES:
        opened.fill(_MOST_VARINT_BYTES)
    length, opened.offset = _read_varint(opened.data, opened.offset)
    if length < 0:
        raise _MalformedRecordError(f"record of {length} bytes")
    return length


def _check_end(opened: OpenedBytes, header: RecordBatchHeader) -> None:
    if opened.fill(1):
        raise _MalformedRecordError(f"{opened.at_hand} bytes after the last of {header.record_count} records")


def _offset(header: RecordBatchHeader, offset_delta: int) -> Offset:
    offset = header.base_offset + offset_delta
    if not header.base_offset <= offset <= header.last_offset:
        raise _MalformedRecordError(
            f"a record of offset {offset} in a batch of {header.base_offset} to {header.last_offset}"
        )
    return Offset(offset)


def _timestamp(header: RecordBatchHeader, timestamp_delta: int) -> int:
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return header.max_timestamp
    sum_ms = header.base_timestamp + timestamp_delta
    return ((sum_ms + (1 << 63)) & _LONG_BITS) - (1 << 63)


def _decode_record(opened: OpenedBytes, header: RecordBatchHeader, length: int) -> tuple[Record, int]:
    data = opened.data
    timestamp_delta, offset = _read_varlong(data, opened.offset + 1)
    offset_delta, offset = _read_varint(data, offset)
    key, offset = _read_bytes(data, offset)
    value, offset = _read_bytes(data, offset)
    count, offset = _read_varint(data, offset)
    if count < 0:
        raise _MalformedRecordError(f"{count} record headers")
    if count > _FEW_HEADERS:
        opened.hold_more(min(count, length // 2) * _HEADER_COST_BYTES)
    headers = []
    for _ in range(count):
        name, offset = _read_bytes(data, offset)
        content, offset = _read_bytes(data, offset)
        if name is None:
            raise _MalformedRecordError("a record header without a key")
        headers.append((name.decode(errors="replace"), content))
    record = Record(
        offset=_offset(header, offset_delta),
        timestamp_ms=_timestamp(header, timestamp_delta),
        timestamp_type=header.timestamp_type,
        key=key,
        value=value,
        headers=tuple(headers),
        is_control=header.is_control,
    )
    return record, offset


def _read_bytes(data: bytes, offset: int) -> tuple[bytes | None, int]:
    size, offset = _read_varint(data, offset)
    if size < 0:
        return None, offset
    if size > len(data) - offset:
        raise _MalformedRecordError(f"field of {size} bytes where {len(data) - offset} are left")
    return data[offset : offset + size], offset + size


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return a zig-zag varint of 32 bits, and the offset after it."""
    byte = data[offset]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), offset + 1
    return _read_long_varint(data, offset, _MOST_VARINT_BYTES, _INT_BITS)


def _read_varlong(data: bytes, offset: int) -> tuple[int, int]:
    """Return a zig-zag varint of 64 bits, and the offset after it."""
    byte = data[offset]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), offset + 1
    return _read_long_varint(data, offset, _MOST_VARLONG_BYTES, _LONG_BITS)


def _read_long_varint(data: bytes, offset: int, most_bytes: int, bits: int) -> tuple[int, int]:
    byte, raw, shift = data[offset], data[offset] & 0x7F, 7
    while byte >= 0x80:
        if shift == 7 * most_bytes:
            raise _MalformedRecordError(f"a variable-length integer of more than {most_bytes} bytes")
        offset += 1
        byte = data[offset]
        raw |= (byte & 0x7F) << shift
        shift += 7
    raw &= bits
    return (raw >> 1) ^ -(raw & 1), offset + 1
