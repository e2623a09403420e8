"""Time, ids, randomness and threads from the operating system.

Blocking calls (files, compression, encryption) run in a bounded number of threads.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from tiersidecar.domain.ids import Uuid, is_acceptable_random_uuid

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        # Goes on while the machine is suspended, where there is such a clock: leases of others run out meanwhile.
        return time.clock_gettime(_CLOCK)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SystemIds:
    """Ids and keys from the kernel's generator."""

    def random_uuid(self) -> Uuid:
        while not is_acceptable_random_uuid(candidate := Uuid(uuid.uuid4().bytes)):
            pass
        return candidate

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def random(self) -> float:
        return random.random()


T = TypeVar("T")


class ThreadBlocking:
    """A pool of ``max_threads`` threads; what finds none free waits in order.

    A thread cannot be stopped.  So a cancelled :meth:`run` takes back a function that has not begun, and otherwise waits
    for its end before it raises ``CancelledError`` (as trio and anyio do): the caller may release buffers and descriptors
    at once, and no function works on after its owner is gone.  Functions are therefore short: slices of a file, not files.
    ``initializer`` runs first in each thread.
    """

    def __init__(
        self, *, max_threads: int, name: str = "blocking", initializer: Callable[[], None] | None = None
    ) -> None:
        self._executor = ThreadPoolExecutor(max_threads, thread_name_prefix=name, initializer=initializer)
        self.ended = 0
        """Calls that came to an end."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take no more work and drop what has not begun.  Does not wait: a call stuck in a dead disk must not keep the
        process from closing the rest."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Run ``function(*args)`` in a thread and give its result or its exception."""
        running = self._executor.submit(function, *args)
        try:
            await _end_of(running)
        except asyncio.CancelledError:
            if not running.cancel():
                await _wait_whatever_comes(running)
            raise
        if running.cancelled():
            raise asyncio.CancelledError  # the pool was closed before its turn came
        self.ended += 1
        return running.result()


def _end_of(running: Future[T]) -> asyncio.Future[None]:
    """Return a future that is done when ``running`` is, with whatever result.

    Half the processor time of asyncio.wrap_future and shield, which pass results through two more futures; and a
    StopIteration, which asyncio's futures do not take, leaves no task waiting for ever.
    """
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    running.add_done_callback(lambda _: _notify(loop, ended))
    return ended


def _notify(loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
    """Notify the loop, from the worker thread.  A loop that has closed meanwhile abandoned the thread on a dead disk."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_end, ended)


def _end(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


async def _wait_whatever_comes(running: Future[T]) -> None:
    """Return when ``running`` is done, deaf to further cancellation: the first one is raised by the caller."""
    ended = _end_of(running)
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError:
            continue
