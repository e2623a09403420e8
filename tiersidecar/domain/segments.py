"""Segments: the metadata topic's records of them, and those on the broker's disk.

The four record kinds of ``__remote_log_metadata`` keep Kafka's names and fields (FORMATS.md section 1).  Fields are written for
the Kafka version that will read our events, and read in every form.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, TopicIdPartition
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.states import RemoteLogSegmentState, RemotePartitionDeleteState

NO_LOG_END = 2**63 - 1
NO_TIMESTAMP_MS = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadata:
    """One remote segment as its events leave it (``RemoteLogSegmentMetadata``).

    ``start_offset`` and ``end_offset`` are inclusive; ``segment_size_in_bytes`` is the size of the local .log before any
    transform (S-120); ``segment_leader_epochs`` ascends by epoch, its first start raised to ``start_offset``.

    Raises:
        ValueError: offsets out of order or no leader epoch (S-116).
    """

    remote_log_segment_id: RemoteLogSegmentId
    start_offset: Offset
    end_offset: Offset
    max_timestamp_ms: int
    broker_id: BrokerId
    event_timestamp_ms: int
    segment_size_in_bytes: int
    segment_leader_epochs: tuple[EpochEntry, ...]
    custom_metadata: bytes | None = None
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    txn_index_empty: bool = False

    def __post_init__(self) -> None:
        if self.start_offset < 0 or self.end_offset < self.start_offset:
            raise ValueError(f"segment {self.remote_log_segment_id}: offsets [{self.start_offset}, {self.end_offset}]")
        if not self.segment_leader_epochs:
            raise ValueError(f"segment {self.remote_log_segment_id} has no leader epoch")

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return self.remote_log_segment_id.topic_id_partition

    @property
    def next_offset(self) -> Offset:
        """Return the offset after ``end_offset``."""
        return Offset(self.end_offset + 1)

    def is_within(self, lineage: Lineage, log_end_offset: int = NO_LOG_END) -> bool:
        """Return whether this segment is of the history ``lineage``; ``log_end_offset`` is exclusive.

        Without a log end the epochs alone decide: a client's view of the log end lags behind after an election.
        """
        return lineage.contains_segment(self.segment_leader_epochs, self.end_offset, log_end_offset)

    def with_update(self, update: RemoteLogSegmentMetadataUpdate) -> RemoteLogSegmentMetadata:
        """Return the segment with broker id, event time, custom metadata and state of ``update``; the rest stays (S-117)."""
        return replace(
            self,
            broker_id=update.broker_id,
            event_timestamp_ms=update.event_timestamp_ms,
            custom_metadata=update.custom_metadata,
            state=update.state,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadataUpdate:
    """A state change of a known segment (``RemoteLogSegmentMetadataUpdate``)."""

    remote_log_segment_id: RemoteLogSegmentId
    broker_id: BrokerId
    event_timestamp_ms: int
    state: RemoteLogSegmentState
    custom_metadata: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePartitionDeleteMetadata:
    """A mark that a whole partition goes (``RemotePartitionDeleteMetadata``): read, never written by 4.3.1."""

    topic_id_partition: TopicIdPartition
    broker_id: BrokerId
    event_timestamp_ms: int
    state: RemotePartitionDeleteState


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadataSnapshot:
    """The fourth record kind: a segment without its partition, for snapshot files; never in the topic (S-107)."""

    uuid: bytes
    start_offset: Offset
    end_offset: Offset
    max_timestamp_ms: int
    broker_id: BrokerId
    event_timestamp_ms: int
    segment_size_in_bytes: int
    segment_leader_epochs: tuple[EpochEntry, ...]
    custom_metadata: bytes | None
    state: RemoteLogSegmentState
    txn_index_empty: bool = False


SegmentEvent = RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate
MetadataEvent = SegmentEvent | RemotePartitionDeleteMetadata
"""The records of the metadata topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSegment:
    """A segment in a log dir, as its directory listing shows it.

    ``next_base_offset`` is the base offset of the following segment, or None for the active one; the segment's end
    offset is ``next_base_offset - 1`` even if its last record is lower (T-19).  ``pinned`` says that the files are links of
    ours, whose names begin with ``file_prefix``; ``file_suffix`` is ``.deleted`` while the broker has renamed the files and
    not removed them yet (docs/design/0004-pins.md).  ``max_timestamp_ms`` is the last of its time index, -1 where its records
    have no time or the index could not be read.
    """

    directory: str
    base_offset: Offset
    next_base_offset: Offset | None
    size_bytes: int
    modified_ms: int
    max_timestamp_ms: int = NO_TIMESTAMP_MS
    pinned: bool = False
    file_prefix: str = ""
    file_suffix: str = ""

    @property
    def log_path(self) -> str:
        return self.path_of(f"{self.base_offset:020d}.log")

    def path_of(self, broker_name: str) -> str:
        """Return the path of the file that the broker calls ``broker_name`` in its partition directory."""
        return f"{self.directory}/{self.file_prefix}{broker_name}{self.file_suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentScan:
    """Result of one walk over all batch headers of a segment, every CRC checked (rule 9).

    ``leader_epochs`` has each epoch seen with the base offset of its first batch, ``leader_epoch_ends`` the last offset of
    each (inclusive); ``last_offset`` is inclusive, -1 for an empty segment.  ``crc32c`` is of the whole file.
    """

    batch_count: int
    last_offset: int
    max_timestamp_ms: int
    leader_epochs: tuple[EpochEntry, ...]
    first_batch_compressed: bool
    crc32c: int
    leader_epoch_ends: tuple[int, ...] = ()


class FollowTransactions(Protocol):
    """Receives a segment's transactional and control batches, while other code walks it."""

    def take(self, batch: bytes | bytearray | memoryview, *, where: str, position: int) -> None:
        """Take the next of them, of format 2, whose checksum holds: a control batch whole, others at least by their header.

        Raises:
            CorruptDataError: a marker that cannot be read.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPartition:
    """A partition directory of one log dir: its segments ascend, the last one is active."""

    topic_id_partition: TopicIdPartition
    log_dir: str
    directory: str
    segments: tuple[LocalSegment, ...]
    leader_epochs: tuple[EpochEntry, ...]
    """The broker's live leader-epoch-checkpoint: not a lineage, see :mod:`tiersidecar.domain.offsets`."""
    deleted: tuple[LocalSegment, ...] = ()
    """Segments below the first one that the broker has renamed and not removed yet, ascending: given up by it, to be copied
    from pins at most."""

    @property
    def sealed_segments(self) -> tuple[LocalSegment, ...]:
        return tuple(segment for segment in self.segments if segment.next_base_offset is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderView:
    """The broker's present report of a partition (Metadata API)."""

    topic_id_partition: TopicIdPartition
    leader_id: BrokerId
    leader_epoch: LeaderEpoch
    replicas: tuple[BrokerId, ...]
    in_sync_replicas: tuple[BrokerId, ...]


TXN_INDEX_EMPTY_SINCE = (4, 0)
"""KAFKA-16780: absent from 3.9's records and storage API, present in 4.x (seen in 3.9.2 and 4.3.1)."""


def knows_txn_index_empty(kafka_version: tuple[int, int]) -> bool:
    """Return whether brokers of ``(major, minor)`` write TxnIndexEmpty in events and txnIdxEmpty in manifests."""
    return kafka_version >= TXN_INDEX_EMPTY_SINCE
