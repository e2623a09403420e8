"""Consumer groups that stand still below the start of the brokers' logs: reading from a broker, they would skip remote records.

A group that reads through the gateway moves; one that reads from the brokers cannot stay below for long, since it is sent to
``auto.offset.reset``.  So a group that stands still is stopped, or stuck with ``auto.offset.reset=none``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

Partition = tuple[str, int]
"""Topic and number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalStart:
    """Start of a partition on its leader's disk, and for readers of both tiers; what lies between is only remote."""

    local_log_start_offset: int
    remote_log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BelowStart:
    """``offsets`` of a topic are not read by the group and no longer on the brokers' disks; ``committed`` is by partition."""

    offsets: int
    committed: frozenset[tuple[int, int]]


def decide_below(
    committed: Mapping[Partition, int], starts: Mapping[Partition, LocalStart]
) -> Mapping[str, BelowStart]:
    """Return, by topic, what a group that has committed these offsets has yet to read below the local starts.

    What was given up below the remote log start does not count: it can be read from nowhere.
    """
    offsets: defaultdict[str, int] = defaultdict(int)
    places: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
    for (topic, partition), offset in committed.items():
        start = starts.get((topic, partition))
        if start is None:
            continue
        below = start.local_log_start_offset - max(offset, start.remote_log_start_offset)
        if below > 0:
            offsets[topic] += below
            places[topic].add((partition, offset))
    return {topic: BelowStart(offsets=offsets[topic], committed=frozenset(places[topic])) for topic in offsets}
