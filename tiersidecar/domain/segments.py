"""Segments: the metadata topic's records of them, those on the broker's disk, and pins of those.

The four record kinds of ``__remote_log_metadata`` keep Kafka's names and fields.  Fields are written for
the Kafka version that will read our events, and read in every form.

Pins keep a sealed segment readable after the broker has deleted it (docs/design/0004-pins.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, Protocol

from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, TopicIdPartition, Uuid
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
    have no time or the index could not be read.  ``inode`` is the .log's, 0 where it is no file of a log dir: a pin has the one
    of the broker's file for as long as that is there.
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
    inode: int = 0

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
    made_ms: int = NO_TIMESTAMP_MS
    """When the broker made the directory, by the time of its partition.metadata, which it writes once; -1 where that is not
    known."""

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


class PinnedPartition(NamedTuple):
    """Partition of a pin, by its file names: they have no room for the topic's name."""

    topic_id: Uuid
    partition: int

    @classmethod
    def of(cls, topic_id_partition: TopicIdPartition) -> PinnedPartition:
        return cls(topic_id_partition.topic_id, topic_id_partition.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Links to the files of one sealed segment.

    ``segment`` is the segment as its links show it: ``pinned``, with a ``next_base_offset``.  ``log_dir`` is the one that it
    was pinned in.  ``leader_epochs`` are the broker's entries below the next base offset at that time; empty when
    unreadable.  ``max_timestamp_ms`` is the last of its time index, or its time of change.  ``is_whole`` says that no
    companion is missing that a sealed segment always has.
    """

    owner: PinnedPartition
    log_dir: str
    segment: LocalSegment
    leader_epochs: tuple[EpochEntry, ...]
    max_timestamp_ms: int
    is_whole: bool

    @property
    def base_offset(self) -> Offset:
        return self.segment.base_offset

    @property
    def next_base_offset(self) -> Offset:
        """Return the exclusive end of its offsets."""
        assert self.segment.next_base_offset is not None, "only sealed segments are pinned"
        return self.segment.next_base_offset

    @property
    def size_bytes(self) -> int:
        """Return the size of the .log."""
        return self.segment.size_bytes

    def is_of(self, segment: LocalSegment, log_dir: str) -> bool:
        """Return whether ``segment``, in the broker's directory in ``log_dir``, is the very file that is pinned."""
        return self.log_dir == log_dir and self.segment.inode == segment.inode


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureLook:
    """A look at which all that a cleaner might touch of a compacted partition was pinned or remote, up to ``end_offset``
    (exclusive): all that was sealed below the high watermark, above which no cleaner goes.  ``delete_retention_ms`` is the
    topic's of then, by which a cleaner may have gone since."""

    end_offset: Offset
    at_ms: int
    delete_retention_ms: int = NO_LOG_END


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Pins that were made at one moment.  ``cleaner_offset`` is up to where the broker's cleaner had been when they were whole,
    -1 where it never was there, None where that cannot be read."""

    pins: tuple[Pin, ...]
    cleaner_offset: int | None


class DropReason(StrEnum):
    """Reason why a pin goes; the values are those of the label ``reason``."""

    REMOTE = "remote"
    TRUNCATED = "truncated"
    BELOW_LOG_START = "below_log_start"
    MOVED = "moved"
    REPLACED = "replaced"
    TOPIC_GONE = "topic_gone"
    PARTITION_GONE = "partition_gone"
    PINS_MAX_BYTES = "pins_max_bytes"
    DISK_RESERVE = "disk_reserve"

    @property
    def is_loss(self) -> bool:
        """Return whether data went that a reader may still have a right to: it is not known whether another replica of a
        partition that has left this broker, or the store, has it too."""
        return self in (DropReason.PARTITION_GONE, DropReason.PINS_MAX_BYTES, DropReason.DISK_RESERVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpin:
    """A pin to be dropped, and why.  ``instead`` are pins that have its offsets, if their files have what they seem to."""

    pin: Pin
    reason: DropReason
    instead: tuple[Pin, ...] = ()


def with_pins(local: LocalPartition, pins: Sequence[Pin]) -> LocalPartition:
    """Return the partition with its pins: those that begin below the directory's first segment come first.  ``pins`` ascend
    by base offset."""
    if not pins:  # mostly so, and asked four times at each look
        return local
    first = local.segments[0].base_offset
    older = tuple(pin.segment for pin in pins if pin.base_offset < first)
    return replace(local, segments=(*older, *local.segments)) if older else local


def gone_below(
    log_start_offset: Offset, segments: Sequence[LocalSegment], pins: Sequence[Pin]
) -> tuple[LocalSegment, ...]:
    """Return the segments with those that the broker has deleted as their pins hold them: where its log starts it says at
    once, and a scan shows it later."""
    held = {(pin.base_offset, pin.next_base_offset): pin.segment for pin in pins}
    return tuple(
        held.get((one.base_offset, one.next_base_offset), one)
        if one.next_base_offset is not None and one.next_base_offset <= log_start_offset
        else one
        for one in segments
    )


def pictured(local: LocalPartition, pins: Sequence[Pin]) -> LocalPartition:
    """Return a compacted partition as it was pinned: what its directory has by now, but for the active segment, is of another
    moment.  A pin whose successor ends earlier comes after it."""
    ordered = sorted(pins, key=lambda pin: (pin.next_base_offset, pin.base_offset))
    return replace(local, segments=(*(pin.segment for pin in ordered), local.segments[-1]))


def epochs_with_pins(live: Sequence[EpochEntry], pins: Sequence[Pin]) -> tuple[EpochEntry, ...]:
    """Return the live leader-epoch-checkpoint, and before it the entries that the broker has dropped since the pins were made.

    Not a union: where pins and live file disagree, the live file counts, and what lies at or above its first entry goes.
    """
    lineage = Lineage()
    for pin in pins:
        if lineage.entries[: len(pin.leader_epochs)] != pin.leader_epochs:
            lineage = lineage.extended_by(pin.leader_epochs)
    return lineage.extended_by(live).entries
