"""Partitions that a read-only mount's plan does not have, though they look as if they were part of it.

Some were seeded by another plan: their logs begin at :data:`~tiersidecar.domain.mounts.MOUNTED_START`.  The broker would take
records there, and tells clients offsets that no history has, which they would commit.  Others were added to a mounted topic:
their logs begin at 0, and the source may have partitions of these very numbers.  Nothing of either is served or written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import structlog

from tiersidecar.domain.errors import RetriableError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.mounts import MOUNTED_START, MountedTopic
from tiersidecar.domain.offsets import NO_EPOCH
from tiersidecar.ports.broker import ListOffsets, OffsetSpec
from tiersidecar.ports.clock import Clock

log = structlog.get_logger(__name__)


class UnplannedLogs:
    """``planned`` are the mounted topics, by name; ``seeded`` are the partitions on this broker's disks whose logs begin at
    ``MOUNTED_START`` or above, planned or not."""

    def __init__(
        self,
        *,
        planned: Mapping[str, MountedTopic],
        seeded: Callable[[], Iterable[TopicIdPartition]],
        clock: Clock,
    ) -> None:
        self._seeded, self._clock = seeded, clock
        self._partitions = {topic.topic_id: topic.partitions for topic in planned.values()}
        self._halted: dict[TopicIdPartition, str] = {}
        self._topics: dict[str, Uuid] = {}

    def is_planned(self, partition: TopicIdPartition) -> bool:
        """Return whether the plan has it."""
        return partition.partition < self._partitions.get(partition.topic_id, 0)

    def halted(self, partition: TopicIdPartition) -> str:
        """Return why nobody reads it; empty where the plan has it, and where it has nothing to do with a mount."""
        reason = self._halted.get(partition, "")
        if not reason and partition.topic_id in self._partitions and not self.is_planned(partition):
            count = self._partitions[partition.topic_id]
            return f"{partition} is not mounted: source.mount.plan has {count} partitions of its topic"
        return reason

    def topic_id(self, topic: str) -> Uuid | None:
        """Return the id of a topic of which a partition was seeded, and is not planned."""
        return self._topics.get(topic)

    def has_topic_id(self, topic_id: bytes) -> bool:
        """Return whether there is such a topic of this id."""
        return topic_id in self._topics.values()

    def reason_not_ready(self) -> str:
        """Return what is seeded by another plan than this gateway has; empty where there is nothing."""
        first = next(iter(self._halted.values()), "")
        return f"{first} (and {len(self._halted) - 1:,} more)" if len(self._halted) > 1 else first

    async def look(self, broker: ListOffsets) -> None:
        """Halt what is seeded and not planned, if its leader says so too.  While the broker is away nothing is found out."""
        wanted = {
            partition: NO_EPOCH
            for partition in self._seeded()
            if not self.is_planned(partition) and partition not in self._halted
        }
        try:
            starts = await broker.list_offsets(wanted, OffsetSpec.EARLIEST) if wanted else {}
        except RetriableError:
            return  # the roster says that the broker is away
        for partition, start in starts.items():
            if start.error is None and start.offset >= MOUNTED_START:
                self._halt(partition, start.offset)

    async def watch(self, broker: ListOffsets, interval_s: float) -> None:
        """Look at every interval, until cancelled."""
        while True:
            await self.look(broker)
            await self._clock.sleep(interval_s)

    def _halt(self, partition: TopicIdPartition, log_start: int) -> None:
        reason = (
            f"{partition} is not in source.mount.plan, and was seeded for a read-only mount: its log in this cluster begins at "
            f"{log_start}. Give this gateway the plan by which the cluster was seeded, and start it again"
        )
        self._halted[partition], self._topics[partition.topic] = reason, partition.topic_id
        log.warning("gateway.mount.halted", topic=partition.topic, partition=partition.partition, reason=reason)
