"""Offsets that nobody has, named in the log: a reader there cannot go on, and only an operator can tell what to do."""

from __future__ import annotations

from collections import OrderedDict

import structlog

from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.ports.clock import Clock

log = structlog.get_logger(__name__)

SETTLED_S = 10.0
"""What is younger may be our own metadata that lag behind a copy."""
_MOST_KNOWN = 1000


class Holes:
    """Says of each hole once that it is there, when readers have met it for ``SETTLED_S`` or longer: they come back without
    end, and that is not to fill the log.  ``event`` is the name under which it says so."""

    def __init__(self, clock: Clock, event: str) -> None:
        self._clock, self._event = clock, event
        self._since_s: OrderedDict[tuple[TopicIdPartition, int, int], float | None] = OrderedDict()  # None: told

    def met(self, partition: TopicIdPartition, offset: int, start: int, stop: int) -> None:
        """A reader wants ``offset``, and from ``start`` to ``stop`` (exclusive) there is nothing.

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
            advice="nobody has these records, and a reader there cannot go on: look for the broker or the store that has"
            " them; to give them up, delete records up to next_offset through the gateway",
        )
