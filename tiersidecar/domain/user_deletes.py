"""Users' deletes: a floor under the remote log start, which only the undoing of that very delete lowers.

Retention's decisions can be undone as a whole, by setting the start back.  What users deleted below that, and what was deleted
before the first copy, must not become readable again with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tiersidecar.domain.offsets import LeaderEpoch, Offset

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
