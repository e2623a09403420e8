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

from tiersidecar.formats.kafka.compression import DecompressionError, open_pieces
from tiersidecar.formats.kafka.opened_bytes import OpenedBytes
from tiersidecar.formats.kafka.opened_memory import MemoryLease
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyOpening:
    """Limit of a compressed message when opened, and the memory it uses."""

    max_bytes: int
    lease: MemoryLease
    copies: int


def iter_legacy_records(
    message: memoryview, header: RecordBatchHeader, opening: LegacyOpening
) -> Iterator[LegacyRecord]:
    """Yield the records of one whole message: itself, or those that are compressed in it.

    Raises:
        DecompressionError: it does not open, or what is inside is no set of messages.
    """
    outer = _read_message(header.base_offset, message[LOG_OVERHEAD:])
    if header.compression is Compression.NONE:
        yield outer
        return
    if outer.value is None:
        raise DecompressionError("a compressed message without a value")
    # The offset of the last inner message is relative in format 1 and equals the outer one in format 0.
    shift = header.base_offset - _last_offset(outer.value, header, opening) if header.magic == 1 else 0
    found = False
    for record in _iter_set(_opened(outer.value, header, opening)):
        found = True
        is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
        timestamp_ms = outer.timestamp_ms if is_append_time else record.timestamp_ms
        yield replace(record, offset=record.offset + shift, timestamp_ms=timestamp_ms)
    if not found:
        raise DecompressionError("a compressed message with nothing inside")


def _opened(value: bytes, header: RecordBatchHeader, opening: LegacyOpening) -> OpenedBytes:
    pieces = open_pieces(memoryview(value), header.compression, opening.lease)
    return OpenedBytes(pieces, opening.lease, max_bytes=opening.max_bytes, copies=opening.copies)


def _last_offset(value: bytes, header: RecordBatchHeader, opening: LegacyOpening) -> int:
    """Return the last offset of the inner messages, without keeping any: it is opened twice."""
    opened, last_offset = _opened(value, header, opening), None
    while (head := opened.take(_OVERHEAD.size)) is not None:
        opened.next_record()
        last_offset, size = _OVERHEAD.unpack(head)
        if size < 0 or not opened.skip(size):
            raise DecompressionError(f"an inner message of {size} bytes where fewer are left")
    if last_offset is None:
        raise DecompressionError("a compressed message with nothing inside")
    return int(last_offset)


def _iter_set(opened: OpenedBytes) -> Iterator[LegacyRecord]:
    while (head := opened.take(_OVERHEAD.size)) is not None:
        opened.next_record()
        offset, size = _OVERHEAD.unpack(head)
        body = opened.take(size) if size >= 0 else None
        if body is None:
            raise DecompressionError(f"an inner message of {size} bytes where {opened.at_hand} are left")
        yield _read_message(offset, memoryview(body))


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
