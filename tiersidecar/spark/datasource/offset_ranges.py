"""Resolve options to offsets, partition by partition (Spark's ``KafkaOffsetReader``)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from tiersidecar.decide.topics import INTERNAL_TOPICS
from tiersidecar.domain.errors import ConfigError, OffsetOutOfRangeError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.ports.broker import OffsetSpec
from tiersidecar.spark.datasource.options import (
    SOURCE,
    AtOffset,
    AtTimestamp,
    Missing,
    Place,
    Places,
    ReadOptions,
    Subscription,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBounds:
    """Readable offsets of a partition: ``start`` inclusive, ``end`` exclusive.  Below ``log_start`` nothing may be read,
    whichever tier has it; -1 while nothing moved it."""

    start: int
    end: int
    log_start: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Wanted offsets: ``start`` inclusive, ``end`` exclusive, not below it."""

    start: int
    end: int


class FindOffset(Protocol):
    async def find_offset(self, topic_id_partition: TopicIdPartition, timestamp_ms: int) -> int | None:
        """Return the first offset whose record is of ``timestamp_ms`` or later; None when there is none."""


def chosen_partitions(
    subscription: Subscription, existing: Collection[TopicIdPartition]
) -> tuple[TopicIdPartition, ...]:
    """Return those of ``existing`` that are subscribed to, in order.

    Raises:
        ConfigError: a topic or partition that is named does not exist.
    """
    by_topic: dict[str, dict[int, TopicIdPartition]] = {}
    for topic_id_partition in sorted(
        existing, key=lambda topic_id_partition: (topic_id_partition.topic, topic_id_partition.partition)
    ):
        by_topic.setdefault(topic_id_partition.topic, {})[topic_id_partition.partition] = topic_id_partition
    if subscription.pattern is not None:
        names = [name for name in by_topic if name not in INTERNAL_TOPICS and subscription.pattern.fullmatch(name)]
        return tuple(one for name in names for one in by_topic[name].values())
    wanted = subscription.assigned or {topic: tuple(by_topic.get(topic, ())) for topic in subscription.topics}
    faults = [f"topic {topic} does not exist" for topic in wanted if topic not in by_topic]
    faults += [
        f"{topic} has no partition {partition}"
        for topic, partitions in wanted.items()
        for partition in partitions
        if topic in by_topic and partition not in by_topic[topic]
    ]
    if faults:
        raise ConfigError(source=SOURCE, faults=tuple(faults))
    return tuple(by_topic[topic][partition] for topic, partitions in sorted(wanted.items()) for partition in partitions)


def check_named(options: ReadOptions, partitions: Sequence[TopicIdPartition]) -> None:
    """Check that places given by partition name just the partitions that are read.

    Raises:
        ConfigError: one too many, or one too few.
    """
    read = {(one.topic, one.partition) for one in partitions}
    faults: list[str] = []
    for what, places in (("start", options.start), ("end", options.end)):
        if isinstance(places, AtOffset | AtTimestamp):
            continue
        names = [f"{topic}-{partition}" for topic, partition in sorted(read - set(places))]
        faults += [f"{what}: {name} is missing; every partition that is read must be named" for name in names]
        names = [f"{topic}-{partition}" for topic, partition in sorted(set(places) - read)]
        faults += [f"{what}: {name} is not among the partitions that are read" for name in names]
    if faults:
        raise ConfigError(source=SOURCE, faults=tuple(faults))


async def wanted_range(
    partition: TopicIdPartition, options: ReadOptions, bounds: LogBounds, find: FindOffset
) -> OffsetRange:
    """Return the offsets to read.  An end at or before the start means nothing at all.

    Raises:
        OffsetOutOfRangeError: they are not all there, and ``fail_on_data_loss``.
        ConfigError: no record is of the starting timestamp or later, and the strategy is ``error``.
    """
    start = await _offset(partition, _place(options.start, partition), bounds, find)
    if start is None:
        if options.missing_start is Missing.ERROR:
            reason = f"{partition.topic}-{partition.partition}: no record is of the starting timestamp or later"
            hint = "startingOffsetsByTimestampStrategy=latest reads nothing then"
            raise ConfigError(source=SOURCE, faults=(f"{reason}; {hint}",))
        start = bounds.end
    end = await _offset(partition, _place(options.end, partition), bounds, find)
    end = bounds.end if end is None else end
    if start >= end:
        return OffsetRange(start=start, end=start)
    if options.fail_on_data_loss and (start < bounds.start or end > bounds.end):
        lacking = start if start < bounds.start else end - 1
        raise OffsetOutOfRangeError(subject=str(partition), offset=lacking, start=bounds.start, stop=bounds.end)
    start, end = max(start, bounds.start), min(end, bounds.end)
    return OffsetRange(start=start, end=max(start, end))


def _place(places: Places, partition: TopicIdPartition) -> Place:
    if isinstance(places, AtOffset | AtTimestamp):
        return places
    return places[partition.topic, partition.partition]


async def _offset(partition: TopicIdPartition, place: Place, bounds: LogBounds, find: FindOffset) -> int | None:
    match place:
        case AtTimestamp(timestamp_ms):
            return await find.find_offset(partition, timestamp_ms)
        case AtOffset(OffsetSpec.EARLIEST):
            return bounds.start
        case AtOffset(OffsetSpec.LATEST):
            return bounds.end
        case AtOffset(offset):
            return offset
