"""Messages of formats 0 and 1, which brokers before 4.0 may have left in a log (``LegacyRecord``).

``offset i64 | size i32 | crc u32 | magic i8 | attributes i8 | [format 1: timestamp i64] | key | value``, where key and
value have an int32 length before them, -1 for null.  A compressed message's value is a set of messages: with absolute
offsets in format 0, relative ones in format 1, where the outer message bears the offset of the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is an exception class, named like a module's function

from tiersidecar.formats.kafka.compression import DecompressionError, decompress
from tiersidecar.formats.kafka.record_batches import (
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    Compression,
    RecordBatchHeader,
    TimestampType,
)

_OVERHEAD = Struct(">qi")
_MAGIC_AND_ATTRIBUTES = Struct(">4xbb")
_TIMESTAMP = Struct(">q")
_LENGTH = Struct(">i")


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyRecord:
    """One message with its absolute offset."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def iter_legacy_records(message: memoryview, header: RecordBatchHeader, *, max_bytes: int) -> Iterator[LegacyRecord]:
    """The records of one whole message: itself, or those that are compressed in it.

    Raises:
        DecompressionError: it does not open, or what is inside is no set of messages.
    """
    outer = _read_message(header.base_offset, message[LOG_OVERHEAD:])
    if header.compression is Compression.NONE:
        yield outer
        return
    if outer.value is None:
        raise DecompressionError("a compressed message without a value")
    inner = list(_iter_set(memoryview(decompress(memoryview(outer.value), header.compression, max_bytes=max_bytes))))
    if not inner:
        raise DecompressionError("a compressed message with nothing inside")
    # The offset of the last inner message is relative in format 1 and equals the outer one in format 0.
    shift = header.base_offset - inner[-1].offset if header.magic == 1 else 0
    for record in inner:
        is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
        timestamp_ms = outer.timestamp_ms if is_append_time else record.timestamp_ms
        yield replace(record, offset=record.offset + shift, timestamp_ms=timestamp_ms)


def _iter_set(data: memoryview) -> Iterator[LegacyRecord]:
    start = 0
    while len(data) - start >= _OVERHEAD.size:
        offset, size = _OVERHEAD.unpack_from(data, start)
        start += _OVERHEAD.size
        if not 0 <= size <= len(data) - start:
            raise DecompressionError(f"an inner message of {size} bytes where {len(data) - start} are left")
        yield _read_message(offset, data[start : start + size])
        start += size


def _read_message(offset: int, body: memoryview) -> LegacyRecord:
    try:
        magic, _ = _MAGIC_AND_ATTRIBUTES.unpack_from(body)
        start = _MAGIC_AND_ATTRIBUTES.size
        timestamp = NO_TIMESTAMP
        if magic == 1:
            timestamp = _TIMESTAMP.unpack_from(body, start)[0]
            start += _TIMESTAMP.size
        key, start = _read_field(body, start)
        value, start = _read_field(body, start)
    except StructError as error:
        raise DecompressionError(f"message at offset {offset} ends too early") from error
    return LegacyRecord(offset=offset, timestamp_ms=timestamp, key=key, value=value)


def _read_field(body: memoryview, start: int) -> tuple[bytes | None, int]:
    size = _LENGTH.unpack_from(body, start)[0]
    start += _LENGTH.size
    if size < 0:
        return None, start
    if size > len(body) - start:
        raise DecompressionError(f"field of {size} bytes where {len(body) - start} are left")
    return bytes(body[start : start + size]), start + size
