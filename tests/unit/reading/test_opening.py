"""Work that opens batches waits for memory, a bounded while, and holds none meanwhile; small ones wait for none (rule 8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tiersidecar.domain.errors import NoMemoryLeftError, NotSmallError, TooLargeToOpenError
from tiersidecar.formats.kafka.opened_memory import OpenedMemory, SmallMemory
from tiersidecar.reading.opening import Opening

T = TypeVar("T")


class Counted(InlineBlocking):
    """Counts what it ran."""

    def __init__(self) -> None:
        self.runs = 0

    async def run(self, function: Callable[..., T], *args: object) -> T:
        self.runs += 1
        return await super().run(function, *args)


class Work:
    """Opens a batch that is not small, and finds no memory for so many tries."""

    def __init__(self, tries_without: int, error: Exception | None = None) -> None:
        self.tries_without, self.tries = tries_without, 0
        self.error = error or NoMemoryLeftError(wanted_bytes=1)

    def __call__(self, memory: OpenedMemory, value: str) -> tuple[OpenedMemory, str]:
        if isinstance(memory, SmallMemory):
            raise NotSmallError
        self.tries += 1
        if self.tries <= self.tries_without:
            raise self.error
        return memory, value


class World:
    def __init__(self) -> None:
        self.clock, self.memory = ManualClock(), OpenedMemory(10)
        self.blocking, self.long_blocking = Counted(), Counted()
        self.opening = Opening(
            memory=self.memory, blocking=self.blocking, long_blocking=self.long_blocking, clock=self.clock
        )

    def begin(self, work: Work) -> asyncio.Task[tuple[OpenedMemory, str]]:
        return asyncio.create_task(self.opening.run(work, "value"))


async def test_what_is_small_is_opened_with_everything_else_and_nobody_waits_behind_what_takes_seconds() -> None:
    world = World()
    assert await world.opening.run(lambda _, value: value, "small") == "small"
    assert (world.blocking.runs, world.long_blocking.runs) == (1, 0)
    await world.opening.run(Work(0), "value")
    assert (world.blocking.runs, world.long_blocking.runs) == (2, 1)


async def test_what_finds_memory_runs_at_once_with_what_it_is_given() -> None:
    world = World()
    assert await world.opening.run(Work(0), "value") == (world.memory, "value")


async def test_what_finds_none_is_tried_again_each_50_ms_from_its_beginning() -> None:
    world, work = World(), Work(3)
    task = world.begin(work)
    await world.clock.advance(0.14)
    assert (work.tries, task.done()) == (3, False)
    await world.clock.advance(0.02)
    assert await task == (world.memory, "value")


async def test_after_five_seconds_it_is_told_that_there_is_none() -> None:
    world, work = World(), Work(1000)
    task = world.begin(work)
    await world.clock.advance(4.93)
    assert not task.done()
    await world.clock.advance(0.1)
    with pytest.raises(NoMemoryLeftError):
        await task
    assert work.tries == 101


async def test_what_comes_free_in_the_last_moment_is_taken() -> None:
    world, work = World(), Work(100)
    task = world.begin(work)
    await world.clock.advance(6)
    assert await task == (world.memory, "value")


async def test_what_will_never_have_room_is_told_at_once() -> None:
    world, work = World(), Work(1, TooLargeToOpenError(wanted_bytes=11, most_bytes=10))
    with pytest.raises(TooLargeToOpenError):
        await world.opening.run(work, "value")
    assert work.tries == 1
