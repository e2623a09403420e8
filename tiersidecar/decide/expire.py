"""Choice of the remote segments of a led partition that go, and of its remote log start then.

Source: RemoteLogManager.RLMExpirationTask (S-056 to S-075), with a lineage and a log start of our own (docs/design/0003),
and with stops where Kafka would delete.

The guard limits what one round may delete, both of what is remote and of what never was.

Its stop is sticky: it waits for its cause to end or for an operator.  No copy, delete or other event that makes the share of
what is due look smaller ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tiersidecar.decide.cleanup import Removal, decide_cleanup
from tiersidecar.decide.expiry_reach import Reach, find_reach
from tiersidecar.decide.expiry_standing import Standing, first_start, standings
from tiersidecar.decide.expiry_stops import reason_to_stop
from tiersidecar.decide.expiry_view import ExpiryLimits, ExpiryView, local_time_ms, time_anchor_ms
from tiersidecar.decide.needless import needless_segments
from tiersidecar.decide.trash import NO_TRASH, TrashPlan, TrashView, decide_trash
from tiersidecar.decide.trash_time import TrashTime
from tiersidecar.domain.offsets import NO_OFFSET, LeaderEpoch, Offset
from tiersidecar.domain.policy import UNLIMITED, GuardStop, RetentionMode
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.domain.trash import REPLACED, TrashKind

CLOCK_TOLERANCE_MS = 5 * 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """The reach of retention at once: its new start, segments and bytes, and the bytes of which they are a part."""

    up_to: Offset
    segments: int
    size_bytes: int
    all_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardVerdict:
    """``reason``: why nothing expires, empty when it may.  ``change``: what must be made durable of it, None if nothing."""

    reason: str = ""
    change: GuardStop | None = None


def decide_guard(view: ExpiryView, due: Due) -> GuardVerdict:
    """Return whether what is due may go, or a stop begins, stays, or ends."""
    known = view.guard_stop
    too_much = _too_much(view.limits, due)
    if known is None or known.is_over:
        return _stopped(view, due, too_much) if too_much else GuardVerdict()
    if _is_confirmed(view, known):
        # The stop was confirmed: what is due beyond it is decided on its own.
        return _stopped(view, due, too_much) if too_much else _ended(known)
    if too_much:
        return _stopped(view, due, too_much) if _is_measured_anew(view, known) else GuardVerdict(reason=known.reason)
    return _ended(known) if _has_cause_ended(view, known) else GuardVerdict(reason=known.reason)


def _too_much(limits: ExpiryLimits, due: Due) -> str:
    """Return why ``due`` is above the limits, "" if it is not.  One segment may always go."""
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
    """Return whether a user has deleted all that was due then: retention itself moves no start while it is stopped."""
    return view.remote_log_start_offset >= known.up_to


def _is_measured_anew(view: ExpiryView, known: GuardStop) -> bool:
    """Return whether settings have changed or the clock was set back: the end of the stop is measured by these from now on."""
    limits = (view.limits.max_share, view.limits.max_bytes)
    return (
        _retention(view) != (known.retention_ms, known.retention_bytes)
        or limits != (known.max_share, known.max_bytes)
        or _was_clock_set_back(view, known)
    )


def _has_cause_ended(view: ExpiryView, known: GuardStop) -> bool:
    """Return whether what is due is within the limits: retention or limits are wider than before, or the clock was ahead."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryTally:
    """Totals (S-057): segments in any state and their bytes; bytes of finished ones of this lineage from the remote log start
    on, each offset counted once; bytes that are only local.  ``from_the_future`` are segments whose records are later than now
    (U16)."""

    metadata_count: int
    remote_log_size_bytes: int
    finished_bytes: int
    only_local_bytes: int
    from_the_future: tuple[RemoteLogSegmentMetadata, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryPlan:
    """``remote_log_start_offset`` must be durable before any of ``expired`` is removed (S-066); -1: nothing is known yet.
    What ``trash`` puts in must be durable before the start.  Both were decided in ``start_generation``.

    ``first_start_offset`` is where the log started before a start was set, -1 where one was set: what is below it was
    deleted before the first copy.
    ``leftovers`` are removals that crashes and failures left; they need no new start.  ``expired`` ascend by start offset.
    ``stop`` says why nothing expires although something may be due; empty when nothing is held back.  ``guard_stop`` is the
    change of the guard's stop, None without one: it must be durable before anything else goes on.
    """

    tally: ExpiryTally
    remote_log_start_offset: Offset
    leftovers: tuple[Removal, ...]
    expired: tuple[Removal, ...]
    stop: str
    guard_stop: GuardStop | None = None
    trash: TrashPlan = NO_TRASH
    start_generation: int = 0
    first_start_offset: Offset = NO_OFFSET

    @property
    def lag_bytes(self) -> int:
        """Return the bytes that are to go and have not gone (RemoteDeleteLagBytes)."""
        return sum(removal.metadata.segment_size_in_bytes for removal in self.expired)


def decide_expiry(view: ExpiryView) -> ExpiryPlan:
    """Return the plan for one partition."""
    found = standings(view.remote_segments, view.lineage)
    start = _start(view, found)
    reach = find_reach(view, found, start)
    doubt = reason_to_stop(view, found)
    verdict = GuardVerdict()
    if view.hold:
        offset, given_up, verdict = (
            view.remote_log_start_offset,
            _below_start(view, found),
            GuardVerdict(reason=view.hold),
        )
    elif view.policy.delete_remote:
        offset, given_up = _everything(view, found)
    elif doubt:
        offset, given_up, verdict = view.remote_log_start_offset, _below_start(view, found), GuardVerdict(reason=doubt)
    else:
        verdict = decide_guard(view, _dues(view, found, start))
        offset, given_up = (
            (view.remote_log_start_offset, _below_start(view, found))
            if verdict.reason
            else _by_retention(view, found, reach, start)
        )
    start_offset = Offset(max(offset, view.remote_log_start_offset))
    if not (doubt or view.policy.delete_remote):
        needless = needless_segments(view, found, given_up)
        # A hold keeps offsets, and of what was replaced another segment has them.
        given_up = [*given_up, *(one for one in needless if not view.hold or one.kind in REPLACED)]
    flying = [removal for removal in given_up if removal.metadata.remote_log_segment_id in view.in_flight]
    trash = decide_trash(_trash_view(view, start_offset, given_up))
    return ExpiryPlan(
        tally=_tally(view, found, reach),
        remote_log_start_offset=start_offset,
        leftovers=_leftovers(view),
        expired=tuple(removal for removal in trash.removals if removal not in flying),
        stop=verdict.reason,
        guard_stop=verdict.change,
        trash=trash,
        start_generation=view.start_generation,
        first_start_offset=start if view.remote_log_start_offset < 0 else NO_OFFSET,
    )


def _trash_view(view: ExpiryView, start_offset: Offset, given_up: Sequence[Removal]) -> TrashView:
    return TrashView(
        entries=view.trash,
        user_deletes=view.user_deletes,
        generation=view.start_generation,
        lineage=view.lineage,
        leader_epoch=LeaderEpoch(view.leader_epoch),
        delays=view.delays,
        # Nor does silence matter here: a delay counts only the time that was seen.
        time=TrashTime(now_ms=view.now_ms, doubt=view.clock_doubt, unseen=view.unseen, seen_ms=view.seen_ms),
        by=view.by,
        durable_start_offset=view.remote_log_start_offset,
        start_offset=start_offset,
        given_up=given_up,
        segments=view.remote_segments,
        log_start_offset=view.log_start_offset,
        high_watermark=view.high_watermark,
        all_goes=view.policy.delete_remote,
        broker_keeps=view.policy.mode is RetentionMode.RACE,
    )


def _start(view: ExpiryView, found: Sequence[Standing]) -> Offset:
    """Return where the walk of the log begins; -1 where there is nothing to walk."""
    if view.remote_log_start_offset >= 0:
        return Offset(view.remote_log_start_offset)
    return first_start(
        log_start_offset=view.log_start_offset,
        found=found,
        segments=view.local_segments,
        broker_expires=view.broker_expires,
        trim_offset=view.trim_offset,
        held_offset=view.held_offset,
    )


def _by_retention(view: ExpiryView, found: Sequence[Standing], reach: Reach, start: int) -> tuple[int, list[Removal]]:
    removals = [removal for standing in found if (removal := _removal(view, reach, standing))]
    pins_may_go = view.broker_expires and any(segment.pinned for segment in view.local_segments)
    # Before the first copy users delete at the broker itself: until then the broker's log start counts.
    is_to_be_said = reach.offset > start or pins_may_go or any(standing.serves for standing in found)
    return (reach.offset if is_to_be_said else view.remote_log_start_offset), removals


def _dues(view: ExpiryView, found: Sequence[Standing], start: int) -> Due:
    """Return what is due now, whatever is in flight: changing copies must not split it into parts that pass the guard."""
    reach = find_reach(view, found, start, past_in_flight=True)
    gone = {removal.metadata.remote_log_segment_id for removal in _below_start(view, found)}
    kept = [standing for standing in found if standing.segment.remote_log_segment_id not in gone]
    going = [standing.segment for standing in kept if _removal(view, reach, standing)]
    all_bytes = reach.only_local_bytes + sum(standing.segment.segment_size_in_bytes for standing in kept)
    return Due(
        up_to=Offset(reach.offset),
        segments=len(going) + len(reach.local),
        size_bytes=sum(s.segment_size_in_bytes for s in going) + sum(part.weight_bytes for part in reach.local),
        all_bytes=all_bytes,
    )


def _removal(view: ExpiryView, reach: Reach, standing: Standing) -> Removal | None:
    segment = standing.segment
    if standing.served_end >= reach.offset and standing.serves:
        return None
    if standing.is_valid:
        reason = reach.reasons.get(segment.remote_log_segment_id, f"it ends below the remote log start {reach.offset}")
        return Removal(metadata=segment, reason=reason)
    # Of another history: never before its own retention, whatever became of this one (U24).
    if view.is_expired(segment):
        reason = "it is outside the lineage, and past retention.ms"
        return Removal(metadata=segment, reason=reason, kind=TrashKind.OUTSIDE_LINEAGE)
    if view.policy.retention_ms == UNLIMITED and _is_left_behind(view, segment, reach.offset):
        reason = f"it is outside the lineage, and below the remote log start {reach.offset}"
        return Removal(metadata=segment, reason=reason, kind=TrashKind.OUTSIDE_LINEAGE)
    return None


def _is_left_behind(view: ExpiryView, segment: RemoteLogSegmentMetadata, start_offset: int) -> bool:
    """Return whether it ends below the start, without an epoch later than the one at the start (Kafka's log start breach)."""
    epoch = view.lineage.epoch_for_offset(start_offset)
    return epoch is not None and segment.end_offset < start_offset and segment.segment_leader_epochs[-1].epoch <= epoch


def _below_start(view: ExpiryView, found: Sequence[Standing]) -> list[Removal]:
    """Return segments of this history wholly below a start that is durable already, set by a user or an earlier round.  They
    may not be read, whatever else is in doubt."""
    start = view.remote_log_start_offset
    return [
        Removal(metadata=standing.segment, reason=f"it ends below the remote log start {start}")
        for standing in found
        if standing.is_valid and standing.served_end < start
    ]


def _everything(view: ExpiryView, found: Sequence[Standing]) -> tuple[int, list[Removal]]:
    """Return all that goes when tiering is off with deletion: readers begin at the local start, once the broker has said it."""
    if view.log_start_offset is None:
        return view.remote_log_start_offset, []
    reason = "tiering of the topic was switched off with deletion"
    removals = [Removal(metadata=s.segment, reason=reason, kind=TrashKind.DISABLE) for s in found]
    return (view.log_start_offset if found else view.remote_log_start_offset), removals


def _leftovers(view: ExpiryView) -> tuple[Removal, ...]:
    # By a clock in doubt no copy of another process is taken for dead.
    grace_ms = view.now_ms if view.clock_doubt else view.limits.foreign_copy_grace_ms
    return decide_cleanup(view.remote_segments, view.begun, view.in_flight, view.now_ms, grace_ms)


def _tally(view: ExpiryView, found: Sequence[Standing], reach: Reach) -> ExpiryTally:
    return ExpiryTally(
        metadata_count=len(view.remote_segments),
        remote_log_size_bytes=sum(segment.segment_size_in_bytes for segment in view.remote_segments),
        finished_bytes=sum(s.weight_bytes for s in found if s.served_end >= view.remote_log_start_offset),
        only_local_bytes=reach.only_local_bytes,
        from_the_future=tuple(s.segment for s in found if s.segment.max_timestamp_ms > view.now_ms),
    )


_MOST_MS = 30 * 60_000
"""A second belt: for no longer, whatever is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietRound:
    """``plan`` was decided for ``view`` without its remote segments, of which ``mark`` is; it holds from ``from_ms`` to
    ``until_ms`` (exclusive)."""

    view: ExpiryView
    mark: int
    plan: ExpiryPlan
    from_ms: int
    until_ms: int

    def holds_for(self, view: ExpiryView, mark: int) -> bool:
        """Return whether the decision would be the same for ``view``, again without its remote segments."""
        return self.from_ms <= view.now_ms < self.until_ms and self.mark == mark and self.view == _timeless(view)


def quiet_round(view: ExpiryView, mark: int, plan: ExpiryPlan) -> QuietRound | None:
    """Return the round if it changes nothing; None where something is to be done or reported, or has a time of its own."""
    trash = plan.trash
    if plan.expired or plan.leftovers or plan.stop or plan.guard_stop is not None:
        return None
    if trash.put or trash.take_out or trash.removals or trash.waiting:
        return None
    if view.trash or view.guard_stop is not None or view.clock_doubt or view.hold or view.policy.delete_remote:
        return None
    if any(segment.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED for segment in view.remote_segments):
        return None
    until_ms = _until_ms(view)
    if until_ms <= view.now_ms:
        return None
    bare = _timeless(replace(view, remote_segments=()))
    return QuietRound(view=bare, mark=mark, plan=plan, from_ms=view.now_ms, until_ms=until_ms)


def _until_ms(view: ExpiryView) -> int:
    """Return the first time at which a limit is reached, the retention of a segment or that of the silence after an event,
    which is longer; now, if a time of the view is later, for then all may change."""
    now_ms = view.now_ms
    times_ms = [segment.event_timestamp_ms for segment in view.remote_segments]
    times_ms += [segment.max_timestamp_ms for segment in view.remote_segments]
    times_ms += [time for one in view.local_segments for time in (one.modified_ms, one.max_timestamp_ms)]
    if any(time_ms > now_ms for time_ms in times_ms):
        return now_ms
    most_ms = now_ms + _MOST_MS
    if view.policy.retention_ms == UNLIMITED:
        return most_ms
    began_ms = [time_anchor_ms(segment, now_ms) for segment in view.remote_segments]
    began_ms += [segment.event_timestamp_ms for segment in view.remote_segments]
    began_ms += [time for one in view.local_segments for time in (local_time_ms(one, now_ms), one.modified_ms)]
    return min([most_ms, *(time_ms + view.policy.retention_ms for time_ms in began_ms)])


def _timeless(view: ExpiryView) -> ExpiryView:
    """Return the view without times, and without what is being copied: it matters only where something is unfinished."""
    return replace(view, now_ms=0, seen_ms=-1, in_flight=frozenset(), begun=frozenset())
