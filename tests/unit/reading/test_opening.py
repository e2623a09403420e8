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
from tiersidecar.reading.opening import TURN_S, InTurns, More, Opening, Steps
from tiersidecar.reading.reader_limits import ASKER

T = TypeVar("T")


class Counted(InlineBlocking):
    """Counts what it ran."""

    def __init__(self) -> None:
        self.runs = 0

    async def run(self, function: Callable[..., T], *args: object) -> T:
        self.runs += 1
        await asyncio.sleep(0)  # as threads do: others go on meanwhile
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


class Batches:
    """Work of so many turns, each noted."""

    def __init__(self, name: str, turns: int, noted: list[str]) -> None:
        self.name, self.turns, self.noted = name, turns, noted

    def __call__(self, memory: OpenedMemory) -> str | More:
        if isinstance(memory, SmallMemory):
            raise NotSmallError
        self.noted.append(self.name)
        self.turns -= 1
        return More.MORE if self.turns else self.name


async def test_who_has_many_large_batches_to_open_delays_another_by_one_turn() -> None:
    """One client's lookups by time kept other callers waiting for more than a minute (issue 17)."""
    world, noted = World(), list[str]()

    async def run(asker: str, turns: int) -> str:
        ASKER.set(asker)
        return await world.opening.run(Batches(asker, turns, noted))

    greedy = [asyncio.create_task(run("greedy", 5)) for _ in range(4)]
    other = asyncio.create_task(run("other", 2))
    assert await asyncio.gather(*greedy, other) == ["greedy"] * 4 + ["other"]
    assert len(noted) == 22
    assert max(index for index, name in enumerate(noted) if name == "other") <= 5


async def test_what_a_slow_client_has_not_taken_after_a_second_holds_no_memory() -> None:
    """Two slow readers of records held all of the memory for opened batches for 100 s (issue 17)."""
    world, given_back = World(), list[float]()
    async with world.opening.taken_by_another(lambda: given_back.append(world.clock.monotonic_s())):
        await world.clock.advance(0.9)
        assert given_back == []
        await world.clock.advance(0.2)
        assert len(given_back) == 1
    async with world.opening.taken_by_another(lambda: given_back.append(world.clock.monotonic_s())):
        await world.clock.advance(0.9)
    await world.clock.advance(5)
    assert len(given_back) == 1


async def test_what_finds_no_memory_takes_that_of_lines_that_clients_have_not_taken_yet() -> None:
    """Readers that took each piece in less than a second kept it for as long as they liked (issue 17)."""
    world, given_back = World(), list[str]()
    work = Work(1)
    async with (
        world.opening.taken_by_another(lambda: given_back.append("one")),
        world.opening.taken_by_another(lambda: given_back.append("two")),
    ):
        assert await world.begin(work) == (world.memory, "value")
        assert (work.tries, sorted(given_back)) == (2, ["one", "two"])
        await world.clock.advance(2)
    assert len(given_back) == 2, "once each"


async def test_while_somebody_waits_for_memory_lines_on_their_way_to_a_client_hold_none() -> None:
    world, given_back = World(), list[str]()
    waiting = world.begin(Work(3))
    await world.clock.advance(0.06)
    async with world.opening.taken_by_another(lambda: given_back.append("one")):
        assert given_back == ["one"]
    await world.clock.advance(1)
    assert await waiting == (world.memory, "value")
    async with world.opening.taken_by_another(lambda: given_back.append("two")):
        assert given_back == ["one"], "nobody waits any more"


class Steady:
    """A batch of so many steps, each noted."""

    def __init__(self, name: str, noted: list[str], steps: int) -> None:
        self.name, self.noted, self.steps, self.closed = name, noted, steps, 0

    def __call__(self, memory: OpenedMemory) -> Steps[str]:
        if isinstance(memory, SmallMemory):
            raise NotSmallError
        try:
            for _ in range(self.steps):
                self.noted.append(self.name)
                yield
        finally:
            self.closed += 1
        return self.name


def test_work_of_steps_has_turns_of_a_tenth_of_a_second_and_goes_on_where_it_was() -> None:
    noted, memory = list[str](), OpenedMemory()
    steady = Steady("one", noted, 10)
    work = InTurns(steady, lambda: len(noted) * TURN_S / 4)
    found, turns = work(memory), 1
    while isinstance(found, More):
        assert len(noted) == 4 * turns
        with pytest.raises(NotSmallError):
            work(SmallMemory())
        found, turns = work(memory), turns + 1
    assert (found, turns, len(noted), steady.closed) == ("one", 3, 10, 1)


def test_work_that_is_given_up_between_two_turns_gives_back_what_it_holds() -> None:
    noted = list[str]()
    steady = Steady("one", noted, 10)
    work = InTurns(steady, lambda: len(noted) * TURN_S)
    assert isinstance(work(OpenedMemory()), More)
    work.close()
    assert steady.closed == 1


async def test_a_batch_that_takes_minutes_delays_another_caller_by_a_turn_and_its_own_go_one_after_the_other() -> None:
    """A turn was a whole batch: one of 20 MB that opens to hundreds of millions of records kept all waiting for half an
    hour."""
    noted = list[str]()

    class Passing(ManualClock):
        """Time goes on with each step."""

        def monotonic_s(self) -> float:
            return len(noted) * TURN_S / 2

    blocking = Counted()
    opening = Opening(memory=OpenedMemory(), blocking=blocking, long_blocking=blocking, clock=Passing())

    async def run(asker: str, name: str, steps: int) -> str:
        ASKER.set(asker)
        return await opening.run_steps(Steady(name, noted, steps))

    first = asyncio.create_task(run("greedy", "first", 100))
    second = asyncio.create_task(run("greedy", "second", 100))
    other = asyncio.create_task(run("other", "other", 4))
    await asyncio.gather(first, second, other)
    assert max(index for index, name in enumerate(noted) if name == "other") < 12
    assert noted.index("second") > 100, "what is begun ends before more is begun"
