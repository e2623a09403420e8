"""How many segments are copied at once, and who is next: in turns, so that no partition starves another."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

LIVE = -1
"""The rank of who has no backlog: before every rank of a backfill."""


class CopySlots:
    """``size`` at once, lower ranks first, first come first served within a rank.

    A segment takes a slot, not a partition: whoever has more queues again behind the others of its rank.  ``reserved`` slots
    are for :data:`LIVE` alone.
    """

    def __init__(self, size: int, *, reserved: int = 0) -> None:
        self._size, self._reserved = size, reserved
        self._taken = 0
        self._arrivals = count()
        self._queue: list[tuple[int, int, asyncio.Future[None]]] = []

    @property
    def size(self) -> int:
        """May change at any time: more are let in at once, and of those that are in none is put out (S-174)."""
        return self._size

    @size.setter
    def size(self, size: int) -> None:
        self._size = size
        self._let_in()

    @asynccontextmanager
    async def taking(self, rank: int) -> AsyncIterator[None]:
        """A slot for the length of the block."""
        await self._take(rank)
        try:
            yield
        finally:
            self._taken -= 1
            self._let_in()

    async def _take(self, rank: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (rank, next(self._arrivals), turn))
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._taken -= 1  # it was let in while it was cancelled
            self._let_in()
            raise

    def _let_in(self) -> None:
        while self._queue:
            rank, _, turn = self._queue[0]
            if turn.done():
                heapq.heappop(self._queue)
                continue
            room = self._size if rank == LIVE else max(self._size - self._reserved, 1)
            if self._taken >= room:
                return
            heapq.heappop(self._queue)
            self._taken += 1
            turn.set_result(None)
