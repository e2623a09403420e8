"""The records of a batch as bytes to be copied: a rewrite decodes only what it must know of each.

A rewrite changes only the timestamp delta of a record.  So all from its offset delta on (key, value, headers) is one slice.
Layout and tolerance are those of :mod:`tiersidecar.formats.kafka.records`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.formats.kafka.compression import DecompressionError, decompress
from tiersidecar.formats.kafka.legacy_records import LegacyOpening, iter_legacy_records
from tiersidecar.formats.kafka.opened_memory import UNLIMITED
from tiersidecar.formats.kafka.record_batches import BATCH_HEADER_SIZE, RecordBatchHeader, TimestampType
from tiersidecar.formats.kafka.records import MAX_OPENED_BYTES
from tiersidecar.formats.native import HIGHEST, FrameParts

_INT_BITS, _LONG_BITS = (1 << 32) - 1, (1 << 64) - 1
_SIGN_BIT = 1 << 63
_MOST_BYTES = 10


class RawRecord(NamedTuple):
    """``tail`` is the record from its offset delta on; of formats 0 and 1, as format 2 has it after the offset delta."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    is_tombstone: bool
    tail: bytes


class _MalformedError(ValueError):
    pass


def iter_raw_records(batch: memoryview, header: RecordBatchHeader, *, where: str, position: int) -> Iterator[RawRecord]:
    """Yield the records of one whole batch, whose checksum was checked.

    Raises:
        CorruptDataError: codec or record structure, which may show at a later record; or they open to more than
            ``MAX_OPENED_BYTES``.
    """
    try:
        if header.magic < 2:
            yield from _legacy_records(batch, header)
        else:
            yield from _records(_opened(batch, header), header)
    except (DecompressionError, _MalformedError) as error:
        raise CorruptDataError(where=where, position=position, reason=str(error)) from error
    except IndexError as error:
        raise CorruptDataError(where=where, position=position, reason="the last record ends too early") from error


def native_frame(header: RecordBatchHeader) -> FrameParts | None:
    """Return what native code must know of a batch to read its opened records; None where it cannot be left to it."""
    if header.magic < 2 or header.record_count <= 0 or header.next_offset > HIGHEST:
        return None
    times = header.base_timestamp, header.max_timestamp
    return header.base_offset, header.last_offset, *times, header.attributes, header.record_count


def open_records(batch: memoryview, header: RecordBatchHeader, *, where: str, position: int) -> bytes:
    """Return the records of one whole batch of format 2 as they are behind its header, decompressed.

    Raises:
        CorruptDataError: the codec's frame; or they open to more than ``MAX_OPENED_BYTES``.
    """
    try:
        return _opened(batch, header)
    except DecompressionError as error:
        raise CorruptDataError(where=where, position=position, reason=str(error)) from error


def _opened(batch: memoryview, header: RecordBatchHeader) -> bytes:
    return bytes(decompress(batch[BATCH_HEADER_SIZE:], header.compression, max_bytes=MAX_OPENED_BYTES))


def _records(data: bytes, header: RecordBatchHeader) -> Iterator[RawRecord]:
    append_time_ms = header.max_timestamp if header.timestamp_type is TimestampType.LOG_APPEND_TIME else None
    base_offset, last_offset, base_ms = header.base_offset, header.last_offset, header.base_timestamp
    at = 0
    for _ in range(header.record_count):
        length, begin = _read(data, at)
        at = begin + length
        if length < 0 or at > len(data):
            raise _MalformedError(f"record of {length} bytes where {len(data) - begin} are left")
        delta_ms, tail = _read(data, begin + 1, _LONG_BITS)
        offset_delta, place = _read(data, tail)
        key_size, place = _read(data, place)
        key = None
        if key_size >= 0:
            key, place = data[place : place + key_size], place + key_size
        value_size, place = _read(data, place)
        if place + max(value_size, 0) > at:
            raise _MalformedError(f"record of {length} bytes where its key and value take more")
        offset = base_offset + offset_delta
        if not base_offset <= offset <= last_offset:
            raise _MalformedError(f"a record of offset {offset} in a batch of {base_offset} to {last_offset}")
        timestamp_ms = wrapped(base_ms + delta_ms) if append_time_ms is None else append_time_ms
        yield RawRecord(offset, timestamp_ms, key, value_size < 0, data[tail:at])
    if at != len(data):
        raise _MalformedError(f"{len(data) - at} bytes after the last of {header.record_count} records")


def _legacy_records(batch: memoryview, header: RecordBatchHeader) -> Iterator[RawRecord]:
    with UNLIMITED.lease() as lease:
        opening = LegacyOpening(max_bytes=MAX_OPENED_BYTES, lease=lease, copies=1)
        for record in iter_legacy_records(batch, header, opening):
            tail = _field(record.key) + _field(record.value) + b"\0"  # no headers
            yield RawRecord(record.offset, record.timestamp_ms, record.key, record.value is None, tail)


def _field(data: bytes | None) -> bytes:
    return b"\x01" if data is None else varint(len(data)) + data


def varint(value: int) -> bytes:
    """Return a zig-zag varint, of up to 64 bits (``ByteUtils.writeVarlong``)."""
    raw = ((value << 1) ^ (value >> 63)) & _LONG_BITS
    if raw < 0x80:
        return bytes((raw,))
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def wrapped(value: int) -> int:
    """Return ``value`` as a Java long."""
    return ((value + _SIGN_BIT) & _LONG_BITS) - _SIGN_BIT


def _read(data: bytes, at: int, bits: int = _INT_BITS) -> tuple[int, int]:
    """Return the varint, cut to ``bits`` before the zig-zag as in Java, and the place after it; most have one byte or two."""
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    second = data[at + 1]
    if second < 0x80:
        raw = byte & 0x7F | second << 7
        return (raw >> 1) ^ -(raw & 1), at + 2
    return _read_long(data, at, bits)


def _read_long(data: bytes, at: int, bits: int) -> tuple[int, int]:
    raw = shift = 0
    for place in range(at, at + _MOST_BYTES):
        byte = data[place]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            raw &= bits
            return (raw >> 1) ^ -(raw & 1), place + 1
        shift += 7
    raise _MalformedError(f"a variable-length integer of more than {_MOST_BYTES} bytes")
