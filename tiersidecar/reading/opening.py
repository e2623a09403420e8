"""Work that opens record batches: off the loop, within the memory that there is for it (rule 8)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TypeVar, TypeVarTuple

from tiersidecar.domain.errors import NoMemoryLeftError, NotSmallError
from tiersidecar.formats.kafka.opened_memory import OpenedMemory, SmallMemory
from tiersidecar.ports.clock import Blocking, Clock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Away = AbstractAsyncContextManager[None]

DEFAULT_OPENED_BYTES = 144 * 1024 * 1024
"""A zstd window of 128 MiB, the largest that Kafka's clients open, and room for others beside it."""

_WAIT_S = 0.05
_MOST_WAITS = 100


LONG_AT_ONCE = 1
"""Threads for batches that are not small: each holds its codec's window, and the interpreter with whoever else needs it."""

_SMALL = SmallMemory()


class Opening:
    """Runs what opens batches in threads: small ones, which most are, in ``blocking`` with everything else that takes a
    moment, others in ``long_blocking``, where only their like waits for them.

    What finds no memory is tried again for five seconds, and holds none meanwhile.
    """

    def __init__(self, *, memory: OpenedMemory, blocking: Blocking, long_blocking: Blocking, clock: Clock) -> None:
        self.memory = memory
        self._blocking, self._long_blocking, self._clock = blocking, long_blocking, clock

    async def run(
        self, work: Callable[[OpenedMemory, *Ts], T], *args: *Ts, away: Callable[[], Away] = nullcontext
    ) -> T:
        """``work(memory, *args)``, from its beginning each time that it is tried.  ``away`` is entered while what is not
        small is opened, or waits for it.

        Raises:
            NoMemoryLeftError: there was none in time.
            TooLargeToOpenError: there never will be.
        """
        try:
            return await self._blocking.run(work, _SMALL, *args)
        except NotSmallError:
            async with away():
                return await self._run_long(work, *args)

    async def _run_long(self, work: Callable[[OpenedMemory, *Ts], T], *args: *Ts) -> T:
        for _ in range(_MOST_WAITS):
            try:
                return await self._long_blocking.run(work, self.memory, *args)
            except NoMemoryLeftError:
                await self._clock.sleep(_WAIT_S)
        return await self._long_blocking.run(work, self.memory, *args)
