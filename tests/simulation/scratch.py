"""The disk that a cleaner of ours writes to: never more than it promises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.simulation.chances import Chances
from tests.simulation.disk import Disk
from tests.simulation.machine import InlineBlocking

T = TypeVar("T")

_SHARE, _LONGER = 3, 1.1
"""A batch may be longer than before by some bytes: with a delete horizon its timestamps count from that."""
_FREE_BYTES = "_free_bytes"


class ScratchBlocking(InlineBlocking):
    """``ports.clock.Blocking`` of a process that cleans.  Its directory ``scratch`` lies on a file system with ``free_bytes``;
    after each call it has one new segment at most, and not more than a third of what is free."""

    def __init__(
        self,
        chances: Chances,
        fault_rate: float,
        disk: Disk,
        *,
        scratch: Path,
        free_bytes: int,
        complain: Callable[[str], None],
    ) -> None:
        super().__init__(chances, fault_rate, disk)
        self._scratch, self._bytes, self._complain = scratch, free_bytes, complain

    async def run(self, function: Callable[..., T], *args: object) -> T:
        done = await super().run(function, *args)
        if getattr(function, "__qualname__", "") == _FREE_BYTES:
            return self._bytes  # type: ignore[return-value]
        self._look()
        return done

    def _look(self) -> None:
        sizes = [path.stat().st_size for path in self._scratch.glob("*/*") if path.is_file()]
        if len(sizes) > 1 or sum(sizes) > self._bytes / _SHARE * _LONGER:
            self._complain(f"{self._scratch.parent.name}: {sizes} bytes to clean with, and {self._bytes} are free")
