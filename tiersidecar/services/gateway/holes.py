"""Offsets that neither tier has, named in the log: a reader there waits, and only an operator can tell for what."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.ports.clock import Clock

log = structlog.get_logger(__name__)

SETTLED_S = 10.0
"""What is younger may be the gateway's own metadata that lag behind the copy."""


@dataclass(slots=True)
class _Hole:
    start: int
    stop: int
    since_s: float
    is_told: bool = False


class Holes:
    """Says of each hole once that it is there, when a reader has met it for ``SETTLED_S`` or longer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._met: dict[TopicIdPartition, _Hole] = {}

    def met(self, partition: TopicIdPartition, offset: int, start: int, stop: int) -> None:
        """A reader wants ``offset``, and from ``start`` to ``stop`` (exclusive) there is nothing."""
        now_s = self._clock.monotonic_s()
        hole = self._met.get(partition)
        if hole is None or (hole.start, hole.stop) != (start, stop):
            self._met[partition] = _Hole(start, stop, now_s)
            return
        if hole.is_told or now_s - hole.since_s < SETTLED_S:
            return
        hole.is_told = True
        log.warning(
            "gateway.hole",
            topic=partition.topic,
            partition=partition.partition,
            offset=offset,
            first_missing_offset=start,
            next_offset=stop,
            advice="these records are in neither tier, and a reader there waits: look for the broker or the store that has"
            " them; to give them up, delete records up to next_offset through the gateway",
        )

    def passed(self, partition: TopicIdPartition) -> None:
        """A reader of the partition is served: what there was is told again if it comes back."""
        self._met.pop(partition, None)
