"""Chunks of a .log, before and after their transform (the plugin's FixedSizeChunkIndex, VariableSizeChunkIndex).

On its way to the store and back each is compressed, then encrypted; either, both or neither.

An encrypted chunk is ``IV 12 bytes | ciphertext | tag 16 bytes`` of AES-256-GCM.  Randomness comes in as arguments.

Zstandard frames as the plugin writes them: level 3, the content size in the header, no checksum (``ZstdCompressCtx``).

libzstd gives the same bytes as zstd-jni does.  A (de)compressor serves one thread at a time, and is costly to make: one that is
free is taken again.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import ByteRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Chunk number ``index``: the bytes of the .log it stands for, and the bytes of the object that hold it."""

    index: int
    original: ByteRange
    transformed: ByteRange


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkIndex:
    """Chunks of ``original_chunk_size`` bytes (the last may be shorter), each transformed on its own.

    ``transformed_sizes`` has a size per chunk, or is None when the transform keeps them fixed: then every chunk but the
    last has ``transformed_chunk_size`` bytes and the last ``final_transformed_chunk_size``.

    Raises:
        ValueError: sizes that are impossible, or not one for each chunk.
    """

    original_chunk_size: int
    original_file_size: int
    transformed_chunk_size: int = 0
    final_transformed_chunk_size: int = 0
    transformed_sizes: tuple[int, ...] | None = None
    _starts: array[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.original_chunk_size <= 0 or self.original_file_size < 0:
            raise ValueError(f"chunk size {self.original_chunk_size}, file size {self.original_file_size}")
        sizes = self.transformed_sizes
        if sizes is None and (self.transformed_chunk_size <= 0 or self.final_transformed_chunk_size < 0):
            fixed = f"{self.transformed_chunk_size}, the last {self.final_transformed_chunk_size}"
            raise ValueError(f"transformed chunk size {fixed}")
        if sizes is not None and len(sizes) != self.chunk_count:
            raise ValueError(f"{len(sizes)} chunk sizes for {self.chunk_count} chunks")
        if sizes is not None and min(sizes, default=0) < 0:
            raise ValueError(f"a transformed chunk size of {min(sizes)}")
        object.__setattr__(self, "_starts", array("q", () if sizes is None else accumulate(sizes, initial=0)))

    @property
    def chunk_count(self) -> int:
        """Return the number of chunks; 0 for an empty file."""
        return -(-self.original_file_size // self.original_chunk_size)

    @property
    def transformed_size(self) -> int:
        """Return the size of the whole transformed object in bytes."""
        count = self.chunk_count
        if self._starts or not count:
            return self._starts[count] if count else 0
        return (count - 1) * self.transformed_chunk_size + self.final_transformed_chunk_size

    def chunk(self, index: int) -> Chunk:
        """Return chunk ``index``, counted from 0.

        Raises:
            IndexError: no such chunk.
        """
        if not 0 <= index < self.chunk_count:
            raise IndexError(f"chunk {index} of {self.chunk_count}")
        start = index * self.original_chunk_size
        original = ByteRange(start, min(start + self.original_chunk_size, self.original_file_size))
        if self._starts:
            transformed = ByteRange(self._starts[index], self._starts[index + 1])
        else:
            begin = index * self.transformed_chunk_size
            is_last = index == self.chunk_count - 1
            size = self.final_transformed_chunk_size if is_last else self.transformed_chunk_size
            transformed = ByteRange(begin, begin + size)
        return Chunk(index=index, original=original, transformed=transformed)

    def chunk_at(self, position: int) -> Chunk:
        """Return the chunk that holds byte ``position`` of the original file.

        Raises:
            IndexError: the file has no such byte.
        """
        if not 0 <= position < self.original_file_size:
            raise IndexError(f"byte {position} of {self.original_file_size}")
        return self.chunk(position // self.original_chunk_size)

    def chunk_at_transformed(self, position: int) -> Chunk:
        """Return the chunk that holds byte ``position`` of the transformed object.

        Raises:
            IndexError: the object has no such byte.
        """
        if not 0 <= position < self.transformed_size:
            raise IndexError(f"byte {position} of {self.transformed_size}")
        if self._starts:
            return self.chunk(bisect_right(self._starts, position) - 1)
        return self.chunk(min(position // self.transformed_chunk_size, self.chunk_count - 1))


_LEVEL = 3

_thread = threading.local()

_free_compressors: list[zstandard.ZstdCompressor] = []
"""The last one that was used is taken first: its tables, most of a MiB, are in the processor's cache still."""


class FrameError(ValueError):
    """Not a frame, damaged, without its content size, or of another size than expected."""


def compress_frame(data: Buffer) -> bytes:
    """Return one frame of ``data``."""
    try:
        compressor = _free_compressors.pop()
    except IndexError:
        compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True, write_checksum=False)
    frame = compressor.compress(data)
    _free_compressors.append(compressor)
    return frame


def decompress_frame(frame: Buffer, *, max_bytes: int) -> bytes:
    """Return the content of ``frame``; nothing is allocated for more than ``max_bytes``.

    Raises:
        FrameError: not one whole frame with its content size, or larger than ``max_bytes``.
    """
    if not hasattr(_thread, "decompressor"):
        _thread.decompressor = zstandard.ZstdDecompressor()
    decompressor: zstandard.ZstdDecompressor = _thread.decompressor
    try:
        size = zstandard.frame_content_size(frame)
        if size < 0:
            raise FrameError("the frame has no content size")
        if size > max_bytes:
            raise FrameError(f"the frame opens to {size} bytes, more than {max_bytes}")
        return decompressor.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FrameError(f"not a zstd frame: {error}") from error


Buffer = bytes | bytearray | memoryview

IV_SIZE = 12
TAG_SIZE = 16
ENCRYPTION_OVERHEAD = IV_SIZE + TAG_SIZE
DATA_KEY_SIZE = 32
AAD_SIZE = 32

DEFAULT_CHUNK_SIZE = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ChunkCipher:
    """AES-256-GCM under one segment's data key and AAD.  An IV must never be used twice with it, save for the same bytes."""

    data_key: bytes = field(repr=False)
    aad: bytes = field(repr=False)
    _aead: AESGCM = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.data_key) != DATA_KEY_SIZE:
            raise ValueError(f"a data key has {DATA_KEY_SIZE} bytes, not {len(self.data_key)}")
        object.__setattr__(self, "_aead", AESGCM(self.data_key))

    def encrypt(self, plain: Buffer, iv: bytes) -> bytearray:
        """Encrypt ``plain`` under ``iv``; the result is ``ENCRYPTION_OVERHEAD`` bytes larger."""
        if len(iv) != IV_SIZE:
            raise ValueError(f"an IV has {IV_SIZE} bytes, not {len(iv)}")
        out = bytearray(len(plain) + ENCRYPTION_OVERHEAD)
        out[:IV_SIZE] = iv
        self._aead.encrypt_into(iv, plain, self.aad, memoryview(out)[IV_SIZE:])
        return out

    def decrypt(self, encrypted: Buffer, *, where: str = "chunk") -> bytes:
        """Invert :meth:`encrypt`.

        Raises:
            CorruptDataError: too short, or not what was encrypted with this key and AAD.
        """
        view = memoryview(encrypted)
        if len(view) < ENCRYPTION_OVERHEAD:
            reason = f"{len(view)} bytes are fewer than IV and tag"
            raise CorruptDataError(where=where, position=0, reason=reason)
        try:
            return self._aead.decrypt(bytes(view[:IV_SIZE]), view[IV_SIZE:], self.aad)
        except InvalidTag as error:
            reason = "its authentication tag does not fit: another key, or changed bytes"
            raise CorruptDataError(where=where, position=0, reason=reason) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformPlan:
    """Transform of the chunks of one segment.

    ``chunk_size`` is ``chunk.size`` in bytes, before the transform.  Safe to use from several threads at once.
    """

    chunk_size: int = DEFAULT_CHUNK_SIZE
    compression: bool = False
    cipher: ChunkCipher | None = None

    @property
    def is_identity(self) -> bool:
        """Return whether the object is the file, byte for byte."""
        return not self.compression and self.cipher is None

    def chunk_count(self, file_size: int) -> int:
        return -(-file_size // self.chunk_size)

    def transform(self, chunk: Buffer, iv: bytes | None = None) -> Buffer:
        """Return one chunk as it is stored.  ``iv`` is only needed for encryption; the same arguments give the same bytes."""
        stored = compress_frame(chunk) if self.compression else chunk
        if self.cipher is None:
            return stored
        if iv is None:
            raise ValueError("encryption needs an IV for each chunk")
        return self.cipher.encrypt(stored, iv)

    def detransform(self, stored: Buffer, original_size: int, *, where: str = "chunk") -> Buffer:
        """Invert :meth:`transform`; ``original_size`` is the chunk index's for the chunk.

        Raises:
            CorruptDataError: it does not open, or not to exactly ``original_size`` bytes.
        """
        chunk = stored if self.cipher is None else self.cipher.decrypt(stored, where=where)
        if self.compression:
            try:
                chunk = decompress_frame(chunk, max_bytes=original_size)
            except FrameError as error:
                raise CorruptDataError(where=where, position=0, reason=str(error)) from error
        if len(chunk) != original_size:
            reason = f"chunk opens to {len(chunk)} bytes instead of {original_size}"
            raise CorruptDataError(where=where, position=0, reason=reason)
        return chunk

    def fixed_chunk_index(self, file_size: int) -> ChunkIndex | None:
        """Return the chunk index of a file of ``file_size`` bytes, known before any chunk is; None with compression."""
        if self.compression:
            return None
        overhead = 0 if self.cipher is None else ENCRYPTION_OVERHEAD
        last = file_size - max(self.chunk_count(file_size) - 1, 0) * self.chunk_size
        return ChunkIndex(
            original_chunk_size=self.chunk_size,
            original_file_size=file_size,
            transformed_chunk_size=self.chunk_size + overhead,
            final_transformed_chunk_size=last + overhead,
        )

    def chunk_index(self, file_size: int, transformed_sizes: Sequence[int]) -> ChunkIndex:
        """Return the chunk index once all chunks are stored, in the form that the manifest has.

        Raises:
            ValueError: the sizes are not those of a file of ``file_size`` bytes.
        """
        fixed = self.fixed_chunk_index(file_size)
        if fixed is None:
            return ChunkIndex(
                original_chunk_size=self.chunk_size,
                original_file_size=file_size,
                transformed_sizes=tuple(transformed_sizes),
            )
        expected = [len(fixed.chunk(index).transformed) for index in range(fixed.chunk_count)]
        if list(transformed_sizes) != expected:
            raise ValueError(f"chunks have {list(transformed_sizes)} bytes where {expected} were to be")
        return fixed
