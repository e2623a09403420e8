"""Admission of remote reads: how many run, wait or are shed (S-138, S-140, S-161; T-58), and their requests to the store (U4).

A reader that is shed is given a time to come back.  With a fixed second, a crowd would ask faster than it can be refused.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from tiersidecar.domain.errors import QuotaExceededError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.reading import (
    FETCH_THROTTLE_SECONDS,
    READ_POOL_BUSY,
    READER_FETCH_SECONDS,
    READER_IDLE_RATIO,
    READER_TASK_QUEUE_SIZE,
    READS_SHED,
)
from tiersidecar.ports.store import Buffer, ReadStore, Take
from tiersidecar.ports.telemetry import NoTelemetry, Telemetry
from tiersidecar.reading.reader_limits import ASKER, READER, ColdReads, FairPlaces, PlacesFullError

_LEAST_S, _MOST_S = 1.0, 10.0
_LOOK_EVERY_S = 1.0


class RetryAfter:
    """Spread readers that were shed over the time that serving them takes.

    By Little's law, the number of readers outside is the number refused per second, times the seconds for which they are sent
    away.  The number served per second gives the time to serve them.  Between 1 and 10 seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._after_s = _LEAST_S
        self._since_s = clock.monotonic_s()
        self._refused = self._served = 0

    def served(self) -> None:
        """Count one step of a read that is done."""
        self._look()
        self._served += 1

    def refused_ms(self) -> int:
        """Count one refused read, and return the milliseconds after which it may try again."""
        self._look()
        self._refused += 1
        return int(self._after_s * 1000)

    def _look(self) -> None:
        passed_s = self._clock.monotonic_s() - self._since_s
        if passed_s < _LOOK_EVERY_S:
            return
        outside = self._refused / passed_s * self._after_s
        served_per_s = self._served / passed_s
        self._after_s = min(max(outside / served_per_s if served_per_s else outside, _LEAST_S), _MOST_S)
        self._since_s += passed_s
        self._refused = self._served = 0


T = TypeVar("T")

_RETRY_AFTER_MS = 1000


class FetchQuota(Protocol):
    """Bytes per second (``remote.log.manager.fetch.max.bytes.per.second``), or requests per minute: reads over it are shed,
    never queued."""

    def throttle_s(self) -> float:
        """Return 0 when a read may start, else the seconds until one may."""

    def record(self, amount: int) -> None:
        """Charge bytes that a read has returned, or requests that it has made."""


class UnlimitedQuota:
    """No quota."""

    def throttle_s(self) -> float:
        return 0.0

    def record(self, amount: int) -> None:
        return None


class ReaderPool:
    """``remote.log.reader.threads`` reads at once, ``remote.log.reader.max.pending.tasks`` waiting, the rest shed at once.

    Places go to callers in turn (:mod:`fair_places`), and one has four fifths of them at most; when too many wait, the one
    with the most of them waiting loses its last.
    New reads are shed too while ``quota`` (bytes), the reader's own budget in ``cold``, or ``requests`` (to the store) are
    used up.  A long stream takes its place step by step, so that a slow client holds none while it is being written to.
    """

    def __init__(
        self,
        *,
        running: int = 10,
        waiting: int = 100,
        quota: FetchQuota | None = None,
        requests: FetchQuota | None = None,
        telemetry: Telemetry | None = None,
        clock: Clock | None = None,
        cold: ColdReads | None = None,
    ) -> None:
        self._running = running
        self._places = FairPlaces(running, most_each=running - running // 5, waiting=waiting, waits=self._count_waiting)
        self._busy = self._away = 0
        self._quota = quota or UnlimitedQuota()
        self._requests = requests or UnlimitedQuota()
        self._telemetry = telemetry or NoTelemetry()
        self._clock = clock
        self._retry_after = RetryAfter(clock) if clock else None
        self._cold = cold

    def begun(self, topic: str) -> None:
        """Count a read, of a reader that is known."""
        reader = READER.get()
        if self._cold and reader:
            self._cold.begun(reader, topic)

    def charge(self, topic: str, size_bytes: int) -> None:
        """Charge what a read has returned, to the quota of all and to that of the reader, if it is known."""
        self._quota.record(size_bytes)
        reader = READER.get()
        if self._cold and reader:
            self._cold.took(reader, topic, size_bytes)

    def _reader_throttle_s(self) -> float:
        return self._cold.throttle_s(READER.get()) if self._cold else 0.0

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[Place]:
        """Yield a place for a new read.

        Raises:
            QuotaExceededError: a quota is used up, or as many wait as may; at once, without waiting.
        """
        if (throttle_s := self._quota.throttle_s()) > 0:
            self._telemetry.count(FETCH_THROTTLE_SECONDS, throttle_s)
            raise self._shed("fetch_quota", "the remote fetch quota", _retry_after_ms(throttle_s))
        if (throttle_s := self._reader_throttle_s()) > 0:
            self._telemetry.count(FETCH_THROTTLE_SECONDS, throttle_s)
            raise self._shed("reader_quota", "the reader's remote.fetch.quota", _retry_after_ms(throttle_s))
        if (throttle_s := self._requests.throttle_s()) > 0:
            raise self._shed("store_requests", "the budget of requests to the store", _retry_after_ms(throttle_s))
        async with self._in_place(may_be_shed=True) as place:
            yield place

    @asynccontextmanager
    async def resume(self) -> AsyncIterator[Place]:
        """Yield a place for the next step of a read that was admitted: it waits its turn and is no longer shed."""
        async with self._in_place(may_be_shed=False) as place:
            yield place

    @asynccontextmanager
    async def _in_place(self, *, may_be_shed: bool) -> AsyncIterator[Place]:
        place = Place(self, ASKER.get())
        await place.take(may_be_shed=may_be_shed)
        began_s = self._clock.monotonic_s() if self._clock else 0.0
        try:
            yield place
        finally:
            place.give_back()
            if self._clock and self._retry_after:
                self._retry_after.served()
                self._telemetry.observe(READER_FETCH_SECONDS, self._clock.monotonic_s() - began_s)

    async def wait_for_place(self, asker: str, *, may_be_shed: bool) -> None:
        """Wait for a place, for :class:`Place`."""
        try:
            await self._places.take(asker, may_be_shed=may_be_shed)
        except PlacesFullError:
            retry_after_ms = self._retry_after.refused_ms() if self._retry_after else _RETRY_AFTER_MS
            raise self._shed("pool", "the remote reader pool", retry_after_ms) from None
        self._count(1)

    def place_is_free(self, asker: str) -> None:
        """Free a place, for :class:`Place`."""
        self._count(-1)
        self._places.give_back(asker)

    def go_away(self) -> bool:
        """Return whether one more read may give up its place and keep what it has read, until :meth:`retry_after`; for
        :class:`Place`."""
        if self._away >= self._running:
            return False
        self._away += 1
        return True

    def retry_after(self) -> None:
        """End what :meth:`go_away` began; for :class:`Place`."""
        self._away -= 1

    async def in_steps(self, parts: AsyncGenerator[T, None], clock: Clock) -> AsyncGenerator[T, None]:
        """Yield ``parts``, each fetched in a place of its own, which is given back while the caller has the part.

        A quota that is used up meanwhile delays the read: it has begun and is no longer shed.

        Raises:
            QuotaExceededError: shed before the first part.
        """
        place = self.admit()
        while True:
            async with place:
                part = await anext(parts, None)
            if part is None:
                return
            yield part
            quota_s = max(self._quota.throttle_s(), self._reader_throttle_s())
            if (throttle_s := max(quota_s, self._requests.throttle_s())) > 0:
                self._telemetry.count(FETCH_THROTTLE_SECONDS, quota_s)
                await clock.sleep(throttle_s)
            place = self.resume()

    def _shed(self, reason: str, what: str, retry_after_ms: int) -> QuotaExceededError:
        self._telemetry.count(READS_SHED, reason=reason)
        return QuotaExceededError(what=what, retry_after_ms=retry_after_ms)

    def _count_waiting(self, waiting: int) -> None:
        self._telemetry.gauge(READER_TASK_QUEUE_SIZE, waiting)

    def _count(self, change: int) -> None:
        self._busy += change
        self._telemetry.gauge(READER_IDLE_RATIO, 1 - self._busy / self._running)
        self._telemetry.gauge(READ_POOL_BUSY, self._busy)


class Place:
    """One place of ``pool``, for one read of ``asker``."""

    def __init__(self, pool: ReaderPool, asker: str) -> None:
        self._pool, self._asker, self._is_ours = pool, asker, False

    async def take(self, *, may_be_shed: bool = False) -> None:
        """Wait for the place.

        Raises:
            QuotaExceededError: too many wait; only with ``may_be_shed``.
        """
        await self._pool.wait_for_place(self._asker, may_be_shed=may_be_shed)
        self._is_ours = True

    def give_back(self) -> None:
        """Give the place back, if it is held."""
        if self._is_ours:
            self._is_ours = False
            self._pool.place_is_free(self._asker)

    @asynccontextmanager
    async def given_back(self) -> AsyncIterator[None]:
        """Give the place back while a long step needs nothing from the store, and wait for it again afterwards.

        At most as many reads as there are places may be away at a time, since each keeps what it has read in memory.  The next
        one keeps its place.
        """
        if not self._pool.go_away():
            yield
            return
        self.give_back()
        try:
            yield
        finally:
            self._pool.retry_after()
            await self.take()


def _retry_after_ms(throttle_s: float) -> int:
    return int(throttle_s * 1000) + 1


class CountedFetches:
    """Pass everything on to ``store``, and charge ``requests`` one for each call."""

    def __init__(self, store: ReadStore, requests: FetchQuota) -> None:
        self._store, self._requests = store, requests

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        """Return exactly ``len(byte_range)`` bytes."""
        self._requests.record(1)
        return await self._store.fetch_range(key, byte_range)

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        """Return a whole small object (manifest, index blob), of at most ``max_bytes``."""
        self._requests.record(1)
        return await self._store.fetch_object(key, max_bytes=max_bytes)

    @property
    def is_local(self) -> bool:
        """Return whether objects are files here."""
        return self._store.is_local

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        """Pass the bytes of ``byte_range`` to ``take``, piece by piece in their order, until it returns False."""
        self._requests.record(1)
        await self._store.feed_range(key, byte_range, take)
