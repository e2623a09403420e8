"""Chunks of one segment in order, fetched ahead of a reader that goes on reading (U3)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from types import TracebackType

from tiersidecar.ports.store import Buffer
from tiersidecar.reading.chunk_manager import ChunkManager
from tiersidecar.reading.remote_objects import RemoteSegment

_TOGETHER_BYTES = 4 * 1024 * 1024
_MOST_CHUNKS_AHEAD = 128
"""Most chunks of one reader, however small they are: all readers together must not want more than may be in flight."""


class ReadAheadBudget:
    """Bytes that may be fetched ahead: ``reader_bytes`` for each reader, ``total_bytes`` for all of them together.

    A chunk counts as 1/128 of ``reader_bytes`` at least.
    """

    def __init__(self, *, reader_bytes: int, total_bytes: int) -> None:
        self.reader_bytes = reader_bytes
        self._free_bytes = total_bytes

    def charge_of(self, chunk_bytes: int) -> int:
        """Return what a chunk of this size counts as."""
        return max(chunk_bytes, self.reader_bytes // _MOST_CHUNKS_AHEAD)

    def take(self, size_bytes: int) -> bool:
        """Reserve, if there is as much left."""
        if size_bytes > self._free_bytes:
            return False
        self._free_bytes -= size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """Undo :meth:`take`."""
        self._free_bytes += size_bytes


class ReadAhead:
    """Fetches ahead as far as one reader has proved to read on, and as the budget lets it.

    Nothing is fetched ahead of the first chunk: most reads end in it.  With each further chunk that is asked for, the
    window doubles.  One object serves one reader, from segment to segment, so that the window outlives the border.  A
    reader that stops asking holds its window's chunks and no more; once closed it waits for none of them.
    """

    def __init__(self, chunks: ChunkManager, budget: ReadAheadBudget) -> None:
        self._chunks = chunks
        self._budget = budget
        self._window_bytes = 0

    @property
    def window_bytes(self) -> int:
        """Return how far it reads ahead now; 0 while the reader has not proved to read on."""
        return self._window_bytes

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._budget.give_back(self._window_bytes)
        self._window_bytes = 0

    def widen(self, size_bytes: int) -> bool:
        """Return whether the window is as large as ``size_bytes``, or could be made so."""
        missing = size_bytes - self._window_bytes
        if missing > 0 and self._budget.take(missing):
            self._window_bytes = size_bytes
        return self._window_bytes >= size_bytes

    async def read(self, segment: RemoteSegment, first: int) -> AsyncGenerator[Buffer, None]:
        """Yield the chunks of ``segment`` from number ``first`` to its last one."""
        chunk_count = segment.chunk_index.chunk_count
        charge_bytes = self._budget.charge_of(segment.chunk_index.original_chunk_size)
        ahead: deque[asyncio.Task[Buffer]] = deque()
        following = first
        try:
            for index in range(first, chunk_count):
                stop = min(index + 1 + self._window_bytes // charge_bytes, chunk_count)
                if following <= index or self._is_worth_it(stop - following, charge_bytes):
                    ahead.extend(self._start(segment, number) for number in range(following, stop))
                    following = stop
                chunk = await ahead[0]
                ahead.popleft()
                yield chunk
                self._grow(charge_bytes)
        finally:
            await _abandon(ahead)

    def _is_worth_it(self, missing: int, charge_bytes: int) -> bool:
        """Return whether enough is missing: small chunks are fetched by a quarter of a window, so that neighbours merge."""
        return missing * charge_bytes >= min(_TOGETHER_BYTES, self._window_bytes // 4)

    def _grow(self, charge_bytes: int) -> None:
        wanted = min(self._window_bytes or charge_bytes, self._budget.reader_bytes - self._window_bytes)
        if wanted > 0 and self._budget.take(wanted):
            self._window_bytes += wanted

    def _start(self, segment: RemoteSegment, index: int) -> asyncio.Task[Buffer]:
        return asyncio.create_task(self._chunks.get_chunk(segment, index), name=f"chunk {index} of {segment.id}")


async def _abandon(ahead: deque[asyncio.Task[Buffer]]) -> None:
    """Stop waiting; a fetch that a cache below has begun goes on to its end."""
    for task in ahead:
        task.cancel()
    await asyncio.gather(*ahead, return_exceptions=True)
