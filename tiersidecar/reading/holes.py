"""Holes in the remote log, as reported to an operator."""

from __future__ import annotations

from collections import OrderedDict

import structlog

from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.ports.clock import Clock

log = structlog.get_logger(__name__)

SETTLED_S = 10.0
"""A younger hole may be our own metadata that lag behind a copy."""
_MOST_KNOWN = 1000
_NOWHERE = (
    "neither tier has these records, and a reader there cannot continue: look for a broker or a store that has them"
)
GIVE_UP = f"{_NOWHERE}; to give them up, delete records up to next_offset through the gateway"
"""The advice to an operator of the cluster whose topic it is."""
GIVE_UP_AT_SOURCE = (
    f"{_NOWHERE}. Nothing is deleted here, where the topic is only read: to give them up, delete records up to next_offset "
    "in the cluster that wrote them, through its gateway or with its `tiersidecar delete-records`"
)
"""The same where the topic is another cluster's."""


class Holes:
    """Report each hole once, as ``event``, when readers have met it for ``SETTLED_S`` or longer: they come back without end,
    and must not fill the log."""

    def __init__(self, clock: Clock, event: str, advice: str = GIVE_UP) -> None:
        self._clock, self._event, self._advice = clock, event, advice
        self._since_s: OrderedDict[tuple[TopicIdPartition, int, int], float | None] = OrderedDict()  # None: reported

    def met(self, partition: TopicIdPartition, offset: int, start: int, stop: int) -> None:
        """Note that a reader wants ``offset``, and that there is nothing from ``start`` to ``stop`` (exclusive).

        A hole that closes, in part or wholly, is not met with these borders again.
        """
        hole, now_s = (partition, start, stop), self._clock.monotonic_s()
        since_s = self._since_s.setdefault(hole, now_s)
        if len(self._since_s) > _MOST_KNOWN:
            self._since_s.popitem(last=False)
        if since_s is None or now_s - since_s < SETTLED_S:
            return
        self._since_s[hole] = None
        log.warning(
            self._event,
            topic=partition.topic,
            partition=partition.partition,
            offset=offset,
            first_missing_offset=start,
            next_offset=stop,
            advice=self._advice,
        )
