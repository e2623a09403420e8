"""Ranged GETs that take longer than most are sent a second time, and the first whole answer counts (U4)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tiersidecar.domain.errors import ObjectNotFoundError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.reading import HEDGED_FETCHES
from tiersidecar.ports.store import Buffer, ReadStore, Take
from tiersidecar.ports.telemetry import Telemetry

_REMEMBERED = 256
"""Fetches of one size whose times show how long such a fetch takes."""
_LEAST_KNOWN = 20
_LATE = 0.95
"""A fetch is late when so large a share of those like it took less time."""
_NOT_WORTH_IT = 1.5
"""A fetch that has taken less than so many times the median is not late: a second one would win nothing."""
_MOST_SAVED = 10.0
"""Second fetches that may come together, after a time without any."""
_OUTCOMES = ("first", "second", "too_many")

T = TypeVar("T")


class FetchTimes:
    """Times of the last fetches of about one size, in seconds."""

    def __init__(self) -> None:
        self._times_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._late_s: float | None = None
        self._left = _LEAST_KNOWN

    @property
    def late_s(self) -> float | None:
        """Return the time after which a fetch is late; None while too few are known."""
        return self._late_s

    def add(self, elapsed_s: float) -> None:
        """Take one more into account.  One that was overtaken counts with the time after which it was cancelled."""
        self._times_s.append(elapsed_s)
        self._left -= 1
        if self._left <= 0:
            ordered = sorted(self._times_s)
            of_most = ordered[int(len(ordered) * _LATE)]
            self._late_s = max(of_most, ordered[len(ordered) // 2] * _NOT_WORTH_IT)
            self._left = _LEAST_KNOWN


class HedgedFetches:
    """Pass everything on to ``store``; a late fetch gets a second one beside it, and the slower one is cancelled.

    A second fetch is sent for at most ``percent`` of a hundred, and none of a store that is local.  A fetch fails only if
    both do, or if the first one finds no object.
    """

    def __init__(self, store: ReadStore, *, percent: int, clock: Clock, telemetry: Telemetry) -> None:
        self._store, self._percent, self._clock, self._telemetry = store, percent, clock, telemetry
        self._saved = 1.0
        self._times: dict[int, FetchTimes] = {}
        self._overtaken: set[asyncio.Future[object]] = set()
        for outcome in _OUTCOMES:
            telemetry.count(HEDGED_FETCHES, 0, outcome=outcome)

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        """Return exactly ``len(byte_range)`` bytes."""
        times = self._times_of(len(byte_range))
        return await self._hedged(times, lambda: self._store.fetch_range(key, byte_range))

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        """Return a whole small object of at most ``max_bytes``; used for manifests, all of them small."""
        times = self._times_of(0)
        return await self._hedged(times, lambda: self._store.fetch_object(key, max_bytes=max_bytes))

    @property
    def is_local(self) -> bool:
        """Return whether objects are files here."""
        return self._store.is_local

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        """Pass the bytes to ``take``; what was handed over cannot be taken back, so there is no second request."""
        await self._store.feed_range(key, byte_range, take)

    async def aclose(self) -> None:
        """Wait until the fetches that were overtaken, and already cancelled, have ended."""
        await asyncio.gather(*self._overtaken, return_exceptions=True)

    def _times_of(self, size_bytes: int) -> FetchTimes:
        """Return the times of fetches of about that size: within a factor of four they take about the same time."""
        return self._times.setdefault(size_bytes.bit_length() // 2, FetchTimes())

    async def _hedged(self, times: FetchTimes, fetch: Callable[[], Awaitable[T]]) -> T:
        if self._store.is_local or not self._percent:
            return await fetch()
        self._saved = min(self._saved + self._percent / 100, _MOST_SAVED)
        began_s, late_s = self._clock.monotonic_s(), times.late_s
        if late_s is None:
            result = await fetch()
            times.add(self._clock.monotonic_s() - began_s)
            return result
        running: list[asyncio.Future[T]] = [asyncio.ensure_future(fetch())]
        try:
            await self._wait(running[0], late_s)
            if not running[0].done() and self._may_send_another():
                running.append(asyncio.ensure_future(fetch()))
            result = await self._first_of(running)
        except BaseException:
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            raise
        times.add(self._clock.monotonic_s() - began_s)
        return result

    def _may_send_another(self) -> bool:
        if self._saved < 1:
            self._telemetry.count(HEDGED_FETCHES, outcome="too_many")
            return False
        self._saved -= 1
        return True

    async def _wait(self, first: asyncio.Future[T], at_most_s: float) -> None:
        sleeping = asyncio.ensure_future(self._clock.sleep(at_most_s))
        try:
            await asyncio.wait((first, sleeping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()

    async def _first_of(self, running: list[asyncio.Future[T]]) -> T:
        """Return the first good answer; raise the first one's error when there is none, or when it found no object."""
        pending: set[asyncio.Future[T]] = set(running)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            good = [one for one in running if one in done and not one.cancelled() and one.exception() is None]
            if good:
                for slower in pending:
                    self._give_up(slower)
                if len(running) > 1:
                    outcome = "first" if good[0] is running[0] else "second"
                    self._telemetry.count(HEDGED_FETCHES, outcome=outcome)
                return good[0].result()
            if running[0] in done and isinstance(running[0].exception(), ObjectNotFoundError):
                break
        return running[0].result()

    def _give_up(self, slower: asyncio.Future[T]) -> None:
        """Cancel ``slower`` without waiting for its end."""
        slower.cancel()
        self._overtaken.add(slower)  # type: ignore[arg-type]
        slower.add_done_callback(self._ended)

    def _ended(self, slower: asyncio.Future[T]) -> None:
        self._overtaken.discard(slower)
        slower.cancelled() or slower.exception()  # reading it keeps asyncio from reporting it as never retrieved
