"""The records inside a batch: for the NDJSON of the read service, and for markers of transactions (``DefaultRecord``).

A record of format 2, all integers zig-zag varints but the attributes byte::

    length | attributes i8 | timestampDelta | offsetDelta | keyLength key | valueLength value | headerCount headers
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.compression import DecompressionError, decompress
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.legacy_records import LegacyRecord, iter_legacy_records
from tiersidecar.formats.kafka.record_batches import (
    BATCH_HEADER_SIZE,
    Buffer,
    RecordBatchHeader,
    TimestampType,
    check_batch,
    read_batch_header,
)

MAX_OPENED_BYTES = 256 * 1024 * 1024
"""What the records of one batch may open to unless the caller says otherwise."""

_CONTROL_KEY = Struct(">hh")
_END_TRANSACTION_VALUE = Struct(">hi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record.  A None key or value is Kafka's null (a None value: a tombstone).

    Brokers take header keys of any bytes.  What is no UTF-8 in one is U+FFFD here, as Kafka's own clients show it.
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
    """What an end-transaction marker says (``EndTransactionMarker``)."""

    kind: ControlKind
    coordinator_epoch: int


@dataclass(frozen=True, slots=True)
class AbortedRanges:
    """Which transactional batches a read_committed reader is not shown: offsets, inclusive, per producer id."""

    ranges: dict[int, tuple[tuple[int, int], ...]]

    def hides(self, header: RecordBatchHeader) -> bool:
        """Whether the batch belongs to an aborted transaction.  Markers are for no reader, whatever this says of them."""
        if not header.is_transactional:
            return False
        ranges = self.ranges.get(header.producer_id, ())
        return any(first <= header.base_offset <= last for first, last in ranges)


def aborted_ranges(transactions: Iterable[AbortedTransaction]) -> AbortedRanges:
    """The filter that the entries of transaction indexes make; each spans its first record to its abort marker."""
    ranges: dict[int, tuple[tuple[int, int], ...]] = {}
    for transaction in transactions:
        span = (transaction.first_offset, transaction.last_offset)
        ranges[transaction.producer_id] = (*ranges.get(transaction.producer_id, ()), span)
    return AbortedRanges(ranges)


def read_records(
    batch: Buffer, *, where: str = "record batch", position: int = 0, max_bytes: int = MAX_OPENED_BYTES
) -> list[Record]:
    """All records of the batch at the front of ``batch``.  Raises as :func:`iter_records`."""
    return list(iter_records(batch, where=where, position=position, max_bytes=max_bytes))


def iter_records(
    batch: Buffer, *, where: str = "record batch", position: int = 0, max_bytes: int = MAX_OPENED_BYTES
) -> Iterator[Record]:
    """The records of the batch at the front of ``batch``, one after the other; its checksum is compared before the first.

    As objects they take many times the room that they take in the batch: of small records 30 times, and more.

    Raises:
        CorruptDataError: checksum, codec or record structure, which may show at a later record; or the records open to more
            than ``max_bytes``.
        TruncatedDataError: the buffer ends within the batch.
    """
    header = read_batch_header(batch, where=where, position=position)
    check_batch(batch, header, where=where, position=position)
    view = memoryview(batch)[: header.size_bytes]
    try:
        if header.magic < 2:
            for record in iter_legacy_records(view, header, max_bytes=max_bytes):
                yield _from_legacy(record, header)
            return
        payload = decompress(view[BATCH_HEADER_SIZE:], header.compression, max_bytes=max_bytes)
        yield from _decode_records(bytes(payload), header)
    except (DecompressionError, _MalformedRecordError) as error:
        raise CorruptDataError(where=where, position=position, reason=str(error)) from error
    except IndexError as error:
        raise CorruptDataError(where=where, position=position, reason="the last record ends too early") from error


def read_control_marker(record: Record, *, where: str = "record batch") -> ControlMarker | None:
    """What a control record says of a transaction; None for other kinds (of the metadata log, of later versions).

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


def _decode_records(data: bytes, header: RecordBatchHeader) -> Iterator[Record]:
    offset = 0
    for _ in range(header.record_count):
        length, start = _read_varint(data, offset)
        if length < 0 or start + length > len(data):
            raise _MalformedRecordError(f"record of {length} bytes where {len(data) - start} are left")
        record, offset = _decode_record(data, start, header)
        if offset != start + length:
            raise _MalformedRecordError(f"record of {length} bytes has {offset - start}")
        yield record
    if offset != len(data):
        raise _MalformedRecordError(f"{len(data) - offset} bytes after the last of {header.record_count} records")


def _decode_record(data: bytes, offset: int, header: RecordBatchHeader) -> tuple[Record, int]:
    timestamp_delta, offset = _read_varint(data, offset + 1)
    offset_delta, offset = _read_varint(data, offset)
    key, offset = _read_bytes(data, offset)
    value, offset = _read_bytes(data, offset)
    count, offset = _read_varint(data, offset)
    if count < 0:
        raise _MalformedRecordError(f"{count} record headers")
    headers = []
    for _ in range(count):
        name, offset = _read_bytes(data, offset)
        content, offset = _read_bytes(data, offset)
        if name is None:
            raise _MalformedRecordError("a record header without a key")
        headers.append((name.decode(errors="replace"), content))
    is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    record = Record(
        offset=Offset(header.base_offset + offset_delta),
        timestamp_ms=header.max_timestamp if is_append_time else header.base_timestamp + timestamp_delta,
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
    """A zig-zag varint of up to 64 bits, and the offset after it."""
    byte = data[offset]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), offset + 1
    raw, shift = byte & 0x7F, 7
    while byte >= 0x80:
        if shift > 63:
            raise _MalformedRecordError("a variable-length integer of more than 10 bytes")
        offset += 1
        byte = data[offset]
        raw |= (byte & 0x7F) << shift
        shift += 7
    return (raw >> 1) ^ -(raw & 1), offset + 1
