"""One piece of work for all who ask for it at about the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """The value of ``make`` for all who ask within ``kept_s`` of its end; a caller that comes meanwhile waits for the same."""

    def __init__(self, make: Callable[[], Awaitable[T]], *, kept_s: float) -> None:
        self._make, self._kept_s = make, kept_s
        self._running: asyncio.Future[T] | None = None
        self._done_s = 0.0

    async def value(self) -> T:
        """Return what was made last; raises what ``make`` raises, for all who wait for it."""
        running = self._running
        if running is None or (running.done() and self._is_over(running)):
            running = self._running = asyncio.ensure_future(self._run())
            running.add_done_callback(_take_notice)
        # A caller that goes away must not take it from the others.
        return await asyncio.shield(running)

    def close(self) -> None:
        """Stop what is under way."""
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
    """All callers may be gone by now: asyncio would complain of an error that nobody has asked for."""
    if not done.cancelled():
        done.exception()
