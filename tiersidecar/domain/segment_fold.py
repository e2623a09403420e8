"""Fold one segment's events without the rest of its partition, as :class:`~tiersidecar.domain.metadata_cache
.RemoteLogMetadataCache` does, and keep the result beyond DELETE_SEGMENT_FINISHED.

The cache answers a daemon's questions and forgets what is deleted; a reconcile run asks what became of each object.
Both take the rules from :mod:`tiersidecar.domain.states`, and a property test holds them together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tiersidecar.domain.states import (
    PARTITION_DELETE_TRANSITIONS,
    SEGMENT_ADDITIONS,
    SEGMENT_UPDATES,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
)

Row = TypeVar("Row")

_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentStep(Generic[Row]):
    """An event that names the segment: an addition or an update.  ``state`` is its byte, ``row`` its other fields."""

    offset: int
    is_addition: bool
    state: int
    row: Row


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedSegment(Generic[Row]):
    """``added`` is the addition that counts, ``finished`` the update that finished the copy, if one did, ``last`` the
    last event that counts; ``started_at`` is the offset at which the segment first entered its present state."""

    state: RemoteLogSegmentState
    added: SegmentStep[Row]
    last: SegmentStep[Row]
    started_at: int
    finished: SegmentStep[Row] | None = None
    finished_at: int | None = None


def fold_segment(steps: Iterable[SegmentStep[Row]], cleared_at: Iterable[int] = ()) -> FoldedSegment[Row] | None:
    """Return the segment by its events in the order of their offsets; None if none of them added it.

    ``cleared_at`` are the offsets at which its whole partition's deletion finished (:func:`clearings`), ascending.
    """
    clears = list(cleared_at)
    segment: FoldedSegment[Row] | None = None
    for step in steps:
        segment = _cleared(segment, clears, until=step.offset)
        segment = _added(segment, step) if step.is_addition else _updated(segment, step)
    return _cleared(segment, clears, until=None)


def clearings(events: Iterable[tuple[int, int]]) -> list[int]:
    """Return offsets at which a partition's deletion finished; ``events`` are offset and state of its
    RemotePartitionDeleteMetadata, in the order of their offsets."""
    state: RemotePartitionDeleteState | None = None
    found = []
    for offset, target in events:
        if target not in PARTITION_DELETE_TRANSITIONS[state]:
            continue
        state = RemotePartitionDeleteState(target)
        if state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            found.append(offset)
            state = None
    return found


def _cleared(segment: FoldedSegment[Row] | None, clears: list[int], *, until: int | None) -> FoldedSegment[Row] | None:
    is_cleared = False
    while clears and (until is None or clears[0] < until):
        clears.pop(0)
        is_cleared = True
    return _in_state(segment, _DELETED, segment.last) if segment is not None and is_cleared else segment


def _added(segment: FoldedSegment[Row] | None, step: SegmentStep[Row]) -> FoldedSegment[Row] | None:
    known = None if segment is None or segment.state is _DELETED else segment
    if step.state not in SEGMENT_ADDITIONS[None if known is None else known.state]:
        return segment
    started_at = step.offset if known is None else known.started_at
    return FoldedSegment(state=_STARTED, added=step, last=step, started_at=started_at)


def _updated(segment: FoldedSegment[Row] | None, step: SegmentStep[Row]) -> FoldedSegment[Row] | None:
    if segment is None or segment.state is _DELETED or step.state not in SEGMENT_UPDATES[segment.state]:
        return segment
    return _in_state(segment, RemoteLogSegmentState(step.state), step)


def _in_state(segment: FoldedSegment[Row], state: RemoteLogSegmentState, step: SegmentStep[Row]) -> FoldedSegment[Row]:
    finishes = state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    return FoldedSegment(
        state=state,
        added=segment.added,
        last=step,
        started_at=segment.started_at,
        finished=step if finishes else segment.finished,
        finished_at=step.offset if finishes and segment.finished_at is None else segment.finished_at,
    )
