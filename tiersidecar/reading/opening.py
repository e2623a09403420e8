"""Work that opens record batches: off the loop, within the memory that there is for it (rule 8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from tiersidecar.domain.errors import NoMemoryLeftError
from tiersidecar.formats.kafka.opened_memory import OpenedMemory
from tiersidecar.ports.clock import Blocking, Clock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

DEFAULT_OPENED_BYTES = 160 * 1024 * 1024
"""A zstd window of 128 MiB, the largest that Kafka's clients open, and room for others beside it."""

_WAIT_S = 0.05
_MOST_WAITS = 100


class Opening:
    """Runs what opens batches in threads; what finds no memory is tried again for five seconds, and holds none meanwhile."""

    def __init__(self, *, memory: OpenedMemory, blocking: Blocking, clock: Clock) -> None:
        self.memory = memory
        self._blocking, self._clock = blocking, clock

    async def run(self, work: Callable[[OpenedMemory, *Ts], T], *args: *Ts) -> T:
        """``work(memory, *args)``, from its beginning each time that it is tried.

        Raises:
            NoMemoryLeftError: there was none in time.
            TooLargeToOpenError: there never will be.
        """
        for _ in range(_MOST_WAITS):
            try:
                return await self._blocking.run(work, self.memory, *args)
            except NoMemoryLeftError:
                await self._clock.sleep(_WAIT_S)
        return await self._blocking.run(work, self.memory, *args)
