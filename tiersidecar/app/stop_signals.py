"""Signals that end a process in order: the stop is announced, work in progress is cancelled at its next await, then
everything is closed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import structlog

from tiersidecar.domain.errors import TiersidecarError

log = structlog.get_logger(__name__)


class BeforeStop:
    """The announcements of a process before its work is cancelled."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], Awaitable[None]]] = []

    def take(self, step: Callable[[], Awaitable[None]]) -> None:
        """Have ``step`` done beside any others."""
        self._steps.append(step)

    async def do(self, limit_s: float) -> None:
        """Do them, for at most ``limit_s``; whatever becomes of it, the process stops."""
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.gather(*(step() for step in self._steps))
        except (TiersidecarError, TimeoutError) as error:
            log.warning("daemon.stop.not_told", reason=str(error) or f"not done in {limit_s:.0f} s")


@contextmanager
def stop_on_signals(loop: asyncio.AbstractEventLoop) -> Iterator[asyncio.Event]:
    """Yield an event that SIGTERM and SIGINT set; a second signal of the same kind kills at once."""
    stopping = asyncio.Event()

    def stop(number: signal.Signals) -> None:
        stopping.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        yield stopping
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
