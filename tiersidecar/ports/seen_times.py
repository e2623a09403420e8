"""Time that a sidecar has seen pass, kept beyond the process."""

from __future__ import annotations

from typing import Protocol

from tiersidecar.domain.seen_time import SeenTime


class SeenTimes(Protocol):
    async def read(self) -> SeenTime | None:
        """Return what former processes kept; None where there is nothing, or nothing readable."""

    async def write(self, seen: SeenTime) -> None:
        """Keep it; a crash leaves the former one or this one.

        Raises:
            StateDirError: the disk does not take it.
        """


class NoSeenTimes:
    """Seen times of a process that deletes nothing."""

    async def read(self) -> SeenTime | None:
        return None

    async def write(self, seen: SeenTime) -> None:
        return None
