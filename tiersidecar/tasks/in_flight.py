"""Segments whose copy or removal is in flight in this process: what joins the lanes of a partition (S-030).

Copies are in the journal as well, before anything of them is published, so that the next process knows them for ours.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Set
from contextlib import asynccontextmanager, contextmanager

import structlog

from tiersidecar.domain.errors import StateDirError
from tiersidecar.domain.ids import RemoteLogSegmentId, Uuid
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.copy_journal import CopyJournal
from tiersidecar.ports.metrics.copying import COPY_OLDEST_AGE
from tiersidecar.ports.telemetry import Telemetry

log = structlog.get_logger(__name__)


class InFlight:
    """A set of segment ids, and of the copies among them the time each began."""

    def __init__(self, *, clock: Clock, telemetry: Telemetry, journal: CopyJournal) -> None:
        self._clock, self._telemetry, self._journal = clock, telemetry, journal
        self._ids: set[RemoteLogSegmentId] = set()
        self._copies_since_s: dict[RemoteLogSegmentId, float] = {}

    @property
    def ids(self) -> frozenset[RemoteLogSegmentId]:
        return frozenset(self._ids)

    @property
    def begun(self) -> Set[Uuid]:
        """Copies of ours by the journal, those of former processes too."""
        return self._journal.begun

    @contextmanager
    def holding(self, segment_id: RemoteLogSegmentId) -> Iterator[None]:
        """Keep ``segment_id`` in the set for the length of the block, however it ends."""
        self._ids.add(segment_id)
        try:
            yield
        finally:
            self._ids.discard(segment_id)

    @asynccontextmanager
    async def copying(self, segment_id: RemoteLogSegmentId) -> AsyncIterator[None]:
        """As :meth:`holding`, its age counts, and the journal has it until the block has ended well."""
        self._copies_since_s[segment_id] = self._clock.monotonic_s()
        try:
            with self.holding(segment_id):
                await self._note(segment_id)
                yield
                await self.settle(segment_id)
        finally:
            del self._copies_since_s[segment_id]
            self.report_age()

    async def settle(self, segment_id: RemoteLogSegmentId) -> None:
        """The copy is finished, or removed: the journal may forget it."""
        try:
            await self._journal.settle(segment_id.uuid)
        except StateDirError as error:
            log.warning("copy_journal.not_written", error=str(error))

    async def _note(self, segment_id: RemoteLogSegmentId) -> None:
        """A disk that does not take it stops no copy: what a crash would leave of this one then waits for the grace of a copy
        that is not ours."""
        try:
            await self._journal.begin(segment_id.uuid)
        except StateDirError as error:
            log.warning("copy_journal.not_written", error=str(error))

    def report_age(self) -> None:
        """Set the gauge for the oldest copy (U1)."""
        oldest_s = min(self._copies_since_s.values(), default=None)
        self._telemetry.gauge(COPY_OLDEST_AGE, 0 if oldest_s is None else self._clock.monotonic_s() - oldest_s)
