"""Remote log metadata: publishing events, and the view that our own consumer keeps of them.

The names and meanings are those of Kafka's RemoteLogMetadataManager (S-083 to S-107).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition
from tiersidecar.domain.metadata_cache_rows import SegmentPicture
from tiersidecar.domain.offsets import ByteRange, EpochEntry
from tiersidecar.domain.segments import MetadataEvent, RemoteLogSegmentMetadata, SegmentEvent


class PublishMetadata(Protocol):
    async def publish(self, event: MetadataEvent, *, until_s: float | None = None) -> None:
        """Write ``event`` (acks=all, idempotent) and return once our own consumer has applied it (S-091).

        When it raises, or is cancelled, the event may or may not be durable: the caller must be able to do it again.  What was
        not sent by then is not sent any more, nor is anything after ``until_s``, by the clock's ``monotonic_s``: a moment and
        not a length of time, since the process may be stopped between the look at the clock and the call.

        Raises:
            PublishTimeoutError: not read back within remote.log.metadata.consume.wait.ms, or by ``until_s``.
            IllegalTransitionError: refused by the state machine before anything was written.
        """


class PublishMetadataInBulk(Protocol):
    async def publish_all(self, events: Sequence[SegmentEvent], *, until_s: float | None = None) -> None:
        """Write ``events``, which are of one partition, in their order, and return once our own consumer has applied them all.

        All are checked before any is written, and read back when all are: a partition's history takes seconds so, and not an
        answer for each event.  When it raises, or is cancelled, a beginning of them may be durable, and nothing behind it; what
        was not sent by then is not sent any more.

        Raises:
            PublishTimeoutError, IllegalTransitionError: as of :class:`PublishMetadata`; ``until_s`` is for all of them.
        """


class MetadataView(Protocol):
    """Reads of the replayed metadata: synchronous, from memory.

    Each raises :class:`~tiersidecar.domain.errors.MetadataNotReadyError` while the partition is not ready (S-096).
    """

    def is_ready(self, topic_id_partition: TopicIdPartition) -> bool:
        """Return whether events up to the end offset seen at assignment have been applied (S-095)."""

    def remote_log_segment_metadata(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """Return the COPY_SEGMENT_FINISHED segment that holds ``offset`` as written in ``leader_epoch`` (S-098)."""

    def finished_segments_at(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """Yield all COPY_SEGMENT_FINISHED segments that hold ``offset`` as written in ``leader_epoch``: first the one that is
        read, last those that others cover."""

    def highest_offset_for_epoch(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> int | None:
        """Return the highest offset, inclusive, ever finished for the epoch; deletion does not lower it (T-67)."""

    def segment(self, remote_log_segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """Return one segment in any state but DELETE_SEGMENT_FINISHED."""

    def list_remote_log_segments(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """Yield all segments in any state but DELETE_SEGMENT_FINISHED, ascending by start offset (S-099)."""

    def segments_with(
        self, topic_id_partition: TopicIdPartition, offsets: ByteRange
    ) -> Sequence[RemoteLogSegmentMetadata]:
        """Return those of :meth:`list_remote_log_segments` that hold any of ``offsets``, without reading the others."""

    def latest_leader_epoch(self, topic_id_partition: TopicIdPartition) -> int:
        """Return the latest leader epoch of any segment that there is or was; -1 where there was none."""

    def picture(self, topic_id_partition: TopicIdPartition) -> SegmentPicture:
        """Return all segments as they are now, for callers that want all of a hundred thousand, made in a thread."""

    def mark(self, topic_id_partition: TopicIdPartition) -> int:
        """Return the mark of :meth:`picture`: as cheap as any look-up as long as nothing changes, and after a change as making
        the picture."""

    def list_unfinished_segments(self, topic_id_partition: TopicIdPartition) -> Iterator[RemoteLogSegmentMetadata]:
        """Yield segments in COPY_SEGMENT_STARTED or DELETE_SEGMENT_STARTED: few, found without walking the finished ones."""

    def segment_count(self, topic_id_partition: TopicIdPartition) -> int:
        """Return how many segments :meth:`list_remote_log_segments` lists (RemoteLogMetadataCount)."""

    def remote_log_size_bytes(self, topic_id_partition: TopicIdPartition, leader_epoch: int | None = None) -> int:
        """Return the sum of ``segment_size_in_bytes`` of listed segments, of one epoch or of all."""

    def next_segment_with_txn_index(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """Return the first finished segment at or after ``offset`` in ``leader_epoch`` with a transaction index (S-157)."""

    def finished_runs(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> Sequence[tuple[int, int]]:
        """Return the offsets as written in ``leader_epoch`` that finished segments hold without a hole: start inclusive, stop
        exclusive, ascending.  Updated with each change: as cheap as any look-up."""


class MetadataAssignment(Protocol):
    async def assign(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Make these the partitions whose metadata is kept; others are forgotten.  Returns before they are ready."""

    async def wait_until_ready(self, topic_id_partition: TopicIdPartition) -> None:
        """Return once :meth:`MetadataView.is_ready`; the caller bounds the wait."""


class CatchUpMetadata(Protocol):
    async def catch_up(self, topic_id_partition: TopicIdPartition) -> None:
        """Return once every event is applied that was durable when this was called, whichever process wrote it.

        Our own consumer may be behind: above all when the broker that died led both the partition and its part of the topic.

        Raises:
            MetadataNotReadyError: the partition is not assigned or not ready, or its events did not come in time.
            BrokerUnreachableError: the metadata topic is out of reach.
            BrokerRefusedError: its leader does not say how far it goes.
        """


class CountMetadata(Protocol):
    @property
    def changes(self) -> int:
        """Return how many events were applied so far, to any partition: as long as it is the same, so is :meth:`applied_to` of
        each."""
        ...

    def applied_to(self, topic_id_partition: TopicIdPartition) -> int:
        """Return the offset of the last event that was applied to the partition, -1 before the first: as long as it is the
        same, so is all that :class:`MetadataView` says.

        Raises:
            MetadataNotReadyError: the partition is not ready.
        """
        ...


class DoubtMetadata(Protocol):
    @property
    def halted_reason(self) -> str | None:
        """Return why nothing may be trimmed, unpinned or deleted because of this topic although reads go on (it lost data, its
        settings are weak), else None.  Where it lost data nothing can be published, and so nothing copied; weak settings stop
        no copy, since it frees nothing."""


class MetadataLog(
    PublishMetadata,
    PublishMetadataInBulk,
    MetadataView,
    MetadataAssignment,
    CatchUpMetadata,
    CountMetadata,
    DoubtMetadata,
    Protocol,
):
    """The whole of it, as the composition root builds it."""

    @property
    def readiness_reason(self) -> str | None:
        """Return why not every assigned partition is ready yet, for the operator; None when all are."""

    @property
    def missing_right(self) -> BrokerRefusedError | None:
        """Return the refusal for want of a right by which contact was lost last; None without one, or with contact."""

    @property
    def topic_id(self) -> str:
        """Return the topic's present id; empty while that is not known."""
        ...


class ReadEpochs(Protocol):
    """Epoch blobs of finished segments, for the lineage; implemented by the reading side over the store."""

    async def read_leader_epochs(self, metadata: RemoteLogSegmentMetadata) -> Sequence[EpochEntry]:
        """Return the leader-epoch artefact of a remote segment."""
