"""Reach of retention into a partition: the remote log start offset that time, size and users ask for.

Kafka's RLMExpirationTask decides segment by segment and moves the log start behind what it deletes.  Here the offset comes
first and the segments follow from it, so that nothing that is still to be read can be among them.  What is remote and what only
the broker holds is one log: it is walked in the order of its offsets, and nothing is skipped unjudged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from tiersidecar.decide.expiry_standing import Standing
from tiersidecar.decide.expiry_view import ExpiryView
from tiersidecar.domain.ids import RemoteLogSegmentId
from tiersidecar.domain.policy import UNLIMITED, RetentionMode
from tiersidecar.domain.segments import LocalSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPart:
    """Offsets of a sealed local segment, from ``start_offset`` up to, not including, ``stop_offset``, that no remote segment
    serves; ``weight_bytes`` is their part of its size."""

    segment: LocalSegment
    start_offset: int
    stop_offset: int
    weight_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """``offset`` is the remote log start that is due, -1 where none is known.  ``reasons`` has the segments that this round's
    retention took, ``local`` what was never copied; ``only_local_bytes`` are those of all local data that are not
    remote."""

    offset: int
    reasons: dict[RemoteLogSegmentId, str]
    local: tuple[LocalPart, ...]
    only_local_bytes: int


def find_reach(
    view: ExpiryView, found: Sequence[Standing], start_offset: int, *, past_in_flight: bool = False
) -> Reach:
    """Walk the log from ``start_offset`` until the first segment that retention keeps (T-44).

    Copies and deletes that run right now end the walk (S-062, T-31), unless ``past_in_flight``: what is due without them.
    """
    parts = _local_parts(view, found, start_offset)
    only_local_bytes = sum(part.weight_bytes for part in parts) + _active_bytes(view)
    walk = _Walk(
        view=view,
        offset=start_offset,
        excess_bytes=_excess_bytes(view, found, start_offset, only_local_bytes),
        barrier=None if past_in_flight else _first_in_flight(view),
        broker_start=_broker_start(view) if view.policy.mode is RetentionMode.RACE else None,
    )
    walk.over(found, parts)
    return Reach(offset=walk.offset, reasons=walk.reasons, local=tuple(walk.local), only_local_bytes=only_local_bytes)


@dataclass(slots=True, kw_only=True)
class _Walk:
    """``excess_bytes`` are those still above retention.bytes; from ``barrier`` on nothing is due.  From ``broker_start`` on,
    in race mode, the broker decides about its log: a start beyond it would hide what is there, and have it deleted by the next
    sidecar that tiers the topic in strict mode."""

    view: ExpiryView
    offset: int
    excess_bytes: int
    barrier: int | None
    broker_start: int | None
    may_go_by_time: bool = True
    reasons: dict[RemoteLogSegmentId, str] = field(default_factory=dict)
    local: list[LocalPart] = field(default_factory=list)

    def over(self, found: Sequence[Standing], parts: Sequence[LocalPart]) -> None:
        steps: list[tuple[int, Standing | LocalPart]] = [
            (standing.segment.start_offset, standing) for standing in found
        ]
        steps += [(part.start_offset, part) for part in parts]
        for start_offset, step in sorted(steps, key=lambda one: one[0]):
            if isinstance(step, Standing) and step.served_end < max(self.offset, 0):
                continue
            if self.barrier is not None and start_offset >= self.barrier:
                return
            if self.broker_start is not None and _stop_of(step) > self.broker_start:
                return
            goes_on = self._over_local(step) if isinstance(step, LocalPart) else self._over_remote(step)
            if not goes_on:
                return

    def _over_remote(self, standing: Standing) -> bool:
        """Return whether the walk goes on."""
        if not standing.is_valid:
            self._pass_partly_valid(standing)
            return True
        reason = self._breach(self.view.is_expired(standing.segment), standing.weight_bytes)
        if reason:
            self.reasons[standing.segment.remote_log_segment_id] = reason
            self.offset = standing.served_end + 1
        return bool(reason)

    def _pass_partly_valid(self, standing: Standing) -> None:
        """Pass it: by size it does not count, so what comes after decides; by time it holds back what comes after."""
        self.may_go_by_time &= self.view.is_expired(standing.segment)
        if self.may_go_by_time:
            self.offset = standing.served_end + 1

    def _over_local(self, part: LocalPart) -> bool:
        """Pass what was never copied, if it is past total retention (U8, S-052); return whether the walk goes on."""
        if self._may_go(part.segment) and self._breach(self.view.is_local_expired(part.segment), part.weight_bytes):
            self.offset = max(self.offset, part.stop_offset)
            self.local.append(part)
            return True
        # What is served on both sides of it may have been passed already.
        self.offset = min(self.offset, part.start_offset)
        return False

    def _may_go(self, segment: LocalSegment) -> bool:
        """Return whether retention decides about it: in race mode the broker decides about its log, but not about pins."""
        is_ours = segment.pinned or self.view.policy.mode is RetentionMode.STRICT
        return is_ours and _is_committed(self.view, segment, whole=True)

    def _breach(self, is_expired: bool, size_bytes: int) -> str:
        """Return why a segment goes: by time, or by size, if all of it is above the limit (S-064, T-42).  A segment that goes
        by time reduces what is above it (T-43)."""
        if is_expired and self.may_go_by_time:
            self.excess_bytes -= size_bytes
            return f"retention.ms of {self.view.policy.retention_ms} is over"
        if self.excess_bytes > 0 and size_bytes <= self.excess_bytes:
            self.excess_bytes -= size_bytes
            return f"the log is larger than retention.bytes of {self.view.policy.retention_bytes}"
        return ""


def _broker_start(view: ExpiryView) -> int | None:
    """Return the broker's log start as it reports it, or before it is asked as its files have it, which is never later."""
    if view.log_start_offset is not None:
        return view.log_start_offset
    return next((segment.base_offset for segment in view.local_segments if not segment.pinned), None)


def _stop_of(step: Standing | LocalPart) -> int:
    return step.stop_offset if isinstance(step, LocalPart) else step.served_end + 1


def _first_in_flight(view: ExpiryView) -> int | None:
    flying = (s.start_offset for s in view.remote_segments if s.remote_log_segment_id in view.in_flight)
    return min(flying, default=None)


def _local_parts(view: ExpiryView, found: Sequence[Standing], start_offset: int) -> list[LocalPart]:
    """Return the parts of sealed segments above the start that no remote segment serves."""
    served = _merged([span for standing in found for span in standing.served])
    parts: list[LocalPart] = []
    for segment in view.local_segments:
        if segment.next_base_offset is None or not _is_committed(view, segment):
            continue
        # The broker lists what it has given up until it has removed the file; a pin outlives that.
        local_start = 0 if segment.pinned or view.log_start_offset is None else view.log_start_offset
        first = max(segment.base_offset, start_offset, local_start)
        offsets = segment.next_base_offset - segment.base_offset
        for start, stop in _without(first, segment.next_base_offset, served):
            weight_bytes = segment.size_bytes * (stop - start) // offsets
            parts.append(LocalPart(segment=segment, start_offset=start, stop_offset=stop, weight_bytes=weight_bytes))
    return parts


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


def _without(start: int, stop: int, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges of [``start``, ``stop``) that lie in none of ``spans``, which ascend."""
    left: list[tuple[int, int]] = []
    index = bisect_right(spans, start, key=lambda span: span[1])
    while start < stop and index < len(spans) and spans[index][0] < stop:
        if start < spans[index][0]:
            left.append((start, spans[index][0]))
        start = max(start, spans[index][1])
        index += 1
    if start < stop:
        left.append((start, stop))
    return left


def _active_bytes(view: ExpiryView) -> int:
    return sum(
        segment.size_bytes
        for segment in view.local_segments
        if segment.next_base_offset is None and _is_committed(view, segment)
    )


def _excess_bytes(view: ExpiryView, found: Sequence[Standing], start_offset: int, only_local_bytes: int) -> int:
    """Return the bytes above the limit, of finished segments of the lineage and of what is only local (S-059, S-070); those
    below the start are gone already."""
    if view.policy.retention_bytes == UNLIMITED:
        return 0
    remote_bytes = sum(s.weight_bytes for s in found if s.is_valid and s.served_end >= start_offset)
    return remote_bytes + only_local_bytes - view.policy.retention_bytes


def _is_committed(view: ExpiryView, segment: LocalSegment, *, whole: bool = False) -> bool:
    """Return whether the segment has, or has only, records below the high watermark: what a deposed leader still takes in from
    its clients is no reason to delete anything."""
    if view.high_watermark is None:
        return True
    if whole:
        return segment.next_base_offset is not None and segment.next_base_offset <= view.high_watermark
    return segment.base_offset < view.high_watermark
