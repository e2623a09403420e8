"""A gate for the store of each place: while one is closed, the copies of its topics wait, and the others go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from tiersidecar.domain.errors import StoreError, StoreStalledError
from tiersidecar.domain.ids import DEFAULT_PLACE, place_of, place_prefix
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.copying import COPY_ERRORS, COPY_REQUESTS
from tiersidecar.ports.telemetry import NoTelemetry, Telemetry
from tiersidecar.tasks.copy_admission import ProbedStore, StoreGate


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
