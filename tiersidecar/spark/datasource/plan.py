"""Plan of each task's reads: remote segments cut into shares of about the same number of bytes.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tiersidecar.domain.offsets import ByteRange, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.kafka.indexes import AbortedTransaction

CUT_AT_MULTIPLES_OF_BYTES = 4 * 1024 * 1024
"""The size of a chunk unless configured otherwise: two tasks share few chunks that way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSlice:
    """Wanted part of one remote segment: records from ``start_offset`` up to, not including, ``stop_offset``, of the batches
    that begin in ``byte_range`` of the .log.

    Such a range ends where the first batch begins that the offset index names there or later, so that adjoining ranges
    share no batch and leave none out.  ``aborted``: the transactions that a read_committed reader is not shown.
    """

    metadata: RemoteLogSegmentMetadata
    start_offset: Offset
    stop_offset: Offset
    byte_range: ByteRange
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Return whether all of the segment is wanted."""
        whole = ByteRange(0, self.metadata.segment_size_in_bytes)
        return (self.start_offset, self.stop_offset, self.byte_range) == (
            self.metadata.start_offset,
            self.metadata.next_offset,
            whole,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The work of one task: slices of segments of one partition, in the order of their offsets."""

    segment_slices: tuple[SegmentSlice, ...]

    @property
    def size_bytes(self) -> int:
        return sum(len(segment_slice.byte_range) for segment_slice in self.segment_slices)


def plan_shares(
    partitions: Iterable[Sequence[SegmentSlice]], *, max_bytes: int, min_shares: int | None = None
) -> tuple[Share, ...]:
    """Return shares of at most ``max_bytes``, save where one slice cannot be cut any further; smaller ones, so that there are
    about ``min_shares``.

    ``partitions`` holds the segment_slices of each partition, ascending.  Together the shares are exactly these.
    """
    wanted = [list(segment_slices) for segment_slices in partitions]
    if min_shares is not None:
        total_bytes = sum(
            len(segment_slice.byte_range) for segment_slices in wanted for segment_slice in segment_slices
        )
        max_bytes = max(min(max_bytes, -(-total_bytes // min_shares)), 1)
    return tuple(share for segment_slices in wanted for share in _shares(segment_slices, max_bytes))


def _shares(segment_slices: Iterable[SegmentSlice], max_bytes: int) -> Iterator[Share]:
    taken: list[SegmentSlice] = []
    size_bytes = 0
    for segment_slice in segment_slices:
        for part in _parts(segment_slice, max_bytes):
            if taken and size_bytes + len(part.byte_range) > max_bytes:
                yield Share(segment_slices=tuple(taken))
                taken, size_bytes = [], 0
            taken.append(part)
            size_bytes += len(part.byte_range)
    if taken:
        yield Share(segment_slices=tuple(taken))


def _parts(segment_slice: SegmentSlice, max_bytes: int) -> Iterator[SegmentSlice]:
    """Yield the slice, cut at multiples of a chunk's size where shares of ``max_bytes`` are larger than that."""
    whole = segment_slice.byte_range
    step = max_bytes // CUT_AT_MULTIPLES_OF_BYTES * CUT_AT_MULTIPLES_OF_BYTES or max_bytes
    if len(whole) <= max_bytes:
        yield segment_slice
        return
    first_cut = whole.start // step * step + step
    edges = [whole.start, *range(first_cut, whole.stop, step), whole.stop]
    for start, stop in pairwise(edges):
        yield replace(segment_slice, byte_range=ByteRange(start, stop))
