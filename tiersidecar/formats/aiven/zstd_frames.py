"""Zstandard frames as the plugin writes them: level 3, the content size in the header, no checksum (``ZstdCompressCtx``).

libzstd gives the same bytes as zstd-jni does.  A (de)compressor serves one thread at a time, and is dear to make: each thread
has its own.
"""

from __future__ import annotations

import threading

import zstandard

_LEVEL = 3
Buffer = bytes | bytearray | memoryview

_thread = threading.local()


class FrameError(ValueError):
    """Not a frame, damaged, without its content size, or of another size than expected."""


def compress_frame(data: Buffer) -> bytes:
    """One frame of ``data``."""
    if not hasattr(_thread, "compressor"):
        _thread.compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True, write_checksum=False)
    compressor: zstandard.ZstdCompressor = _thread.compressor
    return compressor.compress(data)


def decompress_frame(frame: Buffer, *, max_bytes: int) -> bytes:
    """What ``frame`` holds; nothing is allocated for more than ``max_bytes``.

    Raises:
        FrameError: not one whole frame with its content size, or larger than ``max_bytes``.
    """
    if not hasattr(_thread, "decompressor"):
        _thread.decompressor = zstandard.ZstdDecompressor()
    decompressor: zstandard.ZstdDecompressor = _thread.decompressor
    try:
        size = zstandard.frame_content_size(frame)
        if size < 0:
            raise FrameError("the frame does not tell its content size")
        if size > max_bytes:
            raise FrameError(f"the frame opens to {size} bytes, more than {max_bytes}")
        return decompressor.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FrameError(f"not a zstd frame: {error}") from error
