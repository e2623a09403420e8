"""One piece of work for all callers that ask for it at about the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """The value of ``make`` for all calls within ``kept_s`` of its end; a call that comes meanwhile waits for it."""

    def __init__(self, make: Callable[[], Awaitable[T]], *, kept_s: float) -> None:
        self._make, self._kept_s = make, kept_s
        self._running: asyncio.Future[T] | None = None
        self._done_s = 0.0

    async def value(self) -> T:
        """Return the last value; raise what ``make`` raises, to all callers that wait for it."""
        running = self._running
        if running is None or (running.done() and self._is_over(running)):
            running = self._running = asyncio.ensure_future(self._run())
            running.add_done_callback(_take_notice)
        # A caller that leaves must not cancel it for the others.
        return await asyncio.shield(running)

    def close(self) -> None:
        """Stop the running work."""
        if self._running is not None:
            self._running.cancel()

    async def _run(self) -> T:
        try:
            return await self._make()
        finally:
            self._done_s = asyncio.get_running_loop().time()

    def _is_over(self, done: asyncio.Future[T]) -> bool:
        failed = done.cancelled() or done.exception() is not None
        return failed or asyncio.get_running_loop().time() - self._done_s > self._kept_s


def _take_notice(done: asyncio.Future[T]) -> None:
    """Read the error: all callers may be gone by now, and asyncio would report it as never retrieved."""
    if not done.cancelled():
        done.exception()
