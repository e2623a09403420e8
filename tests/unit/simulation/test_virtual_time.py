"""Virtual time, and processes that end at any await."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from tests.simulation.virtual_time import (
    NothingLeftToDoError,
    Process,
    TooManyTurnsError,
    VirtualTimeLoop,
    current_process,
)


@pytest.fixture
def loop() -> Iterator[VirtualTimeLoop]:
    loop = VirtualTimeLoop()
    yield loop
    loop.close()


def test_a_day_of_sleep_takes_no_time(loop: VirtualTimeLoop) -> None:
    began, began_s = loop.time(), time.monotonic()
    loop.run_until_complete(asyncio.sleep(86_400))
    assert loop.time() - began == pytest.approx(86_400)
    assert time.monotonic() - began_s < 60


def test_timeouts_are_of_virtual_time(loop: VirtualTimeLoop) -> None:
    async def wait() -> None:
        async with asyncio.timeout(5):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        loop.run_until_complete(wait())


def test_a_world_in_which_everybody_waits_is_told_from_a_long_wait(loop: VirtualTimeLoop) -> None:
    with pytest.raises(NothingLeftToDoError):
        loop.run_until_complete(asyncio.Event().wait())


def test_a_world_that_goes_on_without_time_passing_is_ended() -> None:
    loop = VirtualTimeLoop(most_turns=1000)

    def spin() -> None:
        loop.call_soon(spin)

    spin()
    with pytest.raises(TooManyTurnsError, match="1000 s by its clock"):
        loop.run_forever()
    loop.close()


class Steps:
    """Steps that a process took."""

    def __init__(self) -> None:
        self.done: list[str] = []

    async def work(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.tick("a", 1.0))
                group.create_task(self.tick("b", 1.5))
        finally:
            self.done.append("cleaned up")

    async def tick(self, name: str, every_s: float) -> None:
        for number in range(4):
            await asyncio.sleep(every_s)
            self.done.append(f"{name}{number}")


def test_killed_it_takes_no_other_step_not_even_to_clean_up(loop: VirtualTimeLoop) -> None:
    steps, process = Steps(), Process("one", loop)
    task = process.start(steps.work())
    loop.run_until_complete(asyncio.sleep(2.2))
    process.kill()
    loop.run_until_complete(asyncio.sleep(60))
    assert steps.done == ["a0", "b0", "a1"]
    assert not task.done()
    process.bury()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)


def test_stopped_it_goes_on_later_with_what_came_due_in_its_order(loop: VirtualTimeLoop) -> None:
    steps, process = Steps(), Process("one", loop)
    task = process.start(steps.work())
    loop.run_until_complete(asyncio.sleep(1.2))
    process.stop()
    loop.run_until_complete(asyncio.sleep(60))
    assert steps.done == ["a0"]
    process.go_on()
    loop.run_until_complete(asyncio.sleep(0.1))
    assert steps.done == ["a0", "b0", "a1"]
    loop.run_until_complete(task)
    assert steps.done[-1] == "cleaned up"


def test_what_it_begins_after_it_was_stopped_is_still_its_own(loop: VirtualTimeLoop) -> None:
    steps, process = Steps(), Process("one", loop)
    owners: list[Process | None] = []

    async def work() -> None:
        owners.append(current_process())
        child = asyncio.create_task(steps.tick("child", 1))
        await child

    task = process.start(work())
    process.stop()
    loop.run_until_complete(asyncio.sleep(2))
    process.go_on()
    loop.run_until_complete(asyncio.sleep(1.5))
    process.kill()
    loop.run_until_complete(asyncio.sleep(60))
    assert owners == [process]
    assert steps.done == ["child0"]
    process.bury()
    loop.run_until_complete(task)


def test_others_run_on_while_one_is_dead(loop: VirtualTimeLoop) -> None:
    dead, alive = Steps(), Steps()
    first, second = Process("one", loop), Process("two", loop)
    task, other = first.start(dead.tick("x", 1)), second.start(alive.tick("y", 1))
    first.kill()
    loop.run_until_complete(other)
    assert (dead.done, alive.done) == ([], ["y0", "y1", "y2", "y3"])
    first.bury()
    loop.run_until_complete(task)
