"""Open the compressed records of a batch (``org.apache.kafka.common.compress``): whole, never to more than a given size, or
piece by piece, so that what they open to need not fit in memory.

Several gzip members, snappy streams or zstd frames in succession are one, as Java reads them; brokers take such batches.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Generator, Iterable, Iterator
from itertools import chain
from struct import Struct

import cramjam
import zstandard

from tiersidecar.formats.kafka.opened_memory import MemoryLease
from tiersidecar.formats.kafka.record_batches import Compression

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_SIZE = 16
"""The magic, then version and least compatible version, an int32 each (snappy-java's SnappyOutputStream)."""
_BLOCK_SIZE = Struct(">i")
_GZIP_MAGIC = b"\x1f\x8b\x08"
_ZSTD_SKIPPABLE, _ZSTD_SKIPPABLE_MASK = 0x184D2A50, 0xFFFFFFF0
_ZSTD_SKIPPABLE_HEADER = Struct("<II")
_ZSTD_CHECKSUM_BYTES, _ZSTD_RLE = 4, 1

_LZ4_BLOCK_SIZES = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
_LZ4_BD_POSITION = 5
_LZ4_LEAST_HEADER_SIZE = 7
_LZ4_BLOCK_SIZE = Struct("<I")
_LZ4_UNCOMPRESSED_FLAG = 1 << 31

_GZIP_WBITS = 31
_ZSTD_PIECE_BYTES = 1 << 17
_ZSTD_LARGEST_WINDOW_BYTES = 1 << 27

PIECE_BYTES = 256 * 1024
"""Size of opened records in memory at once; snappy and LZ4 have blocks of their own, up to 4 MiB."""
SMALL_BYTES = 1024 * 1024
"""Data that opens to no more is opened in one go."""
_SMALL_WINDOW_BYTES = 8 * 1024 * 1024
"""zstd's own recommendation for what a decoder should take (RFC 8878, 3.1.1.1.2)."""
_FED_BYTES = 64 * 1024
_LZ4_HISTORY_BYTES = 64 * 1024
_LZ4_CONTENT_SIZE, _LZ4_BLOCK_CHECKSUM, _LZ4_DICTIONARY, _LZ4_INDEPENDENT = 0x08, 0x10, 0x01, 0x20

_thread = threading.local()


class DecompressionError(ValueError):
    """The bytes are not what the codec writes, or open to more than allowed."""


def decompress(data: memoryview, compression: Compression, *, max_bytes: int) -> bytes | bytearray | memoryview:
    """Return ``data`` opened.

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


class _TooLargeError(DecompressionError):
    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"compressed records open to more than {max_bytes} bytes")


def open_pieces(data: memoryview, compression: Compression, lease: MemoryLease) -> Iterator[bytes | memoryview]:
    """Yield ``data`` opened, piece by piece: memory that the codec must keep is taken from ``lease``.  A piece is overwritten
    when the next is asked for.

    Raises:
        DecompressionError: not of this codec, or damaged; which may show at a later piece.
        NoMemoryLeftError, NotSmallError, TooLargeToOpenError: by the lease.
    """
    if compression is Compression.NONE:
        yield from (data[at : at + SMALL_BYTES] for at in range(0, len(data), SMALL_BYTES))
        return
    small = _open_small(data, compression)
    if small is not None:
        yield small
        return
    lease.stream()
    try:
        match compression:
            case Compression.GZIP:
                yield from _gzip_pieces(data)
            case Compression.SNAPPY:
                yield from _snappy_pieces(data, lease)
            case Compression.LZ4:
                yield from _lz4_pieces(data, lease)
            case Compression.ZSTD:
                yield from _zstd_pieces(data, lease)
    except (zlib.error, cramjam.DecompressionError, zstandard.ZstdError) as error:
        raise DecompressionError(f"{compression.name.lower()} data do not open: {error}") from error


def _open_small(data: memoryview, compression: Compression) -> bytes | memoryview | None:
    """Return the opened data, None where it is not small; most batches are."""
    if compression is Compression.LZ4 and _lz4_capacity(data) > SMALL_BYTES:
        return None
    try:
        if compression is Compression.ZSTD and _widest_window(data) > _SMALL_WINDOW_BYTES:
            return None  # the thread's decompressor would keep as much
        opened = decompress(data, compression, max_bytes=SMALL_BYTES)
    except _TooLargeError:
        return None
    except zstandard.ZstdError as error:
        raise DecompressionError(f"zstd data do not open: {error}") from error
    return memoryview(opened) if isinstance(opened, bytearray) else opened


def _gzip_pieces(data: memoryview) -> Iterator[bytes]:
    """Yield pieces of all members; bytes after a member that are none are skipped, as by ``GZIPInputStream``."""
    while True:
        end = yield from _gzip_member(data)
        data = data[end:]
        if data[: len(_GZIP_MAGIC)] != _GZIP_MAGIC:
            return


def _gzip_member(data: memoryview) -> Generator[bytes, None, int]:
    """Yield the pieces of the first member; return where it ends."""
    stream = zlib.decompressobj(wbits=_GZIP_WBITS)
    for at in range(0, len(data), _FED_BYTES):
        fed: bytes | memoryview = data[at : at + _FED_BYTES]
        stop = at + len(fed)
        while True:
            piece = stream.decompress(fed, PIECE_BYTES)
            if piece:
                yield piece
            if stream.eof:  # what is left of the input is not always taken out of unconsumed_tail then
                return stop - len(stream.unused_data)
            fed = stream.unconsumed_tail
            if not piece and not fed:
                break
    raise DecompressionError("gzip data end too early")


def _snappy_pieces(data: memoryview, lease: MemoryLease) -> Iterator[memoryview]:
    """Yield opened blocks, each whole: snappy-java writes 32 KiB blocks, and librdkafka one for all."""
    blocks = _xerial_blocks(data) if data[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC else [data]
    for block in blocks:
        size = cramjam.snappy.decompress_raw_len(block)
        lease.window(size if size > SMALL_BYTES else 0)
        yield memoryview(cramjam.snappy.decompress_raw(block))


def _lz4_pieces(data: memoryview, lease: MemoryLease) -> Iterator[memoryview]:
    """Yield opened blocks (the LZ4 frame format); a linked block refers to the 64 KiB before it.

    cramjam opens blocks without such a dictionary.  So the history goes in front, as literals of the block's first sequence.
    """
    flags, largest = data[4], _LZ4_BLOCK_SIZES[(data[_LZ4_BD_POSITION] >> 4) & 7]
    if flags & _LZ4_DICTIONARY:
        raise DecompressionError("lz4 data with a dictionary")
    lease.window(largest if largest > SMALL_BYTES else 0)
    opened = bytearray(largest + _LZ4_HISTORY_BYTES)
    history = b""
    for block, is_compressed in _lz4_blocks(data, flags):
        if is_compressed:
            # Without the length, four bytes that could be one are taken for it, and skipped.
            size = cramjam.lz4.decompress_block_into(_with_history(block, history), opened, output_len=len(opened))
            found = memoryview(opened)[len(history) : size]
        else:
            found = block
        yield from (found[at : at + PIECE_BYTES] for at in range(0, len(found), PIECE_BYTES))
        if not flags & _LZ4_INDEPENDENT:
            history = (history + bytes(found[-_LZ4_HISTORY_BYTES:]))[-_LZ4_HISTORY_BYTES:]


def _lz4_blocks(data: memoryview, flags: int) -> Iterator[tuple[memoryview, bool]]:
    offset = _LZ4_LEAST_HEADER_SIZE + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    largest = _LZ4_BLOCK_SIZES[(data[_LZ4_BD_POSITION] >> 4) & 7]
    while len(data) - offset >= _LZ4_BLOCK_SIZE.size:
        (word,) = _LZ4_BLOCK_SIZE.unpack_from(data, offset)
        size, offset = word & ~_LZ4_UNCOMPRESSED_FLAG, offset + _LZ4_BLOCK_SIZE.size
        if size == 0:
            return
        if size > min(len(data) - offset, largest):
            raise DecompressionError(f"lz4 block of {size} bytes where {len(data) - offset} are left")
        yield data[offset : offset + size], not word & _LZ4_UNCOMPRESSED_FLAG
        offset += size + (4 if flags & _LZ4_BLOCK_CHECKSUM else 0)
    raise DecompressionError("lz4 data end too early")


def _with_history(block: memoryview, history: bytes) -> bytes | memoryview:
    """Return ``block`` with ``history`` as its first literals.  A sequence is ``token | more of the literals' length | literals
    | offset | …``, the token's upper half the length up to 15, to which bytes of 255 and a last one add."""
    if not history:
        return block
    token, at = block[0], 1
    count = token >> 4
    if count == 15:
        while True:
            count, at = count + block[at], at + 1
            if block[at - 1] != 255:
                break
    count += len(history)
    # The history alone is more than 15 bytes, unless the first block was smaller.
    if count < 15:
        return bytes((count << 4 | token & 15,)) + history + bytes(block[at:])
    more, rest = divmod(count - 15, 255)
    return bytes((0xF0 | token & 15,)) + b"\xff" * more + bytes((rest,)) + history + bytes(block[at:])


def _zstd_pieces(data: memoryview, lease: MemoryLease) -> Iterator[bytes]:
    for frame in _zstd_frames(data):
        # A decompressor of its own: between two pieces the thread's may be used for another batch, and by another thread.
        lease.window(zstandard.get_frame_parameters(frame).window_size)
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_LARGEST_WINDOW_BYTES)
        yield from decompressor.read_to_iter(frame, write_size=PIECE_BYTES)


def _widest_window(data: memoryview) -> int:
    return max((zstandard.get_frame_parameters(frame).window_size for frame in _zstd_frames(data)), default=0)


def _zstd_frames(data: memoryview) -> Iterator[memoryview]:
    """Yield frames, by the headers of their blocks, without those to be skipped (RFC 8878, 3.1).  The last one may be cut
    off."""
    while len(data) >= _ZSTD_SKIPPABLE_HEADER.size:
        magic, size = _ZSTD_SKIPPABLE_HEADER.unpack_from(data)
        if magic & _ZSTD_SKIPPABLE_MASK == _ZSTD_SKIPPABLE:
            data = data[_ZSTD_SKIPPABLE_HEADER.size + size :]
            continue
        end = _zstd_frame_end(data)
        yield data[:end]
        data = data[end:]
    if len(data):
        yield data


def _zstd_frame_end(data: memoryview) -> int:
    """Return the end.  A block's header is ``last | type 2 bits | size 21 bits``; a repeated byte takes one byte."""
    at, is_last = zstandard.frame_header_size(data), False
    while not is_last and at + 3 <= len(data):
        head = int.from_bytes(data[at : at + 3], "little")
        is_last = bool(head & 1)
        at += 3 + (1 if head >> 1 & 3 == _ZSTD_RLE else head >> 3)
    if zstandard.get_frame_parameters(data).has_checksum:
        at += _ZSTD_CHECKSUM_BYTES
    return at


def _open_gzip(data: memoryview, max_bytes: int) -> bytes:
    # zlib itself, because cramjam's gzip has no bound on what it writes.
    return _joined(_gzip_pieces(data), max_bytes)


def _open_snappy(data: memoryview, max_bytes: int) -> bytearray:
    blocks = _xerial_blocks(data) if data[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC else [data]
    opened = bytearray()
    for block in blocks:
        if len(opened) + cramjam.snappy.decompress_raw_len(block) > max_bytes:
            raise _TooLargeError(max_bytes)
        opened += memoryview(cramjam.snappy.decompress_raw(block))
    return opened


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    blocks, offset = [], _XERIAL_HEADER_SIZE
    while offset < len(data):
        if data[offset : offset + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            offset += _XERIAL_HEADER_SIZE  # another stream
            continue
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
    """Return the most that a frame can open to: its blocks times their largest size, from the block headers alone."""
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
    decompressor = _zstd_decompressor()
    pieces = (decompressor.read_to_iter(frame, write_size=_ZSTD_PIECE_BYTES) for frame in _zstd_frames(data))
    return _joined(chain.from_iterable(pieces), max_bytes)


def _joined(found: Iterable[bytes], max_bytes: int) -> bytes:
    pieces, size = [], 0
    for piece in found:
        size += len(piece)
        if size > max_bytes:
            raise _TooLargeError(max_bytes)
        pieces.append(piece)
    return b"".join(pieces)


def _zstd_decompressor() -> zstandard.ZstdDecompressor:
    """Return the thread's own: they are expensive to make and cannot be shared."""
    if not hasattr(_thread, "decompressor"):
        _thread.decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_LARGEST_WINDOW_BYTES)
    decompressor: zstandard.ZstdDecompressor = _thread.decompressor
    return decompressor
