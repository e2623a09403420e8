"""Partitions that a read-only mount's plan does not have, though they look as if they were part of it.

Some were seeded by another plan: their logs begin at :data:`~tiersidecar.domain.mounts.MOUNTED_START`.  The broker would take
records there, and gives clients offsets that no history has, which they would commit.  Others were added to a mounted topic:
their logs begin at 0, and the source may have partitions of these very numbers.  Nothing of either is served or written.

A coordinator's gateway has to know of what no disk here has: a transaction of it would be given its marker by the brokers
themselves.  So the leaders are asked once about each topic that is not planned.  It cannot become a seeded one later: only a
cluster that has never run is seeded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import structlog

from tiersidecar.decide.topics import INTERNAL_TOPICS
from tiersidecar.domain.errors import RetriableError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.mounts import MOUNTED_START, MountedTopic
from tiersidecar.domain.offsets import NO_EPOCH
from tiersidecar.ports.broker import DescribePartitions, ListOffsets, OffsetSpec
from tiersidecar.ports.clock import Clock

log = structlog.get_logger(__name__)


class LogsBroker(DescribePartitions, ListOffsets, Protocol):
    """The questions to the cluster."""


class UnplannedLogs:
    """``planned`` are the mounted topics, by name; ``seeded`` are the partitions on this broker's disks whose logs begin at
    ``MOUNTED_START`` or above, planned or not; ``topics`` are all of the cluster that are known, by name."""

    def __init__(
        self,
        *,
        planned: Mapping[str, MountedTopic],
        seeded: Callable[[], Iterable[TopicIdPartition]],
        topics: Callable[[], Mapping[str, Uuid]],
        clock: Clock,
    ) -> None:
        self._seeded, self._topics_now, self._clock = seeded, topics, clock
        self._looked_at: set[Uuid] = set()  # topics whose leaders have all answered
        self._partitions = {topic.topic_id: topic.partitions for topic in planned.values()}
        self._halted: dict[TopicIdPartition, str] = {}
        self._topics: dict[str, Uuid] = {}

    def is_planned(self, partition: TopicIdPartition) -> bool:
        """Return whether the plan has it."""
        return partition.partition < self._partitions.get(partition.topic_id, 0)

    def halted(self, partition: TopicIdPartition) -> str:
        """Return why it is not readable; empty where the plan has it, and where it has nothing to do with a mount."""
        reason = self._halted.get(partition, "")
        if not reason and partition.topic_id in self._partitions and not self.is_planned(partition):
            count = self._partitions[partition.topic_id]
            return f"{partition} is not mounted: source.mount.plan has {count} partitions of its topic"
        return reason

    def topic_id(self, topic: str) -> Uuid | None:
        """Return the id of a topic of which a partition was seeded, and is not planned.  The disk's word is enough for that:
        nothing is written while a leader is still waited for."""
        return self._topics.get(topic)

    def has_topic_id(self, topic_id: bytes) -> bool:
        """Return whether there is such a topic of this id."""
        return topic_id in self._topics.values()

    def reason_not_ready(self) -> str:
        """Return what is seeded by another plan than this gateway has; empty where there is nothing."""
        first = next(iter(self._halted.values()), "")
        return f"{first} (and {len(self._halted) - 1:,} more)" if len(self._halted) > 1 else first

    async def look(self, broker: LogsBroker) -> None:
        """Halt what is seeded and not planned, by the word of its leader.  While the broker is away nothing is found out."""
        on_disk = [one for one in self._seeded() if self._is_suspect(one)]
        self._refuse(on_disk)
        try:
            views = () if self._has_looked_at_all() else await broker.describe_partitions()
            found = {view.topic_id_partition for view in views}
            new = [one for one in found if self._is_new(one) and self._is_suspect(one)]
            wanted = dict.fromkeys([*on_disk, *new], NO_EPOCH)
            starts = await broker.list_offsets(wanted, OffsetSpec.EARLIEST) if wanted else {}
        except RetriableError:
            return  # the roster says that the broker is away
        for partition, start in starts.items():
            if start.error is None and start.offset >= MOUNTED_START:
                self._halt(partition, start.offset)
        self._refuse([one for one in on_disk if one not in starts or starts[one].error is not None])
        if found:
            silent = {partition.topic_id for partition, start in starts.items() if start.error is not None}
            self._looked_at = {partition.topic_id for partition in found} - silent

    def _refuse(self, doubtful: Iterable[TopicIdPartition]) -> None:
        self._topics = {one.topic: one.topic_id for one in (*doubtful, *self._halted)}

    def _has_looked_at_all(self) -> bool:
        topics = self._topics_now().values()
        return bool(topics) and self._looked_at.issuperset(topics)

    def _is_new(self, partition: TopicIdPartition) -> bool:
        return partition.topic_id not in self._looked_at and partition.topic not in INTERNAL_TOPICS

    def _is_suspect(self, partition: TopicIdPartition) -> bool:
        return not self.is_planned(partition) and partition not in self._halted

    async def watch(self, broker: LogsBroker, interval_s: float) -> None:
        """Look at every interval, until cancelled."""
        while True:
            await self.look(broker)
            await self._clock.sleep(interval_s)

    def _halt(self, partition: TopicIdPartition, log_start: int) -> None:
        reason = (
            f"{partition} is not in source.mount.plan, and was seeded for a read-only mount: its log in this cluster begins at "
            f"{log_start}. Give this gateway the plan by which the cluster was seeded, and start it again"
        )
        self._halted[partition] = reason
        log.warning("gateway.mount.halted", topic=partition.topic, partition=partition.partition, reason=reason)
