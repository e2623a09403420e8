"""The chunk index as a manifest has it: fixed, or variable with its sizes in a binary codec of their own.

``transformedChunks`` is base64 of a zstd frame of ``count i32``, then for one chunk ``size i32``, for more ``base i32 | width
i8 | (count - 1) x (size - base) in width bytes | last size i32``, big endian (``ChunkSizesBinaryCodec``).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from struct import Struct

from tiersidecar.domain.chunks import ChunkIndex
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.formats.aiven.zstd_frames import FrameError, compress_frame, decompress_frame

_INT = Struct(">i")
_MANY = Struct(">iib")
_LARGEST_CODEC_BYTES = 10 * 1024 * 1024
"""As in the plugin, which refuses more."""


def chunk_index_document(index: ChunkIndex) -> dict[str, object]:
    """The JSON object, its keys in the plugin's order."""
    original = {"originalChunkSize": index.original_chunk_size, "originalFileSize": index.original_file_size}
    if index.transformed_sizes is None:
        return {
            "type": "fixed",
            **original,
            "transformedChunkSize": index.transformed_chunk_size,
            "finalTransformedChunkSize": index.final_transformed_chunk_size,
        }
    packed = compress_frame(write_chunk_sizes(index.transformed_sizes))
    return {"type": "variable", **original, "transformedChunks": base64.b64encode(packed).decode("ascii")}


def parse_chunk_index(document: object, *, where: str = "chunk index") -> ChunkIndex:
    """The inverse of :func:`chunk_index_document`.

    Raises:
        CorruptDataError: naming the key that is missing or wrong.
    """
    if not isinstance(document, Mapping):
        raise _corrupt(where, f"chunkIndex is {document!r}, not an object")
    original_chunk_size = _integer(document, "originalChunkSize", where)
    original_file_size = _integer(document, "originalFileSize", where)
    try:
        match document.get("type"):
            case "fixed":
                return ChunkIndex(
                    original_chunk_size=original_chunk_size,
                    original_file_size=original_file_size,
                    transformed_chunk_size=_integer(document, "transformedChunkSize", where),
                    final_transformed_chunk_size=_integer(document, "finalTransformedChunkSize", where),
                )
            case "variable":
                return ChunkIndex(
                    original_chunk_size=original_chunk_size,
                    original_file_size=original_file_size,
                    transformed_sizes=_open_chunk_sizes(document.get("transformedChunks"), where),
                )
            case other:
                raise _corrupt(where, f"chunkIndex.type is {other!r}, neither fixed nor variable")
    except ValueError as error:
        raise _corrupt(where, f"chunkIndex: {error}") from error


def write_chunk_sizes(sizes: Sequence[int]) -> bytes:
    """The binary codec: the last size stands by itself, the others are above the least of them.

    Raises:
        ValueError: a negative size.
    """
    if any(size < 0 for size in sizes):
        raise ValueError("chunk sizes cannot be negative")
    if len(sizes) < 2:
        return _INT.pack(len(sizes)) + b"".join(map(_INT.pack, sizes))
    *others, last = sizes
    base = min(others)
    width = max(1, ((max(others) - base).bit_length() + 7) // 8)
    above = b"".join((size - base).to_bytes(width, "big") for size in others)
    return _MANY.pack(len(sizes), base, width) + above + _INT.pack(last)


def read_chunk_sizes(data: bytes, *, where: str = "chunk sizes") -> tuple[int, ...]:
    """The inverse of :func:`write_chunk_sizes`.

    Raises:
        CorruptDataError: too short, too long, or impossible numbers.
    """
    count = _unpack(_INT, data, 0, where)[0]
    if count < 2:
        if count < 0 or len(data) != _INT.size * (1 + count):
            raise _corrupt(where, f"{len(data)} bytes for {count} chunk sizes")
        return _unpack(_INT, data, _INT.size, where) if count else ()
    _, base, width = _unpack(_MANY, data, 0, where)
    end = _MANY.size + (count - 1) * width
    if not 1 <= width <= 4 or len(data) != end + _INT.size:
        raise _corrupt(where, f"{len(data)} bytes for {count} chunk sizes of {width} bytes")
    above = (data[at : at + width] for at in range(_MANY.size, end, width))
    return (*(base + int.from_bytes(value, "big") for value in above), *_unpack(_INT, data, end, where))


def _open_chunk_sizes(text: object, where: str) -> tuple[int, ...]:
    if not isinstance(text, str):
        raise _corrupt(where, f"chunkIndex.transformedChunks is {text!r}, not base64 text")
    try:
        packed = base64.b64decode(text, validate=True)
        data = decompress_frame(packed, max_bytes=_LARGEST_CODEC_BYTES)
    except (binascii.Error, FrameError) as error:
        raise _corrupt(where, f"chunkIndex.transformedChunks: {error}") from error
    return read_chunk_sizes(data, where=where)


def _integer(document: Mapping[str, object], key: str, where: str) -> int:
    value = document.get(key)
    if type(value) is not int:
        raise _corrupt(where, f"chunkIndex.{key} is {value!r}, not a whole number")
    return value


def _unpack(layout: Struct, data: bytes, offset: int, where: str) -> tuple[int, ...]:
    if len(data) < offset + layout.size:
        raise _corrupt(where, f"chunk sizes end after {len(data)} bytes")
    return layout.unpack_from(data, offset)


def _corrupt(where: str, reason: str) -> CorruptDataError:
    return CorruptDataError(where=where, position=0, reason=reason)
