"""Record batches made here: for cases that the golden logs do not have.  Written from the format's definition, not with
the code under test."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence

import cramjam
from crc32c import crc32c


def varint(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record_bytes(
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    *,
    timestamp_delta: int = 0,
    headers: Sequence[tuple[bytes, bytes | None]] = (),
) -> bytes:
    """One record of format 2."""
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta) + sized(key) + sized(value) + varint(len(headers))
    body += b"".join(sized(name) + sized(content) for name, content in headers)
    return varint(len(body)) + body


def batch_bytes(
    base_offset: int,
    payload: bytes = b"",
    *,
    count: int = 1,
    last_offset_delta: int | None = None,
    epoch: int = 0,
    attributes: int = 0,
    base_timestamp: int = 1_700_000_000_000,
    max_timestamp: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """One batch of format 2 around ``payload``, already compressed if ``attributes`` say so."""
    covered = struct.pack(
        ">hiqqqhii",
        attributes,
        count - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        base_timestamp if max_timestamp is None else max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    covered += payload
    return struct.pack(">qiibI", base_offset, 9 + len(covered), epoch, 2, crc32c(covered)) + covered


def xerial(data: bytes, block_size: int = 32 * 1024) -> bytes:
    """Snappy as snappy-java's SnappyOutputStream frames it."""
    out = bytearray(b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1))
    for start in range(0, len(data), block_size):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + block_size]))
        out += struct.pack(">i", len(block)) + block
    return bytes(out)


def legacy_message(
    offset: int, key: bytes | None, value: bytes | None, *, magic: int, attributes: int = 0, timestamp: int = 0
) -> bytes:
    """One message of format 0 or 1."""

    def field(data: bytes | None) -> bytes:
        return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data

    covered = struct.pack(">bb", magic, attributes)
    if magic == 1:
        covered += struct.pack(">q", timestamp)
    covered += field(key) + field(value)
    return struct.pack(">qiI", offset, 4 + len(covered), zlib.crc32(covered)) + covered


def plain_segment(sizes: Iterable[int], *, base_offset: int = 0, epochs: Sequence[int] = (0,)) -> bytes:
    """A .log without gaps: a batch per size, each of three offsets and as many payload bytes; the epochs in turns."""
    sizes = list(sizes)
    batches = []
    for number, size in enumerate(sizes):
        epoch = epochs[number * len(epochs) // len(sizes)]
        timestamp = 1_700_000_000_000 + (number * 37) % 11 * 1000
        payload = bytes((number + index) % 251 for index in range(size))
        batches.append(batch_bytes(base_offset + 3 * number, payload, count=3, epoch=epoch, base_timestamp=timestamp))
    return b"".join(batches)
