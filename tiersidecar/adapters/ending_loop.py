"""Event loops, and a process, that end though a thread of theirs does not: one stuck in a dead mount cannot be stopped.

A request to such a store is given up (``stores/bounded.py``), and its task waits for the thread, as whatever the thread uses
has to stay.  ``asyncio.run`` waits for all tasks, and the interpreter for all threads: both would wait for ever.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

_ENDING_S = 5.0
"""What is cancelled, and what a pool's threads still do once it is closed, takes milliseconds."""

_left: list[asyncio.AbstractEventLoop] = []
"""Loops whose tasks did not end: what they use stays with them."""
_asking: list[threading.Thread] = []
"""Threads that wait for a person, or did."""


class EndingRunner:
    """An ``asyncio.Runner`` that leaves alone, when it is closed, the tasks that do not end in time."""

    def __init__(self, *, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
        self._runner = asyncio.Runner(loop_factory=loop_factory)
        self._main: asyncio.Task[Any] | None = None

    def __enter__(self) -> EndingRunner:
        self._runner.__enter__()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run ``main`` in the runner's event loop."""
        return self._runner.run(self._noted(main))

    async def _noted(self, main: Coroutine[Any, Any, T]) -> T:
        self._main = asyncio.current_task()
        return await main

    def close(self) -> None:
        """Cancel all tasks, and wait for them, but not for ever.

        The main one goes first, where an interrupt has left it: what it does at its end, as to release a lease, the others do
        for it."""
        loop = self._runner.get_loop()
        if self._main is not None and not self._main.done():
            self._main.cancel()
            loop.run_until_complete(asyncio.wait([self._main], timeout=_ENDING_S))
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            _, late = loop.run_until_complete(asyncio.wait(tasks, timeout=_ENDING_S))
            if late:
                _left.append(loop)
                asyncio.set_event_loop(None)
                return
        self._runner.close()


def run_to_end(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` in an event loop of its own, as ``asyncio.run`` does."""
    with EndingRunner() as runner:
        return runner.run(main)


async def ask(question: Callable[[], T]) -> T:
    """Return the answer of ``question``, which waits for a person: in a thread of its own, since the loop has other work, and
    one that no end of the process waits for, since the person may have gone, or may have pressed Ctrl-C.

    Raises:
        Exception: what ``question`` raises.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(give: Callable[[Any], None], value: Any) -> None:
        if not answer.done():
            give(value)

    def wait() -> None:
        try:
            give, value = answer.set_result, question()
        except Exception as error:  # noqa: BLE001 - it is the asker's
            give, value = answer.set_exception, error  # type: ignore[assignment]
        with suppress(RuntimeError):  # the loop has closed: nobody wants to know any more
            loop.call_soon_threadsafe(settle, give, value)

    thread = threading.Thread(target=wait, name="question", daemon=True)
    _asking.append(thread)
    thread.start()
    return await answer


def exit_process(code: int) -> NoReturn:
    """End the process with ``code``, at once if a thread does not end.

    Raises:
        SystemExit: all threads have ended.
    """
    # A thread in a read of standard input holds its lock, without which the interpreter cannot end in order.
    is_stuck = bool(_left) or any(thread.is_alive() for thread in _asking)
    until_s = time.monotonic() + (0.0 if is_stuck else _ENDING_S)
    others = [one for one in threading.enumerate() if one is not threading.main_thread() and not one.daemon]
    for thread in others:
        thread.join(max(until_s - time.monotonic(), 0.0))
    if not is_stuck and not any(thread.is_alive() for thread in others):
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
