"""Plan for setting the remote log start of a partition back, what comes back by that, and what came back of it.

What retention gave up comes back as a whole.  What users deleted is a floor: it comes back with its entry of the trash, and
never after that has been carried out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tiersidecar.decide.expiry_standing import standings
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.decide.trash_time import TrashTime
from tiersidecar.domain.offsets import NO_OFFSET, Lineage, Offset
from tiersidecar.domain.segments import LocalSegment, RemoteLogSegmentMetadata
from tiersidecar.domain.trash import BY_NAME, SaidDelete, TrashEntry, TrashKind, merged_deletes, replaced_segments

MOST_RANGES = 50
NEARLY_DUE_MS = 10 * 60_000
"""Clocks may be ahead of their last known time by so much: twice the jump at which a clock is doubted."""
Range = tuple[int, int]
"""Offsets, [from, to)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeleteView:
    """A partition as an operator finds it.  ``segments`` are the remote ones of any state; ``log_start_offset`` is the
    broker's.  ``user_deletes`` is as PartitionState has it.  ``may_be_pinned``: the broker deletes by itself, so that pins,
    which only the leader's sidecar sees, may have what neither of the two has.

    ``to_offset`` is the first offset that is to be readable again, ``since_ms`` the time from which on decisions are undone;
    with neither all that is still there comes back.
    """

    entries: Sequence[TrashEntry]
    generation: int
    start_offset: int
    segments: Sequence[RemoteLogSegmentMetadata]
    lineage: Lineage
    log_start_offset: int
    user_deletes: Sequence[SaidDelete] = ()
    may_be_pinned: bool = False
    now_ms: int = 0
    to_offset: int | None = None
    since_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Undeletion:
    """``offset`` is the start from then on.  ``segments`` come back; ``holes`` are offsets, [from, to), that do not, for
    neither the remote tier nor the broker has them any more.  ``refusal`` says why nothing is done; ``kept`` are the entries
    that stand in the next generation, and ``user_deletes`` the users' deletes; ``undone`` are those that do not, or not all
    of them.  ``replaced`` is how many segments an erasure replaced, which never come back."""

    offset: Offset
    segments: tuple[RemoteLogSegmentMetadata, ...] = ()
    holes: tuple[Range, ...] = ()
    kept: tuple[TrashEntry, ...] = ()
    user_deletes: tuple[SaidDelete, ...] = ()
    undone: tuple[SaidDelete, ...] = ()
    refusal: str = ""
    is_needed: bool = True
    replaced: int = 0


def decide_undelete(view: UndeleteView) -> Undeletion:
    """Return what undoing does."""
    there = _there(view)
    final, pending = _deletes(view.user_deletes, view.entries, view.generation)
    held = min([view.start_offset, *(one.start_offset for one in there), max(view.log_start_offset, 0), *_pinned(view)])
    floor = _highest(final, view.lineage)
    lowest = min(max(held, floor), view.start_offset)
    offset = _target(view, lowest)
    if held <= offset < lowest:
        return _refused(view, f"users have deleted what is below offset {lowest}, and that cannot be undone any more")
    if offset < lowest:
        return _refused(view, f"nothing below offset {lowest} is there any more")
    if offset > view.start_offset:
        return _refused(view, f"the log starts at {view.start_offset} already, below offset {offset}")
    back = tuple(one for one in there if one.end_offset >= offset)
    everything = any(
        entry.kind is TrashKind.DISABLE and entry.id.generation == view.generation for entry in view.entries
    )
    is_part = offset > held
    replaced = len(replaced_segments(view.entries))
    is_needed = everything or offset < view.start_offset
    if replaced and not is_needed:
        return _refused(
            view, f"an erasure replaced {replaced} segments, which do not come back; nothing else is to be undone"
        )
    return Undeletion(
        offset=Offset(offset),
        segments=back,
        holes=unavailable(back, offset, min(view.start_offset, max(view.log_start_offset, 0))),
        kept=tuple(_kept(view, offset)) if is_part else (),
        user_deletes=merged_deletes([*final, *(_clipped(pending, offset) if is_part else ())]),
        undone=merged_deletes(pending),
        is_needed=is_needed,
        replaced=replaced,
    )


def may_be_on_its_way(entries: Iterable[TrashEntry], *, latest_ms: int, delays: TrashDelays) -> bool:
    """Return whether a deletion of what ``entries`` name may have been sent by now, perhaps by a process that is gone.

    Something was due or purged, or nearly due by ``latest_ms``, the latest time of any clock of the cluster; or nothing
    waits at all."""
    if not (delays.retention_ms and delays.user_ms):
        return True
    return any(entry.is_purged or entry.due_ms <= latest_ms + NEARLY_DUE_MS for entry in entries)


def unavailable(
    segments: Iterable[RemoteLogSegmentMetadata], offset: int, stop: int, pinned: Iterable[Range] = ()
) -> tuple[Range, ...]:
    """Return the offsets from ``offset`` up to ``stop`` that neither a segment nor a pin has."""
    holes, next_offset = list[Range](), offset
    for begin, end in sorted([*((segment.start_offset, segment.next_offset) for segment in segments), *pinned]):
        if next_offset < min(begin, stop):
            holes.append((next_offset, min(begin, stop)))
        next_offset = max(next_offset, end)
    if next_offset < stop:
        holes.append((next_offset, stop))
    return tuple(holes)


def pinned_ranges(segments: Iterable[LocalSegment]) -> tuple[Range, ...]:
    """Return the offsets that only pins hold, in few ranges; of too many the first."""
    ranges = list[Range]()
    for segment in segments:
        if not segment.pinned or segment.next_base_offset is None:
            continue
        if ranges and ranges[-1][1] == segment.base_offset:
            ranges[-1] = (ranges[-1][0], segment.next_base_offset)
        else:
            ranges.append((segment.base_offset, segment.next_base_offset))
    return tuple(ranges[:MOST_RANGES])


def _there(view: UndeleteView) -> list[RemoteLogSegmentMetadata]:
    """Return finished segments of this history that begin below the start, ascending; none that an erasure has replaced."""
    erased = replaced_segments(view.entries)
    live = [one for one in view.segments if one.remote_log_segment_id.uuid not in erased]
    found = standings(live, view.lineage)
    return [one.segment for one in found if one.serves and one.segment.start_offset < view.start_offset]


def final_start(
    user_deletes: Sequence[SaidDelete], entries: Iterable[TrashEntry], generation: int, lineage: Lineage
) -> Offset:
    """Return the offset below which no undelete brings anything back; -1 where all that is there can come back."""
    return _highest(_deletes(user_deletes, entries, generation)[0], lineage)


def _highest(deletes: Iterable[SaidDelete], lineage: Lineage) -> Offset:
    return max((lineage.as_of(delete.offset, delete.leader_epoch) for delete in deletes), default=NO_OFFSET)


def _deletes(
    user_deletes: Sequence[SaidDelete], entries: Iterable[TrashEntry], generation: int
) -> tuple[list[SaidDelete], list[SaidDelete]]:
    """Return users' deletes that are final, and those that can be undone: an entry is there, and is not purged."""
    waiting = {
        (entry.id.opened_ms, entry.id.leader_epoch)
        for entry in entries
        if entry.kind is TrashKind.USER and entry.id.generation == generation and not entry.is_purged
    }
    pending = [delete for delete in user_deletes if (delete.opened_ms, delete.leader_epoch) in waiting]
    return [delete for delete in user_deletes if delete not in pending], pending


def _clipped(pending: Iterable[SaidDelete], offset: int) -> list[SaidDelete]:
    return [replace(delete, offset=Offset(min(delete.offset, offset))) for delete in pending]


def _pinned(view: UndeleteView) -> list[int]:
    """Return where the log started before the waiting entries were decided.  Pins of what is not due yet are kept."""
    if not view.may_be_pinned:
        return []
    ours, time = _of_offsets(view), TrashTime(now_ms=view.now_ms)
    gone = max((one.stop_in(view.lineage) for one in ours if time.is_due(one)), default=NO_OFFSET)
    before = [
        view.lineage.as_of(one.from_offset, one.id.leader_epoch)
        for one in ours
        if one.from_offset >= 0 and not time.is_due(one)
    ]
    return [max(min(before), gone)] if before else []


def _target(view: UndeleteView, lowest: int) -> int:
    if view.to_offset is not None:
        return view.to_offset
    if view.since_ms is None:
        return lowest
    stands = [entry for entry in _of_offsets(view) if entry.decided_ms < view.since_ms]
    return max([lowest, *(min(stand.stop_in(view.lineage), view.start_offset) for stand in stands)])


def _of_offsets(view: UndeleteView) -> list[TrashEntry]:
    return [entry for entry in view.entries if entry.id.generation == view.generation and entry.kind not in BY_NAME]


def _kept(view: UndeleteView, offset: int) -> list[TrashEntry]:
    """Return entries for the next generation: what lies below the new start goes when it would have gone."""
    return [
        replace(
            entry,
            id=replace(entry.id, generation=view.generation + 1),
            up_to=Offset(min(entry.up_to, offset)),
        )
        for entry in _of_offsets(view)
        if entry.up_to > NO_OFFSET and entry.kind is not TrashKind.DISABLE
    ]


def _refused(view: UndeleteView, reason: str) -> Undeletion:
    return Undeletion(offset=Offset(view.start_offset), refusal=reason, is_needed=False)
