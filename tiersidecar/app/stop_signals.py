"""Signals that end a process in order: what is in hand is cancelled at its next await, then everything is closed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stop_on_signals(loop: asyncio.AbstractEventLoop) -> Iterator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set; a second signal of the same kind kills as if nobody listened."""
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
