"""The metadata log without a topic: the real fold, applied at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tiersidecar.domain.errors import BrokerRefusedError, MetadataNotReadyError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition
from tiersidecar.domain.metadata_cache import RemoteLogMetadataCache
from tiersidecar.domain.metadata_cache_rows import SegmentPicture
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.domain.segments import (
    MetadataEvent,
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    SegmentEvent,
)


class MemoryMetadataLog:
    """``ports.metadata_log.MetadataLog``; keeps every event published in ``events``, and counts ``pictures``."""

    halted_reason: str | None = None
    readiness_reason: str | None = None
    missing_right: BrokerRefusedError | None = None
    topic_id: str = "metadata-topic-id"

    def __init__(self) -> None:
        self.events: list[MetadataEvent] = []
        self.pictures = 0
        self._caches: dict[TopicIdPartition, RemoteLogMetadataCache] = {}

    async def publish(self, event: MetadataEvent, *, until_s: float | None = None) -> None:
        if isinstance(event, RemotePartitionDeleteMetadata):
            topic_id_partition = event.topic_id_partition
        else:
            topic_id_partition = event.remote_log_segment_id.topic_id_partition
        self._cache(topic_id_partition).apply(event)
        self.events.append(event)

    async def publish_all(self, events: Sequence[SegmentEvent], *, until_s: float | None = None) -> None:
        for owner in {event.remote_log_segment_id.topic_id_partition for event in events}:
            self._cache(owner).check_all(events)
        for event in events:
            await self.publish(event)

    async def assign(self, partitions: Iterable[TopicIdPartition]) -> None:
        for topic_id_partition in partitions:
            if topic_id_partition not in self._caches:
                self._caches[topic_id_partition] = RemoteLogMetadataCache(topic_id_partition)
                self._caches[topic_id_partition].mark_loaded()

    async def wait_until_ready(self, topic_id_partition: TopicIdPartition) -> None:
        return None

    async def catch_up(self, topic_id_partition: TopicIdPartition) -> None:
        self._cache(topic_id_partition)

    def is_ready(self, topic_id_partition: TopicIdPartition) -> bool:
        return topic_id_partition in self._caches

    def remote_log_segment_metadata(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self._cache(topic_id_partition).remote_log_segment_metadata(leader_epoch, offset)

    def finished_segments_at(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> Iterator[RemoteLogSegmentMetadata]:
        return self._cache(topic_id_partition).finished_segments_at(leader_epoch, offset)

    def highest_offset_for_epoch(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> int | None:
        return self._cache(topic_id_partition).highest_offset_for_epoch(leader_epoch)

    def segment(self, remote_log_segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        return self._cache(remote_log_segment_id.topic_id_partition).segment(remote_log_segment_id.uuid)

    def list_remote_log_segments(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> Iterator[RemoteLogSegmentMetadata]:
        return self._cache(topic_id_partition).list_remote_log_segments(leader_epoch)

    def picture(self, topic_id_partition: TopicIdPartition) -> SegmentPicture:
        self.pictures += 1
        return self._cache(topic_id_partition).picture()

    def mark(self, topic_id_partition: TopicIdPartition) -> int:
        return self._cache(topic_id_partition).mark

    def segments_with(
        self, topic_id_partition: TopicIdPartition, offsets: ByteRange
    ) -> Sequence[RemoteLogSegmentMetadata]:
        return self._cache(topic_id_partition).segments_with(offsets)

    def latest_leader_epoch(self, topic_id_partition: TopicIdPartition) -> int:
        return self._cache(topic_id_partition).latest_leader_epoch

    def list_unfinished_segments(self, topic_id_partition: TopicIdPartition) -> Iterator[RemoteLogSegmentMetadata]:
        return self._cache(topic_id_partition).list_unfinished_segments()

    def segment_count(self, topic_id_partition: TopicIdPartition) -> int:
        return len(self._cache(topic_id_partition))

    @property
    def changes(self) -> int:
        return len(self.events)

    def applied_to(self, topic_id_partition: TopicIdPartition) -> int:
        self._cache(topic_id_partition)
        return len(self.events) - 1

    def remote_log_size_bytes(self, topic_id_partition: TopicIdPartition, leader_epoch: int | None = None) -> int:
        return self._cache(topic_id_partition).remote_log_size_bytes(leader_epoch)

    def next_segment_with_txn_index(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self._cache(topic_id_partition).next_segment_with_txn_index(leader_epoch, offset)

    def finished_runs(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> Sequence[tuple[int, int]]:
        return self._cache(topic_id_partition).finished_runs(leader_epoch)

    def _cache(self, topic_id_partition: TopicIdPartition) -> RemoteLogMetadataCache:
        try:
            return self._caches[topic_id_partition]
        except KeyError:
            raise MetadataNotReadyError(subject=str(topic_id_partition)) from None


class LaggingMetadataLog(MemoryMetadataLog):
    """One whose consumer is behind: what others published is seen by a read-back or a :meth:`catch_up`, and not before."""

    def __init__(self) -> None:
        super().__init__()
        self._unread: list[MetadataEvent] = []

    def publish_elsewhere(self, event: MetadataEvent) -> None:
        """Take another process's publish, durable at once."""
        self._unread.append(event)

    async def publish(self, event: MetadataEvent, *, until_s: float | None = None) -> None:
        await self._read()
        await super().publish(event)

    async def catch_up(self, topic_id_partition: TopicIdPartition) -> None:
        await self._read()
        await super().catch_up(topic_id_partition)

    async def _read(self) -> None:
        unread, self._unread = self._unread, []
        for event in unread:
            await super().publish(event)
