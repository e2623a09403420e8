"""How far retention reaches into a partition: the remote log start offset that time, size and users ask for.

Kafka's RLMExpirationTask decides segment by segment and moves the log start behind what it deletes.  Here the offset comes
first and the segments follow from it, so that nothing that is still to be read can be among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tiersidecar.decide.expiry_standing import Standing
from tiersidecar.decide.expiry_view import ExpiryView
from tiersidecar.domain.ids import RemoteLogSegmentId
from tiersidecar.domain.offsets import NO_OFFSET
from tiersidecar.domain.policy import UNLIMITED, RetentionMode
from tiersidecar.domain.segments import LocalSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """``offset`` is the remote log start that is due, -1 where nothing is known of it.  ``reasons`` has those segments that
    this round's retention took, ``local`` the local ones that were never copied; ``only_local_bytes`` are those of all local
    segments that are not remote."""

    offset: int
    reasons: dict[RemoteLogSegmentId, str]
    local: tuple[LocalSegment, ...]
    only_local_bytes: int


def find_reach(view: ExpiryView, found: Sequence[Standing]) -> Reach:
    """Walk the log from its start until the first segment that retention keeps (T-44)."""
    valid = [standing for standing in found if standing.is_valid]
    remote_stop = max((standing.served_end + 1 for standing in valid), default=0)
    first_start = min((standing.segment.start_offset for standing in found if standing.serves), default=NO_OFFSET)
    start = max(view.remote_log_start_offset, 0)
    only_local = [s for s in view.local_segments if s.base_offset >= max(remote_stop, start) and _is_committed(view, s)]
    only_local_bytes = sum(segment.size_bytes for segment in only_local)
    walk = _Walk(
        view=view,
        offset=first_start if view.remote_log_start_offset < 0 else view.remote_log_start_offset,
        excess_bytes=_excess_bytes(view, valid, only_local_bytes),
    )
    if walk.over_remote(found):
        walk.over_local()
    return Reach(offset=walk.offset, reasons=walk.reasons, local=tuple(walk.local), only_local_bytes=only_local_bytes)


@dataclass(slots=True, kw_only=True)
class _Walk:
    """``excess_bytes`` are those still above retention.bytes."""

    view: ExpiryView
    offset: int
    excess_bytes: int
    may_go_by_time: bool = True
    reasons: dict[RemoteLogSegmentId, str] = field(default_factory=dict)
    local: list[LocalSegment] = field(default_factory=list)

    def over_remote(self, found: Sequence[Standing]) -> bool:
        """Whether the walk came to the end of the remote log."""
        barrier = self._first_in_flight()
        for standing in found:
            if standing.served_end < max(self.offset, 0):
                continue
            if barrier is not None and standing.segment.start_offset >= barrier:
                return False
            if not standing.is_valid:
                self._pass_partly_valid(standing)
                continue
            reason = self._breach(self.view.is_expired(standing.segment), standing.weight_bytes)
            if not reason:
                return False
            self.reasons[standing.segment.remote_log_segment_id] = reason
            self.offset = standing.served_end + 1
        return True

    def _pass_partly_valid(self, standing: Standing) -> None:
        """It counts for nothing by size, so what comes after decides; by time it holds back what comes after."""
        self.may_go_by_time &= self.view.is_expired(standing.segment)
        if self.may_go_by_time:
            self.offset = standing.served_end + 1

    def over_local(self) -> None:
        """What was never copied, and is past total retention all the same (U8, S-052)."""
        if self.view.policy.mode is not RetentionMode.STRICT:
            return
        for segment in self.view.local_segments:
            if segment.next_base_offset is None or not _is_committed(self.view, segment, whole=True):
                return
            if segment.next_base_offset <= self.offset:
                continue
            if not self._breach(self.view.is_past_retention(segment.modified_ms), segment.size_bytes):
                return
            self.offset = segment.next_base_offset
            self.local.append(segment)

    def _breach(self, is_expired: bool, size_bytes: int) -> str:
        """By time, then by size, where a segment goes only if all of it is too much (S-064, T-42); a segment that goes by
        time is no more too much (T-43)."""
        if is_expired and self.may_go_by_time:
            self.excess_bytes -= size_bytes
            return f"retention.ms of {self.view.policy.retention_ms} is over"
        if self.excess_bytes > 0 and size_bytes <= self.excess_bytes:
            self.excess_bytes -= size_bytes
            return f"the log is larger than retention.bytes of {self.view.policy.retention_bytes}"
        return ""

    def _first_in_flight(self) -> int | None:
        """Copies and deletes that run right now end the walk (S-062, T-31)."""
        flying = (s.start_offset for s in self.view.remote_segments if s.remote_log_segment_id in self.view.in_flight)
        return min(flying, default=None)


def _excess_bytes(view: ExpiryView, valid: Sequence[Standing], only_local_bytes: int) -> int:
    """Finished segments of the lineage and what is only local (S-059, S-070); those below the start are gone already."""
    if view.policy.retention_bytes == UNLIMITED:
        return 0
    remote_bytes = sum(s.weight_bytes for s in valid if s.served_end >= view.remote_log_start_offset)
    return remote_bytes + only_local_bytes - view.policy.retention_bytes


def _is_committed(view: ExpiryView, segment: LocalSegment, *, whole: bool = False) -> bool:
    """Whether the segment has, or has only, records below the high watermark: what a deposed leader still takes in from its
    clients is no reason to delete anything."""
    if view.high_watermark is None:
        return True
    if whole:
        return segment.next_base_offset is not None and segment.next_base_offset <= view.high_watermark
    return segment.base_offset < view.high_watermark
