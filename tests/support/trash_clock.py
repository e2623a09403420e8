"""The trash's clock of a process that has just begun, in tests."""

from __future__ import annotations

from tiersidecar.domain.seen_time import SeenTime
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.seen_times import NoSeenTimes
from tiersidecar.tasks.trash_clock import TrashClock


def trash_clock(clock: Clock, known: SeenTime | None = None) -> TrashClock:
    """Return the clock of a process that has seen all the time until now, or that knows ``known``."""
    return TrashClock(clock=clock, times=NoSeenTimes(), known=known or SeenTime(until_ms=clock.now_ms()))
