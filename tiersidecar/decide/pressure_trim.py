"""Local data that goes for space below ``disk.reserve``, where the user allows it (docs/operations/retention.md)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tiersidecar.decide.pin_room import Disk, PinLimits
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import NO_OFFSET, Offset
from tiersidecar.domain.segments import LocalSegment


class DiskPressurePolicy(StrEnum):
    """``KEEP``: nothing goes before retention lets it.  ``TRIM_COPIED``: remote data goes before its local retention is over.
    ``DROP_OLDEST``: then also data that is not remote: data is lost, and the broker lives."""

    KEEP = "keep"
    TRIM_COPIED = "trim-copied"
    DROP_OLDEST = "drop-oldest"


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureTrim:
    """A partition may be trimmed up to ``offset``; with ``drops`` also where that is not remote, and past any group.

    Only below ``last_resort`` may data go that is known to be damaged in the store: up to there, giving up remote data
    elsewhere is not enough.
    """

    offset: Offset
    drops: bool
    last_resort: Offset = NO_OFFSET


@dataclass(frozen=True, slots=True, kw_only=True)
class PressedPartition:
    """A partition led here in strict mode, with its sealed segments from the log start on; ``remote`` of them, counted from the
    first, are remote.  ``is_stuck``: nothing of it is trimmed at present, so that it is counted on last."""

    topic_id_partition: TopicIdPartition
    sealed: Sequence[LocalSegment]
    remote: int
    is_stuck: bool = False


def decide_pressure(
    policy: DiskPressurePolicy,
    disk: Disk,
    limits: PinLimits,
    going_bytes: int,
    partitions: Iterable[PressedPartition],
) -> dict[TopicIdPartition, PressureTrim]:
    """Choose as little as gives ``disk`` its reserve back: what is remote first, the oldest of all partitions first.

    ``going_bytes`` will be free without us: pins, which go first, and what is trimmed already, since a broker takes minutes to
    delete it.  The active segment never goes.
    """
    missing = -disk.above_reserve_bytes(limits) - going_bytes
    if policy is DiskPressurePolicy.KEEP or missing <= 0:
        return {}
    found = list(partitions)
    chosen = {partition.topic_id_partition: 0 for partition in found}
    free, stuck = (
        [partition for partition in found if not partition.is_stuck],
        [partition for partition in found if partition.is_stuck],
    )
    missing = _choose(free, chosen, missing, {one.topic_id_partition: one.remote for one in free})
    remote = dict(chosen)
    if policy is DiskPressurePolicy.DROP_OLDEST:
        for others in (free, stuck):
            missing = _choose(others, chosen, missing, {one.topic_id_partition: len(one.sealed) for one in others})
    trims: dict[TopicIdPartition, PressureTrim] = {}
    for partition in found:
        count = chosen[partition.topic_id_partition]
        if count:
            offset = _stop_of(partition.sealed[count - 1])
            trims[partition.topic_id_partition] = PressureTrim(
                offset=offset,
                drops=policy is DiskPressurePolicy.DROP_OLDEST,
                last_resort=offset if count > remote[partition.topic_id_partition] else NO_OFFSET,
            )
    return trims


def _choose(
    found: Sequence[PressedPartition],
    chosen: dict[TopicIdPartition, int],
    missing: int,
    most: Mapping[TopicIdPartition, int],
) -> int:
    """Take segments, each partition's in their order, until nothing is ``missing``; return what still is."""
    heads = [
        (partition.sealed[chosen[partition.topic_id_partition]].modified_ms, number)
        for number, partition in enumerate(found)
        if chosen[partition.topic_id_partition] < most[partition.topic_id_partition]
    ]
    heapq.heapify(heads)
    while heads and missing > 0:
        _, number = heapq.heappop(heads)
        topic_id_partition, sealed = found[number].topic_id_partition, found[number].sealed
        missing -= sealed[chosen[topic_id_partition]].size_bytes
        chosen[topic_id_partition] += 1
        if chosen[topic_id_partition] < most[topic_id_partition]:
            heapq.heappush(heads, (sealed[chosen[topic_id_partition]].modified_ms, number))
    return missing


def _stop_of(segment: LocalSegment) -> Offset:
    assert segment.next_base_offset is not None  # sealed
    return segment.next_base_offset
