"""Holes that readers come to: offsets between remote segments that no segment holds.  Each is told once, counted always."""

from __future__ import annotations

from collections import OrderedDict

import structlog

from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.ports.metrics.reading import READ_HOLES
from tiersidecar.ports.telemetry import Telemetry

log = structlog.get_logger(__name__)

_MOST_TOLD = 1000


class Holes:
    """A reader of a hole comes back without end: what it is told once is not to fill the log."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._told: OrderedDict[tuple[TopicIdPartition, int, int], None] = OrderedDict()

    def come_to(self, topic_id_partition: TopicIdPartition, start_offset: int, stop_offset: int) -> None:
        """A read has come to the hole [``start_offset``, ``stop_offset``)."""
        self._telemetry.count(READ_HOLES, topic=topic_id_partition.topic)
        hole = (topic_id_partition, start_offset, stop_offset)
        if hole in self._told:
            return
        self._told[hole] = None
        if len(self._told) > _MOST_TOLD:
            self._told.popitem(last=False)
        log.warning(
            "read.hole",
            topic=topic_id_partition.topic,
            partition=topic_id_partition.partition,
            start_offset=start_offset,
            stop_offset=stop_offset,
        )
