"""Which remote segments of a partition a cleaner may go through: those that lie end to end, and that readers are given.

A cleaner takes out of one segment what a later one makes needless.  So it must know of all there is: where offsets are in no
segment, or in two that are not of the same span, it stops.  What comes there later could bring back a key whose tombstone is
gone, and a look-up in the middle could find what was cleaned already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from tiersidecar.decide.expiry_standing import Standing, standings
from tiersidecar.domain.cleaner import short_name
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.offsets import ByteRange, Lineage, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.trash import BY_NAME, REPLACED, TrashEntry

_CLOCKS_DIFFER_MS = 10 * 60_000
"""A decision may be dated by another broker's clock; the same allowance as of an undelete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainView:
    """A led partition.  ``segments`` are the remote ones of any state, ``start_offset`` is the remote log start, -1 while it is
    not said; ``asked`` are offsets that repair has asked to copy again.  ``hidden`` are finished segments that no look-up
    gives: of equal spans all but the one whose COPY_SEGMENT_FINISHED came last, whatever time it has."""

    segments: Sequence[RemoteLogSegmentMetadata]
    trash: Sequence[TrashEntry]
    lineage: Lineage
    start_offset: Offset
    asked: Sequence[ByteRange] = ()
    hidden: Set[Uuid] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningChain:
    """``segments`` ascend, and each begins where the one before it ends; ``stopped`` says why the chain goes no further, empty
    where there is nothing beyond it.  ``twins`` are of the span of one of them, finished earlier, and named in no entry of the
    trash: a process ended between a swap and its entry."""

    segments: tuple[RemoteLogSegmentMetadata, ...]
    twins: tuple[RemoteLogSegmentMetadata, ...]
    stopped: str

    @property
    def end_offset(self) -> Offset:
        """Return the offset after the last one (exclusive); 0 where there is none."""
        return self.segments[-1].next_offset if self.segments else Offset(0)


def decide_chain(view: ChainView) -> CleaningChain:
    """Return the chain from the remote log start on."""
    found = [one for one in standings(view.segments, view.lineage) if one.serves]
    found = [one for one in found if one.segment.end_offset >= view.start_offset]
    replaced = _named(view.trash, REPLACED)
    named = _named(view.trash, BY_NAME)
    chain: list[RemoteLogSegmentMetadata] = []
    twins: list[RemoteLogSegmentMetadata] = []
    stopped = ""
    spans, before_end = _spans(found), -1
    for place, span in enumerate(spans):
        given = _given(span, named, view.hidden)
        # They ascend by start: whatever overlaps is one before, the furthest, or the next one.
        following = spans[place + 1 : place + 2]
        overlaps = before_end >= given.segment.start_offset or any(
            after[0].segment.start_offset <= given.segment.end_offset for after in following
        )
        stopped = _reason_to_stop(given, span, chain, view, overlaps=overlaps)
        if stopped:
            break
        before_end = max(before_end, given.segment.end_offset)
        chain.append(given.segment)
        twins += [one.segment for one in span if one is not given and _uuid(one.segment) not in named and one.is_valid]
    return CleaningChain(
        segments=tuple(chain), twins=tuple(one for one in twins if _uuid(one) not in replaced), stopped=stopped
    )


def horizons_due_by(view: ChainView) -> int | None:
    """Return the time after which no delete horizon counts as due; None where every one does that has passed.

    An undelete brings back what lies below the start and still exists.  No round takes anything out of that, so the tombstones
    written since are all that keeps its keys deleted.  A tombstone whose horizon was over before the first of it was given up
    was in a round that had its values in the chain, and is not needed.
    """
    replaced = _named(view.trash, REPLACED)
    below = [
        one.segment
        for one in standings(view.segments, view.lineage)
        if one.segment.end_offset < view.start_offset and _uuid(one.segment) not in replaced
    ]
    if not below:
        return None
    decisions = [entry for entry in view.trash if entry.kind not in BY_NAME]
    return min(
        min((one.id.opened_ms - _CLOCKS_DIFFER_MS for one in decisions if one.covers(segment, view.lineage)), default=0)
        for segment in below
    )


def clean_up_to(chain: Sequence[RemoteLogSegmentMetadata], cleaner_offset: Offset, names: Sequence[str]) -> Offset:
    """Return up to where the chain is what was cleaned; ``names`` are the short ones of the segments below ``cleaner_offset``
    as they were then, ascending.  From the first on of which another is given, everything counts as dirty: a deposed
    leader's swap was finished late, or offsets were copied again."""
    below = [one for one in chain if one.start_offset < cleaner_offset]
    lacking = len(below) - len(names)  # from the end: those in front may have been deleted since
    for place, segment in enumerate(below):
        if place < lacking or names[place - lacking] != short_name(_uuid(segment)):
            return segment.start_offset
    return cleaner_offset


def _spans(found: Iterable[Standing]) -> list[list[Standing]]:
    """Return those of equal offsets together, each with the latest first."""
    spans: dict[tuple[int, int], list[Standing]] = {}
    for one in found:  # ascending by start, of equal starts the longest first, of equal spans the latest
        spans.setdefault((one.segment.start_offset, one.segment.end_offset), []).append(one)
    return list(spans.values())


def _given(span: Sequence[Standing], named: Set[Uuid], hidden: Set[Uuid]) -> Standing:
    """Return the one that readers are given, though an entry of the trash should name it; else the latest that none names."""
    given = (one for one in span if len(span) > 1 and _uuid(one.segment) not in hidden)
    return next(given, next((one for one in span if _uuid(one.segment) not in named), span[0]))


def _reason_to_stop(
    given: Standing,
    span: Sequence[Standing],
    chain: Sequence[RemoteLogSegmentMetadata],
    view: ChainView,
    *,
    overlaps: bool,
) -> str:
    segment = given.segment
    if not all(one.is_valid for one in span):
        return f"a segment from offset {segment.start_offset} on is of another history, in whole or in part"
    if chain and segment.start_offset > chain[-1].next_offset:
        return f"no segment holds offsets {chain[-1].next_offset} to {segment.start_offset - 1}"
    if overlaps:
        return f"the segment from offset {segment.start_offset} on overlaps another one"
    if any(one.start <= segment.end_offset and one.stop > segment.start_offset for one in view.asked):
        return f"repair has asked for another copy of offsets from {segment.start_offset} on"
    return ""


def _named(trash: Iterable[TrashEntry], kinds: Set[object]) -> frozenset[Uuid]:
    return frozenset(uuid for entry in trash if entry.kind in kinds for uuid in entry.segments)


def _uuid(segment: RemoteLogSegmentMetadata) -> Uuid:
    return segment.remote_log_segment_id.uuid
