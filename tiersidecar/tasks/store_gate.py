"""While the store is away no copy is begun: a STARTED event per partition and retry would swell the metadata topic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog

from tiersidecar.domain.errors import StoreError
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.store import Store

log = structlog.get_logger(__name__)


class StoreGate:
    """Closed at start and whenever a copy meets a store error; a probe that succeeds opens it."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._closed_by: StoreError | None = StoreError(verb="probe", key="", reason="it has not been probed yet")
        self._probing = asyncio.Lock()

    @property
    def closed_reason(self) -> str:
        """What closed the gate; empty while it is open."""
        return "" if self._closed_by is None else str(self._closed_by)

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
            self._closed_by = error
            raise
        log.info("store.writable", store=self._store.description)
        self._closed_by = None

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Close the gate if the block ends in a store error."""
        try:
            yield
        except StoreError as error:
            if self._closed_by is None:
                log.warning("store.away", store=self._store.description, error=str(error))
            self._closed_by = error
            raise
