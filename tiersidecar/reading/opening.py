"""Work that opens record batches: off the loop, within the memory that there is for it (rule 8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from enum import Enum
from typing import TypeVar, TypeVarTuple

from tiersidecar.domain.errors import NoMemoryLeftError, NotSmallError
from tiersidecar.formats.kafka.opened_memory import OpenedMemory, SmallMemory
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.reading.asker import ASKER
from tiersidecar.reading.fair_places import FairPlaces

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Away = AbstractAsyncContextManager[None]

DEFAULT_OPENED_BYTES = 144 * 1024 * 1024
"""A zstd window of 128 MiB, the largest that Kafka's clients open, and room for others beside it."""

_WAIT_S = 0.05
_MOST_WAITS = 100


LONG_AT_ONCE = 1
"""Threads for batches that are not small: each holds its codec's window, and the interpreter with whoever else needs it."""

_IDLE_S = 1.0

_SMALL = SmallMemory()


class More(Enum):
    """What work returns that has had its turn and is not at its end; never where it was given little memory."""

    MORE = "more"


class Opening:
    """Runs what opens batches in threads: small ones, which most are, in ``blocking`` with everything else that takes a
    moment, others in ``long_blocking``, where only their like waits for them.

    There callers have their turns one after the other (``reading/asker.py``): one batch, or one piece of lines.  What finds
    no memory is tried again for five seconds, and holds neither memory nor the turn meanwhile.
    """

    def __init__(self, *, memory: OpenedMemory, blocking: Blocking, long_blocking: Blocking, clock: Clock) -> None:
        self.memory = memory
        self._blocking, self._long_blocking, self._clock = blocking, long_blocking, clock
        self._turns = FairPlaces(LONG_AT_ONCE)

    async def run(
        self, work: Callable[[OpenedMemory, *Ts], T | More], *args: *Ts, away: Callable[[], Away] = nullcontext
    ) -> T:
        """``work(memory, *args)``, again after each :data:`More.MORE`, and from where it began each time that there was no
        memory.  ``away`` is entered while what is not small is opened, or waits for it.

        Raises:
            NoMemoryLeftError: there was none in time.
            TooLargeToOpenError: there never will be.
        """
        try:
            found = await self._blocking.run(work, _SMALL, *args)
        except NotSmallError:
            async with away():
                return await self._run_in_turns(work, *args)
        assert not isinstance(found, More), "small batches are no turns of their own"
        return found

    @asynccontextmanager
    async def taken_by_another(self, give_back: Callable[[], None]) -> AsyncIterator[None]:
        """While what was opened is with a client, which may be slow: after a second ``give_back`` is called, once."""
        waiting = asyncio.create_task(self._give_back_later(give_back), name="give opened memory back")
        try:
            yield
        finally:
            waiting.cancel()

    async def _give_back_later(self, give_back: Callable[[], None]) -> None:
        await self._clock.sleep(_IDLE_S)
        give_back()

    async def _run_in_turns(self, work: Callable[[OpenedMemory, *Ts], T | More], *args: *Ts) -> T:
        found = await self._run_long(work, *args)
        while isinstance(found, More):
            try:
                found = await self._blocking.run(work, _SMALL, *args)
            except NotSmallError:
                found = await self._run_long(work, *args)
        return found

    async def _run_long(self, work: Callable[[OpenedMemory, *Ts], T | More], *args: *Ts) -> T | More:
        for _ in range(_MOST_WAITS):
            try:
                return await self._in_turn(work, *args)
            except NoMemoryLeftError:
                await self._clock.sleep(_WAIT_S)
        return await self._in_turn(work, *args)

    async def _in_turn(self, work: Callable[[OpenedMemory, *Ts], T | More], *args: *Ts) -> T | More:
        asker = ASKER.get()
        await self._turns.take(asker)
        try:
            return await self._long_blocking.run(work, self.memory, *args)
        finally:
            self._turns.give_back(asker)
