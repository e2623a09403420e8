"""How far the remote log start of a partition can be set back, and what comes back by that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tiersidecar.decide.expiry_standing import standings
from tiersidecar.domain.epochs import Lineage
from tiersidecar.domain.offsets import NO_OFFSET, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.trash import BY_NAME, TrashEntry, TrashKind


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeleteView:
    """A partition as an operator finds it.  ``segments`` are the remote ones of any state; ``log_start_offset`` is the
    broker's.

    ``to_offset`` is the first offset that is to be readable again, ``since_ms`` the time from which on decisions are undone;
    with neither all that is still there comes back.
    """

    entries: Sequence[TrashEntry]
    generation: int
    start_offset: int
    segments: Sequence[RemoteLogSegmentMetadata]
    lineage: Lineage
    log_start_offset: int
    to_offset: int | None = None
    since_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Undeletion:
    """``offset`` is the start from then on.  ``segments`` come back; ``holes`` are offsets, [from, to), that do not, for nobody
    has them any more.  ``refusal`` says why nothing is done; ``kept`` are the entries that stand in the next generation."""

    offset: Offset
    segments: tuple[RemoteLogSegmentMetadata, ...] = ()
    holes: tuple[tuple[int, int], ...] = ()
    kept: tuple[TrashEntry, ...] = ()
    refusal: str = ""
    is_needed: bool = True


def decide_undelete(view: UndeleteView) -> Undeletion:
    """What undoing means."""
    there = _there(view)
    lowest = min([view.start_offset, *(one.start_offset for one in there), max(view.log_start_offset, 0)])
    offset = _target(view, lowest)
    if offset < lowest:
        return _refused(view, f"nothing below offset {lowest} is there any more")
    if offset > view.start_offset:
        return _refused(view, f"the log starts at {view.start_offset} already, below offset {offset}")
    back = tuple(one for one in there if one.end_offset >= offset)
    everything = any(one.kind is TrashKind.DISABLE and one.id.generation == view.generation for one in view.entries)
    return Undeletion(
        offset=Offset(offset),
        segments=back,
        holes=_holes(back, offset, min(view.start_offset, max(view.log_start_offset, 0))),
        kept=tuple(_kept(view, offset)) if offset > lowest else (),
        is_needed=everything or offset < view.start_offset,
    )


def _there(view: UndeleteView) -> list[RemoteLogSegmentMetadata]:
    """Finished segments of this history that begin below the start, ascending."""
    found = standings(view.segments, view.lineage)
    return [one.segment for one in found if one.serves and one.segment.start_offset < view.start_offset]


def _target(view: UndeleteView, lowest: int) -> int:
    if view.to_offset is not None:
        return view.to_offset
    if view.since_ms is None:
        return lowest
    stands = [one for one in _of_offsets(view) if one.decided_ms < view.since_ms]
    return max([lowest, *(min(one.stop_in(view.lineage), view.start_offset) for one in stands)])


def _of_offsets(view: UndeleteView) -> list[TrashEntry]:
    return [one for one in view.entries if one.id.generation == view.generation and one.kind not in BY_NAME]


def _kept(view: UndeleteView, offset: int) -> list[TrashEntry]:
    """What lies below the new start goes when it would have gone."""
    return [
        replace(
            one,
            id=replace(one.id, generation=view.generation + 1),
            up_to=Offset(min(one.up_to, offset)),
            segments=frozenset(),
        )
        for one in _of_offsets(view)
        if one.up_to > NO_OFFSET and one.kind is not TrashKind.DISABLE
    ]


def _holes(segments: Sequence[RemoteLogSegmentMetadata], offset: int, stop: int) -> tuple[tuple[int, int], ...]:
    holes, next_offset = [], offset
    for one in segments:
        if one.start_offset > next_offset:
            holes.append((next_offset, min(one.start_offset, stop)))
        next_offset = max(next_offset, one.next_offset)
    if next_offset < stop:
        holes.append((next_offset, stop))
    return tuple(holes)


def _refused(view: UndeleteView, reason: str) -> Undeletion:
    return Undeletion(offset=Offset(view.start_offset), refusal=reason, is_needed=False)
