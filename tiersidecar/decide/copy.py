"""Which sealed segments of a partition are copied next, and how far its copying lags.

Source: RemoteLogManager.RLMCopyTask, with the start moved to the segment that *contains* the first offset not yet remote:
replicas roll differently, and starting at the next boundary would leave a hole (DESIGN.md section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tiersidecar.domain.epochs import Lineage
from tiersidecar.domain.offsets import NO_OFFSET, ByteRange, Offset
from tiersidecar.domain.policy import UNLIMITED, TopicPolicy
from tiersidecar.domain.segments import LocalSegment, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyView:
    """A led partition as the copy decision sees it.

    ``copied_offset`` is the highest remote offset of this lineage, inclusive (-1: none); ``last_stable_offset`` is
    exclusive; ``segments`` ascend and end with the active one.  ``remote_log_start_offset`` is -1 while nothing moved it.
    """

    policy: TopicPolicy
    segments: tuple[LocalSegment, ...]
    copied_offset: int
    last_stable_offset: int
    now_ms: int
    remote_log_start_offset: int = NO_OFFSET


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlan:
    """Segments to copy, in this order, one at a time.

    ``held_back`` says why the first sealed segment that is not in ``segments`` must wait; empty when none waits.
    ``gap`` is the half-open offset range that neither tier holds any more, None when there is none.
    ``expired`` are past total retention: they are not worth an upload, and expiry trims them (U8).  Not where something before
    them is still readable: a hole would follow it, with the ends of its transactions, should expiry judge otherwise.
    """

    segments: tuple[LocalSegment, ...]
    held_back: str
    gap: ByteRange | None
    expired: tuple[LocalSegment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLag:
    """Sealed segments that are not remote yet and are to be, whether they may be copied now or not (S-041).

    ``oldest_ms`` is when the oldest of them was last written, None when there is none.
    """

    segments: int
    size_bytes: int
    oldest_ms: int | None


def decide_copy(view: CopyView) -> CopyPlan:
    """The plan for one partition."""
    pending = pending_segments(view.segments, view.copied_offset)
    waiting = pending
    if view.copied_offset < max(view.remote_log_start_offset, 0):
        waiting = not_expired(pending, view.segments, view.policy, view.now_ms)
    held_back, chosen = "", []
    for segment in waiting:
        held_back = _reason_to_wait(view, segment)
        if held_back:
            break
        chosen.append(segment)
    return CopyPlan(
        segments=tuple(chosen),
        held_back=held_back,
        gap=_gap(view, pending),
        expired=pending[: len(pending) - len(waiting)],
    )


def copy_lag(segments: tuple[LocalSegment, ...], copied_offset: int, policy: TopicPolicy, now_ms: int) -> CopyLag:
    """The lag of a led partition, from the truth each time it is asked for (U18)."""
    waiting = not_expired(pending_segments(segments, copied_offset), segments, policy, now_ms)
    return CopyLag(
        segments=len(waiting),
        size_bytes=sum(segment.size_bytes for segment in waiting),
        oldest_ms=min((segment.modified_ms for segment in waiting), default=None),
    )


def pending_segments(segments: tuple[LocalSegment, ...], copied_offset: int) -> tuple[LocalSegment, ...]:
    """Sealed segments with an offset above ``copied_offset``, oldest first; the active segment never (T-17).

    A pinned one always: it is there because it is not remote, and below ``copied_offset`` it is a hole that an earlier leader
    left (docs/design/0004-pins.md).
    """
    return tuple(
        segment
        for segment in segments
        if segment.next_base_offset is not None and (segment.pinned or segment.next_base_offset > copied_offset + 1)
    )


def not_expired(
    pending: tuple[LocalSegment, ...], segments: tuple[LocalSegment, ...], policy: TopicPolicy, now_ms: int
) -> tuple[LocalSegment, ...]:
    """``pending`` without those at its front that are past total retention: by the time of their last write, as expiry takes
    what was never copied, or because what follows them in the local log alone is ``retention.bytes`` or more."""
    following_bytes = sum(segment.size_bytes for segment in segments)
    sizes_up_to = {}
    for segment in segments:
        following_bytes -= segment.size_bytes
        sizes_up_to[segment.base_offset] = following_bytes
    for number, segment in enumerate(pending):
        by_time = policy.retention_ms != UNLIMITED and segment.modified_ms <= now_ms - policy.retention_ms
        by_size = policy.retention_bytes != UNLIMITED and sizes_up_to[segment.base_offset] >= policy.retention_bytes
        if not by_time and not by_size:
            return pending[number:]
    return ()


def _reason_to_wait(view: CopyView, segment: LocalSegment) -> str:
    if view.policy.copy_disabled:
        return "remote.log.copy.disable is true"
    next_base = segment.next_base_offset
    if next_base is None or next_base > view.last_stable_offset:
        return f"last stable offset {view.last_stable_offset} is below its end {next_base}"
    if not _past_copy_lag(view, segment):
        return "remote.copy.lag.ms and remote.copy.lag.bytes hold it back"
    return ""


def _past_copy_lag(view: CopyView, segment: LocalSegment) -> bool:
    """At once if either lag is 0; else when it is old enough, or enough bytes came after it (S-026, S-027).  A lag of -1
    is the effective local retention (S-028).  What only a pin holds the broker has given up already: at once."""
    if segment.pinned:
        return True
    lag_ms = _lag(view.policy.copy_lag_ms, view.policy.effective_local_retention_ms)
    lag_bytes = _lag(view.policy.copy_lag_bytes, view.policy.effective_local_retention_bytes)
    if lag_ms == 0 or lag_bytes == 0:
        return True
    if lag_ms > 0 and view.now_ms - segment.modified_ms >= lag_ms:
        return True
    after = sum(other.size_bytes for other in view.segments if other.base_offset > segment.base_offset)
    return 0 < lag_bytes <= after


def _lag(configured: int, local_retention: int) -> int:
    return local_retention if configured == -1 else configured


def _gap(view: CopyView, waiting: tuple[LocalSegment, ...]) -> ByteRange | None:
    first = view.copied_offset + 1
    if view.copied_offset < 0 or not waiting or waiting[0].base_offset <= first:
        return None
    return ByteRange(first, waiting[0].base_offset)


def find_copied_offset(
    lineage: Lineage,
    highest_offset_for_epoch: Callable[[int], int | None],
    segment_at: Callable[[int, int], RemoteLogSegmentMetadata | None],
) -> Offset | None:
    """The highest offset, inclusive, that a finished segment *of this lineage* holds; -1 when there is none.  None: only the
    segments themselves tell (:func:`copied_offset_among`).

    Kafka walks the epochs downward and caps what it finds at the epoch's end (``findHighestRemoteOffset``, T-02 to
    T-04).  A capped answer stems from a segment of another history, whose end can be trimmed to by nobody; so where the
    cap bites, the segments themselves are asked, and the local segment with the first offset not covered is copied again.
    """
    for entry in reversed(lineage.entries):
        highest = highest_offset_for_epoch(entry.epoch)
        if highest is None:
            continue
        segment = segment_at(entry.epoch, highest)
        if segment is not None and segment.end_offset == highest and segment.is_within(lineage):
            return Offset(highest)
        return None
    return NO_OFFSET


def copied_offset_among(segments: Iterable[RemoteLogSegmentMetadata], lineage: Lineage) -> Offset:
    """As :func:`find_copied_offset`, of all segments."""
    held = (one for one in segments if one.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
    return max((segment.end_offset for segment in held if segment.is_within(lineage)), default=NO_OFFSET)
