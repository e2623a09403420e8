"""Account of why a segment is where it is, and when that changes: by the same decisions that copy, trim and expire.

The future is not computed separately: the time at which a limit is reached is given to the decision as its ``now_ms``, and
only what it decides then is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil

from tiersidecar.decide.cleanup import Removal
from tiersidecar.decide.copy import decide_copy, pending_segments
from tiersidecar.decide.expire import decide_expiry
from tiersidecar.decide.expiry_view import local_time_ms, time_anchor_ms
from tiersidecar.decide.segment_rows import LOCAL_STATES, PartitionView, RowState, SegmentRow, segment_rows
from tiersidecar.decide.trash_time import TrashTime
from tiersidecar.decide.trim import (
    TrimHold,
    TrimStep,
    counts,
    covering_segments,
    decide_trim,
    excess_bytes,
    newest_ms,
    reason_behind_trash,
)
from tiersidecar.domain.policy import UNLIMITED, RetentionMode
from tiersidecar.domain.readable import duration_text, moment_text, size_text
from tiersidecar.domain.segments import LocalSegment
from tiersidecar.domain.trash import TrashEntry

_NO_HOLD = TrimHold(allowed=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Stops:
    """Reasons beside the decisions that keep the daemon from acting: one sentence each, empty where there is none.

    ``copy_wait_s`` is how long the copy quota lets no segment begin.
    ``unproven_from`` is the local segment whose remote copy could not be read back; ``unproven`` is the reason.
    ``uncleaned_from`` is the local segment of a compacted topic before which one of the cleaners has to act; ``uncleaned`` says
    which.
    """

    copy: str = ""
    copy_wait_s: float = 0.0
    trim: str = ""
    delete: str = ""
    unproven: str = ""
    unproven_from: int | None = None
    uncleaned: str = ""
    uncleaned_from: int | None = None
    hold: TrimHold = _NO_HOLD


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one rule.  ``about`` is ``copy``, ``trim`` or ``expiry``; ``is_due``: it happens with the next round.
    ``changes_ms`` is when it happens if nothing else changes, None where time alone changes nothing, or that is not known."""

    about: str
    says: str
    is_due: bool = False
    changes_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """``count`` successive rows in the same state, of which ``row`` is the first; the findings are about that one."""

    row: SegmentRow
    count: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """``missing`` says what became of an offset that no segment holds; empty where one does, or none was asked for."""

    accounts: tuple[Account, ...]
    missing: str = ""


def explain(view: PartitionView, stops: Stops, offset: int | None = None) -> Explanation:
    """Explain the segments that hold ``offset``; without one, the first of each run of segments in the same state."""
    rows = segment_rows(view)
    if offset is None:
        runs = [list(run) for _, run in groupby(rows, key=lambda row: row.state)]
        return Explanation(accounts=tuple(_account(view, stops, run[0], len(run)) for run in runs))
    held = [row for row in rows if row.holds(offset)]
    if held:
        return Explanation(accounts=tuple(_account(view, stops, row, 1) for row in held))
    return Explanation(accounts=(), missing=_missing(view, rows, offset))


def _account(view: PartitionView, stops: Stops, row: SegmentRow, count: int) -> Account:
    findings: list[Finding] = []
    if row.state in (RowState.ACTIVE, RowState.LOCAL, RowState.PINNED, RowState.COPYING):
        findings.append(_of_copy(view, stops, row))
    if row.state in LOCAL_STATES and row.state is not RowState.PINNED and row.local is not None:
        findings.append(_of_trim(view, stops, row.local))
    elif row.state is RowState.BOTH and row.remote is not None:
        findings.append(_of_trim(view, stops, _local_at(view, row.remote.end_offset)))
    elif row.state is RowState.PINNED:
        findings.append(Finding(about="trim", says="the broker has deleted it, and only a pin keeps it on this disk"))
    elif row.state is RowState.GIVEN_UP:
        log_start = view.trim.log_start_offset
        findings.append(
            Finding(about="trim", says=f"it is below the log start {log_start}: the broker removes its file")
        )
    if row.state not in (RowState.ACTIVE, RowState.COPYING, RowState.GIVEN_UP):
        findings.append(_of_expiry(view, stops, row))
    return Account(row=row, count=count, findings=tuple(findings))


def _local_at(view: PartitionView, offset: int) -> LocalSegment | None:
    held = (segment for segment in view.trim.segments if not segment.pinned and segment.base_offset <= offset)
    return max(held, key=lambda one: one.base_offset, default=None)


# -- copy


def _of_copy(view: PartitionView, stops: Stops, row: SegmentRow) -> Finding:
    if row.state is RowState.ACTIVE:
        return Finding(about="copy", says="it is the active segment: it is copied once the broker has rolled it")
    if row.remote is not None:
        at = moment_text(row.remote.event_timestamp_ms)
        return Finding(about="copy", says=f"broker {row.remote.broker_id} has begun to copy it, at {at}", is_due=True)
    assert row.local is not None, "what is not remote is local"
    return _why_not_copied(view, stops, row.local)


def _why_not_copied(view: PartitionView, stops: Stops, local: LocalSegment) -> Finding:
    copy, plan = view.copy, decide_copy(view.copy)
    start = copy.remote_log_start_offset
    if (local.next_base_offset or 0) <= start:
        return Finding(
            about="copy", says=f"it is below the remote log start {start}: it was given up, and is not copied"
        )
    if stops.copy:
        return Finding(about="copy", says=f"nothing is copied: {stops.copy}")
    if local in plan.segments:
        return _of_due_copy(view, stops, plan.segments.index(local))
    pending = pending_segments(copy.segments, copy.copied_offset, start, copy.holes)
    if local not in pending:
        return Finding(about="copy", says="its offsets are remote already")
    blocker = pending[len(plan.segments)]
    why = f"{plan.held_back}{_lag_figures(view, blocker, plan.held_back)}"
    says = why if blocker is local else f"the segment at {blocker.base_offset} must be copied first, and waits: {why}"
    return Finding(about="copy", says=says, changes_ms=_when_copied(view, local, pending))


def _of_due_copy(view: PartitionView, stops: Stops, before: int) -> Finding:
    says = "it is copied next" if before == 0 else f"it may be copied: {before} segments of the partition go first"
    if stops.copy_wait_s <= 0:
        return Finding(about="copy", says=says, is_due=True)
    wait_ms = ceil(stops.copy_wait_s * 1000)
    says = f"{says}, and the copy quota lets the next begin in {duration_text(wait_ms)}"
    return Finding(about="copy", says=says, changes_ms=view.copy.now_ms + wait_ms if before == 0 else None)


def _lag_figures(view: PartitionView, local: LocalSegment, held_back: str) -> str:
    if "remote.copy.lag" not in held_back:
        return ""
    policy, copy = view.copy.policy, view.copy
    after = sum(other.size_bytes for other in copy.segments if other.base_offset > local.base_offset)
    age = duration_text(copy.now_ms - local_time_ms(local, copy.now_ms))
    lag_ms, lag_bytes = policy.effective_copy_lag_ms, policy.effective_copy_lag_bytes
    by_time = "no limit" if lag_ms < 0 else duration_text(lag_ms)
    by_size = "no limit" if lag_bytes < 0 else size_text(lag_bytes)
    return f" (its newest record is {age} old, the lag is {by_time}; {size_text(after)} came after it, the lag is {by_size})"


def _when_copied(view: PartitionView, local: LocalSegment, pending: Iterable[LocalSegment]) -> int | None:
    lag_ms = view.copy.policy.effective_copy_lag_ms
    if lag_ms <= 0:
        return None
    upto = [segment for segment in pending if segment.base_offset <= local.base_offset and not segment.pinned]
    at_ms = max((local_time_ms(one, view.copy.now_ms) + lag_ms for one in upto), default=0)
    return _if(at_ms, view.copy.now_ms, lambda now_ms: local in decide_copy(replace(view.copy, now_ms=now_ms)).segments)


def _if(at_ms: int, now_ms: int, happens: Callable[[int], bool]) -> int | None:
    """Return ``at_ms`` if the decision is due then; None where it is past, or something else prevents it then, too."""
    return at_ms if at_ms > now_ms and happens(at_ms) else None


# -- trim


def _of_trim(view: PartitionView, stops: Stops, local: LocalSegment | None) -> Finding:
    trim = view.trim
    if local is None or local.next_base_offset is None:
        return Finding(about="trim", says="it is in the active segment, which is never trimmed")
    if trim.policy.mode is RetentionMode.RACE:
        return Finding(
            about="trim", says="in race mode the broker deletes by its own retention, and the sidecar trims nothing"
        )
    if trim.untrimmable:
        return Finding(about="trim", says=f"nothing local is trimmed: {trim.untrimmable}")
    steps = decide_trim(trim)
    step = next((one for one in steps if one.local == local), None)
    if step is not None:
        return _of_due_trim(stops, step)
    behind = reason_behind_trash(trim)
    if not _cover(view, local):
        is_first = local == next((segment for segment in trim.segments if _is_live(view, segment)), None)
        says = "it is not remote yet, and only what is remote is trimmed"
        return Finding(about="trim", says=behind if behind and is_first else says)
    first = next(
        segment for segment in trim.segments if _is_live(view, segment) and all(step.local != segment for step in steps)
    )
    when_ms = _when_trimmed(view, local)
    if first == local:
        return Finding(about="trim", says=_why_kept(view, local), changes_ms=when_ms)
    if behind:
        return Finding(about="trim", says=behind)
    why = _why_kept(view, first) if _cover(view, first) else "it is not remote yet"
    says = f"local data is trimmed oldest first, and the segment at {first.base_offset} stays: {why}"
    return Finding(about="trim", says=says, changes_ms=when_ms)


def _is_live(view: PartitionView, local: LocalSegment) -> bool:
    return local.next_base_offset is not None and local.next_base_offset > view.trim.log_start_offset


def _of_due_trim(stops: Stops, step: TrimStep) -> Finding:
    due = f"{step.reason} allows its trim"
    if stops.trim:
        return Finding(about="trim", says=f"{due}, but nothing of it is trimmed: {stops.trim}")
    if stops.hold.holders and step not in stops.hold.allowed:
        return Finding(about="trim", says=f"{due}, but it is held: {stops.hold.reason}")
    if stops.unproven_from is not None and step.local.base_offset >= stops.unproven_from:
        return Finding(about="trim", says=f"{due}, but its remote copy must be proven first: {stops.unproven}")
    if stops.uncleaned_from is not None and step.local.base_offset >= stops.uncleaned_from:
        return Finding(about="trim", says=f"{due}, but it waits for a cleaner: {stops.uncleaned}")
    return Finding(about="trim", says=f"{due}: it is trimmed once its remote copy has been read back", is_due=True)


def _cover(view: PartitionView, local: LocalSegment) -> bool:
    finished = [segment for segment in view.trim.remote_segments if counts(view.trim, segment)]
    assert local.next_base_offset is not None, "the active segment is never asked about"
    return bool(covering_segments(finished, max(local.base_offset, view.trim.log_start_offset), local.next_base_offset))


def _why_kept(view: PartitionView, local: LocalSegment) -> str:
    policy, now_ms = view.trim.policy, view.trim.now_ms
    limit_ms, limit_bytes = policy.effective_local_retention_ms, policy.effective_local_retention_bytes
    by_time = "local.retention.ms has no limit"
    if limit_ms != UNLIMITED:
        age = duration_text(now_ms - _newest_local_ms(view, local))
        by_time = f"its newest record is {age} old, and local.retention.ms is {duration_text(limit_ms)}"
    by_size = "local.retention.bytes has no limit"
    if limit_bytes != UNLIMITED:
        size_bytes = excess_bytes(view.trim) + limit_bytes
        going = sum(step.local.size_bytes for step in decide_trim(view.trim))
        rest = f", {size_text(size_bytes - going - local.size_bytes)} without it" if size_bytes > limit_bytes else ""
        by_size = (
            f"the local log has {size_text(size_bytes)}{rest}, and local.retention.bytes is {size_text(limit_bytes)}"
        )
    return f"local retention keeps it: {by_time}; {by_size}"


def _newest_local_ms(view: PartitionView, local: LocalSegment) -> int:
    finished = [segment for segment in view.trim.remote_segments if counts(view.trim, segment)]
    start = max(local.base_offset, view.trim.log_start_offset)
    return newest_ms(view.trim, local, covering_segments(finished, start, local.next_base_offset or 0))


def _when_trimmed(view: PartitionView, local: LocalSegment) -> int | None:
    trim = view.trim
    limit_ms = trim.policy.effective_local_retention_ms
    if limit_ms == UNLIMITED:
        return None
    live = [
        segment for segment in trim.segments if segment.base_offset <= local.base_offset and _is_live(view, segment)
    ]
    if not all(_cover(view, one) for one in live):
        return None  # the copy of what lies before it is to come first, and when that is done is not known
    at_ms = max(_newest_local_ms(view, one) + limit_ms for one in live)

    def is_trimmed(now_ms: int) -> bool:
        return any(step.local == local for step in decide_trim(replace(trim, now_ms=now_ms)))

    return _if(at_ms, trim.now_ms, is_trimmed)


# -- expiry


def _of_expiry(view: PartitionView, stops: Stops, row: SegmentRow) -> Finding:
    if row.state is RowState.DELETING:
        return Finding(about="expiry", says="its deletion has begun, and will be finished", is_due=not stops.delete)
    if row.state is RowState.TRASH:
        return _of_trash(view, stops, row)
    if row.state is RowState.OUTSIDE_LINEAGE:
        says = "it is of a history that lost an election: it is never read, and is deleted once it is past the total retention"
        if stops.delete:
            return Finding(about="expiry", says=f"{says}; but nothing remote is deleted: {stops.delete}")
        is_due = any(one.metadata == row.remote for one in view.plan.expired)
        return Finding(about="expiry", says=says, is_due=is_due, changes_ms=_when_left(view, row))
    return _of_retention(view, stops, row)


def _when_left(view: PartitionView, row: SegmentRow) -> int | None:
    """Return when a segment of another history is given up by its own age."""
    expiry = view.expiry
    if expiry.policy.retention_ms == UNLIMITED:
        return None

    def is_given_up(now_ms: int) -> bool:
        plan = decide_expiry(replace(expiry, now_ms=now_ms))
        return any(one.metadata == row.remote for one in (*plan.expired, *plan.trash.waiting))

    return _if(_anchor_ms(view, row) + expiry.policy.retention_ms, expiry.now_ms, is_given_up)


def _of_trash(view: PartitionView, stops: Stops, row: SegmentRow) -> Finding:
    assert row.remote is not None, "the trash has remote segments"
    uuid = row.remote.remote_log_segment_id.uuid
    removal = next(
        one for one in (*view.plan.expired, *view.plan.trash.waiting) if one.metadata.remote_log_segment_id.uuid == uuid
    )
    entry = _entry_of(view, row)
    decided = f", decided by {entry.all_by or 'a sidecar'} at {moment_text(entry.decided_ms)}" if entry else ""
    given_up = f"it is given up{decided}: {removal.reason}"
    if stops.delete:
        return Finding(about="expiry", says=f"{given_up}; but nothing remote is deleted: {stops.delete}")
    if removal in view.plan.expired:
        return Finding(about="expiry", says=f"{given_up}; its deletion is due", is_due=True)
    says = f"{given_up}; until it is due, `tiersidecar undelete` restores it"
    return Finding(about="expiry", says=says, changes_ms=_when_due(view, removal, entry))


def _when_due(view: PartitionView, removal: Removal, entry: TrashEntry | None) -> int | None:
    """Return when the removal is due; None also without an entry: the next round makes one, and its delay begins then."""
    if entry is None:
        return None
    expiry = view.expiry
    due_ms = TrashTime(now_ms=expiry.now_ms, unseen=expiry.unseen).due_ms(entry)

    def is_removed(now_ms: int) -> bool:
        plan = decide_expiry(replace(expiry, now_ms=now_ms))
        return any(one.metadata == removal.metadata for one in plan.expired)

    return _if(due_ms, expiry.now_ms, is_removed)


def _entry_of(view: PartitionView, row: SegmentRow) -> TrashEntry | None:
    assert row.remote is not None, "the trash has remote segments"
    about = [
        one
        for one in view.expiry.trash
        if one.id.generation == view.expiry.start_generation and one.covers(row.remote, view.expiry.lineage)
    ]
    return min(about, key=lambda one: one.due_ms, default=None)


def _of_retention(view: PartitionView, stops: Stops, row: SegmentRow) -> Finding:
    plan, start = view.plan, view.expiry.remote_log_start_offset
    if row.end_offset is not None and row.end_offset < start:
        return Finding(about="expiry", says=f"it was given up: it is below the remote log start {start}")
    figures = _retention_figures(view, row)
    if plan.stop:
        return Finding(about="expiry", says=f"nothing of the partition expires: {plan.stop} ({figures})")
    assert row.end_offset is not None, "the active segment has no such rule"
    if plan.remote_log_start_offset > row.end_offset:
        says = f"it is past the total retention: {figures}"
        if stops.delete:
            return Finding(about="expiry", says=f"{says}; but nothing remote is deleted: {stops.delete}")
        return Finding(about="expiry", says=f"{says}; the remote log start moves past it", is_due=True)
    return Finding(about="expiry", says=f"total retention keeps it: {figures}", changes_ms=_when_expired(view, row))


def _retention_figures(view: PartitionView, row: SegmentRow) -> str:
    policy, now_ms = view.expiry.policy, view.expiry.now_ms
    by_time = "retention.ms has no limit"
    if policy.retention_ms != UNLIMITED:
        age = duration_text(now_ms - _anchor_ms(view, row))
        by_time = f"its newest record is {age} old, and retention.ms is {duration_text(policy.retention_ms)}"
    if policy.retention_bytes == UNLIMITED:
        return f"{by_time}; retention.bytes has no limit"
    size_bytes = view.plan.tally.finished_bytes + view.plan.tally.only_local_bytes
    return f"{by_time}; the log has {size_text(size_bytes)}, and retention.bytes is {size_text(policy.retention_bytes)}"


def _anchor_ms(view: PartitionView, row: SegmentRow) -> int:
    if row.remote is not None:
        return time_anchor_ms(row.remote, view.expiry.now_ms)
    assert row.local is not None, "a row is remote or local"
    return local_time_ms(row.local, view.expiry.now_ms)


def _when_expired(view: PartitionView, row: SegmentRow) -> int | None:
    expiry = view.expiry
    if expiry.policy.retention_ms == UNLIMITED or row.end_offset is None:
        return None
    end_offset = row.end_offset
    before = [one for one in segment_rows(view) if one.start_offset <= row.start_offset and one.end_offset is not None]
    alive = [one for one in before if (one.end_offset or 0) >= expiry.remote_log_start_offset]
    at_ms = max(_anchor_ms(view, one) for one in alive) + expiry.policy.retention_ms

    def is_given_up(now_ms: int) -> bool:
        return decide_expiry(replace(expiry, now_ms=now_ms)).remote_log_start_offset > end_offset

    return _if(at_ms, expiry.now_ms, is_given_up)


# -- gone


def _missing(view: PartitionView, rows: tuple[SegmentRow, ...], offset: int) -> str:
    start = view.expiry.remote_log_start_offset
    if offset < start:
        return (
            f"offset {offset} is below the remote log start {start}: it is gone. Retention or a user has deleted it, or the "
            "broker had deleted it before the first copy"
        )
    if not rows:
        return "the partition has no segment, remote or local"
    if offset < rows[0].start_offset:
        return f"offset {offset} is below the first offset of either tier, {rows[0].start_offset}"
    if rows[-1].end_offset is not None and offset > rows[-1].end_offset:
        return f"offset {offset} is beyond the last segment that is known, which ends at {rows[-1].end_offset}"
    return f"neither tier holds offset {offset}: the broker deleted it before it was copied"
