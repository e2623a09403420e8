"""Contents of a partition's trash: what goes in now, what is due, and what is done.

A remote delete is decided first and done later.  The decision is an entry, durable before anything follows from it.  A
segment is removed only if it is given up *now* (it ends below the remote log start, or is outside the lineage and past its
retention, or tiering was switched off with deletion) *and* an entry that covers it is due: a decision that was undone, or
does not hold any more, removes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tiersidecar.decide.cleanup import Removal
from tiersidecar.decide.trash_time import TrashTime
from tiersidecar.domain.offsets import NO_OFFSET, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.trash import BY_NAME, FINAL, NEEDLESS, REPLACED, SaidDelete, TrashEntry, TrashId, TrashKind

MOST_NAMED = 500
"""Segments that one entry names: about 13 kB.  The rest is decided later."""
_ON_ITS_WAY_MS = 600_000
"""Time that a user's delete may take to follow its entry."""
_PARTS_OF_DELAY = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashDelays:
    """Time from decision to deletion (``delete.delay``, ``user.delete.delay``); 0 is at once."""

    retention_ms: int = 0
    user_ms: int = 0

    def of(self, kind: TrashKind) -> int:
        return self.user_ms if kind in {TrashKind.USER, TrashKind.ERASURE} else self.retention_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashView:
    """A led partition as these decisions see it.

    ``entries`` are all there are, ``user_deletes`` as PartitionState has them.  ``generation`` is the one of the durable start,
    ``durable_start_offset``; ``start_offset`` is the one that is due by expiry's decision, as high or higher.  ``given_up``
    are finished segments that go, ``segments`` all of any state.  ``log_start_offset`` and ``high_watermark`` are the
    broker's, None where it has not been asked.  ``all_goes``: tiering is switched off with deletion, now.
    ``broker_keeps``: the broker decides about what it holds (race mode, and topics whose tiering is switched off); of that
    only what users deleted goes.
    """

    entries: Sequence[TrashEntry]
    user_deletes: Sequence[SaidDelete]
    generation: int
    lineage: Lineage
    leader_epoch: LeaderEpoch
    delays: TrashDelays
    time: TrashTime
    by: str
    durable_start_offset: int
    start_offset: int
    given_up: Sequence[Removal]
    segments: Sequence[RemoteLogSegmentMetadata]
    log_start_offset: int | None = None
    high_watermark: int | None = None
    all_goes: bool = False
    broker_keeps: bool = False

    @property
    def now_ms(self) -> int:
        return self.time.decision_ms

    @property
    def is_delayed(self) -> bool:
        return self.delays.retention_ms > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashPlan:
    """Steps in this order: ``take_out`` what is void or done, ``put`` what is decided now, the start, and then ``removals``.

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
    """Return the plan for one partition."""
    void = [entry for entry in view.entries if _is_void(view, entry)]
    left = [entry for entry in view.entries if entry not in void]
    holding = in_force(left, view.user_deletes)
    due = [entry for entry in holding if _is_due(view, entry)]
    new = [
        removal for removal in view.given_up if not any(_is_about(entry, removal, view.lineage) for entry in holding)
    ]
    if view.is_delayed:
        removals = [
            removal for removal in view.given_up if any(_is_about(entry, removal, view.lineage) for entry in due)
        ]
    else:
        pending = [entry for entry in left if not _is_due(view, entry)]
        removals = [removal for removal in view.given_up if not _waits(removal, due, pending, view.lineage)]
    going = {removal.metadata.remote_log_segment_id for removal in removals}
    put = tuple(_new_entries(view, holding, new)) if view.is_delayed else ()
    return TrashPlan(
        put=put,
        take_out=(*void, *(entry for entry in left if _is_due(view, entry) and _is_done(view, entry))),
        removals=tuple(removals),
        waiting=tuple(removal for removal in view.given_up if removal.metadata.remote_log_segment_id not in going),
        due_start_offset=_users_start(view, left) if view.broker_keeps else _due_start(view, left, due),
        stop=_stop(view, (*holding, *put)) if view.is_delayed else Offset(view.start_offset),
    )


def user_delete(
    offset: Offset,
    leader_epoch: LeaderEpoch,
    *,
    generation: int,
    delays: TrashDelays,
    now_ms: int,
    by: str,
    from_offset: Offset = NO_OFFSET,
    entries: Sequence[TrashEntry] = (),
    user_deletes: Sequence[SaidDelete] = (),
) -> TrashEntry:
    """Return the entry of a user's delete of all below ``offset``; it must be durable before the start is.

    It shares one of ``entries`` only where that can still be undone: undoing it would undo with it what was purged.
    """
    entry_id = TrashId(
        generation=generation,
        leader_epoch=leader_epoch,
        kind=TrashKind.USER,
        opened_ms=_opened_ms(now_ms, delays.of(TrashKind.USER)),
    )
    if _is_final(entry_id, entries, user_deletes):
        entry_id = replace(entry_id, opened_ms=now_ms)
    while _is_final(entry_id, entries, user_deletes):
        entry_id = replace(entry_id, opened_ms=entry_id.opened_ms + 1)
    return TrashEntry(
        id=entry_id,
        decided_ms=now_ms,
        due_ms=now_ms + delays.of(TrashKind.USER),
        up_to=offset,
        reason="a user deleted it",
        by=by,
        from_offset=from_offset,
    )


def purged_deletes(purged: Iterable[TrashEntry], user_deletes: Sequence[SaidDelete]) -> tuple[SaidDelete, ...]:
    """Return those of ``user_deletes`` that are final once ``purged`` are; they must be durable before they are marked."""
    return tuple(
        replace(one, opened_ms=FINAL, offset=min(one.offset, entry.up_to))
        for entry in purged
        for one in user_deletes
        if _is_named(one, entry.id)
    )


def needless(
    segment: RemoteLogSegmentMetadata,
    leader_epoch: LeaderEpoch,
    *,
    generation: int,
    delays: TrashDelays,
    now_ms: int,
    reason: str,
    by: str,
) -> TrashEntry:
    """Return repair's entry for a segment whose records others hold; the leader looks at that again when it is due."""
    delay_ms = delays.of(TrashKind.REPAIR)
    return TrashEntry(
        id=TrashId(
            generation=generation,
            leader_epoch=leader_epoch,
            kind=TrashKind.REPAIR,
            opened_ms=_opened_ms(now_ms, delay_ms),
        ),
        decided_ms=now_ms,
        due_ms=now_ms + delay_ms,
        segments=frozenset({segment.remote_log_segment_id.uuid}),
        reason=reason,
        by=by,
    )


def replaced(
    segments: Iterable[RemoteLogSegmentMetadata],
    leader_epoch: LeaderEpoch,
    *,
    opened_ms: int,
    delays: TrashDelays,
    now_ms: int,
    by: str,
    kind: TrashKind = TrashKind.ERASURE,
) -> TrashEntry:
    """Return the entry of an erasure, or of a cleaner (``kind``), about segments whose offsets others hold.

    It is of no generation: setting the start back does not undo it.  ``opened_ms`` separates what one of them puts into
    several entries, none of which may name more than :data:`MOST_NAMED`.
    """
    return TrashEntry(
        id=TrashId(generation=0, leader_epoch=leader_epoch, kind=kind, opened_ms=opened_ms),
        decided_ms=now_ms,
        due_ms=now_ms + delays.of(kind),
        segments=frozenset(segment.remote_log_segment_id.uuid for segment in segments),
        reason=_REPLACED_BY[kind],
        by=by,
    )


_REPLACED_BY = {TrashKind.ERASURE: "an erasure replaced it", TrashKind.COMPACTION: "a cleaned segment replaced it"}


def deleted_topic(*, delays: TrashDelays, now_ms: int, by: str) -> TrashEntry:
    """Return the entry of each partition of a topic that is gone: it covers everything."""
    return TrashEntry(
        id=TrashId(generation=0, leader_epoch=LeaderEpoch(-1), kind=TrashKind.TOPIC, opened_ms=0),
        decided_ms=now_ms,
        due_ms=now_ms + delays.of(TrashKind.TOPIC),
        reason="its topic is deleted",
        by=by,
    )


def in_force(entries: Iterable[TrashEntry], user_deletes: Sequence[SaidDelete]) -> list[TrashEntry]:
    """Return ``entries`` as far as they count: a user's up to where its delete was said.  A process may end between the two,
    and what is given up later for another reason must not be due by an entry without its delete."""
    counted = (_as_said(entry, user_deletes) for entry in entries)
    return [one for one in counted if one is not None]


def kept_from(
    entries: Iterable[TrashEntry],
    *,
    user_deletes: Sequence[SaidDelete],
    generation: int,
    lineage: Lineage,
    start_offset: Offset,
    time: TrashTime,
) -> Offset:
    """Return the offset from which local data that is nowhere else is kept: ``start_offset``, or the first below it that is not
    due."""
    ours = [entry for entry in entries if entry.id.generation == generation and entry.kind not in BY_NAME]
    if all(time.is_due(one) for one in ours):
        return start_offset
    due = [entry.stop_in(lineage) for entry in in_force(ours, user_deletes) if time.is_due(entry)]
    return Offset(min(start_offset, max(due, default=NO_OFFSET)))


def _as_said(entry: TrashEntry, user_deletes: Sequence[SaidDelete]) -> TrashEntry | None:
    if entry.kind is not TrashKind.USER:
        return entry
    epoch = entry.id.leader_epoch
    said = [delete.offset for delete in user_deletes if _is_named(delete, entry.id)]
    said += [delete.offset for delete in user_deletes if delete.opened_ms == FINAL and delete.leader_epoch >= epoch]
    return replace(entry, up_to=min(entry.up_to, max(said))) if said else None


def _is_named(said: SaidDelete, entry_id: TrashId) -> bool:
    is_users = entry_id.kind is TrashKind.USER
    return is_users and (said.opened_ms, said.leader_epoch) == (entry_id.opened_ms, entry_id.leader_epoch)


def _is_final(entry_id: TrashId, entries: Sequence[TrashEntry], user_deletes: Sequence[SaidDelete]) -> bool:
    """Return whether the delete of that name was carried out, or is purged."""
    known = [entry for entry in entries if entry.id == entry_id]
    if known:
        return any(one.purged_ms >= 0 for one in known)
    return any(_is_named(delete, entry_id) for delete in user_deletes)


def _is_void(view: TrashView, entry: TrashEntry) -> bool:
    """Return whether an entry is void: undone; or of a topic that is there, or tiered, after all; or retention's, and its start
    did not follow: once it does, the delay counts from then.  What was replaced never is."""
    if entry.kind in REPLACED:
        return False
    if entry.id.generation != view.generation or entry.kind is TrashKind.TOPIC:
        return entry.id.generation <= view.generation
    if entry.kind is TrashKind.DISABLE:
        return not view.all_goes
    if entry.kind is not TrashKind.RETENTION or entry.id.leader_epoch > view.leader_epoch:
        return False
    return entry.stop_in(view.lineage) > view.durable_start_offset


def _is_due(view: TrashView, entry: TrashEntry) -> bool:
    if entry.kind not in REPLACED and entry.id.generation != view.generation:
        return False
    return view.time.is_due(entry)


def _is_about(entry: TrashEntry, removal: Removal, lineage: Lineage) -> bool:
    """Return whether the entry concerns the removal.  A decision on the offsets of this history does not concern what is
    outside the lineage, nor one of repair, erasure or cleaner what goes for another reason: that has its own time."""
    if removal.kind is not entry.kind and {removal.kind, entry.kind} & NEEDLESS:
        return False
    if removal.metadata.remote_log_segment_id.uuid in entry.segments:
        return True
    if removal.kind is TrashKind.OUTSIDE_LINEAGE and entry.kind is not TrashKind.DISABLE:
        return False
    return entry.kind is not TrashKind.TOPIC and entry.covers(removal.metadata, lineage)


def _waits(removal: Removal, due: Iterable[TrashEntry], pending: Iterable[TrashEntry], lineage: Lineage) -> bool:
    """Return whether the removal waits.  Without a delay nothing new waits; what was decided while there was one still does."""
    if any(_is_about(entry, removal, lineage) for entry in due):
        return False
    return any(_is_about(entry, removal, lineage) for entry in pending)


def _new_entries(view: TrashView, holding: Sequence[TrashEntry], new: Sequence[Removal]) -> list[TrashEntry]:
    entries = []
    below = [removal for removal in new if removal.kind is not TrashKind.OUTSIDE_LINEAGE]
    disabled = [removal for removal in below if removal.kind is TrashKind.DISABLE]
    if disabled:
        stop = max(one.metadata.next_offset for one in disabled)
        entries.append(_entry(view, TrashKind.DISABLE, disabled[0].reason, up_to=max(stop, view.start_offset)))
    elif _needs_entry(view, holding, below):
        reason = below[-1].reason if below else f"it lies below the remote log start {view.start_offset}"
        entries.append(_entry(view, TrashKind.RETENTION, reason, up_to=view.start_offset))
    outside = [removal for removal in new if removal.kind is TrashKind.OUTSIDE_LINEAGE]
    return entries + _naming(view, outside)


def _needs_entry(view: TrashView, holding: Sequence[TrashEntry], below: Sequence[Removal]) -> bool:
    """Return whether the start moves now, or something lies below it that no entry names."""
    if any(removal.kind is TrashKind.DISABLE for removal in view.given_up):
        return False
    stop = _stop(view, holding)
    is_local_below = view.log_start_offset is not None and view.log_start_offset < view.start_offset
    is_local_below &= not view.broker_keeps
    return bool(below) or view.start_offset > view.durable_start_offset or (is_local_below and stop < view.start_offset)


def _naming(view: TrashView, outside: Sequence[Removal]) -> list[TrashEntry]:
    if not outside:
        return []
    entry = _entry(view, TrashKind.OUTSIDE_LINEAGE, outside[0].reason)
    named = sum(len(one.segments) for one in view.entries if one.id == entry.id)
    uuids = frozenset(removal.metadata.remote_log_segment_id.uuid for removal in outside[: max(MOST_NAMED - named, 0)])
    return [replace(entry, segments=uuids)] if uuids else []


def _entry(view: TrashView, kind: TrashKind, reason: str, *, up_to: int = NO_OFFSET) -> TrashEntry:
    delay_ms = view.delays.of(kind)
    entry_id = TrashId(
        generation=view.generation,
        leader_epoch=view.leader_epoch,
        kind=kind,
        opened_ms=_opened_ms(view.now_ms, delay_ms),
    )
    if any(entry.id == entry_id and entry.purged_ms >= 0 for entry in view.entries):
        # What an operator purged must not wait with what is decided now.
        entry_id = TrashId(generation=view.generation, leader_epoch=view.leader_epoch, kind=kind, opened_ms=view.now_ms)
    return TrashEntry(
        id=entry_id,
        decided_ms=view.now_ms,
        due_ms=view.now_ms + delay_ms,
        up_to=Offset(up_to),
        reason=reason,
        by=view.by,
        from_offset=Offset(view.durable_start_offset),
    )


def _opened_ms(now_ms: int, delay_ms: int) -> int:
    return now_ms - now_ms % max(delay_ms // _PARTS_OF_DELAY, 1)


def _is_done(view: TrashView, entry: TrashEntry) -> bool:
    """Return whether a due entry has nothing left to do: nothing that it names is there, remotely or locally."""
    if entry.kind is TrashKind.REPAIR:
        return not any(
            _is_about(entry, removal, view.lineage) for removal in view.given_up
        )  # gone, or not needless any more
    if entry.kind in BY_NAME:
        return not any(segment.remote_log_segment_id.uuid in entry.segments for segment in view.segments)
    counted = _as_said(entry, view.user_deletes)
    if counted != entry and view.now_ms - entry.decided_ms <= _ON_ITS_WAY_MS:
        return False  # the user's delete may be on its way
    return counted is None or _is_carried_out(view, counted)


def _is_carried_out(view: TrashView, entry: TrashEntry) -> bool:
    if any(_is_about(entry, removal, view.lineage) for removal in view.given_up):
        return False
    if view.log_start_offset is None or view.high_watermark is None:
        return True
    if view.broker_keeps and entry.kind is not TrashKind.USER:
        return True
    return view.log_start_offset >= min(entry.stop_in(view.lineage), view.durable_start_offset, view.high_watermark)


def _due_start(view: TrashView, left: Sequence[TrashEntry], due: Sequence[TrashEntry]) -> Offset:
    pending = [entry for entry in left if not _is_due(view, entry) and entry.kind not in BY_NAME]
    if not view.is_delayed and not pending:
        return Offset(view.start_offset)
    return Offset(min(_stop(view, due), view.start_offset))


def _users_start(view: TrashView, left: Sequence[TrashEntry]) -> Offset:
    """Return up to where users have deleted, without deletes whose time is not over."""
    waiting = [entry.id for entry in left if entry.kind is TrashKind.USER and not _is_due(view, entry)]
    due = [delete for delete in view.user_deletes if not any(_is_named(delete, entry_id) for entry_id in waiting)]
    stop = max((view.lineage.as_of(one.offset, one.leader_epoch) for one in due), default=NO_OFFSET)
    return Offset(min(stop, view.start_offset))


def _stop(view: TrashView, entries: Iterable[TrashEntry]) -> Offset:
    return max((entry.stop_in(view.lineage) for entry in entries if entry.kind not in BY_NAME), default=NO_OFFSET)
