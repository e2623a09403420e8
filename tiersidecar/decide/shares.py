"""Who may have how much of a limit that the workers of a gateway share, by what the others have taken.

Each worker decides alone, by numbers that the others may change at the same moment.  So the rules are such that a worker needs
no answer from another one, and that one that stands still, or has just died, takes nothing from the rest but what it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tiersidecar.domain.taken import NOTHING, Taken

_PARTS = 4
"""One connection has a quarter of the memory for responses at most."""


def total(taken: Iterable[Taken]) -> float:
    """Return all of it."""
    return sum(one.amount for one in taken)


def allowance(limit: int, workers: int, others: Sequence[Taken]) -> int:
    """Return how many a worker may have of what it can end at any time: its part, and beyond that what no other one uses.

    A worker whose part was lent has it back at once, and the borrower ends what is too much.  After each has done so, all
    together have ``limit`` at most, or one each where the limit is lower than their number.
    """
    return max(limit // workers, limit - int(total(others)), 1)


def part_bytes(size_bytes: int, workers: int) -> int:
    """Return the most that one connection may have of the memory for responses: no more than its worker always has."""
    return max(min(size_bytes // _PARTS, reserve_bytes(size_bytes, workers)), 1)


def reserve_bytes(size_bytes: int, workers: int) -> int:
    """Return what no other worker may have of the memory for responses: half of it is divided, the other half lent.  Of one
    worker, that is all."""
    return size_bytes if workers == 1 else size_bytes // (2 * workers)


def free_bytes(size_bytes: int, held_bytes: int, workers: int, others: Sequence[Taken]) -> int:
    """Return what a worker that holds ``held_bytes`` may take in addition; less than 0: it took what another did as well.

    What was lent comes back only when a client reads, so it must not be counted on: others' reserves stay free.
    """
    reserve = reserve_bytes(size_bytes, workers)
    return size_bytes - held_bytes - int(sum(max(one.amount, reserve) for one in others))


def within_window(others: Iterable[Taken], now_s: float, horizon_s: float) -> Taken:
    """Return together what others have taken of a rate.  What began longer than ``horizon_s`` ago is not counted: its process
    has not looked at it since, and of an old beginning the rate would seem low.  Nor is what begins in the future."""
    recent = [one for one in others if one.amount > 0 and abs(now_s - one.since_s) < horizon_s]
    if not recent:
        return NOTHING
    return Taken(total(recent), min(one.since_s for one in recent))
