"""Time that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count


class ManualClock:
    """``ports.clock.Clock`` whose sleepers wake only by :meth:`advance`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_s = now_ms / 1000
        self._monotonic_s = 1000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()

    def now_ms(self) -> int:
        return round(self._now_s * 1000)

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def jump(self, seconds: float) -> None:
        """Put the wall clock wrong, or right again; time itself does not pass."""
        self._now_s += seconds

    def stand_still(self, seconds: float) -> None:
        """Let time pass while the process is stopped: both clocks go on, and nothing wakes before the next :meth:`advance`."""
        self._now_s += seconds
        self._monotonic_s += seconds

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._monotonic_s + seconds, next(self._order), future))
        await future

    def wakes_within(self, seconds: float) -> bool:
        """Return whether a sleeper wakes within ``seconds``: nothing else that is awaited is a matter of time."""
        return any(wake_s <= self._monotonic_s + seconds for wake_s, _, future in self._sleepers if not future.done())

    async def advance(self, seconds: float) -> None:
        """Move both clocks, waking sleepers in their order, each with the time it asked for."""
        end_s = self._monotonic_s + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end_s:
            wake_s, _, future = heapq.heappop(self._sleepers)
            self._now_s += wake_s - self._monotonic_s
            self._monotonic_s = wake_s
            if not future.done():
                future.set_result(None)
            await settle()
        self._now_s += end_s - self._monotonic_s
        self._monotonic_s = end_s


async def settle(rounds: int = 20) -> None:
    """Let everything run that can without time passing."""
    for _ in range(rounds):
        await asyncio.sleep(0)
