"""Work that opens record batches: off the loop, within the memory that is left for it (rule 8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, nullcontext, suppress
from enum import Enum
from typing import Generic, TypeVar, TypeVarTuple

from tiersidecar.domain.errors import NoMemoryLeftError, NotSmallError
from tiersidecar.formats.kafka.opened_memory import OpenedMemory, SmallMemory
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.reading.reader_limits import ASKER, FairPlaces

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Away = AbstractAsyncContextManager[None]
Steps = Generator[None, None, T]

DEFAULT_OPENED_BYTES = 144 * 1024 * 1024
"""A zstd window of 128 MiB, the largest that Kafka's clients open, and room for others beside it."""

_WAIT_S = 0.05
_MOST_WAITS = 100


LONG_AT_ONCE = 1
"""Threads for batches that are not small: each holds its codec's window, and shares the interpreter lock with the others."""

TURN_S = 0.1
"""Turn of a caller in that thread: a batch may open to billions of records, and a thread cannot be stopped."""

_IDLE_S = 1.0


class More(Enum):
    """Returned by work that has used its turn and is not done; never where it was given little memory."""

    MORE = "more"


class InTurns(Generic[T]):
    """Work in small steps: returns what ``steps(memory)`` returns, after turns of :data:`TURN_S` by ``monotonic_s``.

    What it has open between two turns holds memory until :meth:`close`.
    """

    def __init__(self, steps: Callable[[OpenedMemory], Steps[T]], monotonic_s: Callable[[], float]) -> None:
        self._steps, self._monotonic_s = steps, monotonic_s
        self._running: Steps[T] | None = None
        self._memory: OpenedMemory | None = None

    def __call__(self, memory: OpenedMemory) -> T | More:
        """Go on; after an exception, from the first step.

        Raises:
            NotSmallError: it goes on with the memory that it began with.
        """
        if self._running is None:
            self._running, self._memory = self._steps(memory), memory
        elif memory is not self._memory:
            raise NotSmallError
        until_s = self._monotonic_s() + TURN_S
        try:
            while isinstance(memory, SmallMemory) or self._monotonic_s() < until_s:
                next(self._running)
        except StopIteration as end:
            self.close()
            found: T = end.value
            return found
        except BaseException:
            self.close()
            raise
        return More.MORE

    def close(self) -> None:
        """Give back what the work holds."""
        if self._running is not None:
            self._running.close()
            self._running = None


class Opening:
    """Run work that opens batches in threads: small ones, which most are, in ``blocking`` with all other short work, others in
    ``long_blocking``, where only large ones wait for each other.

    There callers have their turns one after the other (:mod:`fair_places`), of :data:`TURN_S`, or one piece of lines.  Work
    that finds no memory takes that of clients which have not taken their lines yet; else it is tried again for five seconds,
    and holds neither memory nor the turn meanwhile.
    """

    def __init__(self, *, memory: OpenedMemory, blocking: Blocking, long_blocking: Blocking, clock: Clock) -> None:
        self.memory, self._small = memory, SmallMemory(rest=memory.rest)
        self._blocking, self._long_blocking, self._clock = blocking, long_blocking, clock
        self._turns = FairPlaces(LONG_AT_ONCE)
        self._with_clients: dict[object, Callable[[], None]] = {}
        """Calls that give back the memory of lines that clients have not taken yet."""
        self._waiting = 0
        """Number of calls that wait for memory."""

    @property
    def monotonic_s(self) -> Callable[[], float]:
        """Return the clock by which turns end."""
        return self._clock.monotonic_s

    async def run(
        self, work: Callable[[OpenedMemory, *Ts], T | More], *args: *Ts, away: Callable[[], Away] = nullcontext
    ) -> T:
        """Return ``work(memory, *args)``, run again after each :data:`More.MORE`, and from its beginning each time that there
        was no memory.  ``away`` is entered while large work is opened, or waits for it.

        Raises:
            NoMemoryLeftError: there was none in time.
            TooLargeToOpenError: there never will be.
        """
        try:
            found = await self._blocking.run(work, self._small, *args)
        except NotSmallError:
            async with away():
                return await self._run_long(work, *args)
        assert not isinstance(found, More), "small batches are no turns of their own"
        return found

    async def run_steps(
        self, steps: Callable[[OpenedMemory], Steps[T]], *, away: Callable[[], Away] = nullcontext
    ) -> T:
        """Return what ``steps(memory)`` returns, run as by :meth:`run`, in turns."""
        with closing(InTurns(steps, self.monotonic_s)) as work:
            return await self.run(work, away=away)

    @asynccontextmanager
    async def taken_by_another(self, give_back: Callable[[], None]) -> AsyncIterator[None]:
        """Yield while a client, which may be slow, takes what was opened: ``give_back`` is called, once, after a second, or as
        soon as other work finds no memory."""
        if self._waiting:
            give_back()
            yield
            return
        key = object()
        self._with_clients[key] = give_back
        waiting = asyncio.create_task(self._give_back_later(key), name="give opened memory back")
        try:
            yield
        finally:
            waiting.cancel()
            self._with_clients.pop(key, None)

    async def _give_back_later(self, key: object) -> None:
        await self._clock.sleep(_IDLE_S)
        if (give_back := self._with_clients.pop(key, None)) is not None:
            give_back()

    async def _run_long(self, work: Callable[[OpenedMemory, *Ts], T | More], *args: *Ts) -> T:
        with suppress(NoMemoryLeftError):
            return await self._run_in_turns(work, *args)
        self._waiting += 1
        try:
            for _ in range(_MOST_WAITS - 1):
                await self._clock.sleep(_WAIT_S)
                with suppress(NoMemoryLeftError):
                    return await self._run_in_turns(work, *args)
            await self._clock.sleep(_WAIT_S)
            return await self._run_in_turns(work, *args)
        finally:
            self._waiting -= 1

    async def _run_in_turns(self, work: Callable[[OpenedMemory, *Ts], T | More], *args: *Ts) -> T:
        asker = ASKER.get()
        await self._turns.take(asker)
        has_turn = True
        try:
            while isinstance(found := await self._with_memory(work, *args), More):
                has_turn = False
                await self._turns.give_way(asker)
                has_turn = True
            return found
        finally:
            if has_turn:
                self._turns.give_back(asker)

    async def _with_memory(self, work: Callable[[OpenedMemory, *Ts], T | More], *args: *Ts) -> T | More:
        try:
            return await self._long_blocking.run(work, self.memory, *args)
        except NoMemoryLeftError:
            if not self._with_clients:
                raise
        while self._with_clients:
            self._with_clients.popitem()[1]()
        return await self._long_blocking.run(work, self.memory, *args)
