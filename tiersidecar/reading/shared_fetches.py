"""Objects that several readers want at once: fetched once, within a time limit, and kept up to a bound in bytes (U2)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

from tiersidecar.domain.errors import QuotaExceededError, StoreError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Run at most one task per key.

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
        """Return whether work for ``key`` is in flight."""
        return key in self._flights

    async def run(self, key: K, work: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Return the result of the work in flight for ``key``, else of ``work``.

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


class ByteLru(Generic[K, V]):
    """A map that drops its least recently used values once the sizes add up to more than ``max_bytes``.

    A value larger than the whole bound is not kept: it would drive out everything and then itself.  A dropped value that
    a reader still holds stays alive for that reader alone, so nothing in use is torn away (S-131, U22).
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of what is kept."""
        return self._size_bytes

    def get(self, key: K) -> V | None:
        """Return the value, which becomes the most recently used one; None when it is not kept."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, size_bytes: int) -> list[tuple[K, V]]:
        """Keep ``value``, in place of an earlier one; return what had to go for it, oldest first."""
        self.discard(key)
        if size_bytes > self._max_bytes:
            return [(key, value)]
        self._entries[key] = (value, size_bytes)
        self._size_bytes += size_bytes
        return self._shrink()

    def discard(self, key: K) -> V | None:
        """Drop one value, if it is kept; return it."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._size_bytes -= entry[1]
        return entry[0]

    def oldest(self) -> tuple[K, V] | None:
        """Return the least recently used one; None when nothing is kept."""
        for key, (value, _) in self._entries.items():
            return key, value
        return None

    def keys(self) -> list[K]:
        """Return the keys from the least to the most recently used."""
        return list(self._entries)

    def _shrink(self) -> list[tuple[K, V]]:
        dropped = []
        while self._size_bytes > self._max_bytes:
            key, (value, size_bytes) = self._entries.popitem(last=False)
            self._size_bytes -= size_bytes
            dropped.append((key, value))
        return dropped


FETCH_TIMEOUT_S = 60.0

T = TypeVar("T")


async def fetch_within(timeout_s: float, key: str, fetch: Awaitable[T]) -> T:
    """Return what ``fetch``, of the object ``key``, gives.

    Raises:
        StoreError: not within ``timeout_s``; and as ``fetch`` does.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await fetch
    except TimeoutError as error:
        raise StoreError(verb="fetch", key=key, reason=f"it did not come within {timeout_s} s") from error
