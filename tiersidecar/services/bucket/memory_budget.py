"""The memory of all requests, or of all Fetch responses, together: from their first byte read to their last one sent."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Share:
    """The memory of one of them; ``has_room`` is False where there was none in time."""

    owner: str
    size_bytes: int
    has_room: bool = False
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class MemoryBudget:
    """``total_bytes``, half of them for one owner at most; a request that finds too little waits in order, and others
    overtake only an owner that has its half already."""

    def __init__(self, total_bytes: int) -> None:
        self.free_bytes, self._each_bytes = total_bytes, max(total_bytes // 2, 1)
        self._held: Counter[str] = Counter()
        self._waiting: deque[Share] = deque()

    @asynccontextmanager
    async def taken(self, owner: str, size_bytes: int, timeout_s: float) -> AsyncIterator[Share]:
        """Take ``size_bytes``, or as much as one owner may have, until the context ends."""
        waiting = Share(owner, min(size_bytes, self._each_bytes))
        self._waiting.append(waiting)
        self._serve()
        try:
            async with asyncio.timeout(timeout_s):
                await waiting.turn
        except TimeoutError:
            if not waiting.turn.done() or waiting.turn.cancelled():
                self._leave(waiting)
                yield waiting
                return
        except asyncio.CancelledError:
            self._leave(waiting)
            raise
        waiting.has_room = True
        try:
            yield waiting
        finally:
            self._give_back(waiting)

    def keep(self, share: Share, size_bytes: int) -> None:
        """Give back what ``share`` has above ``size_bytes``."""
        if share.has_room and size_bytes < share.size_bytes:
            self.free_bytes += share.size_bytes - size_bytes
            self._held[share.owner] -= share.size_bytes - size_bytes
            share.size_bytes = size_bytes
            self._serve()

    def _leave(self, waiting: Share) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)
        elif waiting.turn.done() and not waiting.turn.cancelled():
            self._give_back(waiting)
        self._serve()

    def _give_back(self, waiting: Share) -> None:
        self.free_bytes += waiting.size_bytes
        self._held[waiting.owner] -= waiting.size_bytes
        if not self._held[waiting.owner]:
            del self._held[waiting.owner]
        self._serve()

    def _serve(self) -> None:
        for waiting in tuple(self._waiting):
            if self._held[waiting.owner] + waiting.size_bytes > self._each_bytes:
                continue
            if waiting.size_bytes > self.free_bytes:
                return
            self._waiting.remove(waiting)
            self.free_bytes -= waiting.size_bytes
            self._held[waiting.owner] += waiting.size_bytes
            if not waiting.turn.done():
                waiting.turn.set_result(None)
