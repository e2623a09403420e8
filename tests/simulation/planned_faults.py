"""Faults that are injected into a world at their times, and how a scenario draws them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tests.simulation.chances import Chances


class Fault(StrEnum):
    """A fault that is injected into the world at a time; a failing run can be shrunk by each."""

    CRASH = "crash of a sidecar"
    STOP = "stop of a sidecar"
    OUTAGE = "outage of the store"
    LEADER = "leader change"
    UNCLEAN = "unclean election"
    BROKER = "stop of a broker"
    BROKER_UNCLEAN = "unclean stop of a broker"
    BEHIND = "follower left behind"
    CLOCK = "clock jump"
    DISK_FULL = "disk full"
    USER_DELETE = "records deleted by a user"
    FAR_BEHIND = "unclean election of a follower far behind"
    LOST_PRODUCERS = "producers' state lost"
    LOST_DISK = "replica lost with its disk"
    LOST_CHECKPOINTS = "crash of a broker that loses its checkpoints"
    MOVED_UNWRITTEN = "election, and a move of the log before anything is written"


LOSSES = (Fault.LOST_PRODUCERS, Fault.LOST_DISK, Fault.LOST_CHECKPOINTS)
"""Faults after which a broker may not know of a transaction that began before."""


_MOVED_UNWRITTEN_SHARE = 0.15
"""Share of cluster runs that end with an election and a move of the new leader's log, before anything is written."""
_AHEAD_MS, _BEHIND_MS = 10 * 24 * 3_600_000, 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """``fault`` begins at ``at_s`` and, where it ends, ends ``lasts_s`` later; ``target`` picks broker or partition."""

    name: str
    fault: Fault
    at_s: float
    lasts_s: float
    target: float

    @property
    def jump_ms(self) -> int:
        """Return how far a clock is off then: further than what expiry takes for one that is a little off."""
        if self.fault is not Fault.CLOCK:
            return 0
        return _AHEAD_MS if self.target < 0.5 else -_BEHIND_MS


def plan_faults(
    duration_s: float, chances: Chances, allowed: tuple[Fault, ...], *, most: int
) -> tuple[PlannedFault, ...]:
    """Draw up to ``most`` of those that are allowed."""
    # Names that are drawn by seed the randomness: with others each seed would be another run.
    count = int(chances.between("blows", 0, most + 1))
    return tuple(
        PlannedFault(
            name=f"blow {number}",
            fault=chances.choose("blow", allowed),
            at_s=chances.between("blow at", 1, duration_s),
            lasts_s=chances.choose("blow lasts", (0.3, 3.0, 10.0, 40.0)),
            target=chances.draw("blow target"),
        )
        for number in range(count)
    )


def plan_losses(duration_s: float, chances: Chances) -> tuple[PlannedFault, ...]:
    """Draw faults after which a broker has forgotten its producers."""
    return tuple(
        PlannedFault(
            name=f"loss {number}",
            fault=chances.choose("loss", LOSSES),
            at_s=chances.between("loss at", duration_s * 0.2, duration_s),
            lasts_s=chances.choose("loss lasts", (0.3, 3.0, 10.0)),
            target=chances.draw("loss target"),
        )
        for number in range(int(chances.between("losses", 2, 7)))
    )


def plan_far_behind(duration_s: float, chances: Chances) -> PlannedFault:
    """Draw a fault beside the others: only so does an election take away what has long been copied."""
    return PlannedFault(
        name="far behind",
        fault=Fault.FAR_BEHIND,
        at_s=chances.between("far behind at", 1, duration_s * 0.6),
        lasts_s=chances.choose("far behind lasts", (15.0, 30.0, 60.0)),
        target=chances.draw("far behind target"),
    )


def plan_lost_producers(duration_s: float, chances: Chances) -> tuple[PlannedFault, ...]:
    """Draw faults in half of the runs, some times: a replica is moved to another log dir, and once nothing but its own files is
    left."""
    if chances.draw("lost producers") < 0.5:
        return ()
    return tuple(
        PlannedFault(
            name=f"lost producers {number}",
            fault=Fault.LOST_PRODUCERS,
            at_s=chances.between("lost producers at", 1, duration_s),
            lasts_s=0.0,
            target=chances.draw("lost producers target"),
        )
        for number in range(6)
    )


def plan_moved_unwritten(duration_s: float, chances: Chances) -> tuple[PlannedFault, ...]:
    """Draw it in some of the runs, so late that hardly ever anything is written afterwards."""
    if chances.draw("moved unwritten") >= _MOVED_UNWRITTEN_SHARE:
        return ()
    return (
        PlannedFault(
            name="moved unwritten",
            fault=Fault.MOVED_UNWRITTEN,
            at_s=duration_s - 0.05,
            lasts_s=0.0,
            target=chances.draw("moved unwritten target"),
        ),
    )
