"""One piece of work per key, shared by all who ask for it, and not lost when they stop asking (U2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

from tiersidecar.domain.errors import QuotaExceededError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Runs at most one task per key.

    A caller that is cancelled stops waiting; the work goes on to its end, so that what it puts into a cache is there
    for the retry.  At most ``max_flights`` run, because callers that give up early would otherwise pile them up.
    """

    def __init__(self, name: str, *, max_flights: int = 256, retry_after_ms: int = 1000) -> None:
        self._name = name
        self._max_flights = max_flights
        self._retry_after_ms = retry_after_ms
        self._flights: dict[K, asyncio.Task[V]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def has(self, key: K) -> bool:
        """Whether work for ``key`` is in flight."""
        return key in self._flights

    async def run(self, key: K, work: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """The result of the work in flight for ``key``, else of ``work``.

        Raises:
            QuotaExceededError: too much is in flight already.
        """
        return await asyncio.shield(self._flights.get(key) or self._start(key, work))

    async def aclose(self) -> None:
        """Cancel what is in flight and wait until it has ended."""
        flights = list(self._flights.values())
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)

    def _start(self, key: K, work: Callable[[], Coroutine[Any, Any, V]]) -> asyncio.Task[V]:
        if len(self._flights) >= self._max_flights:
            raise QuotaExceededError(what=f"{self._name} in flight", retry_after_ms=self._retry_after_ms)
        flight = asyncio.create_task(work(), name=f"{self._name} {key}")
        self._flights[key] = flight
        flight.add_done_callback(partial(self._land, key))
        return flight

    def _land(self, key: K, flight: asyncio.Task[V]) -> None:
        del self._flights[key]
        if not flight.cancelled():
            # Every caller may have left: reading the error here keeps asyncio from reporting it as never retrieved.
            flight.exception()
