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
from tiersidecar.formats.aiven.segment_bounds import ANY_SEGMENT, MOST_CHUNKS, SegmentBounds, transformed_bytes_at_most
from tiersidecar.formats.aiven.transforms import compress_frame, decompress_frame

_INT = Struct(">i")
_MANY = Struct(">iib")
_MOST_WIDTH = 4


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


def parse_chunk_index(
    document: object, *, where: str = "chunk index", bounds: SegmentBounds = ANY_SEGMENT
) -> ChunkIndex:
    """The inverse of :func:`chunk_index_document`; nothing is opened that ``bounds`` do not allow.

    Raises:
        CorruptDataError: naming the key that is missing or wrong.
    """
    if not isinstance(document, Mapping):
        raise _corrupt(where, f"chunkIndex is {_told(document)}, not an object")
    chunk_bytes = _integer(document, "originalChunkSize", where)
    file_bytes = _integer(document, "originalFileSize", where)
    _check_chunks(chunk_bytes, file_bytes, bounds, where)
    try:
        match document.get("type"):
            case "fixed":
                index = ChunkIndex(
                    original_chunk_size=chunk_bytes,
                    original_file_size=file_bytes,
                    transformed_chunk_size=_integer(document, "transformedChunkSize", where),
                    final_transformed_chunk_size=_integer(document, "finalTransformedChunkSize", where),
                )
            case "variable":
                count = -(-file_bytes // chunk_bytes)
                index = ChunkIndex(
                    original_chunk_size=chunk_bytes,
                    original_file_size=file_bytes,
                    transformed_sizes=_open_chunk_sizes(document.get("transformedChunks"), count, where),
                )
            case other:
                raise _corrupt(where, f"chunkIndex.type is {_told(other)}, neither fixed nor variable")
    except ValueError as error:
        raise _corrupt(where, f"chunkIndex: {error}") from error
    if bounds.is_size_known:
        _check_transformed(index, where)
    return index


def _check_chunks(chunk_bytes: int, file_bytes: int, bounds: SegmentBounds, where: str) -> None:
    """Check the sizes before anything so large is made."""
    if chunk_bytes <= 0 or file_bytes < 0:
        raise _corrupt(where, f"chunkIndex: chunk size {_told(chunk_bytes)}, file size {_told(file_bytes)}")
    if file_bytes > bounds.segment_size_bytes or (bounds.is_size_known and file_bytes != bounds.segment_size_bytes):
        said = f"is of a segment of {_told(file_bytes)} bytes, the metadata say {bounds.segment_size_bytes}"
        raise _corrupt(where, said)
    if -(-file_bytes // chunk_bytes) > MOST_CHUNKS:
        raise _corrupt(where, f"chunkIndex has chunks of {chunk_bytes} bytes, more than {MOST_CHUNKS} of them")


def _check_transformed(index: ChunkIndex, where: str) -> None:
    largest = transformed_bytes_at_most(min(index.original_chunk_size, index.original_file_size))
    sizes = index.transformed_sizes
    if sizes is None:
        found = index.final_transformed_chunk_size
        found = max(found, index.transformed_chunk_size if index.chunk_count > 1 else 0)
    else:
        found = max(sizes, default=0)
    if found > largest:
        reason = f"chunkIndex has a chunk of {_told(found)} bytes in the store, of at most {largest}"
        raise _corrupt(where, reason)


def _told(value: object) -> str:
    """Return a value of the store for a message, not all of it."""
    return repr(value)[:64]


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
    if not 1 <= width <= _MOST_WIDTH or len(data) != end + _INT.size:
        raise _corrupt(where, f"{len(data)} bytes for {count} chunk sizes of {width} bytes")
    above = (data[at : at + width] for at in range(_MANY.size, end, width))
    return (*(base + int.from_bytes(value, "big") for value in above), *_unpack(_INT, data, end, where))


def _open_chunk_sizes(text: object, count: int, where: str) -> tuple[int, ...]:
    """Return ``count`` sizes: data that opens to more than they take is not opened."""
    if not isinstance(text, str):
        raise _corrupt(where, f"chunkIndex.transformedChunks is {_told(text)}, not base64 text")
    try:
        packed = base64.b64decode(text, validate=True)
        data = decompress_frame(packed, max_bytes=_MANY.size + _MOST_WIDTH * (count + 1))
    except (binascii.Error, ValueError) as error:
        raise _corrupt(where, f"chunkIndex.transformedChunks: {error}") from error
    said = _unpack(_INT, data, 0, where)[0]
    if said != count:
        raise _corrupt(where, f"chunkIndex: {said} chunk sizes for {count} chunks")
    return read_chunk_sizes(data, where=where)


def _integer(document: Mapping[str, object], key: str, where: str) -> int:
    value = document.get(key)
    if type(value) is not int:
        raise _corrupt(where, f"chunkIndex.{key} is {_told(value)}, not a whole number")
    return value


def _unpack(layout: Struct, data: bytes, offset: int, where: str) -> tuple[int, ...]:
    if len(data) < offset + layout.size:
        raise _corrupt(where, f"chunk sizes end after {len(data)} bytes")
    return layout.unpack_from(data, offset)


def _corrupt(where: str, reason: str) -> CorruptDataError:
    return CorruptDataError(where=where, position=0, reason=reason)
