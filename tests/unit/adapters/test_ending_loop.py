"""A command ends though a thread of it is stuck in a dead mount: reconcile had written its report, and never came back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from tiersidecar.adapters import ending_loop
from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.adapters.ending_loop import run_to_end

STUCK = """
import asyncio, threading
from tiersidecar.adapters import ending_loop
from tiersidecar.adapters.clock import ThreadBlocking

ending_loop._ENDING_S = 0.2

async def main():
    async with ThreadBlocking(max_threads=1) as blocking:
        begun = threading.Event()
        request = asyncio.create_task(blocking.run(lambda: (begun.set(), threading.Event().wait())))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        request.cancel()

ending_loop.run_to_end(main())
print("the report is written")
ending_loop.exit_process(3)
"""


AS_EVER = """
import atexit

from tiersidecar.adapters import ending_loop

atexit.register(print, "at exit")
ending_loop.exit_process(3)
"""


def test_a_run_leaves_a_task_alone_whose_thread_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending_loop, "_ENDING_S", 0.1)
    monkeypatch.setattr(ending_loop, "_left", [])
    may_end = threading.Event()

    async def main() -> str:
        begun, loop = asyncio.Event(), asyncio.get_running_loop()

        def hang() -> None:
            loop.call_soon_threadsafe(begun.set)
            may_end.wait()

        async with ThreadBlocking(max_threads=1) as blocking:
            request = asyncio.create_task(blocking.run(hang))
            await begun.wait()
            request.cancel()
            return "done"

    assert run_to_end(main()) == "done"
    (loop,) = ending_loop._left
    may_end.set()
    loop.run_until_complete(asyncio.wait(asyncio.all_tasks(loop)))
    loop.close()


def test_a_run_waits_for_what_ends_in_time() -> None:
    """As asyncio.run does: what is cancelled may have something to put away."""
    put_away: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            put_away.append("all")

    async def main() -> asyncio.Task[None]:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        return task

    assert run_to_end(main()).cancelled()
    assert put_away == ["all"]


def test_a_process_whose_thread_does_not_end_ends_with_its_code() -> None:
    ended = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "the report is written\n", "")


def test_a_process_without_such_a_thread_ends_as_ever() -> None:
    """In a process of its own: threads of other tests may still be there in this one, and would end it."""
    ended = subprocess.run([sys.executable, "-c", AS_EVER], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "at exit\n", "")
