"""A gate for the store of each place: while one is closed, the copies of its topics wait, and the others go on.

While a store is away no copy to it is begun: a STARTED event per partition and retry would swell the metadata topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Protocol

import structlog

from tiersidecar.domain.errors import StoreError, StoreStalledError
from tiersidecar.domain.ids import DEFAULT_PLACE, place_of, place_prefix
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.copying import COPY_ERRORS, COPY_REQUESTS
from tiersidecar.ports.metrics.process import PLACE_WRITABLE, STORE_WRITABLE
from tiersidecar.ports.telemetry import NoTelemetry, Telemetry

log = structlog.get_logger(__name__)


class ProbedStore(Protocol):
    """The part of a store that a gate needs (:class:`~tiersidecar.ports.store.Store`)."""

    @property
    def description(self) -> str: ...

    async def check_writable(self) -> None: ...


class StoreGate:
    """Closed at start and whenever a copy meets a store error; a probe that succeeds opens it.  ``place`` is the store's, empty
    for the default one."""

    def __init__(
        self, store: ProbedStore, clock: Clock, telemetry: Telemetry | None = None, *, place: str = DEFAULT_PLACE
    ) -> None:
        self._store, self._clock, self._telemetry = store, clock, telemetry or NoTelemetry()
        self._place = place
        self._since_s, self._failures = clock.monotonic_s(), 0
        self._closed_by: StoreError | None = StoreError(verb="probe", key="", reason="it has not been probed yet")
        self._probing, self._probes = asyncio.Lock(), 0

    @property
    def closed_reason(self) -> str:
        """Return what closed the gate; empty while it is open."""
        if self._closed_by is None:
            return ""
        return f"place {self._place}: {self._closed_by}" if self._place else str(self._closed_by)

    def has_logged(self, error: Exception) -> bool:
        """Return whether ``error`` is one more of the outage that was logged at its begin; it is counted, and logged at its
        end."""
        if self._closed_by is None or not isinstance(error, StoreError):
            return False
        self._failures += 1
        return True

    async def wait_open(self) -> None:
        """Return at once while the gate is open, else after a probe of the store; all that wait take the result of the next one
        that ends.

        Raises:
            StoreError: the store is still away.
        """
        if self._closed_by is None:
            return
        probes = self._probes
        async with self._probing:
            if self._probes == probes and self._closed_by is not None:
                await self._probe()
        self.require_open()

    def require_open(self) -> None:
        """Return if the gate is open, without asking the store.

        Raises:
            StoreError: what closed the gate.
        """
        if self._closed_by is not None:
            raise self._closed_by.with_traceback(None)

    async def keep_probing(self, interval_s: float) -> None:
        """Probe every ``interval_s`` while the gate is closed, so that it opens without a copy's asking; never ends."""
        while True:
            with suppress(StoreError):
                await self.wait_open()
            await self._clock.sleep(interval_s)

    async def _probe(self) -> None:
        try:
            await self._store.check_writable()
        except StoreError as error:
            if str(error) != str(self._closed_by):
                log.warning("store.not_writable", **self._named, error=str(error))
            self._close(error)
            self._probes += 1
            raise
        self._probes += 1
        away_s = self._clock.monotonic_s() - self._since_s
        log.info("store.writable", **self._named, away_ms=int(away_s * 1000), failures=self._failures)
        self._closed_by, self._failures = None, 0
        self._set_gauge(1)

    def _close(self, error: StoreError) -> None:
        if self._closed_by is None:
            self._since_s = self._clock.monotonic_s()
        self._closed_by = error
        self._set_gauge(0)

    def _set_gauge(self, writable: int) -> None:
        if self._place:
            self._telemetry.gauge(PLACE_WRITABLE, writable, place=self._place)
        else:
            self._telemetry.gauge(STORE_WRITABLE, writable)

    @property
    def _named(self) -> dict[str, str]:
        store = {"store": self._store.description}
        return {**store, "place": self._place} if self._place else store

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Close the gate if the block ends in a store error."""
        try:
            yield
        except StoreError as error:
            self.close_by(error)
            raise

    def close_by(self, error: StoreError) -> None:
        """Close the gate: a copy has met ``error``."""
        if self._closed_by is None:
            log.warning("store.away", **self._named, error=str(error))
        self._close(error)


class StoreGates:
    """``stores`` are those of the places by name, the default one's under an empty name; ``place_of_topic`` says where new
    segments of a topic go."""

    def __init__(
        self,
        stores: Mapping[str, ProbedStore],
        place_of_topic: Callable[[str], str],
        *,
        clock: Clock,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._gates = {place: StoreGate(store, clock, telemetry, place=place) for place, store in stores.items()}
        self.place_of_topic = place_of_topic
        self._telemetry = telemetry or NoTelemetry()

    @property
    def default(self) -> StoreGate:
        """Return the gate of the default place."""
        return self._gates[DEFAULT_PLACE]

    def of_topic(self, topic: str) -> StoreGate:
        """Return the gate of the place where new segments of ``topic`` go."""
        return self._gates[self.place_of_topic(topic)]

    async def wait_open(self, topic: str) -> None:
        """Wait at the gate of its place (:meth:`StoreGate.wait_open`), before a copy of ``topic`` takes a slot; one that raises
        is a copy that failed."""
        with self._counted(topic):
            await self.of_topic(topic).wait_open()

    def require_open(self, topic: str) -> None:
        """Return if the gate of its place is open (:meth:`StoreGate.require_open`); it counts as :meth:`wait_open` does."""
        with self._counted(topic):
            self.of_topic(topic).require_open()

    @contextmanager
    def _counted(self, topic: str) -> Iterator[None]:
        try:
            yield
        except StoreError:
            self._telemetry.count(COPY_REQUESTS, topic=topic)
            self._telemetry.count(COPY_ERRORS, topic=topic)
            raise

    def has_logged(self, error: Exception) -> bool:
        """Return whether it is one more of a logged outage (:meth:`StoreGate.has_logged`), of the place that ``error`` is
        about."""
        gate = self._of(error) if isinstance(error, StoreError) else None
        return gate is not None and gate.has_logged(error)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Close the gate of the place that a store error is about in which the block ends: a copy reads where its partition's
        former segments are, too."""
        try:
            yield
        except StoreError as error:
            if (gate := self._of(error)) is not None:
                gate.close_by(error)
            raise

    def close(self, place: str, reason: str) -> None:
        """Close the gate of ``place``, whose store hangs: an upload would notice it much later."""
        self._gates[place].close_by(StoreStalledError(verb="use", key=place_prefix(place), reason=reason))

    async def keep_probing(self, interval_s: float) -> None:
        """Probe at all gates (:meth:`StoreGate.keep_probing`); never ends."""
        async with asyncio.TaskGroup() as group:
            for gate in self._gates.values():
                group.create_task(gate.keep_probing(interval_s))

    def _of(self, error: StoreError) -> StoreGate | None:
        """Return its gate; None of a place that the configuration does not have."""
        return self._gates.get(place_of(error.key))
