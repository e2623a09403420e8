"""The times at which the cleaner of a led compacted partition works: at intervals, chunk by chunk, one partition at a time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metadata_log import MetadataView
from tiersidecar.tasks.clean import CleanTask
from tiersidecar.tasks.partition_table import PartitionTable

log = structlog.get_logger(__name__)

_REST_INTERVALS = 40
"""Interval for what no copy has changed: settings may have been changed, and tombstones grow old."""


@dataclass(slots=True)
class _Rested:
    """The last round of a partition, and what there was to clean where it found nothing to do."""

    at_s: float
    state: object = None


class CleanLane:
    """``slots`` bounds how many clean at once, each of which has a map of its own; ``interval_s`` lies between two looks."""

    def __init__(
        self,
        *,
        task: CleanTask,
        table: PartitionTable,
        metadata: MetadataView,
        clock: Clock,
        slots: asyncio.Semaphore,
        interval_s: float,
    ) -> None:
        self._task, self._table, self._metadata, self._clock = task, table, metadata, clock
        self._slots, self._interval_s = slots, interval_s
        self._rested: dict[TopicIdPartition, _Rested] = {}

    def has_work(self, partition: TieredPartition) -> bool:
        """Return whether a look is due."""
        topic_id_partition = partition.view.topic_id_partition
        if partition.role is not PartitionRole.LEADER or topic_id_partition.topic not in self._table.compacted_topics:
            self._rested.pop(topic_id_partition, None)
            return False
        rested = self._rested.get(topic_id_partition)
        if rested is None:
            return True
        is_same = rested.state == self._state(partition)
        return self._clock.monotonic_s() - rested.at_s >= self._interval_s * (_REST_INTERVALS if is_same else 1)

    async def run(self, partition: TieredPartition) -> None:
        """Clean until nothing is due; raise what :meth:`CleanTask.run` does."""
        topic_id_partition = partition.view.topic_id_partition
        async with self._slots:
            while True:
                state = self._state(partition)
                self._rested[topic_id_partition] = _Rested(self._clock.monotonic_s())
                done = await self._task.run(partition)
                if done.left or done.cleaner_offset < 0:
                    break
                log.info(
                    "partition.cleaned",
                    topic=topic_id_partition.topic,
                    partition=topic_id_partition.partition,
                    cleaner_offset=done.cleaner_offset,
                    segments=len(done.swapped),
                    carried=done.carried,
                )
        self._rested[topic_id_partition] = _Rested(self._clock.monotonic_s(), None if done.left else state)
        log.debug(
            "partition.clean.rests",
            topic=topic_id_partition.topic,
            partition=topic_id_partition.partition,
            reason=done.reason or done.left,
        )

    def _state(self, partition: TieredPartition) -> object:
        topic_id_partition = partition.view.topic_id_partition
        return self._metadata.segment_count(topic_id_partition), partition.view.leader_epoch
