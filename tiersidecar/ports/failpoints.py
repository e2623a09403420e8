"""Named places at which tests end, stall or fail the process.  In production every one is a no-op."""

from __future__ import annotations

from typing import Protocol


class Failpoints(Protocol):
    async def reach(self, name: str) -> None:
        """Pass the place called ``name``, such as ``copy.started.published``."""


class BlockingFailpoints(Protocol):
    def reach_blocking(self, name: str) -> None:
        """Pass a place in code that runs in a thread."""


class AllFailpoints(Failpoints, BlockingFailpoints, Protocol):
    """Both kinds of failpoints."""


class NoFailpoints:
    """Failpoints of production."""

    async def reach(self, name: str) -> None:
        return None

    def reach_blocking(self, name: str) -> None:
        return None


NO_FAILPOINTS: AllFailpoints = NoFailpoints()
