"""Places given to callers in turn: a caller with many requests delays only its own (issue 17)."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from tiersidecar.domain.errors import TiersidecarError

ASKER: ContextVar[str] = ContextVar("asker", default="")
"""Set by the service that serves a caller; empty for the daemon's own reads."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    given: asyncio.Future[None]
    may_be_shed: bool


class PlacesFullError(TiersidecarError):
    """The line is full, and no other caller has more requests in it: internal to this package."""


class FairPlaces:
    """Give out ``count`` places: to waiting callers in turn, and to the requests of each caller in their order.

    A caller has at most ``most_each`` places, so that other callers wait no longer for a place than their own requests take.
    At most ``waiting`` requests wait, if given: when the line is full, the caller with the most loses its last one.
    ``waits`` is called with the number of waiting requests when it changes.
    """

    def __init__(
        self,
        count: int,
        *,
        most_each: int | None = None,
        waiting: int | None = None,
        waits: Callable[[int], object] = int,
    ) -> None:
        self._free = count
        self._most_each = count if most_each is None else most_each
        self._most_waiting = waiting
        self._held = Counter[str]()
        self._lines = OrderedDict[str, deque[_Waiting]]()
        self._waiting, self._waits = 0, waits

    async def take(self, asker: str, *, may_be_shed: bool = False) -> None:
        """Wait for a place and hold it until :meth:`give_back`.

        Raises:
            PlacesFullError: the line is full, and this caller's part of it is the longest; only with ``may_be_shed``.
        """
        if asker not in self._lines and self._may_have(asker):
            self._free -= 1
            self._held[asker] += 1
            return
        if may_be_shed:
            self._make_room(asker)
        place = _Waiting(asyncio.get_running_loop().create_future(), may_be_shed)
        self._lines.setdefault(asker, deque()).append(place)
        self._wait(1)
        await self._until_given(asker, place)

    async def give_way(self, asker: str) -> None:
        """Give a place of ``asker`` to the next of the other callers, and wait for it again ahead of this caller's own
        requests: work that has begun ends before more is begun.  Once cancelled, it holds no place."""
        place = _Waiting(asyncio.get_running_loop().create_future(), may_be_shed=False)
        self._lines.setdefault(asker, deque()).appendleft(place)
        self._lines.move_to_end(asker)
        self._wait(1)
        self.give_back(asker)
        await self._until_given(asker, place)

    async def _until_given(self, asker: str, place: _Waiting) -> None:
        try:
            await place.given
        except asyncio.CancelledError:
            if place.given.done() and not place.given.cancelled() and place.given.exception() is None:
                self.give_back(asker)
            else:
                self._leave(asker, place)
            raise

    def give_back(self, asker: str) -> None:
        """Free a place of ``asker``; the next caller has it at once."""
        self._free += 1
        self._held[asker] -= 1
        if not self._held[asker]:
            del self._held[asker]
        self._hand_out()

    def _may_have(self, asker: str) -> bool:
        return self._free > 0 and self._held[asker] < self._most_each

    def _hand_out(self) -> None:
        while self._free and (asker := next((one for one in self._lines if self._may_have(one)), None)) is not None:
            line = self._lines[asker]
            place = line.popleft()
            self._wait(-1)
            if line:
                self._lines.move_to_end(asker)
            else:
                del self._lines[asker]
            if place.given.done():
                continue  # its task was cancelled, and has not run since
            self._free -= 1
            self._held[asker] += 1
            place.given.set_result(None)

    def _wait(self, change: int) -> None:
        self._waiting += change
        self._waits(self._waiting)

    def _leave(self, asker: str, place: _Waiting) -> None:
        line = self._lines.get(asker)
        if line is None or place not in line:
            return
        line.remove(place)
        self._wait(-1)
        if not line:
            del self._lines[asker]

    def _make_room(self, asker: str) -> None:
        """Let one more request wait, at the cost of the caller with the most.

        Raises:
            PlacesFullError: at the cost of ``asker``.
        """
        if self._most_waiting is None or self._waiting < self._most_waiting:
            return
        own = len(self._lines.get(asker, ()))
        longest = max(self._lines, key=lambda one: len(self._lines[one]), default=asker)
        if own + 1 >= len(self._lines.get(longest, ())):
            raise PlacesFullError
        line = reversed(self._lines[longest])
        shed = next((place for place in line if place.may_be_shed or place.given.done()), None)
        if shed is None:
            raise PlacesFullError
        self._leave(longest, shed)
        if not shed.given.done():  # else its task was cancelled, and has not run since
            shed.given.set_exception(PlacesFullError())
