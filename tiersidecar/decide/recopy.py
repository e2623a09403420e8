"""Steps of a sidecar on a request to copy again what the store has lost (docs/design/0007-reconcile.md).

A segment that is to be given up keeps its objects and its state until others, whole in the store, hold every offset of it: so
what is left of it is never lost, wherever the process ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tiersidecar.domain.offsets import NO_OFFSET, ByteRange, Lineage
from tiersidecar.domain.segments import LocalSegment, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State


class RecopyAction(StrEnum):
    COPY = "copy"
    REWRITE = "rewrite"
    """Write the segment again from the store, under a new id: its batches are right, its indexes are not."""
    RETIRE = "retire"
    FORGET = "forget"
    DECLINE = "decline"
    WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecopyView:
    """A request as one sidecar sees it.

    ``start_offset`` and ``end_offset`` are inclusive.  ``names_segment``: a segment is to be given up, which is ``segment``
    now, or None when it is gone.  ``whole`` are other finished segments of the lineage with all their objects.  ``local``
    ascends: segments on this broker's disk, pins first.  ``copied_offset`` is the highest remote offset, inclusive.
    ``from_store``: as :class:`~tiersidecar.ports.state_records.RecopyRequest` has it.
    ``final_start_offset``: below it nothing can be undeleted any more.
    """

    start_offset: int
    end_offset: int
    names_segment: bool
    segment: RemoteLogSegmentMetadata | None
    lineage: Lineage
    whole: Sequence[RemoteLogSegmentMetadata]
    local: Sequence[LocalSegment]
    copied_offset: int
    remote_log_start_offset: int
    final_start_offset: int = NO_OFFSET
    from_store: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecopyStep:
    """The next step; ``local`` is what COPY copies."""

    action: RecopyAction
    reason: str
    local: LocalSegment | None = None


def decide_recopy(view: RecopyView) -> RecopyStep:
    """Return one step: the view is taken anew after each."""
    if view.names_segment and (view.segment is None or view.segment.state is not State.COPY_SEGMENT_FINISHED):
        return _step(RecopyAction.FORGET, "its segment is deleted, or is being deleted")
    first = max(view.start_offset, view.remote_log_start_offset)
    if first > view.end_offset:
        return _step(RecopyAction.FORGET, f"its offsets are below the remote log start {view.remote_log_start_offset}")
    holes = _holes(view, first)
    if holes:
        return _fill(view, holes)
    deleted = _holes(view, _first_to_keep(view, first))
    if deleted:
        return _fill_deleted(view, deleted)
    action = RecopyAction.RETIRE if view.names_segment else RecopyAction.FORGET
    return _step(action, "other live segments, with all their objects, hold its offsets")


def without(wanted: ByteRange, held: Iterable[ByteRange]) -> list[ByteRange]:
    """Return the parts of ``wanted`` that are in none of ``held``, ascending."""
    holes, start = [], wanted.start
    for span in sorted(held, key=lambda one: one.start):
        if span.stop <= start or span.start >= wanted.stop:
            continue
        if span.start > start:
            holes.append(ByteRange(start, span.start))
        start = span.stop
    if start < wanted.stop:
        holes.append(ByteRange(start, wanted.stop))
    return holes


def _holes(view: RecopyView, first: int) -> list[ByteRange]:
    held = (ByteRange(segment.start_offset, segment.end_offset + 1) for segment in view.whole)
    return without(ByteRange(first, view.end_offset + 1), held)


def _first_to_keep(view: RecopyView, first: int) -> int:
    """Return the first offset of the segment that an undelete could bring back; of one with sound batches all are kept."""
    if view.segment is None or not view.segment.is_within(view.lineage):
        return first
    if view.from_store:
        return view.start_offset
    return min(first, max(view.start_offset, view.final_start_offset))


def _fill_deleted(view: RecopyView, holes: Sequence[ByteRange]) -> RecopyStep:
    """Fill offsets below the remote log start that can still be undeleted: what no disk has stays in the damaged segment."""
    step = _fill(view, holes)
    if step.action is not RecopyAction.DECLINE:
        return step
    return _step(
        RecopyAction.WAIT, f"its offsets from {holes[0].start} on can still be undeleted, and are nowhere else"
    )


def _fill(view: RecopyView, holes: Sequence[ByteRange]) -> RecopyStep:
    if view.segment is not None and not view.segment.is_within(view.lineage):
        return _step(RecopyAction.DECLINE, "its segment is of another history than this broker's log")
    if view.from_store and view.segment is not None:
        return _step(RecopyAction.REWRITE, "its batches are in the store")
    ends = {one.base_offset: one.next_base_offset for one in view.local}
    open_end = view.end_offset + 1  # an active segment reaches at least as far as what was copied
    there = [ByteRange(base, max(open_end, base) if end is None else end) for base, end in ends.items()]
    for hole in holes:
        missing = without(hole, there)
        if missing:
            return _step(
                RecopyAction.DECLINE,
                f"offsets {missing[0].start} to {missing[0].stop - 1} are on none of this broker's disks",
            )
    local = next(one for one in view.local if _reaches(one, holes[0]))
    if local.next_base_offset is None:
        return _step(RecopyAction.WAIT, "the segment that has them is still written to")
    if local.next_base_offset > view.copied_offset + 1:
        return _step(RecopyAction.WAIT, "the segment that has them is not wholly remote yet, and is copied anyway")
    return RecopyStep(action=RecopyAction.COPY, reason="this broker's disk still has them", local=local)


def _reaches(local: LocalSegment, hole: ByteRange) -> bool:
    return local.base_offset <= hole.start and (local.next_base_offset is None or local.next_base_offset > hole.start)


def _step(action: RecopyAction, reason: str) -> RecopyStep:
    return RecopyStep(action=action, reason=reason)
