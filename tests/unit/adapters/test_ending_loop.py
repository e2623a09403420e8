"""A command ends though a thread of it is stuck in a dead mount: reconcile had written its report, and never came back."""

from __future__ import annotations

import asyncio
import signal
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


ASKING = """
import signal
import typer
from tiersidecar.adapters import ending_loop

signal.signal(signal.SIGINT, signal.default_int_handler)  # these tests may have been started in the background
try:
    print("answer:", ending_loop.run_to_end(ending_loop.ask(lambda: typer.confirm("Do it?"))))
except KeyboardInterrupt:
    ending_loop.exit_process(130)
ending_loop.exit_process(0)
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


def test_a_question_that_nobody_answers_does_not_keep_a_process_from_ending() -> None:
    asking = subprocess.Popen(
        [sys.executable, "-c", ASKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with asking:
        try:
            assert asking.stdout is not None
            assert asking.stdout.read(6) == b"Do it?"
            asking.send_signal(signal.SIGINT)
            assert asking.wait(timeout=30) == 130
        finally:
            asking.kill()


@pytest.mark.parametrize(("given", "said"), [("y\n", "answer: True"), ("n\n", "answer: False")])
def test_an_answer_is_taken(given: str, said: str) -> None:
    asked = _asked(given)
    assert (asked.returncode, said in asked.stdout) == (0, True)


def test_a_question_without_anybody_to_answer_is_aborted() -> None:
    asked = _asked("")
    assert asked.returncode == 1
    assert "Abort" in asked.stderr


def _asked(given: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ASKING], input=given, capture_output=True, text=True, timeout=60, check=False
    )
