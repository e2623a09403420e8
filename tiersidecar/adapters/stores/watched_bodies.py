"""Bodies that are collected in Rust without a bound, and a watch over this process's memory meanwhile."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

LOOK_S = 0.025
SLACK_BYTES = 128 << 20
_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

T = TypeVar("T")


def anonymous_bytes() -> int | None:
    """Return how much memory this process has that is of no file; None where the system does not tell (not Linux)."""
    try:
        _, resident, shared, *_ = _STATM.read_bytes().split()
    except (OSError, ValueError):
        return None
    return (int(resident) - int(shared)) * _PAGE_BYTES


@dataclass(slots=True)
class _Body:
    size_bytes: int
    least_memory: int
    """The least that was seen since it began."""


class WatchedBodies:
    """Stops the bodies that are on their way once memory has grown by more than they may take.

    All of them are stopped together: a body that began when others had taken memory already would be given that much more, and
    the next one again.  A look costs some 20 microseconds, every 25 ms while bodies are on their way, and none of them waits
    for it.  Memory may also have grown for another reason, so a body that was stopped proves nothing.  One loop at a time.
    """

    def __init__(self, *, slack_bytes: int = SLACK_BYTES) -> None:
        self._slack_bytes = slack_bytes
        self._bodies: dict[asyncio.Future[Any], _Body] = {}
        self._stopped: set[asyncio.Future[Any]] = set()
        self._memory = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def collect(self, body: Awaitable[T], size_bytes: int) -> T | None:
        """Return what ``body`` comes to, of which ``size_bytes`` are expected; None if it was stopped."""
        future = asyncio.ensure_future(body)
        loop = asyncio.get_running_loop()
        if self._timer is None or self._loop is not loop:  # the timer of a loop that has ended never comes
            self._loop = loop
            self._look()
        self._bodies[future] = _Body(size_bytes, self._memory)
        try:
            return await future
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if future not in self._stopped or (task is not None and task.cancelling()):
                raise
            return None
        finally:
            del self._bodies[future]
            self._stopped.discard(future)

    def _look(self) -> None:
        self._memory = anonymous_bytes() or 0
        # Rust doubles a buffer that is too small.
        allowed = self._slack_bytes + 2 * sum(body.size_bytes for body in self._bodies.values())
        for body in self._bodies.values():
            body.least_memory = min(body.least_memory, self._memory)
        if any(self._memory - body.least_memory > allowed for body in self._bodies.values()):
            self._stopped.update(future for future in self._bodies if future.cancel())
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look_again)

    def _look_again(self) -> None:
        if self._bodies:
            self._look()
        else:
            self._timer = None
