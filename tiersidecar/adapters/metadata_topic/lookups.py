"""Reads of the replayed metadata (:class:`~tiersidecar.ports.metadata_log.MetadataView`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tiersidecar.adapters.metadata_topic.replica import MetadataReplica
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition
from tiersidecar.domain.metadata_cache_picture import SegmentPicture
from tiersidecar.domain.segments import RemoteLogSegmentMetadata


class MetadataLookups:
    """Each look-up goes to the partition's cache, or raises MetadataNotReadyError (S-096)."""

    def __init__(self, replica: MetadataReplica) -> None:
        self._replica = replica

    def is_ready(self, topic_id_partition: TopicIdPartition) -> bool:
        held = self._replica.held(topic_id_partition)
        return held is not None and held.is_ready

    def remote_log_segment_metadata(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self._replica.require(topic_id_partition).remote_log_segment_metadata(leader_epoch, offset)

    def finished_segments_at(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> Iterator[RemoteLogSegmentMetadata]:
        return self._replica.require(topic_id_partition).finished_segments_at(leader_epoch, offset)

    def highest_offset_for_epoch(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> int | None:
        return self._replica.require(topic_id_partition).highest_offset_for_epoch(leader_epoch)

    def segment(self, remote_log_segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        return self._replica.require(remote_log_segment_id.topic_id_partition).segment(remote_log_segment_id.uuid)

    def list_remote_log_segments(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> Iterator[RemoteLogSegmentMetadata]:
        return self._replica.require(topic_id_partition).list_remote_log_segments(leader_epoch)

    def picture(self, topic_id_partition: TopicIdPartition) -> SegmentPicture:
        return self._replica.require(topic_id_partition).picture()

    def list_unfinished_segments(self, topic_id_partition: TopicIdPartition) -> Iterator[RemoteLogSegmentMetadata]:
        return self._replica.require(topic_id_partition).list_unfinished_segments()

    def segment_count(self, topic_id_partition: TopicIdPartition) -> int:
        return len(self._replica.require(topic_id_partition))

    def remote_log_size_bytes(self, topic_id_partition: TopicIdPartition, leader_epoch: int | None = None) -> int:
        return self._replica.require(topic_id_partition).remote_log_size_bytes(leader_epoch)

    def next_segment_with_txn_index(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self._replica.require(topic_id_partition).next_segment_with_txn_index(leader_epoch, offset)

    def finished_runs(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> Sequence[tuple[int, int]]:
        return self._replica.require(topic_id_partition).finished_runs(leader_epoch)
