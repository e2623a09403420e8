"""Offsets that neither tier holds any more, told once: the first thing an operator must hear of (DESIGN.md rule 1)."""

from __future__ import annotations

import structlog

from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.metrics.copying import GAP_OFFSETS
from tiersidecar.ports.telemetry import Telemetry

log = structlog.get_logger(__name__)


class GapReport:
    """Tells each offset of a gap once per process, however often a plan finds it."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._told: dict[TopicIdPartition, ByteRange] = {}

    def report(self, tip: TopicIdPartition, gap: ByteRange | None, log_start_offset: int) -> None:
        """``gap`` is of offsets.  What lies below the remote log start went by retention or by a user's delete: not lost."""
        # A counter that first shows when it rises has no increase that an alert could see.
        self._telemetry.count(GAP_OFFSETS, 0, topic=tip.topic)
        start, stop = (gap.start, gap.stop) if gap is not None else (0, 0)
        start = max(start, log_start_offset)
        if start >= stop:
            self._told.pop(tip, None)
            return
        told = self._told.get(tip)
        new_from = max(start, told.stop) if told is not None else start
        if new_from >= stop:
            return
        self._told[tip] = ByteRange(start, stop)
        self._telemetry.count(GAP_OFFSETS, stop - new_from, topic=tip.topic)
        log.error("segment.gap", topic=tip.topic, partition=tip.partition, start_offset=start, stop_offset=stop)
