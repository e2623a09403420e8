"""What was read in one go, in parts of as many bytes as single reads may return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct

from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.record_batches import BATCH_HEADER_SIZE, LOG_OVERHEAD, read_batch_header
from tiersidecar.reading.batch_cutter import BatchSlice

_WHERE = "batches that were read"
_WALKED = Struct(">qi4xb6xi")
"""Of a format 2 header: base offset, length, magic and last offset delta."""


def parts_of(slices: Sequence[BatchSlice], max_bytes: int) -> Iterator[tuple[BatchSlice, ...]]:
    """``slices`` in order and without copying, each part of whole batches and at most ``max_bytes``; a batch that is larger is
    a part of its own.

    ``slices`` are the checked ones of a :class:`BatchCutter`.
    """
    part, left_bytes = list[BatchSlice](), max_bytes
    for one in slices:
        view, begin, base, at, next_offset = one.buffer, 0, one.base_offset, 0, one.base_offset
        while at < len(view) and len(view) - begin > left_bytes:
            batch_base, batch_next, stop = _batch_at(view, at)
            if stop - begin > left_bytes and (part or at > begin):
                if at > begin:
                    part.append(BatchSlice(view[begin:at], base, next_offset))
                yield tuple(part)
                part, left_bytes, begin, base = [], max_bytes, at, batch_base
            else:
                at, next_offset = stop, batch_next
        part.append(BatchSlice(view[begin:], base, one.next_offset))
        left_bytes -= len(view) - begin
    if part:
        yield tuple(part)


def _batch_at(view: memoryview, at: int) -> tuple[Offset, Offset, int]:
    """Base and next offset of the batch at byte ``at``, and where it ends."""
    if len(view) - at >= BATCH_HEADER_SIZE:
        base, length, magic, delta = _WALKED.unpack_from(view, at)
        if magic == 2:
            return Offset(base), Offset(base + delta + 1), at + LOG_OVERHEAD + length
    header = read_batch_header(view[at:], where=_WHERE, position=at)
    return header.base_offset, header.next_offset, at + header.size_bytes
