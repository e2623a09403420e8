"""The segments of a partition as one list: state, place and time limit of each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tiersidecar.decide.copy import CopyView
from tiersidecar.decide.expire import ExpiryPlan
from tiersidecar.decide.expiry_view import ExpiryView
from tiersidecar.decide.trim import TrimView, counts, covering_segments
from tiersidecar.domain.segments import LocalSegment, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState


class RowState(StrEnum):
    """``GIVEN_UP``: local, below the broker's log start; it removes the file in its own time.  ``OUTSIDE_LINEAGE``: of a
    history that lost an election.  ``TRASH``: below the remote log start, to be deleted when that is due."""

    ACTIVE = "active"
    LOCAL = "local"
    PINNED = "pinned"
    COPYING = "copying"
    BOTH = "both"
    REMOTE = "remote"
    TRASH = "trash"
    DELETING = "deleting"
    OUTSIDE_LINEAGE = "outside-lineage"
    GIVEN_UP = "given-up"


LOCAL_STATES = frozenset({RowState.ACTIVE, RowState.LOCAL, RowState.PINNED, RowState.BOTH, RowState.COPYING})
"""States in which the broker's disk still has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """A led partition as copy, expiry and trim see it at one moment; ``plan`` is expiry's decision about it."""

    copy: CopyView
    expiry: ExpiryView
    plan: ExpiryPlan
    trim: TrimView


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRow:
    """``end_offset`` is inclusive, None of the active segment.  A remote segment and a local one are one row where they have
    the same offsets, and are of one history; replicas roll differently, so they need not."""

    state: RowState
    start_offset: int
    end_offset: int | None
    remote: RemoteLogSegmentMetadata | None = None
    local: LocalSegment | None = None

    def holds(self, offset: int) -> bool:
        return self.start_offset <= offset and (self.end_offset is None or offset <= self.end_offset)


def segment_rows(view: PartitionView) -> tuple[SegmentRow, ...]:
    """Return all rows, ascending by start offset."""
    local = {(segment.base_offset, (segment.next_base_offset or 0) - 1): segment for segment in view.copy.segments}
    remote = [segment for segment in view.expiry.remote_segments if _is_shown(segment)]
    merged = {(one.start_offset, one.end_offset) for one in remote if _is_same_log(view, one)} & local.keys()
    given_up = _given_up(view)
    finished = [one for one in remote if counts(view.trim, one)]
    on_disk = _OnDisk(view.trim)
    rows = [
        SegmentRow(
            state=_remote_state(view, one, one.remote_log_segment_id.uuid in given_up, on_disk),
            start_offset=one.start_offset,
            end_offset=one.end_offset,
            remote=one,
            local=local.get((one.start_offset, one.end_offset)) if _is_same_log(view, one) else None,
        )
        for one in remote
    ]
    rows += [
        SegmentRow(
            state=_local_state(view, one, finished),
            start_offset=one.base_offset,
            end_offset=None if one.next_base_offset is None else one.next_base_offset - 1,
            local=one,
        )
        for key, one in local.items()
        if key not in merged
    ]
    return tuple(sorted(rows, key=lambda row: (row.start_offset, row.end_offset is None, row.end_offset or 0)))


def _is_shown(segment: RemoteLogSegmentMetadata) -> bool:
    return segment.state is not RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


def _is_same_log(view: PartitionView, segment: RemoteLogSegmentMetadata) -> bool:
    """Return whether both hold the same records: a deposed leader's copy holds others than the local segment of its offsets."""
    return segment.is_within(view.expiry.lineage)


def _given_up(view: PartitionView) -> frozenset[object]:
    """Return segments whose deletion is decided and durable: until it is durable they are read as before."""
    going = (*view.plan.expired, *view.plan.trash.waiting)
    return frozenset(one.metadata.remote_log_segment_id.uuid for one in going if _is_said(view.expiry, one.metadata))


def _is_said(expiry: ExpiryView, segment: RemoteLogSegmentMetadata) -> bool:
    return segment.end_offset < expiry.remote_log_start_offset or any(
        entry.covers(segment, expiry.lineage)
        for entry in expiry.trash
        if entry.id.generation == expiry.start_generation
    )


class _OnDisk:
    """Offsets that the broker's directory still holds above its log start."""

    def __init__(self, view: TrimView) -> None:
        self._log_start = view.log_start_offset
        self._bases = [segment.base_offset for segment in view.segments if not segment.pinned]

    def holds(self, offset: int) -> bool:
        return offset >= self._log_start and bisect_right(self._bases, offset) > 0


def _remote_state(view: PartitionView, one: RemoteLogSegmentMetadata, given_up: bool, on_disk: _OnDisk) -> RowState:
    match one.state:
        case RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            return RowState.COPYING
        case RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
            return RowState.DELETING
    if given_up:
        return RowState.TRASH
    if not one.is_within(view.expiry.lineage):
        return RowState.OUTSIDE_LINEAGE
    return RowState.BOTH if on_disk.holds(one.end_offset) else RowState.REMOTE


def _local_state(view: PartitionView, one: LocalSegment, finished: Sequence[RemoteLogSegmentMetadata]) -> RowState:
    if one.next_base_offset is None:
        return RowState.ACTIVE
    if one.pinned:
        return RowState.PINNED
    if one.next_base_offset <= view.trim.log_start_offset:
        return RowState.GIVEN_UP
    start = max(one.base_offset, view.trim.log_start_offset)
    return RowState.BOTH if covering_segments(finished, start, one.next_base_offset) else RowState.LOCAL
