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


@dataclass(frozen=True, slots=True)
class _Body:
    size_bytes: int
    memory_at_begin: int


class WatchedBodies:
    """Stops the bodies that are on their way once memory has grown by more than they may take.

    A look costs some 20 microseconds, every 25 ms while bodies are on their way, and none of them waits for it.  Memory may
    also have grown for another reason, so a body that was stopped proves nothing.
    """

    def __init__(self, *, slack_bytes: int = SLACK_BYTES) -> None:
        self._slack_bytes = slack_bytes
        self._bodies: dict[asyncio.Future[Any], _Body] = {}
        self._stopped: set[asyncio.Future[Any]] = set()
        self._memory = 0
        self._timer: asyncio.TimerHandle | None = None

    async def collect(self, body: Awaitable[T], size_bytes: int) -> T | None:
        """Return what ``body`` comes to, of which ``size_bytes`` are expected; None if it was stopped."""
        future = asyncio.ensure_future(body)
        if self._timer is None:
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
        for future, body in self._bodies.items():
            if self._memory - body.memory_at_begin > allowed and future.cancel():
                self._stopped.add(future)
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look_again)

    def _look_again(self) -> None:
        if self._bodies:
            self._look()
        else:
            self._timer = None
