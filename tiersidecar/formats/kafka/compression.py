"""Open the compressed records of a batch, never to more than a given size (``org.apache.kafka.common.compress``)."""

from __future__ import annotations

import threading
import zlib
from struct import Struct

import cramjam
import zstandard

from tiersidecar.formats.kafka.record_batches import Compression

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_SIZE = 16
"""The magic, then version and least compatible version, an int32 each (snappy-java's SnappyOutputStream)."""
_BLOCK_SIZE = Struct(">i")

_LZ4_BLOCK_SIZES = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
_LZ4_BD_POSITION = 5
_LZ4_LEAST_HEADER_SIZE = 7
_LZ4_BLOCK_SIZE = Struct("<I")
_LZ4_UNCOMPRESSED_FLAG = 1 << 31

_GZIP_WBITS = 31
_ZSTD_PIECE_BYTES = 1 << 17
_ZSTD_LARGEST_WINDOW_BYTES = 1 << 27

_thread = threading.local()


class DecompressionError(ValueError):
    """The bytes are not what the codec writes, or open to more than allowed."""


def decompress(data: memoryview, compression: Compression, *, max_bytes: int) -> bytes | bytearray | memoryview:
    """``data`` opened.

    Raises:
        DecompressionError: not of this codec, damaged, or larger than ``max_bytes`` when opened.
    """
    try:
        match compression:
            case Compression.NONE:
                return data
            case Compression.GZIP:
                return _open_gzip(data, max_bytes)
            case Compression.SNAPPY:
                return _open_snappy(data, max_bytes)
            case Compression.LZ4:
                return _open_lz4(data, max_bytes)
            case Compression.ZSTD:
                return _open_zstd(data, max_bytes)
    except (zlib.error, cramjam.DecompressionError, zstandard.ZstdError) as error:
        raise DecompressionError(f"{compression.name.lower()} data do not open: {error}") from error


def _too_large(max_bytes: int) -> DecompressionError:
    return DecompressionError(f"compressed records open to more than {max_bytes} bytes")


def _open_gzip(data: memoryview, max_bytes: int) -> bytes:
    # zlib itself, because cramjam's gzip has no bound on what it writes.
    stream = zlib.decompressobj(wbits=_GZIP_WBITS)
    opened = stream.decompress(data, max_bytes + 1)
    if len(opened) > max_bytes:
        raise _too_large(max_bytes)
    if not stream.eof:
        raise DecompressionError("gzip data end too early")
    return opened


def _open_snappy(data: memoryview, max_bytes: int) -> bytearray:
    blocks = _xerial_blocks(data) if data[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC else [data]
    opened = bytearray()
    for block in blocks:
        if len(opened) + cramjam.snappy.decompress_raw_len(block) > max_bytes:
            raise _too_large(max_bytes)
        opened += memoryview(cramjam.snappy.decompress_raw(block))
    return opened


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    blocks, offset = [], _XERIAL_HEADER_SIZE
    while offset < len(data):
        if len(data) - offset < _BLOCK_SIZE.size:
            raise DecompressionError("snappy data end within a block size")
        size = _BLOCK_SIZE.unpack_from(data, offset)[0]
        offset += _BLOCK_SIZE.size
        if not 0 < size <= len(data) - offset:
            raise DecompressionError(f"snappy block of {size} bytes where {len(data) - offset} are left")
        blocks.append(data[offset : offset + size])
        offset += size
    return blocks


def _open_lz4(data: memoryview, max_bytes: int) -> memoryview:
    opened = bytearray(min(_lz4_capacity(data), max_bytes))
    try:
        size = cramjam.lz4.decompress_into(data, opened)
    except cramjam.DecompressionError as error:
        raise DecompressionError(f"lz4 data do not open to at most {len(opened)} bytes: {error}") from error
    return memoryview(opened)[:size]


def _lz4_capacity(data: memoryview) -> int:
    """The most that a frame can open to: its blocks times their largest size, from the block headers alone."""
    if len(data) < _LZ4_LEAST_HEADER_SIZE:
        raise DecompressionError("lz4 data end within the frame header")
    flags = data[4]
    largest = _LZ4_BLOCK_SIZES.get((data[_LZ4_BD_POSITION] >> 4) & 7)
    if largest is None:
        raise DecompressionError(f"lz4 block descriptor {data[_LZ4_BD_POSITION]:#04x}")
    has_content_size, has_block_checksum = flags & 0x08, flags & 0x10
    offset = _LZ4_LEAST_HEADER_SIZE + (8 if has_content_size else 0)
    count = 0
    while len(data) - offset >= _LZ4_BLOCK_SIZE.size:
        size = _LZ4_BLOCK_SIZE.unpack_from(data, offset)[0] & ~_LZ4_UNCOMPRESSED_FLAG
        if size == 0:
            break
        offset += _LZ4_BLOCK_SIZE.size + size + (4 if has_block_checksum else 0)
        count += 1
    return count * largest


def _open_zstd(data: memoryview, max_bytes: int) -> bytes:
    pieces, size = [], 0
    for piece in _zstd_decompressor().read_to_iter(data, write_size=_ZSTD_PIECE_BYTES):
        size += len(piece)
        if size > max_bytes:
            raise _too_large(max_bytes)
        pieces.append(piece)
    return b"".join(pieces)


def _zstd_decompressor() -> zstandard.ZstdDecompressor:
    """One per thread: they are dear to make and not to be shared."""
    if not hasattr(_thread, "decompressor"):
        _thread.decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_LARGEST_WINDOW_BYTES)
    decompressor: zstandard.ZstdDecompressor = _thread.decompressor
    return decompressor
