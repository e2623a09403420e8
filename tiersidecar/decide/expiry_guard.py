"""The guard on what one round may delete, of what is remote and of what never was.

Its stop is sticky: it waits for its cause to end or for an operator, and no copy, delete or other event that makes the share of
what is due look smaller ends it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tiersidecar.decide.expiry_view import ExpiryLimits, ExpiryView
from tiersidecar.domain.guard_stop import GuardStop
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.policy import UNLIMITED

CLOCK_TOLERANCE_MS = 5 * 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What retention would take at once: the start it would move to, how many segments and bytes, and of how many bytes."""

    up_to: Offset
    segments: int
    size_bytes: int
    all_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardVerdict:
    """``reason``: why nothing expires, empty when it may.  ``change``: what is to be made durable of it, None when nothing."""

    reason: str = ""
    change: GuardStop | None = None


def judge_guard(view: ExpiryView, due: Due) -> GuardVerdict:
    """Whether what is due may go, or a stop begins, stays, or ends."""
    known = view.guard_stop
    too_much = _too_much(view.limits, due)
    if known is None or known.is_over:
        return _stopped(view, due, too_much) if too_much else GuardVerdict()
    if _is_confirmed(view, known):
        # What was asked about is decided: what is due beyond it is judged on its own.
        return _stopped(view, due, too_much) if too_much else _ended(known)
    if too_much:
        return _stopped(view, due, too_much) if _is_judged_anew(view, known) else GuardVerdict(reason=known.reason)
    return _ended(known) if _has_cause_ended(view, known) else GuardVerdict(reason=known.reason)


def _too_much(limits: ExpiryLimits, due: Due) -> str:
    """One segment may always go."""
    if due.segments <= 1:
        return ""
    said = f"{due.segments} segments are due at once, {due.size_bytes} of {due.all_bytes} bytes: more than"
    if due.size_bytes > limits.max_share * due.all_bytes:
        return f"{said} deletes.max.share.per.round of {limits.max_share}"
    if UNLIMITED < limits.max_bytes < due.size_bytes:
        return f"{said} deletes.max.bytes.per.round of {limits.max_bytes}"
    return ""


def _stopped(view: ExpiryView, due: Due, too_much: str) -> GuardVerdict:
    stop = GuardStop(
        reason=f"{too_much}; set the retention right, or confirm with delete-records up to offset {due.up_to}",
        up_to=due.up_to,
        retention_ms=view.policy.retention_ms,
        retention_bytes=view.policy.retention_bytes,
        max_share=float(view.limits.max_share),
        max_bytes=view.limits.max_bytes,
        since_ms=view.now_ms,
    )
    return GuardVerdict(reason=stop.reason, change=stop)


def _ended(known: GuardStop) -> GuardVerdict:
    return GuardVerdict(change=replace(known, is_over=True))


def _is_confirmed(view: ExpiryView, known: GuardStop) -> bool:
    """A user has deleted all that was due then: retention itself moves no start while it is stopped."""
    return view.remote_log_start_offset >= known.up_to


def _is_judged_anew(view: ExpiryView, known: GuardStop) -> bool:
    """By other settings, or by a clock that was set back: what ends it from now on is measured by these."""
    limits = (view.limits.max_share, view.limits.max_bytes)
    return (
        _retention(view) != (known.retention_ms, known.retention_bytes)
        or limits != (known.max_share, known.max_bytes)
        or _was_clock_set_back(view, known)
    )


def _has_cause_ended(view: ExpiryView, known: GuardStop) -> bool:
    """What is due is within the limits: because retention or limits are wider than they were, or the clock was ahead."""
    before = (known.retention_ms, known.retention_bytes)
    is_longer = _retention(view) != before and all(map(_is_as_wide, _retention(view), before))
    is_share_wider = view.limits.max_share > known.max_share
    is_limit_wider = view.limits.max_bytes != known.max_bytes and _is_as_wide(view.limits.max_bytes, known.max_bytes)
    return is_longer or is_share_wider or is_limit_wider or _was_clock_set_back(view, known)


def _retention(view: ExpiryView) -> tuple[int, int]:
    return (view.policy.retention_ms, view.policy.retention_bytes)


def _is_as_wide(now: int, before: int) -> bool:
    return now == UNLIMITED or (before != UNLIMITED and now >= before)


def _was_clock_set_back(view: ExpiryView, known: GuardStop) -> bool:
    return view.now_ms < known.since_ms - CLOCK_TOLERANCE_MS
