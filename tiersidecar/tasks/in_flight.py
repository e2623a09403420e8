"""Segments whose copy or removal is in flight in this process: what joins the lanes of a partition (S-030)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tiersidecar.domain.ids import RemoteLogSegmentId
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.copying import COPY_OLDEST_AGE
from tiersidecar.ports.telemetry import Telemetry


class InFlight:
    """A set of segment ids, and of the copies among them the time each began."""

    def __init__(self, *, clock: Clock, telemetry: Telemetry) -> None:
        self._clock, self._telemetry = clock, telemetry
        self._ids: set[RemoteLogSegmentId] = set()
        self._copies_since_s: dict[RemoteLogSegmentId, float] = {}

    @property
    def ids(self) -> frozenset[RemoteLogSegmentId]:
        return frozenset(self._ids)

    @contextmanager
    def holding(self, segment_id: RemoteLogSegmentId) -> Iterator[None]:
        """Keep ``segment_id`` in the set for the length of the block, however it ends."""
        self._ids.add(segment_id)
        try:
            yield
        finally:
            self._ids.discard(segment_id)

    @contextmanager
    def copying(self, segment_id: RemoteLogSegmentId) -> Iterator[None]:
        """As :meth:`holding`, and its age counts."""
        self._copies_since_s[segment_id] = self._clock.monotonic_s()
        try:
            with self.holding(segment_id):
                yield
        finally:
            del self._copies_since_s[segment_id]
            self.report_age()

    def report_age(self) -> None:
        """Set the gauge for the oldest copy (U1)."""
        oldest_s = min(self._copies_since_s.values(), default=None)
        self._telemetry.gauge(COPY_OLDEST_AGE, 0 if oldest_s is None else self._clock.monotonic_s() - oldest_s)
