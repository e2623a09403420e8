"""Record batches made here: for cases that the golden logs do not have.  Written from the format's definition, not with
the code under test."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence

import cramjam

from tests.simulation.batches import batch_bytes, record_bytes, sized, varint

__all__ = ["batch_bytes", "legacy_message", "plain_segment", "record_bytes", "sized", "varint", "xerial"]


def xerial(data: bytes, block_size: int = 32 * 1024) -> bytes:
    """Compress by Snappy as snappy-java's SnappyOutputStream frames it."""
    out = bytearray(b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1))
    for start in range(0, len(data), block_size):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + block_size]))
        out += struct.pack(">i", len(block)) + block
    return bytes(out)


def legacy_message(
    offset: int, key: bytes | None, value: bytes | None, *, magic: int, attributes: int = 0, timestamp: int = 0
) -> bytes:
    """Return one message of format 0 or 1."""

    def field(data: bytes | None) -> bytes:
        return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data

    covered = struct.pack(">bb", magic, attributes)
    if magic == 1:
        covered += struct.pack(">q", timestamp)
    covered += field(key) + field(value)
    return struct.pack(">qiI", offset, 4 + len(covered), zlib.crc32(covered)) + covered


def plain_segment(sizes: Iterable[int], *, base_offset: int = 0, epochs: Sequence[int] = (0,)) -> bytes:
    """Return a .log without gaps: a batch per size, each of three offsets and as many payload bytes; the epochs in turns."""
    sizes = list(sizes)
    batches = []
    for number, size in enumerate(sizes):
        epoch = epochs[number * len(epochs) // len(sizes)]
        timestamp = 1_700_000_000_000 + (number * 37) % 11 * 1000
        payload = bytes((number + index) % 251 for index in range(size))
        batches.append(batch_bytes(base_offset + 3 * number, payload, count=3, epoch=epoch, base_timestamp=timestamp))
    return b"".join(batches)
