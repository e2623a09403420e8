"""What of a partition goes into the trash now, what in it is due, and what of it is done.

A remote delete is decided first and done later.  What was decided is an entry, durable before anything follows from it.  A
segment is removed only if it is given up *now* (it ends below the remote log start, or is outside the lineage and past its
retention, or tiering was switched off with deletion) *and* an entry that covers it is due: a decision that was undone, or
does not hold any more, removes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tiersidecar.decide.cleanup import Removal
from tiersidecar.domain.epochs import Lineage
from tiersidecar.domain.offsets import NO_OFFSET, LeaderEpoch, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.trash import BY_NAME, TrashEntry, TrashId, TrashKind

MOST_NAMED = 500
"""Segments that one entry names: about 13 kB.  What is more is decided later."""
_ON_ITS_WAY_MS = 600_000
"""How long the start of an entry may take to follow it."""
_PARTS_OF_DELAY = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashDelays:
    """Time from decision to deletion (``delete.delay``, ``user.delete.delay``); 0 is at once."""

    retention_ms: int = 0
    user_ms: int = 0

    def of(self, kind: TrashKind) -> int:
        return self.user_ms if kind is TrashKind.USER else self.retention_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashView:
    """A led partition as these decisions see it.

    ``entries`` are all there are.  ``generation`` is the one of the durable start, ``durable_start_offset``;
    ``start_offset`` is the one that is due by what expiry decided, as high or higher.  ``given_up`` are finished segments that
    go, ``segments`` all of any state.  ``log_start_offset`` and ``high_watermark`` are the broker's, None where it has not
    been asked.  ``doubt`` says why ``now_ms`` is not to be believed: then nothing becomes due.
    """

    entries: Sequence[TrashEntry]
    generation: int
    lineage: Lineage
    leader_epoch: LeaderEpoch
    delays: TrashDelays
    now_ms: int
    by: str
    durable_start_offset: int
    start_offset: int
    given_up: Sequence[Removal]
    segments: Sequence[RemoteLogSegmentMetadata]
    log_start_offset: int | None = None
    high_watermark: int | None = None
    doubt: str = ""

    @property
    def is_delayed(self) -> bool:
        return self.delays.retention_ms > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashPlan:
    """In this order: ``take_out`` what is void or done, ``put`` what is decided now, the start, and then ``removals``.

    ``due_start_offset``: local data below it may go too; -1 where none may.  ``waiting`` are given up and not due yet.
    ``stop``: what lies below it is decided, once ``put`` is durable; -1 where nothing is.
    """

    put: tuple[TrashEntry, ...] = ()
    take_out: tuple[TrashEntry, ...] = ()
    removals: tuple[Removal, ...] = ()
    waiting: tuple[Removal, ...] = ()
    due_start_offset: Offset = NO_OFFSET
    stop: Offset = NO_OFFSET


NO_DELAYS = TrashDelays()
NO_TRASH = TrashPlan()


def decide_trash(view: TrashView) -> TrashPlan:
    """The plan for one partition."""
    void = [entry for entry in view.entries if _is_void(view, entry)]
    holding = [entry for entry in view.entries if entry not in void]
    due = [entry for entry in holding if _is_due(view, entry)]
    new = [one for one in view.given_up if not any(_is_about(entry, one, view.lineage) for entry in holding)]
    if view.is_delayed:
        removals = [one for one in view.given_up if any(_is_about(entry, one, view.lineage) for entry in due)]
    else:
        pending = [entry for entry in holding if entry not in due]
        removals = [one for one in view.given_up if not _waits(one, due, pending, view.lineage)]
    going = {one.metadata.remote_log_segment_id for one in removals}
    put = tuple(_new_entries(view, holding, new)) if view.is_delayed else ()
    return TrashPlan(
        put=put,
        take_out=(*void, *(entry for entry in due if _is_done(view, entry))),
        removals=tuple(removals),
        waiting=tuple(one for one in view.given_up if one.metadata.remote_log_segment_id not in going),
        due_start_offset=_due_start(view, holding, due),
        stop=_stop(view, (*holding, *put)) if view.is_delayed else Offset(view.start_offset),
    )


def user_delete(
    offset: Offset, leader_epoch: LeaderEpoch, *, generation: int, delays: TrashDelays, now_ms: int, by: str
) -> TrashEntry:
    """The entry of a user's delete of all below ``offset``; it must be durable before the start is."""
    return TrashEntry(
        id=TrashId(
            generation=generation,
            leader_epoch=leader_epoch,
            kind=TrashKind.USER,
            opened_ms=_opened_ms(now_ms, delays.of(TrashKind.USER)),
        ),
        decided_ms=now_ms,
        due_ms=now_ms + delays.of(TrashKind.USER),
        up_to=offset,
        reason="a user deleted it",
        by=by,
    )


def deleted_topic(*, delays: TrashDelays, now_ms: int, by: str) -> TrashEntry:
    """The entry of each partition of a topic that is gone: about all there is."""
    return TrashEntry(
        id=TrashId(generation=0, leader_epoch=LeaderEpoch(-1), kind=TrashKind.TOPIC, opened_ms=0),
        decided_ms=now_ms,
        due_ms=now_ms + delays.of(TrashKind.TOPIC),
        reason="its topic is deleted",
        by=by,
    )


def kept_from(
    entries: Iterable[TrashEntry], *, generation: int, lineage: Lineage, start_offset: Offset, now_ms: int
) -> Offset:
    """From where on local data is kept that is nowhere else: ``start_offset``, or the first offset that is not due below it."""
    ours = [one for one in entries if one.id.generation == generation and one.kind not in BY_NAME]
    if all(one.is_due(now_ms) for one in ours):
        return start_offset
    due = [one.stop_in(lineage) for one in ours if one.is_due(now_ms)]
    return Offset(min(start_offset, max(due, default=NO_OFFSET)))


def _is_void(view: TrashView, entry: TrashEntry) -> bool:
    """Undone; or of a topic that is there after all; or said by a process that never came to say the start, so that what
    another decides now must not be due by the other's time."""
    if entry.id.generation != view.generation or entry.kind is TrashKind.TOPIC:
        return entry.id.generation <= view.generation
    if entry.kind in BY_NAME or entry.kind is TrashKind.DISABLE or view.start_offset <= view.durable_start_offset:
        return False
    is_overtaken = entry.kind is TrashKind.RETENTION and entry.id.leader_epoch < view.leader_epoch
    is_late = view.now_ms - entry.decided_ms > _ON_ITS_WAY_MS
    return entry.stop_in(view.lineage) > view.durable_start_offset and (is_overtaken or is_late)


def _is_due(view: TrashView, entry: TrashEntry) -> bool:
    if entry.id.generation != view.generation:
        return False
    return entry.is_purged or (not view.doubt and entry.is_due(view.now_ms))


def _is_about(entry: TrashEntry, removal: Removal, lineage: Lineage) -> bool:
    """What is outside the lineage is not meant by a decision on the offsets of this history."""
    if removal.metadata.remote_log_segment_id.uuid in entry.segments:
        return True
    if removal.kind is TrashKind.OUTSIDE_LINEAGE and entry.kind is not TrashKind.DISABLE:
        return False
    return entry.kind is not TrashKind.TOPIC and entry.covers(removal.metadata, lineage)


def _waits(removal: Removal, due: Iterable[TrashEntry], pending: Iterable[TrashEntry], lineage: Lineage) -> bool:
    """Without a delay nothing new waits; what was decided while there was one still does."""
    if any(_is_about(entry, removal, lineage) for entry in due):
        return False
    return any(_is_about(entry, removal, lineage) for entry in pending)


def _new_entries(view: TrashView, holding: Sequence[TrashEntry], new: Sequence[Removal]) -> list[TrashEntry]:
    entries = []
    below = [one for one in new if one.kind is not TrashKind.OUTSIDE_LINEAGE]
    disabled = [one for one in below if one.kind is TrashKind.DISABLE]
    if disabled:
        stop = max(one.metadata.next_offset for one in disabled)
        entries.append(_entry(view, TrashKind.DISABLE, disabled[0].reason, up_to=max(stop, view.start_offset)))
    elif _needs_entry(view, holding, below):
        reason = below[-1].reason if below else f"it lies below the remote log start {view.start_offset}"
        entries.append(_entry(view, TrashKind.RETENTION, reason, up_to=view.start_offset))
    outside = [one for one in new if one.kind is TrashKind.OUTSIDE_LINEAGE]
    return entries + _naming(view, outside)


def _needs_entry(view: TrashView, holding: Sequence[TrashEntry], below: Sequence[Removal]) -> bool:
    """Where the start moves now, or something lies below it that no entry speaks of."""
    if any(one.kind is TrashKind.DISABLE for one in view.given_up):
        return False
    stop = _stop(view, holding)
    is_local_below = view.log_start_offset is not None and view.log_start_offset < view.start_offset
    return bool(below) or view.start_offset > view.durable_start_offset or (is_local_below and stop < view.start_offset)


def _naming(view: TrashView, outside: Sequence[Removal]) -> list[TrashEntry]:
    if not outside:
        return []
    entry = _entry(view, TrashKind.OUTSIDE_LINEAGE, outside[0].reason)
    named = sum(len(one.segments) for one in view.entries if one.id == entry.id)
    uuids = frozenset(one.metadata.remote_log_segment_id.uuid for one in outside[: max(MOST_NAMED - named, 0)])
    return [replace(entry, segments=uuids)] if uuids else []


def _entry(view: TrashView, kind: TrashKind, reason: str, *, up_to: int = NO_OFFSET) -> TrashEntry:
    delay_ms = view.delays.of(kind)
    entry_id = TrashId(
        generation=view.generation,
        leader_epoch=view.leader_epoch,
        kind=kind,
        opened_ms=_opened_ms(view.now_ms, delay_ms),
    )
    if any(one.id == entry_id and one.purged_ms >= 0 for one in view.entries):
        # What an operator purged is not to wait with what is decided now.
        entry_id = TrashId(generation=view.generation, leader_epoch=view.leader_epoch, kind=kind, opened_ms=view.now_ms)
    return TrashEntry(
        id=entry_id,
        decided_ms=view.now_ms,
        due_ms=view.now_ms + delay_ms,
        up_to=Offset(up_to),
        reason=reason,
        by=view.by,
    )


def _opened_ms(now_ms: int, delay_ms: int) -> int:
    return now_ms - now_ms % max(delay_ms // _PARTS_OF_DELAY, 1)


def _is_done(view: TrashView, entry: TrashEntry) -> bool:
    """Whether a due entry has nothing left to do: nothing that it speaks of is there, remotely or locally."""
    if entry.kind in BY_NAME:
        return not any(one.remote_log_segment_id.uuid in entry.segments for one in view.segments)
    stop = entry.stop_in(view.lineage)
    if entry.kind is not TrashKind.DISABLE and stop > view.durable_start_offset:
        return view.now_ms - entry.decided_ms > _ON_ITS_WAY_MS  # its start never came
    if any(_is_about(entry, one, view.lineage) for one in view.given_up):
        return False
    if view.log_start_offset is None or view.high_watermark is None:
        return True
    return view.log_start_offset >= min(stop, view.durable_start_offset, view.high_watermark)


def _due_start(view: TrashView, holding: Sequence[TrashEntry], due: Sequence[TrashEntry]) -> Offset:
    pending = [entry for entry in holding if entry not in due and entry.kind not in BY_NAME]
    if not view.is_delayed and not pending:
        return Offset(view.start_offset)
    return Offset(min(_stop(view, due), view.start_offset))


def _stop(view: TrashView, entries: Iterable[TrashEntry]) -> Offset:
    return max((entry.stop_in(view.lineage) for entry in entries if entry.kind not in BY_NAME), default=NO_OFFSET)
