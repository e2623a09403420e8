"""Cuts many events of a partition into record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.segments import SegmentEvent

_BATCH_BYTES = 32 * 1024
"""A size far below what any broker takes; writing one keeps the loop for a millisecond."""


def record_batches(events: Iterable[SegmentEvent], write: Callable[[SegmentEvent], bytes]) -> Iterator[list[bytes]]:
    """Yield the values of each record batch, by ``write``, as far as they are asked for.

    Neighbours of one segment are in one batch, which a broker has as a whole or not at all: none is left as begun for want of
    its COPY_SEGMENT_FINISHED, whatever ends the writer.
    """
    batch: list[bytes] = []
    size_bytes = 0
    for _, of_one in groupby(events, key=_segment):
        values = [write(event) for event in of_one]
        added_bytes = sum(map(len, values))
        if batch and size_bytes + added_bytes > _BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
        batch += values
        size_bytes += added_bytes
    if batch:
        yield batch


def _segment(event: SegmentEvent) -> Uuid:
    return event.remote_log_segment_id.uuid
