"""Limits on what readers take together: places, given to callers in turn, and bytes of what has left the brokers' disks.

A caller with many requests delays only its own.

Clients choose their ids, and the operator pays the store's bill: how much each reader reads is counted, the readers listed by
name are bounded, and so is each principal's share of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial

from tiersidecar.decide.quota import RateQuota
from tiersidecar.decide.reader_quotas import ColdReader, ReaderQuotaRule, find_budget
from tiersidecar.domain.errors import TiersidecarError
from tiersidecar.domain.taken import NOTHING
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.reading import COLD_READ_BYTES, COLD_READ_REQUESTS
from tiersidecar.ports.shares import Shared, Shares
from tiersidecar.ports.telemetry import NoTelemetry, Telemetry

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


READER: ContextVar[ColdReader | None] = ContextVar("cold_reader", default=None)
"""Set by the read service.  The gateway counts what it gives to clients instead: its reads may serve several, or run ahead."""

OTHERS = "(others)"
_NAMED = 100
"""Readers with figures of their own: of principal, client id and topic."""
_NAMED_OF_A_PRINCIPAL = 20
_NAME_CHARACTERS = 100
_SILENT_S = 3600.0
"""Silence after which a reader listed by name may give way to another."""
BUDGETS = 10_000
"""Budgets in use at a time; the one idle for longest begins anew."""
_KEY_CHARACTERS = 255
"""A client id may have 32 KiB, and each may differ: ids that begin alike share a budget."""

_Key = tuple[str, str, str]
"""Principal, client id, topic."""
_ALL_OTHERS: _Key = (OTHERS, OTHERS, OTHERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdReading:
    """Reads of one topic by one reader since the process began."""

    principal: str
    client_id: str
    topic: str
    requests: int
    size_bytes: int


def summed_readings(readings: Iterable[ColdReading]) -> list[ColdReading]:
    """Return one for each reader and topic, the one with the most bytes first."""
    sums: dict[tuple[str, str, str], tuple[int, int]] = {}
    for one in readings:
        key = (one.principal, one.client_id, one.topic)
        requests, size_bytes = sums.get(key, (0, 0))
        sums[key] = (requests + one.requests, size_bytes + one.size_bytes)
    found = [
        ColdReading(principal=principal, client_id=client_id, topic=topic, requests=requests, size_bytes=size_bytes)
        for (principal, client_id, topic), (requests, size_bytes) in sums.items()
    ]
    return sorted(found, key=lambda one: -one.size_bytes)


@dataclass(slots=True)
class _Read:
    requests: int = 0
    size_bytes: int = 0
    last_s: float = 0.0


class ColdReads:
    """One per process; budgets are those of all processes of ``shares`` together.

    ``window_num`` windows of ``window_size_s`` are averaged over, as for the fetch quota of all.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        rules: Sequence[ReaderQuotaRule] = (),
        window_num: int = 11,
        window_size_s: float = 1.0,
        telemetry: Telemetry | None = None,
        shares: Shares | None = None,
    ) -> None:
        self._clock, self._rules = clock, tuple(rules)
        self._window_num, self._window_size_s = window_num, window_size_s
        self._telemetry = telemetry or NoTelemetry()
        self._shares = shares
        self._read: OrderedDict[_Key, _Read] = OrderedDict()
        self._budgets: OrderedDict[tuple[str | None, str | None], RateQuota] = OrderedDict()

    def throttle_s(self, reader: ColdReader | None) -> float:
        """Return the seconds until ``reader`` is within its budget; 0 where it is, or has none."""
        quota = self._quota_of(reader)
        return 0.0 if quota is None else quota.throttle_s(self._clock.monotonic_s())

    def begun(self, reader: ColdReader, topic: str) -> None:
        """Count a request for a remote part of ``topic``."""
        self._count(reader, topic, requests=1)

    def took(self, reader: ColdReader, topic: str, size_bytes: int) -> None:
        """Count and charge what ``reader`` was given."""
        self._count(reader, topic, size_bytes=size_bytes)
        self._charge(reader, size_bytes)

    def answered(self, reader: ColdReader, topic: str, size_bytes: int) -> None:
        """Count a request for a remote part of ``topic``, and count and charge what ``reader`` was given: :meth:`begun` and
        :meth:`took` at once."""
        self._count(reader, topic, requests=1, size_bytes=size_bytes)
        if size_bytes:
            self._charge(reader, size_bytes)

    @property
    def readings(self) -> Sequence[ColdReading]:
        """Return all readers listed by name, and the others together; the one with the most bytes first."""
        readings = [
            ColdReading(
                principal=principal,
                client_id=client_id,
                topic=topic,
                requests=read.requests,
                size_bytes=read.size_bytes,
            )
            for (principal, client_id, topic), read in self._read.items()
        ]
        return sorted(readings, key=lambda one: -one.size_bytes)

    def _charge(self, reader: ColdReader, size_bytes: int) -> None:
        quota = self._quota_of(reader)
        if quota is not None:
            quota.record(size_bytes, self._clock.monotonic_s())

    def _count(self, reader: ColdReader, topic: str, *, requests: int = 0, size_bytes: int = 0) -> None:
        key = self._key_of(reader, topic)
        read = self._read.setdefault(key, _Read())
        self._read.move_to_end(key)
        read.requests += requests
        read.size_bytes += size_bytes
        read.last_s = self._clock.monotonic_s()
        labels = _labels(key)
        if requests:
            self._telemetry.count(COLD_READ_REQUESTS, requests, **labels)
        if size_bytes:
            self._telemetry.count(COLD_READ_BYTES, size_bytes, **labels)

    def _key_of(self, reader: ColdReader, topic: str) -> _Key:
        principal, client_id = reader.principal[:_NAME_CHARACTERS], reader.client_id[:_NAME_CHARACTERS]
        key = (principal, client_id, topic)
        if key in self._read or (self._has_room() and self._named_of(principal) < _NAMED_OF_A_PRINCIPAL):
            return key
        of_principal = (principal, OTHERS, OTHERS)
        return of_principal if of_principal in self._read or self._has_room() else _ALL_OTHERS

    def _has_room(self) -> bool:
        """Return whether one more reader may be listed, dropping the one silent for longest if that was long enough."""
        if len(self._read) < _NAMED:
            return True
        oldest = next(iter(self._read))
        if self._clock.monotonic_s() - self._read[oldest].last_s < _SILENT_S:
            return False
        del self._read[oldest]
        for metric in (COLD_READ_BYTES, COLD_READ_REQUESTS):
            self._telemetry.forget(metric, **_labels(oldest))
        return True

    def _named_of(self, principal: str) -> int:
        return sum(known == principal for known, _, _ in self._read)

    def _quota_of(self, reader: ColdReader | None) -> RateQuota | None:
        budget = find_budget(self._rules, reader) if reader is not None and self._rules else None
        if budget is None:
            return None
        user, client_id = (None if name is None else name[:_KEY_CHARACTERS] for name in budget.key)
        key = (user, client_id)
        quota = self._budgets.pop(key, None) or self._new_quota(key, budget.bytes_per_s)
        self._budgets[key] = quota
        if len(self._budgets) > BUDGETS:
            _, idle = self._budgets.popitem(last=False)
            if idle.show is not None:
                idle.show(NOTHING)
        return quota

    def _new_quota(self, key: tuple[str | None, str | None], bytes_per_s: float) -> RateQuota:
        quota = RateQuota(bytes_per_s=bytes_per_s, window_num=self._window_num, window_size_s=self._window_size_s)
        if self._shares is not None:
            shown = repr(key)
            quota.others = partial(self._shares.everywhere_else, Shared.READER_QUOTA, shown)
            quota.show = partial(self._shares.show, Shared.READER_QUOTA, key=shown)
        return quota


def _labels(key: _Key) -> dict[str, str]:
    return dict(zip(("principal", "client_id", "topic"), key, strict=True))
