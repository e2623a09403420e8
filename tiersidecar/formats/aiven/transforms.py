"""Transform of each chunk of a .log on its way to the store and back: compress, then encrypt; either, both or neither.

An encrypted chunk is ``IV 12 bytes | ciphertext | tag 16 bytes`` of AES-256-GCM.  Randomness comes in as arguments.

Zstandard frames as the plugin writes them: level 3, the content size in the header, no checksum (``ZstdCompressCtx``).

libzstd gives the same bytes as zstd-jni does.  A (de)compressor serves one thread at a time, and is costly to make: each thread
has its own.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tiersidecar.domain.chunks import ChunkIndex
from tiersidecar.domain.errors import CorruptDataError

_LEVEL = 3

_thread = threading.local()


class FrameError(ValueError):
    """Not a frame, damaged, without its content size, or of another size than expected."""


def compress_frame(data: Buffer) -> bytes:
    """Return one frame of ``data``."""
    if not hasattr(_thread, "compressor"):
        _thread.compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True, write_checksum=False)
    compressor: zstandard.ZstdCompressor = _thread.compressor
    return compressor.compress(data)


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
        """``plain`` under ``iv``, ``ENCRYPTION_OVERHEAD`` bytes larger."""
        if len(iv) != IV_SIZE:
            raise ValueError(f"an IV has {IV_SIZE} bytes, not {len(iv)}")
        out = bytearray(len(plain) + ENCRYPTION_OVERHEAD)
        out[:IV_SIZE] = iv
        self._aead.encrypt_into(iv, plain, self.aad, memoryview(out)[IV_SIZE:])
        return out

    def decrypt(self, encrypted: Buffer, *, where: str = "chunk") -> bytes:
        """The inverse of :meth:`encrypt`.

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
        """The inverse of :meth:`transform`; ``original_size`` is the chunk index's for the chunk.

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
        """The chunk index of a file of ``file_size`` bytes, known before any chunk is; None with compression."""
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
        """The chunk index once all chunks are stored, in the form that the manifest has.

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
