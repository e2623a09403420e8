"""Which partitions there are to be read here."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.services.reader.problems import not_found


class PartitionCatalogue(Protocol):
    def partitions(self) -> Collection[TopicIdPartition]:
        """The partitions whose remote log metadata this process keeps; of one name only the living topic id."""


def topics_of(catalogue: PartitionCatalogue) -> dict[str, list[TopicIdPartition]]:
    """Partitions by topic, both in order."""
    topics: dict[str, list[TopicIdPartition]] = {}
    for partition in sorted(catalogue.partitions(), key=lambda one: (one.topic, one.partition)):
        topics.setdefault(partition.topic, []).append(partition)
    return topics


def partitions_of(catalogue: PartitionCatalogue, topic: str) -> list[TopicIdPartition]:
    """The partitions of ``topic`` that this process knows.

    Raises:
        ProblemError: 404, it knows none.
    """
    partitions = [one for one in catalogue.partitions() if one.topic == topic]
    if not partitions:
        raise not_found(f"topic {topic} has no remote partitions here")
    return sorted(partitions, key=lambda one: one.partition)


def partition_named(catalogue: PartitionCatalogue, topic: str, number: int) -> TopicIdPartition:
    """One partition.

    Raises:
        ProblemError: 404.
    """
    for partition in catalogue.partitions():
        if partition.topic == topic and partition.partition == number:
            return partition
    raise not_found(f"partition {topic}-{number} has no remote segments here")
