"""The state of the backfill: who catches up, how fast, and how long it will take."""

from __future__ import annotations

from collections import deque
from math import nan

import structlog

from tiersidecar.decide.backfill import BackfillOrder, BackfillPlan, decide_backfill
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.copying import BACKFILL_BYTES, BACKFILL_ETA, BACKFILL_PARTITIONS
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.tasks.copy_lag import CopyLagReport
from tiersidecar.tasks.copy_slots import LIVE

log = structlog.get_logger(__name__)

_RATE_WINDOW_S = 600.0
_TOLD_EVERY_S = 60.0


class Backfill:
    """Plans anew at every look.  ``threshold`` and ``order`` are those of :func:`decide_backfill`."""

    def __init__(
        self, *, lags: CopyLagReport, threshold: int, order: BackfillOrder, clock: Clock, telemetry: Telemetry
    ) -> None:
        self._lags, self._threshold, self._order = lags, threshold, order
        self._clock, self._telemetry = clock, telemetry
        self._plan = BackfillPlan(ranks={}, remaining_bytes=0)
        self._copied: deque[tuple[float, int]] = deque()
        self._began_s: float | None = None
        self._told_s = -_TOLD_EVERY_S

    def rank(self, partition: TopicIdPartition) -> int:
        """For :class:`~tiersidecar.tasks.copy_slots.CopySlots`: LIVE, or how soon it is its topic's turn."""
        return self._plan.ranks.get(partition, LIVE)

    def copied(self, size_bytes: int) -> None:
        """A segment of a partition that catches up was copied."""
        self._copied.append((self._clock.monotonic_s(), size_bytes))

    def look(self) -> None:
        """Plan, and tell how it goes: in the gauges each time, in the log once a minute."""
        self._plan = decide_backfill(self._lags.known, self._threshold, self._order)
        remaining, now_s = self._plan.remaining_bytes, self._clock.monotonic_s()
        eta_s = self._eta_s(now_s)
        self._telemetry.gauge(BACKFILL_PARTITIONS, len(self._plan.ranks))
        self._telemetry.gauge(BACKFILL_BYTES, remaining)
        self._telemetry.gauge(BACKFILL_ETA, nan if eta_s is None else eta_s)
        if self._plan.ranks:
            self._tell(now_s, eta_s)
        elif self._began_s is not None:
            log.info("copy.backfill.finished", elapsed_ms=int((now_s - self._began_s) * 1000))
            self._began_s, self._told_s = None, now_s - _TOLD_EVERY_S
            self._copied.clear()

    def _tell(self, now_s: float, eta_s: float | None) -> None:
        if self._began_s is None:
            self._began_s = now_s
        if now_s - self._told_s < _TOLD_EVERY_S:
            return
        self._told_s = now_s
        log.info(
            "copy.backfill.progress",
            partitions=len(self._plan.ranks),
            remaining_bytes=self._plan.remaining_bytes,
            bytes_per_s=round(self._bytes_per_s(now_s)),
            eta_s=None if eta_s is None else round(eta_s),
        )

    def _eta_s(self, now_s: float) -> float | None:
        """None while nothing tells how fast it goes."""
        if not self._plan.ranks:
            return 0.0
        bytes_per_s = self._bytes_per_s(now_s)
        return self._plan.remaining_bytes / bytes_per_s if bytes_per_s else None

    def _bytes_per_s(self, now_s: float) -> float:
        while self._copied and self._copied[0][0] < now_s - _RATE_WINDOW_S:
            self._copied.popleft()
        if self._began_s is None or now_s <= self._began_s:
            return 0.0
        return sum(size for _, size in self._copied) / min(now_s - self._began_s, _RATE_WINDOW_S)
