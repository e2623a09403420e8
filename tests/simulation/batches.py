"""Record batches of format 2 made from the format's definition, not with the code that reads them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

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
    """Return one record of format 2."""
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
    """Return one batch of format 2 around ``payload``, already compressed if ``attributes`` say so."""
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
