"""Compress the records of a batch, in frames that Kafka's own clients open (``org.apache.kafka.common.compress``).

As a broker's cleaner writes them: snappy in snappy-java's blocks, LZ4 in independent blocks of 64 KiB, and the default level
of each codec.
"""

from __future__ import annotations

import zlib
from struct import Struct

import cramjam
import zstandard

from tiersidecar.formats.kafka.record_batches import Buffer, Compression

_SNAPPY_HEAD = b"\x82SNAPPY\x00" + Struct(">ii").pack(1, 1)
_SNAPPY_BLOCK_BYTES = 32 * 1024
_SNAPPY_BLOCK_SIZE = Struct(">i")

_LZ4_HEAD = bytes.fromhex("04224d18604082")
"""Magic, version 1 with independent blocks, blocks of 64 KiB, and the checksum of these two bytes."""
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_BLOCK_SIZE = Struct("<I")
_LZ4_UNCOMPRESSED_FLAG = 1 << 31

_GZIP_WBITS = 31
_ZSTD_LEVEL = 3


def compress(data: Buffer, compression: Compression) -> Buffer:
    """Return ``data`` as the codec writes them; without a codec, unchanged."""
    match compression:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            stream = zlib.compressobj(wbits=_GZIP_WBITS)
            return stream.compress(data) + stream.flush()
        case Compression.SNAPPY:
            return _snappy(memoryview(data))
        case Compression.LZ4:
            return _lz4(memoryview(data))
        case Compression.ZSTD:
            return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(data)


def _snappy(data: memoryview) -> bytes:
    parts = [_SNAPPY_HEAD]
    for begin in range(0, len(data), _SNAPPY_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[begin : begin + _SNAPPY_BLOCK_BYTES]))
        parts += (_SNAPPY_BLOCK_SIZE.pack(len(block)), block)
    return b"".join(parts)


def _lz4(data: memoryview) -> bytes:
    parts = [_LZ4_HEAD]
    for begin in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[begin : begin + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            parts += (_LZ4_BLOCK_SIZE.pack(len(block)), block)
        else:
            parts += (_LZ4_BLOCK_SIZE.pack(len(plain) | _LZ4_UNCOMPRESSED_FLAG), bytes(plain))
    parts.append(_LZ4_BLOCK_SIZE.pack(0))
    return b"".join(parts)
