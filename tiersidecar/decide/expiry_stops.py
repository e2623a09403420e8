"""Reasons for expiry to stop for a partition, rather than delete.

Each reason is a sentence for the operator, who can mend the cause or confirm.  What a user has asked for
(``delete-records``, a topic deleted, tiering switched off with deletion) needs none of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tiersidecar.decide.expiry_standing import Standing
from tiersidecar.decide.expiry_view import ExpiryView
from tiersidecar.domain.policy import UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """Wall clock (ms since 1970) and monotonic clock (s) at the same moment."""

    wall_ms: int
    monotonic_s: float


_CLOCK_TOLERANCE_MS = 5 * 60_000


def reason_to_doubt_clock(first: ClockReading, now: ClockReading) -> str:
    """Return why the wall clock is not trusted: since the process first read it, it has run unlike the monotonic clock."""
    jump_ms = (now.wall_ms - first.wall_ms) - int((now.monotonic_s - first.monotonic_s) * 1000)
    if abs(jump_ms) <= _CLOCK_TOLERANCE_MS:
        return ""
    direction = "ahead" if jump_ms > 0 else "back"
    return f"the wall clock jumped {abs(jump_ms) // 1000} s {direction}; restart the sidecar once it is right"


def reason_to_stop(view: ExpiryView, found: Sequence[Standing]) -> str:
    """Return why nothing at all may expire now; empty when it may."""
    if found and not view.lineage:
        return "no leader epoch of the partition is known"
    return (
        _reason_if_log_began_anew(view, found)
        or _reason_if_log_fell_short(view, found)
        or _reason_if_trimmed(view, max((s.served_end + 1 for s in found), default=0))
        or _reason_in_policy(view)
        or view.clock_doubt
        or _reason_in_silence(view)
    )


def _reason_if_log_began_anew(view: ExpiryView, found: Sequence[Standing]) -> str:
    """Return that all replicas were lost, if the log began again at 0, in a later epoch, and lacks all from before."""
    if not found:
        return ""
    head = view.lineage.entries[0]
    before = [s for s in found if s.segment.segment_leader_epochs[-1].epoch < head.epoch]
    if not before or view.accepted_loss_epoch >= head.epoch:
        return ""
    return (
        f"the log began anew in leader epoch {head.epoch} at offset {head.start_offset}, and {len(before)} remote segments "
        "are of the time before; restore them, or confirm with `tiersidecar accept-log-loss`"
    )


def _reason_if_log_fell_short(view: ExpiryView, found: Sequence[Standing]) -> str:
    remote_stop = max((s.segment.next_offset for s in found if s.is_valid), default=0)
    if view.high_watermark is None or view.high_watermark >= remote_stop:
        return ""
    return f"the log ends at {view.high_watermark}, below the end of the remote segments at {remote_stop}"


def _reason_if_trimmed(view: ExpiryView, remote_stop: int) -> str:
    """Return that metadata are missing, if data that was trimmed, and so was remote, is not in them any more."""
    if view.held_offset <= max(remote_stop, view.remote_log_start_offset):
        return ""
    return (
        f"the local log was trimmed to {view.held_offset}, but the remote segments of this history end at {remote_stop}: "
        "the remote log metadata are not whole"
    )


def _reason_in_policy(view: ExpiryView) -> str:
    if view.limits.max_share == 1:
        return ""
    for name, limit in (("ms", view.policy.retention_ms), ("bytes", view.policy.retention_bytes)):
        if limit == 0:
            return (
                f"retention.{name} reads 0, which would delete everything; deletes.max.share.per.round of 1 confirms it"
            )
    return ""


def _reason_in_silence(view: ExpiryView) -> str:
    """Return that the clock jumped, if a segment followed by a long silence is still there: it would have expired before the
    silence ended.  Segments written after the jump do not hide it."""
    if view.policy.retention_ms == UNLIMITED:
        return ""
    # What is in the trash no longer waits for retention.
    kept = (one for one in view.remote_segments if one.end_offset >= view.remote_log_start_offset)
    times_ms = [segment.event_timestamp_ms for segment in kept]
    times_ms += [segment.modified_ms for segment in view.local_segments if segment.next_base_offset is not None]
    silent_ms = longest_silence_ms(times_ms, view.now_ms)
    if silent_ms <= view.policy.retention_ms + view.delays.retention_ms + view.limits.idle_slack_ms:
        return ""
    return (
        f"by this clock nothing happened to the partition for {silent_ms // 1000} s, longer than its retention and "
        f"{view.limits.idle_slack_ms // 1000} s, and yet it has segments from before: the clock is wrong, or no sidecar was "
        "there; confirm with `tiersidecar delete-records`"
    )


def longest_silence_ms(times_ms: Iterable[int], now_ms: int) -> int:
    """Return the longest time between two of ``times_ms``, or from the last of them to ``now_ms``; later ones are left out."""
    past_ms = [*sorted(time_ms for time_ms in times_ms if time_ms <= now_ms), now_ms]
    return max((after - before for before, after in pairwise(past_ms)), default=0)
