"""Chunks of a .log, before and after the transform (the plugin's FixedSizeChunkIndex, VariableSizeChunkIndex)."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate

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
        """Size of the whole transformed object in bytes."""
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
