"""The broker's log.dirs, read only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.segments import FollowTransactions, LocalPartition, LocalSegment
from tiersidecar.domain.segments import SegmentScan as SegmentScan

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirIdentity:
    """``meta.properties`` of one log dir."""

    log_dir: str
    cluster_id: str
    node_id: int
    directory_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirsView:
    """All log dirs at one moment.  ``faults`` maps a log dir, or a partition directory, that could not be read to the reason:
    its partitions are absent from ``partitions``, the others are there."""

    partitions: Mapping[TopicIdPartition, LocalPartition]
    faults: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFingerprint:
    """Properties that must not change while a segment is copied."""

    inode: int
    size_bytes: int
    modified_ns: int


class Artefact(StrEnum):
    """The companions of a .log, by their names in messages."""

    OFFSET_INDEX = "offset index"
    TIME_INDEX = "time index"
    TRANSACTION_INDEX = "transaction index"
    PRODUCER_SNAPSHOT = "producer snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtefactFault:
    """Reason why a companion cannot be used.  ``may_come``: the broker may still be writing it."""

    artefact: Artefact
    reason: str
    may_come: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentArtefacts:
    """The small companions of a .log (LogSegmentData; S-033), each None if it is in ``faults``.

    ``transaction_index`` is None also when there is no such file.  ``producer_snapshot`` is that of the next base offset,
    ``earlier_snapshot`` that of the segment's own, from which the former can be made again, or None where that cannot be used.
    ``latest_timestamp_ms`` is the last of the time index, -1 when it is empty, None when it is at fault.
    """

    offset_index: bytes | None
    time_index: bytes | None
    transaction_index: bytes | None
    producer_snapshot: bytes | None
    earlier_snapshot: bytes | None = None
    latest_timestamp_ms: int | None = None
    faults: tuple[ArtefactFault, ...] = ()


class ReadAndMake(Protocol):
    async def read_and_make(
        self,
        position: int,
        buffer: memoryview,
        look: Callable[[int, memoryview], None],
        make: Callable[[memoryview], T],
    ) -> T:
        """Read like :meth:`SegmentFile.read_into`, and return what ``make`` gives of the bytes read: in the reading thread,
        while they are in the processor's cache."""


class SegmentFile(ReadAndMake, Protocol):
    """An open .log: it stays readable after the broker unlinks it."""

    @property
    def fileno(self) -> int: ...

    @property
    def path(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    async def fingerprint(self) -> SegmentFingerprint:
        """Return the fingerprint of the file now, through the open descriptor."""

    async def scan(self, transactions: FollowTransactions | None = None) -> SegmentScan:
        """Read the whole segment in slices off the event loop and check it; ``transactions`` follows its batches.

        Raises:
            CorruptDataError: a batch that fails its checks, with its position.
            SegmentNotReadyError: the file is shorter than its last batch says.
        """

    async def read_into(
        self, position: int, buffer: memoryview, look: Callable[[int, memoryview], None] | None = None
    ) -> int:
        """Read at ``position`` until ``buffer`` is full or the file ends; return the number of bytes read.

        ``look`` is shown them slice by slice, each with its position, in the reading thread, while they are in the processor's
        cache; its exceptions pass.
        """

    async def read_with_rests(
        self, position: int, buffer: memoryview, look: Callable[[int, memoryview], None] | None = None
    ) -> int:
        """Read like :meth:`read_into`, for a caller that is in no hurry: in short turns with rests between them, so that no
        thread of the broker waits long for its core."""

    def let_go(self, position: int, size_bytes: int) -> None:
        """Drop these bytes from the page cache: they were read, in order, and will not be needed again."""


class LogDirs(Protocol):
    async def identities(self) -> tuple[LogDirIdentity, ...]:
        """Return ``meta.properties`` of every readable log dir.

        Raises:
            LogDirError: none is readable.
            UnformattedLogDirError: one has no meta.properties.
        """

    async def scan(self) -> LogDirsView:
        """List all partitions and their segments; cheap when nothing changed (directory mtimes)."""

    async def scan_changed(self) -> LogDirsView:
        """Do what :meth:`scan` does, and look only at partitions that file events name; at all where there are no events to
        rely on, and as often as is configured, for what they may miss.  The sizes of active segments are as of that time.

        What did not change is the same object as before, the view as well.
        """

    def changes(self) -> AsyncIterator[None]:
        """Yield soon after segments came or went (file events), many changes as one; never end by itself.  A hint only: whole
        scans are the safety net."""

    def open_segment(self, segment: LocalSegment) -> AbstractAsyncContextManager[SegmentFile]:
        """Open the .log.

        Raises:
            SegmentChangedError: it is gone.
        """

    async def read_artefacts(self, segment: LocalSegment) -> SegmentArtefacts:
        """Return the indexes and the producer snapshots, each checked; ``faults`` has those that are missing or damaged.

        Raises:
            SegmentChangedError: the segment itself is gone.
        """

    def topic_id_now(self, topic: str, partition: int) -> Uuid | None:
        """Return the id of the topic whose partition this is on disk at this moment; None while there is none, or the broker
        has not written it yet.  Takes some microseconds."""

    def leader_epoch_now(self, topic: str, partition: int) -> tuple[Uuid, LeaderEpoch] | None:
        """Return :meth:`topic_id_now` with the last epoch of its leader-epoch-checkpoint; None also where there is none.
        Reads a small file."""

    async def high_watermarks(self) -> Mapping[TopicIdPartition, int]:
        """Return those of ``replication-offset-checkpoint``: a lower bound, all that a follower has."""
