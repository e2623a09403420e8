"""Decided deletions that are not done yet: from the decision until it is due, everything can be brought back.

Users' deletes are a floor under the remote log start, which only the undoing of that very delete lowers.  Retention's decisions
can be undone as a whole, by setting the start back: what users deleted below that, and what was deleted before the first copy,
must not become readable again with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.offsets import NO_OFFSET, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata


class TrashKind(StrEnum):
    """Source of a decision."""

    RETENTION = "retention"
    USER = "user"
    DISABLE = "disable"
    TOPIC = "topic"
    OUTSIDE_LINEAGE = "outside-lineage"
    REPAIR = "repair"
    ERASURE = "erasure"
    """Another segment holds the same offsets without the records that were to be erased: no undelete brings this one back."""
    COMPACTION = "compaction"
    """Another segment holds the same offsets without the records that a cleaner has taken out."""


REPLACED = frozenset({TrashKind.ERASURE, TrashKind.COMPACTION})
"""Kinds whose segments others have replaced: undone by nothing, and of no generation."""

BY_NAME = frozenset({TrashKind.OUTSIDE_LINEAGE, TrashKind.REPAIR}) | REPLACED
"""Kinds that name segments.  Those of kind ``TOPIC`` speak of all there is; all others of what ends below an offset."""

NEEDLESS = frozenset({TrashKind.REPAIR}) | REPLACED
"""Kinds whose segments go only while others hold all their offsets, which is decided anew right before."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TrashId:
    """Identity of an entry of a partition.  Decisions of one kind within a 24th of the delay share an entry, so that there are
    few; ``opened_ms`` is the begin of that time.

    ``generation`` is the one of the remote log start (``PartitionState.start_generation``) that the decision was made in: an
    entry of an earlier one was undone.
    """

    generation: int
    leader_epoch: LeaderEpoch
    kind: TrashKind
    opened_ms: int


MOST_DECIDERS = 16
"""Deciders that one entry names; of more the latest.  Each delete has a line of its own in the log."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Decider:
    """A decider, its last time, and up to which offset (exclusive, -1 where that is not known); for the operator."""

    decided_ms: int
    by: str
    up_to: Offset = NO_OFFSET


def deciders_of(several: Iterable[Decider]) -> tuple[Decider, ...]:
    """Return one per name, ascending by time.  Merged in whatever order, and however often, the result is the same."""
    named: dict[str, Decider] = {}
    for decider in several:
        known = named.get(decider.by, decider)
        named[decider.by] = Decider(
            by=decider.by, decided_ms=max(known.decided_ms, decider.decided_ms), up_to=max(known.up_to, decider.up_to)
        )
    return tuple(sorted(named.values())[-MOST_DECIDERS:])


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashEntry:
    """``up_to`` is exclusive, -1 where ``segments`` are named or all is meant.  ``decided_ms`` is the time of the last decision
    in it, ``due_ms`` when it may be carried out, ``purged_ms`` up to which decision an operator waits no longer (-1: none).
    ``from_offset`` is where the log started before the first decision in it, -1 where that is not known.  ``by`` decided last;
    ``deciders`` are all deciders, empty where there is only one."""

    id: TrashId
    decided_ms: int
    due_ms: int
    up_to: Offset = NO_OFFSET
    segments: frozenset[Uuid] = field(default_factory=frozenset)
    purged_ms: int = -1
    reason: str = ""
    by: str = ""
    from_offset: Offset = NO_OFFSET
    deciders: tuple[Decider, ...] = ()

    @property
    def decisions(self) -> tuple[Decider, ...]:
        """Return the decisions in it with their deciders, ascending by time."""
        return self.deciders or (Decider(by=self.by, decided_ms=self.decided_ms, up_to=self.up_to),)

    @property
    def all_by(self) -> str:
        """Return the names of all its deciders."""
        return "; ".join(decision.by for decision in self.decisions)

    @property
    def kind(self) -> TrashKind:
        return self.id.kind

    @property
    def is_purged(self) -> bool:
        """Return whether an operator purged all of it: what was decided in it since then is not purged."""
        return self.purged_ms >= self.decided_ms

    def is_undone(self, generation: int) -> bool:
        """Return whether the start was set back since, to ``generation``.  For a deleted topic the start does not matter, and
        nothing undoes what was replaced."""
        return self.kind is not TrashKind.TOPIC and self.kind not in REPLACED and self.id.generation < generation

    def merged_with(self, other: TrashEntry) -> TrashEntry:
        """Return both decisions, due when the later one is.  In whatever order, and however often: the result is the same.

        Raises:
            ValueError: they are two entries.
        """
        if self.id != other.id:
            raise ValueError(f"{self.id} and {other.id} are two entries")
        last = max(self, other, key=lambda one: (one.decided_ms, one.reason, one.by))
        deciders = deciders_of((*self.decisions, *other.decisions))
        return replace(
            last,
            due_ms=max(self.due_ms, other.due_ms),
            up_to=max(self.up_to, other.up_to),
            segments=self.segments | other.segments,
            purged_ms=max(self.purged_ms, other.purged_ms),
            from_offset=min((one.from_offset for one in (self, other) if one.from_offset >= 0), default=NO_OFFSET),
            deciders=deciders if len(deciders) > 1 else (),
        )

    def contains(self, other: TrashEntry) -> bool:
        """Return whether ``other`` adds nothing to it."""
        return self.merged_with(other) == self

    def stop_in(self, lineage: Lineage) -> Offset:
        """Return up to which offset, exclusive, it covers the history ``lineage``; -1 where it does not cover offsets."""
        if self.kind is TrashKind.DISABLE:
            return self.up_to
        return lineage.as_of(self.up_to, self.id.leader_epoch)

    def covers(self, segment: RemoteLogSegmentMetadata, lineage: Lineage) -> bool:
        """Return whether the decision covers ``segment``, not whether it still holds: see ``decide.trash``."""
        if self.kind is TrashKind.TOPIC or segment.remote_log_segment_id.uuid in self.segments:
            return True
        return segment.end_offset < self.stop_in(lineage)


def merged_entries(entries: Iterable[TrashEntry], *, generation: int | None = None) -> tuple[TrashEntry, ...]:
    """Return one entry for each id, ascending; of ``generation`` alone where that is given."""
    merged: dict[TrashId, TrashEntry] = {}
    for entry in entries:
        if generation is None or entry.id.generation == generation:
            merged[entry.id] = merged[entry.id].merged_with(entry) if entry.id in merged else entry
    return tuple(merged[entry_id] for entry_id in sorted(merged))


def replaced_segments(entries: Iterable[TrashEntry]) -> frozenset[Uuid]:
    """Return the segments that erasures and cleaners have replaced: they stand for no other one, and never come back."""
    return frozenset(uuid for entry in entries if entry.kind in REPLACED for uuid in entry.segments)


FINAL = -1
"""``opened_ms`` of a delete that no entry of the trash covers, and that cannot be undone."""
MOST_NAMED = 48
"""Deletes that are kept apart: twice as many as a partition has entries of them.  Of more the oldest become final."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SaidDelete:
    """A delete of all below ``offset``, said in ``leader_epoch``.

    ``opened_ms`` and the epoch name the entry of the trash that it is undone with (``TrashId``).  Where there is no such entry
    it has been carried out, and is final.
    """

    opened_ms: int = FINAL
    leader_epoch: LeaderEpoch
    offset: Offset

    def is_within(self, other: SaidDelete) -> bool:
        """Return whether it adds nothing to ``other``, in any history."""
        return self.leader_epoch <= other.leader_epoch and self.offset <= other.offset

    def is_end_of(self, other: SaidDelete) -> bool:
        """Return whether it makes ``other``, or a part of it, final: it is no new delete."""
        return self.opened_ms == FINAL and self.leader_epoch == other.leader_epoch and self.offset <= other.offset

    def is_undone_by(self, other: SaidDelete) -> bool:
        """Return whether ``other``, which was undone, is the same delete, and all of it."""
        is_same = (self.opened_ms, self.leader_epoch) == (other.opened_ms, other.leader_epoch)
        return is_same and self.offset <= other.offset


def merged_deletes(said: Iterable[SaidDelete]) -> tuple[SaidDelete, ...]:
    """Return all of ``said``, the highest of each entry, without those that a final one contains.  Merging is idempotent."""
    highest: dict[tuple[int, int], SaidDelete] = {}
    for delete in sorted(said):
        highest[delete.opened_ms, delete.leader_epoch] = delete
    named = [delete for delete in highest.values() if delete.opened_ms != FINAL]
    too_many = named[: max(len(named) - MOST_NAMED, 0)]
    final = _outermost(
        [
            *(delete for delete in highest.values() if delete.opened_ms == FINAL),
            *(replace(one, opened_ms=FINAL) for one in too_many),
        ]
    )
    kept = [one for one in named[len(too_many) :] if not any(one.is_within(other) for other in final)]
    return (*final, *kept)


def without(said: Iterable[SaidDelete], undone: Iterable[SaidDelete]) -> list[SaidDelete]:
    """Return those of ``said`` that ``undone`` does not undo: a delete that was said meanwhile stands."""
    taken_back = tuple(undone)
    return [delete for delete in said if not any(delete.is_undone_by(other) for other in taken_back)]


def _outermost(said: Iterable[SaidDelete]) -> list[SaidDelete]:
    kept: list[SaidDelete] = []
    for delete in sorted(said, reverse=True):  # from the latest epoch on
        if not any(delete.is_within(other) for other in kept):
            kept.append(delete)
    return kept[::-1]
