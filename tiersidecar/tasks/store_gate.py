"""While the store is away no copy is begun: a STARTED event per partition and retry would swell the metadata topic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog

from tiersidecar.domain.errors import StoreError
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.process import STORE_WRITABLE
from tiersidecar.ports.store import Store
from tiersidecar.ports.telemetry import NoTelemetry, Telemetry

log = structlog.get_logger(__name__)


class StoreGate:
    """Closed at start and whenever a copy meets a store error; a probe that succeeds opens it."""

    def __init__(self, store: Store, clock: Clock, telemetry: Telemetry | None = None) -> None:
        self._store, self._clock, self._telemetry = store, clock, telemetry or NoTelemetry()
        self._since_s, self._failures = clock.monotonic_s(), 0
        self._closed_by: StoreError | None = StoreError(verb="probe", key="", reason="it has not been probed yet")
        self._probing = asyncio.Lock()

    @property
    def closed_reason(self) -> str:
        """What closed the gate; empty while it is open."""
        return "" if self._closed_by is None else str(self._closed_by)

    def has_told(self, error: Exception) -> bool:
        """Whether ``error`` is one more of the outage that was told at its begin; it is counted, and told at its end."""
        if self._closed_by is None or not isinstance(error, StoreError):
            return False
        self._failures += 1
        return True

    async def wait_open(self) -> None:
        """Return at once while the gate is open, else after a probe of the store; one probes for all who wait.

        Raises:
            StoreError: the store is still away.
        """
        if self._closed_by is None:
            return
        async with self._probing:
            if self._closed_by is not None:
                await self._probe()

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
            if str(error) != self.closed_reason:
                log.warning("store.not_writable", store=self._store.description, error=str(error))
            self._close(error)
            raise
        away_s = self._clock.monotonic_s() - self._since_s
        log.info("store.writable", store=self._store.description, away_ms=int(away_s * 1000), failures=self._failures)
        self._closed_by, self._failures = None, 0
        self._telemetry.gauge(STORE_WRITABLE, 1)

    def _close(self, error: StoreError) -> None:
        if self._closed_by is None:
            self._since_s = self._clock.monotonic_s()
        self._closed_by = error
        self._telemetry.gauge(STORE_WRITABLE, 0)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Close the gate if the block ends in a store error."""
        try:
            yield
        except StoreError as error:
            if self._closed_by is None:
                log.warning("store.away", store=self._store.description, error=str(error))
            self._close(error)
            raise
