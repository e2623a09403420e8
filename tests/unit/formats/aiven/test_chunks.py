"""Chunk positions, against a plain walk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiersidecar.domain.offsets import ByteRange
from tiersidecar.formats.aiven.transforms import Chunk, ChunkIndex


@st.composite
def chunk_indexes(draw: st.DrawFn) -> ChunkIndex:
    chunk_size = draw(st.integers(1, 50))
    file_size = draw(st.integers(0, 300))
    count = -(-file_size // chunk_size)
    if draw(st.booleans()):
        sizes = draw(st.lists(st.integers(0, 80), min_size=count, max_size=count))
        return ChunkIndex(original_chunk_size=chunk_size, original_file_size=file_size, transformed_sizes=tuple(sizes))
    overhead = draw(st.sampled_from([0, 28]))
    last = file_size - (count - 1) * chunk_size if count else 0
    return ChunkIndex(
        original_chunk_size=chunk_size,
        original_file_size=file_size,
        transformed_chunk_size=chunk_size + overhead,
        final_transformed_chunk_size=last + overhead,
    )


def walk(index: ChunkIndex) -> list[Chunk]:
    """Each chunk, by adding up sizes one after the other."""
    chunks: list[Chunk] = []
    original = transformed = 0
    while original < index.original_file_size:
        size = min(index.original_chunk_size, index.original_file_size - original)
        is_last = original + size == index.original_file_size
        if index.transformed_sizes is not None:
            stored = index.transformed_sizes[len(chunks)]
        else:
            stored = index.final_transformed_chunk_size if is_last else index.transformed_chunk_size
        chunks.append(
            Chunk(
                index=len(chunks),
                original=ByteRange(original, original + size),
                transformed=ByteRange(transformed, transformed + stored),
            )
        )
        original, transformed = original + size, transformed + stored
    return chunks


@given(chunk_indexes())
def test_chunks_follow_each_other_without_gaps(index: ChunkIndex) -> None:
    chunks = walk(index)
    assert [index.chunk(number) for number in range(index.chunk_count)] == chunks
    assert index.transformed_size == (chunks[-1].transformed.stop if chunks else 0)


@given(chunk_indexes())
def test_each_byte_of_the_file_is_in_the_chunk_that_is_found_for_it(index: ChunkIndex) -> None:
    for position in range(index.original_file_size):
        chunk = index.chunk_at(position)
        assert chunk.original.start <= position < chunk.original.stop


@given(chunk_indexes())
def test_each_byte_of_the_object_is_in_the_chunk_that_is_found_for_it(index: ChunkIndex) -> None:
    for position in range(index.transformed_size):
        chunk = index.chunk_at_transformed(position)
        assert chunk.transformed.start <= position < chunk.transformed.stop


@given(chunk_indexes(), st.integers(0, 5))
def test_bytes_and_chunks_that_are_not_there_are_refused(index: ChunkIndex, beyond: int) -> None:
    for find, size in (
        (index.chunk, index.chunk_count),
        (index.chunk_at, index.original_file_size),
        (index.chunk_at_transformed, index.transformed_size),
    ):
        for position in (-1 - beyond, size + beyond):
            with pytest.raises(IndexError):
                find(position)


@pytest.mark.parametrize(
    ("chunk_size", "file_size", "sizes", "reason"),
    [
        pytest.param(0, 100, (), "chunk size 0", id="chunks of nothing"),
        pytest.param(-5, 100, (), "chunk size -5", id="a negative chunk size"),
        pytest.param(10, -1, (), "file size -1", id="a negative file size"),
        pytest.param(10, 25, (5, 5), "2 chunk sizes for 3 chunks", id="too few sizes"),
        pytest.param(10, 25, (5, 5, 5, 5), "4 chunk sizes for 3 chunks", id="too many sizes"),
        pytest.param(10, 25, (5, -5, 5), "transformed chunk size of -5", id="a negative size"),
    ],
)
def test_impossible_sizes_are_refused(chunk_size: int, file_size: int, sizes: tuple[int, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ChunkIndex(original_chunk_size=chunk_size, original_file_size=file_size, transformed_sizes=sizes)


@pytest.mark.parametrize(("size", "last"), [(0, 5), (-1, 5), (10, -1)])
def test_impossible_fixed_sizes_are_refused(size: int, last: int) -> None:
    with pytest.raises(ValueError, match="transformed chunk size"):
        ChunkIndex(
            original_chunk_size=10,
            original_file_size=25,
            transformed_chunk_size=size,
            final_transformed_chunk_size=last,
        )
