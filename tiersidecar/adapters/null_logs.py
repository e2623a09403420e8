"""Both logs while their topics do not exist and must not be made (``mode: observe``): nothing is remote or written."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from tiersidecar.domain.cleaner import CleanerClaim
from tiersidecar.domain.errors import BrokerRefusedError, MetadataNotReadyError
from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, TopicIdPartition, Uuid
from tiersidecar.domain.lease import Lease
from tiersidecar.domain.metadata_cache_rows import SegmentPicture
from tiersidecar.domain.offsets import NO_OFFSET, ByteRange, Offset
from tiersidecar.domain.policy import Pause, PauseKind
from tiersidecar.domain.proposals import DeleteProposal
from tiersidecar.domain.segments import MetadataEvent, RemoteLogSegmentMetadata, SegmentEvent
from tiersidecar.domain.trash import TrashEntry
from tiersidecar.ports.proposals import TakeProposals
from tiersidecar.ports.state_log import ForeignState, PartitionOfTopic, PartitionState, TopicState
from tiersidecar.ports.state_records import RecopyRequest


class NullMetadataLog:
    """``ports.metadata_log.MetadataLog`` of a topic without events."""

    topic_id: str = ""
    readiness_reason: str | None = None
    missing_right: BrokerRefusedError | None = None
    halted_reason: str | None = None

    async def publish(self, event: MetadataEvent, *, until_s: float | None = None) -> None:
        raise MetadataNotReadyError(subject="a topic that observing must not make")

    async def publish_all(self, events: Sequence[SegmentEvent], *, until_s: float | None = None) -> None:
        raise MetadataNotReadyError(subject="a topic that observing must not make")

    async def assign(self, partitions: Iterable[TopicIdPartition]) -> None:
        return None

    async def wait_until_ready(self, topic_id_partition: TopicIdPartition) -> None:
        return None

    async def catch_up(self, topic_id_partition: TopicIdPartition) -> None:
        return None

    def is_ready(self, topic_id_partition: TopicIdPartition) -> bool:
        return True

    def remote_log_segment_metadata(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return None

    def finished_segments_at(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> Iterator[RemoteLogSegmentMetadata]:
        return iter(())

    def highest_offset_for_epoch(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> int | None:
        return None

    def segment(self, remote_log_segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        return None

    def list_remote_log_segments(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> Iterator[RemoteLogSegmentMetadata]:
        return iter(())

    def picture(self, topic_id_partition: TopicIdPartition) -> SegmentPicture:
        return SegmentPicture(topic_id_partition, data=b"", custom=(), numbers=(), epoch_maps=())

    def mark(self, topic_id_partition: TopicIdPartition) -> int:
        return self.picture(topic_id_partition).mark

    def segments_with(
        self, topic_id_partition: TopicIdPartition, offsets: ByteRange
    ) -> Sequence[RemoteLogSegmentMetadata]:
        return ()

    def latest_leader_epoch(self, topic_id_partition: TopicIdPartition) -> int:
        return -1

    def list_unfinished_segments(self, topic_id_partition: TopicIdPartition) -> Iterator[RemoteLogSegmentMetadata]:
        return iter(())

    def segment_count(self, topic_id_partition: TopicIdPartition) -> int:
        return 0

    @property
    def changes(self) -> int:
        return 0

    def applied_to(self, topic_id_partition: TopicIdPartition) -> int:
        return -1

    def remote_log_size_bytes(self, topic_id_partition: TopicIdPartition, leader_epoch: int | None = None) -> int:
        return 0

    def next_segment_with_txn_index(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return None

    def finished_runs(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> Sequence[tuple[int, int]]:
        return ()


class NullProposals:
    """``ports.proposals.Proposals`` of a topic without records."""

    is_in_use = False

    async def propose(self, proposal: DeleteProposal) -> None:
        raise MetadataNotReadyError(subject="a topic that observing must not make")

    async def keep_reading(self, take: TakeProposals, *, max_age_ms: int) -> None:
        await asyncio.Event().wait()


class NullStateLog:
    """``ports.state_log.StateLog`` of a topic without records."""

    readiness_reason: str | None = None
    missing_right: BrokerRefusedError | None = None
    halted_reason: str | None = None
    topic_id: str = ""

    def accepted_losses(self) -> Collection[str]:
        return ()

    async def accept_losses(self, topic_ids: Mapping[str, str], *, by: str) -> None:
        raise MetadataNotReadyError(subject="a topic that observing must not make")

    async def catch_up(self) -> None:
        return None

    @property
    def changes(self) -> int:
        return 0

    def changed_since(self, changes: int) -> frozenset[PartitionOfTopic] | None:
        return frozenset()

    async def advanced(self) -> None:
        await asyncio.Event().wait()

    def partition_state(self, topic_id_partition: TopicIdPartition) -> PartitionState:
        return PartitionState()

    def highest_start(self, topic_id: Uuid, partition: int) -> Offset:
        return NO_OFFSET

    def topic_state(self, topic_id: Uuid) -> TopicState | None:
        return None

    def partitions(self) -> Sequence[TopicIdPartition]:
        return ()

    def is_ours(self, topic_id_partition: TopicIdPartition) -> bool:
        return False

    def foreign_partitions(self) -> Mapping[TopicIdPartition, ForeignState]:
        return {}

    def why_paused(self, topic_id: Uuid | None, kind: PauseKind) -> str:
        return ""

    def pauses(self) -> Sequence[Pause]:
        return ()

    async def publish_pause(self, pause: Pause) -> None:
        raise MetadataNotReadyError(subject="a topic that observing must not make")

    async def forget_pause(self, pause: Pause) -> None:
        return None

    async def forget_partition(self, topic_id_partition: TopicIdPartition) -> None:
        return None

    async def forget_topic(self, topic_id: Uuid) -> None:
        return None

    def recopies(self, topic_id_partition: TopicIdPartition) -> Sequence[RecopyRequest]:
        return ()

    async def request_recopy(self, request: RecopyRequest) -> None:
        raise MetadataNotReadyError(subject="a topic that observing must not make")

    async def decline_recopy(self, request: RecopyRequest, broker_id: BrokerId, reason: str) -> None:
        return None

    async def forget_recopy(self, request: RecopyRequest) -> None:
        return None

    def lease(self, name: str) -> Lease | None:
        return None

    def known_leases(self) -> Sequence[Lease]:
        return ()

    async def publish_lease(self, lease: Lease) -> Lease:
        raise MetadataNotReadyError(subject="a topic that observing must not make")

    def trash(self, topic_id_partition: TopicIdPartition) -> Sequence[TrashEntry]:
        return ()

    def trash_partitions(self) -> Sequence[TopicIdPartition]:
        return ()

    async def put_into_trash(self, topic_id_partition: TopicIdPartition, entries: Iterable[TrashEntry]) -> None:
        raise MetadataNotReadyError(subject="a topic that observing must not make")

    async def take_out_of_trash(self, topic_id_partition: TopicIdPartition, entries: Iterable[TrashEntry]) -> None:
        return None

    def cleaner_claims(self, topic_id_partition: TopicIdPartition) -> Sequence[CleanerClaim]:
        return ()

    async def publish_cleaner_claim(self, topic_id_partition: TopicIdPartition, claim: CleanerClaim) -> None:
        raise MetadataNotReadyError(subject="a topic that observing must not make")

    async def publish_partition_state(self, topic_id_partition: TopicIdPartition, state: PartitionState) -> None:
        raise MetadataNotReadyError(subject="a topic that observing must not make")

    async def publish_topic_state(self, topic_id: Uuid, state: TopicState) -> None:
        raise MetadataNotReadyError(subject="a topic that observing must not make")
