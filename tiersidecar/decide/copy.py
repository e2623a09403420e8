"""Choice of the sealed segments of a partition that are copied next, and how far its copying lags.

Source: RemoteLogManager.RLMCopyTask, with the start moved to the segment that *contains* the first offset not yet remote:
replicas roll differently, and starting at the next boundary would leave a hole (docs/design/0001).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tiersidecar.decide.expiry_view import local_time_ms
from tiersidecar.domain.offsets import NO_OFFSET, ByteRange, Lineage, Offset
from tiersidecar.domain.policy import UNLIMITED, TopicPolicy
from tiersidecar.domain.segments import LocalSegment, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyView:
    """A led partition as the copy decision sees it.

    ``copied_offset`` is the highest remote offset of this lineage, inclusive (-1: none); ``last_stable_offset`` is
    exclusive; ``segments`` ascend and end with the active one.  ``remote_log_start_offset`` is -1 while it is not set.
    ``holes`` are offsets below ``copied_offset`` that no remote segment holds and the broker does.  ``readable_stop`` is the
    end (exclusive) of what readers find in the remote segments from ``copied_offset`` on: an unclean election may have left the
    front of one.  ``may_expire``: expiry is active and has not looked at the partition yet.  ``first_epoch_offset`` is where
    the first known leader epoch begins; ``live_start_offset`` is where readers may begin, by the broker's log start and
    the remote one.
    """

    policy: TopicPolicy
    segments: tuple[LocalSegment, ...]
    copied_offset: int
    last_stable_offset: int
    now_ms: int
    remote_log_start_offset: int = NO_OFFSET
    holes: tuple[ByteRange, ...] = ()
    readable_stop: int = 0
    may_expire: bool = False
    first_epoch_offset: int = 0
    live_start_offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlan:
    """Segments to copy, in this order, one at a time.

    ``held_back`` says why the first sealed segment that is not in ``segments`` must wait; empty when none waits.
    ``gap`` is the half-open offset range that neither tier holds any more, None when there is none.  ``halted`` says why that
    segment will never be copied, nor anything behind it; empty when time or the broker may change it.  ``unstable`` is that
    segment where the last stable offset holds it back.
    """

    segments: tuple[LocalSegment, ...]
    held_back: str
    gap: ByteRange | None
    halted: str = ""
    unstable: LocalSegment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLag:
    """Sealed segments that are not remote yet and are to be, whether or not they may be copied now (S-041).

    ``oldest_ms`` is when the oldest of them was last written, None when there is none.
    """

    segments: int
    size_bytes: int
    oldest_ms: int | None


def decide_copy(view: CopyView) -> CopyPlan:
    """Return the plan for one partition.

    Nothing at or above the remote log start is skipped: what is past its total retention is given up by expiry, which moves
    that start, or it is copied.
    """
    pending = pending_segments(view.segments, view.copied_offset, view.remote_log_start_offset, view.holes)
    halted, held_back, chosen = "", "", []
    for segment in pending:
        halted = _reason_to_halt(view, segment)
        held_back = halted or _reason_to_wait(view, segment)
        if held_back:
            break
        chosen.append(segment)
    first = next((one for one in pending if one not in chosen), None)
    return CopyPlan(
        segments=tuple(chosen),
        held_back=held_back,
        gap=_gap(view, pending),
        halted=halted,
        unstable=first if first is not None and not halted and _is_unstable(view, first) else None,
    )


_NO_LAG = CopyLag(segments=0, size_bytes=0, oldest_ms=None)


def copy_lag(pending: tuple[LocalSegment, ...]) -> CopyLag:
    """Return the lag of a led partition, computed anew each time (U18)."""
    if not pending:
        return _NO_LAG
    return CopyLag(
        segments=len(pending),
        size_bytes=sum(segment.size_bytes for segment in pending),
        oldest_ms=min(segment.modified_ms for segment in pending),
    )


def pending_segments(
    segments: tuple[LocalSegment, ...],
    copied_offset: int,
    remote_log_start_offset: int = NO_OFFSET,
    holes: tuple[ByteRange, ...] = (),
) -> tuple[LocalSegment, ...]:
    """Return sealed segments with an offset above ``copied_offset`` or in one of ``holes``, oldest first, and none that lies
    wholly below the remote log start; the active segment never (T-17).

    A pinned one always counts: it is there because it is not remote, and below ``copied_offset`` it is a hole that an earlier
    leader left (docs/design/0004-pins.md).
    """
    if not holes and _reaches_last_sealed(copied_offset, segments) and not any(one.pinned for one in segments):
        return ()  # true of most partitions at most times, and this is asked of thousands every few seconds
    return tuple(
        segment
        for segment in segments
        if segment.next_base_offset is not None
        and segment.next_base_offset > remote_log_start_offset
        and (segment.pinned or segment.next_base_offset > copied_offset + 1 or _is_in(holes, segment))
    )


def _reaches_last_sealed(copied_offset: int, segments: tuple[LocalSegment, ...]) -> bool:
    """Return whether ``copied_offset`` reaches the end of the last sealed segment; segments ascend."""
    last = next((one.next_base_offset for one in reversed(segments) if one.next_base_offset is not None), NO_OFFSET)
    return last <= copied_offset + 1


def _is_in(holes: tuple[ByteRange, ...], segment: LocalSegment) -> bool:
    stop = segment.next_base_offset or 0
    return any(hole.start < stop and segment.base_offset < hole.stop for hole in holes)


def _is_past_retention(view: CopyView, segment: LocalSegment) -> bool:
    """Return whether the segment's newest record is past retention, as expiry sees what was never copied, or the local log
    behind it alone has ``retention.bytes`` or more."""
    policy = view.policy
    if policy.retention_ms != UNLIMITED and local_time_ms(segment, view.now_ms) <= view.now_ms - policy.retention_ms:
        return True
    after = sum(other.size_bytes for other in view.segments if other.base_offset > segment.base_offset)
    return policy.retention_bytes != UNLIMITED and after >= policy.retention_bytes


def _reason_to_halt(view: CopyView, segment: LocalSegment) -> str:
    """Return why the segment, with offsets below the first leader epoch, halts copying: no epoch finds them.  Remote, they
    could not be read; trimmed, they would be lost.  Kafka has such data from before 0.11.  Below the start none is needed."""
    stop = min(segment.next_base_offset or 0, view.first_epoch_offset)
    start = max(segment.base_offset, view.live_start_offset)
    if start >= stop:
        return ""
    return (
        f"offsets {start} to {view.first_epoch_offset - 1} lie below the first leader epoch (data from "
        "before Kafka 0.11): they cannot be tiered, and nothing behind them is copied or trimmed until retention or a "
        "DeleteRecords has taken them"
    )


def _reason_to_wait(view: CopyView, segment: LocalSegment) -> str:
    if view.policy.copy_disabled:
        return "remote.log.copy.disable is true"
    if view.may_expire and _is_past_retention(view, segment):
        return "it is past its total retention: expiry looks first"
    if _is_unstable(view, segment):
        return (
            f"last stable offset {view.last_stable_offset} is below its end {segment.next_base_offset}: "
            "a transaction is open, or replicas in sync are behind"
        )
    if not _past_copy_lag(view, segment):
        return "remote.copy.lag.ms and remote.copy.lag.bytes hold it back"
    return ""


def _is_unstable(view: CopyView, segment: LocalSegment) -> bool:
    return segment.next_base_offset is None or segment.next_base_offset > view.last_stable_offset


def _past_copy_lag(view: CopyView, segment: LocalSegment) -> bool:
    """Return whether a segment is past its copy lag: at once if either lag is 0, else when it is old enough, or enough bytes
    came after it (S-026, S-027).  A lag of -1 is the effective local retention (S-028).  A segment that only a pin holds, which
    the broker has given up already, is past it at once."""
    if segment.pinned:
        return True
    lag_ms, lag_bytes = view.policy.effective_copy_lag_ms, view.policy.effective_copy_lag_bytes
    if lag_ms == 0 or lag_bytes == 0:
        return True
    if lag_ms > 0 and view.now_ms - local_time_ms(segment, view.now_ms) >= lag_ms:
        return True
    after = sum(other.size_bytes for other in view.segments if other.base_offset > segment.base_offset)
    return 0 < lag_bytes <= after


def _gap(view: CopyView, waiting: tuple[LocalSegment, ...]) -> ByteRange | None:
    first = max(view.copied_offset + 1, view.readable_stop)
    waiting = tuple(segment for segment in waiting if (segment.next_base_offset or 0) > view.copied_offset + 1)
    if view.copied_offset < 0 or not waiting or waiting[0].base_offset <= first:
        return None
    return ByteRange(first, waiting[0].base_offset)


def find_copied_offset(
    lineage: Lineage,
    highest_offset_for_epoch: Callable[[int], int | None],
    segment_at: Callable[[int, int], RemoteLogSegmentMetadata | None],
) -> Offset | None:
    """Return the highest offset, inclusive, that a finished segment *of this lineage* holds; -1 when there is none.  None: only
    the segments themselves show it (:func:`copied_offset_among`).

    Kafka walks the epochs downward and caps what it finds at the epoch's end (``findHighestRemoteOffset``, T-02 to T-04).
    A capped answer stems from a segment of another history, to whose end nothing can be trimmed.  Where the cap applies, the
    segments themselves are asked, and the local segment with the first offset not covered is copied again.
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
    """Return what :func:`find_copied_offset` does, by all segments."""
    held = (one for one in segments if one.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
    return max((segment.end_offset for segment in held if segment.is_within(lineage)), default=NO_OFFSET)
