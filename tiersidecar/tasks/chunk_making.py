"""Chunks of a .log on their way to the store: read, looked at and transformed in one thread, few at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tiersidecar.formats.aiven.transforms import DEFAULT_CHUNK_SIZE
from tiersidecar.ports.log_dirs import ReadAndMake
from tiersidecar.ports.store import Buffer

_MOST_HELD_S = 1.0

_FOR_EACH_CORE = 2

_MOST_KEPT_BYTES = DEFAULT_CHUNK_SIZE
"""What is larger leaves the processor's cache before it is used again, and would be held with nothing to copy: a chunk may have
1 GiB."""


class ChunkMaker:
    """Makes chunks for all segments that are copied, ``most_at_once`` at a time, or twice as many as there are cores.

    A chunk, what it becomes and the tables of a compressor fit into the processor's cache; with ten segments at once each chunk
    had left it before it was compressed.  As many as there are cores take the least processor time, a tenth less, and leave
    cores idle while one waits for its disk or is handed over.  A thread that does not come back from its disk keeps others
    waiting for a second, and no longer.
    """

    def __init__(self, *, most_at_once: int | None = None) -> None:
        self._places = asyncio.Semaphore(most_at_once or _FOR_EACH_CORE * len(os.sched_getaffinity(0)))
        self._buffers: list[bytearray] = []

    async def make(
        self,
        file: ReadAndMake,
        position: int,
        size_bytes: int,
        *,
        look: Callable[[int, memoryview], None],
        transform: Callable[[memoryview], Buffer],
    ) -> Buffer:
        """Return what ``transform`` makes of ``size_bytes`` from ``position`` on, or of fewer at the end of the file; ``look``
        has seen them then."""
        async with self._place():
            # The last one that was used: most of it is in the processor's cache still.
            buffer = self._buffers.pop() if self._buffers else bytearray()
            if len(buffer) < size_bytes:
                buffer = bytearray(size_bytes)
            try:
                return await file.read_and_make(position, memoryview(buffer)[:size_bytes], look, transform)
            finally:
                if len(buffer) <= _MOST_KEPT_BYTES:
                    self._buffers.append(buffer)

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        await self._places.acquire()
        is_held = True

        def give_back() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._places.release()

        late = asyncio.get_running_loop().call_later(_MOST_HELD_S, give_back)
        try:
            yield
        finally:
            late.cancel()
            give_back()
