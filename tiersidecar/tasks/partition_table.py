"""State that the tier role knows at this moment: written by the watch and the lanes, read by the lanes and the status page.

Facts about one partition are in its :class:`PartitionRecord`; what the watch finds in one look at log dirs and broker stands
beside them, and is replaced as a whole by the next look.  Pins are read once when the role begins, and carried on with each
one made or dropped.  While another process of the broker has the role it changes all that but what a look finds: the table is
begun anew then (``PartitionTable.begin_anew``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum

from tiersidecar.decide.copy import CopyLag
from tiersidecar.decide.disk_pressure import DiskState
from tiersidecar.decide.expire import ExpiryPlan
from tiersidecar.decide.pressure_trim import PressureTrim
from tiersidecar.decide.topics import (
    CleanerSettings,
    CleanupPolicy,
    PartitionRole,
    TieredPartition,
    UnwrittenEpoch,
    reason_to_doubt_directory,
)
from tiersidecar.decide.trim import TrimHold
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import NO_OFFSET, ByteRange, EpochEntry, LeaderEpoch, Lineage
from tiersidecar.domain.policy import UNLIMITED, TopicPolicy
from tiersidecar.domain.segments import (
    LocalPartition,
    LocalSegment,
    Pin,
    PinnedPartition,
    epochs_with_pins,
    pictured,
    with_pins,
)
from tiersidecar.ports.log_dirs import LogDirsView


class PinTable:
    """Part of the table; single-threaded.  Pins of a partition ascend by base offset."""

    def __init__(self) -> None:
        self.unread: frozenset[str] | None = None
        """Log dirs whose pins have not been read yet; None before the first attempt."""
        self._refused: dict[PinnedPartition, frozenset[tuple[int, int]]] = {}
        self._pins: dict[PinnedPartition, tuple[Pin, ...]] = {}
        self._epochs: dict[PinnedPartition, tuple[tuple[Pin, ...], tuple[EpochEntry, ...]]] = {}

    def begin_anew(self) -> None:
        """Forget all: as before the first attempt to read them."""
        self.unread = None
        for known in (self._refused, self._pins, self._epochs):
            known.clear()

    def __iter__(self) -> Iterator[Pin]:
        for pins in tuple(self._pins.values()):
            yield from pins

    def are_known(self, log_dir: str) -> bool:
        """Return whether the pins of a log dir have been read: before, a copy could begin behind what only a pin holds."""
        return self.unread is not None and log_dir not in self.unread

    @property
    def partitions(self) -> tuple[PinnedPartition, ...]:
        """Return those that have a pin."""
        return tuple(self._pins)

    def of(self, topic_id_partition: TopicIdPartition) -> tuple[Pin, ...]:
        """Return the pins of a partition."""
        if not self._pins:  # mostly so, and asked of thousands at every look
            return ()
        return self._pins.get(PinnedPartition.of(topic_id_partition), ())

    def epochs_of(self, topic_id_partition: TopicIdPartition) -> tuple[EpochEntry, ...]:
        """Return what the pins of a partition know of its leader epochs: each read asks for it, and pins change seldom."""
        owner = PinnedPartition.of(topic_id_partition)
        pins = self._pins.get(owner)
        if pins is None:
            self._epochs.pop(owner, None)
            return ()
        known = self._epochs.get(owner)
        if known is None or known[0] is not pins:
            known = self._epochs[owner] = (pins, epochs_with_pins((), pins))
        return known[1]

    def of_owner(self, owner: PinnedPartition) -> tuple[Pin, ...]:
        """Return the pins of a partition, by what their names say."""
        return self._pins.get(owner, ())

    def refused_of(self, topic_id_partition: TopicIdPartition) -> frozenset[tuple[int, int]]:
        """Return offsets (base, next base) of segments that are not to be pinned again."""
        return self._refused.get(PinnedPartition.of(topic_id_partition), frozenset())

    def refuse(self, pin: Pin) -> None:
        """Note that the segment is not to be pinned again: nothing gives it a right to stay."""
        self._refused[pin.owner] = self._refused.get(pin.owner, frozenset()) | {_offsets(pin)}

    def forget_refused(self, owner: PinnedPartition, first_offset: int) -> None:
        """Drop what was refused below ``first_offset``: it can be pinned no more."""
        left = frozenset(one for one in self._refused.get(owner, ()) if one[1] > first_offset)
        if left:
            self._refused[owner] = left
        else:
            self._refused.pop(owner, None)

    @property
    def refused_partitions(self) -> tuple[PinnedPartition, ...]:
        """Return those with refused segments."""
        return tuple(self._refused)

    def add(self, pin: Pin) -> None:
        """Note a pin, in the place of one of the same offsets."""
        others = (other for other in self.of_owner(pin.owner) if _offsets(other) != _offsets(pin))
        self._pins[pin.owner] = tuple(sorted((*others, pin), key=_offsets))

    def add_all(self, pins: Iterable[Pin]) -> None:
        """Note many pins as :meth:`add` does, as at start."""
        found: dict[PinnedPartition, dict[tuple[int, int], Pin]] = {}
        for pin in pins:
            found.setdefault(pin.owner, {_offsets(one): one for one in self.of_owner(pin.owner)})[_offsets(pin)] = pin
        for owner, by_offsets in found.items():
            self._pins[owner] = tuple(sorted(by_offsets.values(), key=_offsets))

    def remove(self, pin: Pin) -> None:
        """Forget a pin; one that is not known is no error."""
        left = tuple(other for other in self.of_owner(pin.owner) if _offsets(other) != _offsets(pin))
        if left:
            self._pins[pin.owner] = left
        else:
            self._pins.pop(pin.owner, None)


def _offsets(pin: Pin) -> tuple[int, int]:
    return pin.base_offset, pin.next_base_offset


_LOOKS_BEFORE_CERTAINTY = 2
"""A look scans first and asks for leaders after that: what the second one sees may still be of the epoch before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowShape:
    """The part of a state that the topics have no share in, and the objects that it is ``of``."""

    of: tuple[object, ...]
    shape: object


@dataclass(slots=True)
class FollowNote:
    """Forgotten with each change of leader or epoch (``PartitionTable.forget``).

    ``epochs`` are the live file's, with those that it has dropped since.  ``settled`` is the state in which nothing was left to
    do.
    """

    epochs: Lineage = Lineage()  # noqa: RUF009 - frozen
    settled: object = None
    shape: FollowShape | None = None
    _looks: int = 0
    _looked: LocalPartition | None = None
    _uncertain: frozenset[int] = field(default_factory=frozenset)
    _deleted: tuple[LocalSegment, ...] = ()

    def look(self, local: LocalPartition) -> None:
        """Take note of a scan.  The same scan again adds nothing."""
        if local is self._looked and self._looks >= _LOOKS_BEFORE_CERTAINTY:
            return
        self._looked = local
        if self._looks < _LOOKS_BEFORE_CERTAINTY:
            self._looks += 1
            self._uncertain = frozenset(segment.base_offset for segment in local.deleted)
        if self.epochs.entries != local.leader_epochs:
            self.epochs = self.epochs.extended_by(local.leader_epochs)
        self._deleted = tuple(one for one in local.deleted if one.base_offset not in self._uncertain)

    def certain_of(self, local: LocalPartition) -> tuple[LocalSegment, ...]:
        """Return what :attr:`deleted` is once a scan has been taken note of that is as new as the last, or newer."""
        if self._looks < _LOOKS_BEFORE_CERTAINTY:
            return ()
        return tuple(one for one in local.deleted if one.base_offset not in self._uncertain)

    @property
    def deleted(self) -> tuple[LocalSegment, ...]:
        """Return segments that the broker renamed while it led: by retention or DeleteRecords, for a leader truncates
        nothing."""
        return self._deleted


NO_LOG_DIRS = LogDirsView(partitions={}, faults={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncleaned:
    """The local segment of a compacted topic at ``base_offset``, before which trimming waits for one of the two cleaners."""

    base_offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnprovenCopy:
    """The local segment at ``base_offset`` whose remote copy could not be read back, ``failures`` times in a row.

    Nothing of the partition is trimmed from it on until ``until_s`` on the monotonic clock; then it is looked at again.
    """

    base_offset: int
    failures: int
    until_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskNote:
    """A file system with log dirs on it.  ``full_in_s`` is infinite where it does not fill, NaN while that is not known."""

    log_dirs: tuple[str, ...]
    size_bytes: int
    free_bytes: int
    full_in_s: float
    state: DiskState


class HeldUp(StrEnum):
    """Work that waits for the end of a transaction."""

    COPYING = "copying"
    READERS = "read_committed readers"

    @property
    def waiting(self) -> str:
        """Return it as the beginning of a sentence."""
        return "copying waits" if self is HeldUp.COPYING else f"{self.value} wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionWait:
    """``since_ms`` is when this process met it first."""

    held_up: HeldUp
    producer_id: int
    producer_epoch: int
    first_offset: int
    since_ms: int


@dataclass(slots=True)
class PartitionRecord:
    """The lanes' knowledge of one partition; dropped whole when it is no longer ours, or changes hands.

    Offsets are what was seen last: they spare a lane its start, and are never grounds for a deletion.
    """

    copied_offset: int | None = None
    """Inclusive; None until the copy lane has looked. Written by the copy lane."""

    copy_holes: tuple[ByteRange, ...] = ()
    """Offsets below the copied one that only the broker holds, to be copied. Written by the copy lane."""

    remote_log_start: int = NO_OFFSET
    """Written by the copy lane."""

    copy_lag_reported: CopyLag | None = None
    """The lag that the gauges show. Written by the copy lag report."""

    pending: (
        tuple[tuple[tuple[LocalSegment, ...], int, int, tuple[ByteRange, ...]], tuple[LocalSegment, ...]] | None
    ) = None
    """Segments that were to be copied when it was asked for last, behind what they were found by. Written by
    ``pending_copies``."""

    copy_held_back: str = ""
    """The reason why copying waits. Written by the copy lane."""

    expiry_looked: bool = False
    """True once expiry has had a round since the partition is led: what it meant to give up, it has. Written by the expiry."""

    expiry_reported: ExpiryPlan | None = None
    """The plan that the gauges are of. Written by the expiry."""

    expiry_stop: str = ""
    """The reason why nothing expires. Written by the expiry."""

    log_start_offset: int = NO_OFFSET
    """The broker's, as its last answer to any lane says."""

    trim_hold: TrimHold | None = None
    """The groups that a trim waits for. Written by the trim gate."""

    behind_trash: str = ""
    """The reason why a trim waits for what is in the trash. Written by the trim lane."""

    uncleaned: Uncleaned | None = None
    """The reason why a trim of a compacted topic that is due waits. Written by the trims of compacted topics."""

    unproven: UnprovenCopy | None = None
    """The remote copy before which trimming waits. Written by :class:`~tiersidecar.tasks.read_back.Unproven`."""

    log_start_reported: bool | None = None
    """The gauge's value for an unexplained log start. Written by the log start watch."""

    lost_log: str = ""
    """Proof that one of the sidecars' own topics has forgotten the partition. Written by the log start watch."""

    removed_place: str = ""
    """The reason why nothing is done with it: it has segments in a place that is not configured. Written by the place
    checks."""

    transaction_waits: tuple[TransactionWait, ...] | None = None
    """Open transactions that hold up copying, or readers of committed records; None once that they are over is reported."""

    batch_epochs: tuple[EpochEntry, ...] = ()
    """Leader epochs of local batches that the live file has forgotten, and no pin knows."""

    follow: FollowNote = field(default_factory=FollowNote)

    is_pictured: bool = False
    """True once the pins of a compacted partition were looked at: a process that was killed may have left a part of a picture.
    Written by :class:`~tiersidecar.tasks.pictures.Pictures`."""

    @property
    def last_copied(self) -> int:
        """Return the copied offset, -1 where it is not known."""
        return NO_OFFSET if self.copied_offset is None else self.copied_offset


_OF_EVERY_PROCESS = frozenset({"local", "looks", "turns", "assignment", "topic_ids", "unseen", "watch_trouble", "pins"})
"""Fields that a process keeps true also while it stands by; and the pins, which begin anew themselves, for gateways hold on to
them."""


@dataclass(slots=True)
class PartitionTable:
    """The one table of a process; single-threaded, so plain attributes do."""

    local: LogDirsView = NO_LOG_DIRS
    looks: int = 0
    """Looks of the roster that have begun."""

    turns: int = 0
    """How often this process has had the role ``tier``, and lost it to another one."""

    assignment: Mapping[TopicIdPartition, TieredPartition] = field(default_factory=dict)
    topic_ids: Mapping[str, Uuid] = field(default_factory=dict)
    unseen: Mapping[TopicIdPartition, TieredPartition] = field(default_factory=dict)
    """Partitions that this broker leads and that are to be tiered, without a directory on a healthy log dir here."""

    misplaced: dict[TopicIdPartition, str] = field(default_factory=dict)
    """Why nothing is done with a led partition: its directory is not here, or is not the one that the broker writes.  Only what
    has lasted for a while is reported."""

    unwritten_epochs: Mapping[TopicIdPartition, UnwrittenEpoch] = field(default_factory=dict)
    """The broker's answers about led partitions whose files lack the epoch in which it leads."""

    departing: set[TopicIdPartition] = field(default_factory=set)
    """Partitions of topics that are gone, whose metadata is kept until their remote data is gone as well."""

    refused_topics: dict[str, str] = field(default_factory=dict)
    untrimmable_topics: dict[str, str] = field(default_factory=dict)
    compacted_topics: dict[str, CleanerSettings] = field(default_factory=dict)
    """Topics of which the broker's cleaner rewrites segments. Written by the topic checks."""

    uncleaned_topics: set[str] = field(default_factory=set)
    """Topics that are known to be no compacted ones; others may not have been looked at yet. Written by the topic checks."""

    records: dict[TopicIdPartition, PartitionRecord] = field(default_factory=dict)
    missing_owners: dict[Uuid, str] = field(default_factory=dict)
    """Topic ids whose owner object is gone from the store, or is another place's, and what that means."""

    pressure_trims: Mapping[TopicIdPartition, PressureTrim] = field(default_factory=dict)
    disk_troubles: Mapping[str, str] = field(default_factory=dict)
    """Why an operator has to look at a disk, by its log dirs."""

    disks: Sequence[DiskNote] = ()
    pins: PinTable = field(default_factory=PinTable)
    watch_trouble: str = "the log dirs and the broker have not been looked at yet"

    def begin_anew(self) -> None:
        """Forget all that only the holder of the role ``tier`` keeps true, for this process is not it any more.

        What is known by then need not hold when the role comes back: the other one pins, copies, trims, takes pictures and sets
        the remote log start.  All is forgotten but what is named, so that nothing that is added here is left out.
        """
        unknown = PartitionTable()
        for one in fields(self):
            if one.name not in _OF_EVERY_PROCESS:
                setattr(self, one.name, getattr(unknown, one.name))
        self.pins.begin_anew()
        self.turns += 1

    def record(self, partition: TopicIdPartition) -> PartitionRecord:
        """Return what is known of the partition, an empty record at first."""
        record = self.records.get(partition)
        if record is None:
            record = self.records[partition] = PartitionRecord()
        return record

    def local_partition(self, partition: TopicIdPartition) -> LocalPartition | None:
        """Return the partition's directory as last scanned, and before it what only pins hold any more; None when it is not (or
        no longer) on a healthy log dir.  Of a compacted topic, return what its pins hold, once they are a picture, and the
        active segment."""
        local = self.local.partitions.get(partition)
        if local is None:
            return None
        if partition.topic not in self.compacted_topics:
            return with_pins(local, self.pins.of(partition))
        return pictured(local, self.pins.of(partition) if self.record(partition).is_pictured else ())

    def is_compacted_alone(self, topic: str) -> bool:
        """Return whether ``cleanup.policy`` is ``compact``, and nothing is deleted by retention."""
        settings = self.compacted_topics.get(topic)
        return settings is not None and settings.policy is CleanupPolicy.COMPACT

    def is_uncleaned(self, local: LocalPartition) -> bool:
        """Return whether it is known that the broker's cleaner rewrites nothing of the partition."""
        return local.topic_id_partition.topic in self.uncleaned_topics

    def policy_of(self, partition: TieredPartition) -> TopicPolicy:
        """Return the policy of a partition, without retention where ``cleanup.policy`` is ``compact`` alone."""
        if not self.is_compacted_alone(partition.view.topic_id_partition.topic):
            return partition.policy
        return replace(partition.policy, retention_ms=UNLIMITED, retention_bytes=UNLIMITED)

    def leader_epochs(self, topic_id_partition: TopicIdPartition) -> Sequence[EpochEntry]:
        """Return the broker's live leader-epoch-checkpoint; empty when the partition is not on a healthy log dir."""
        local = self.local.partitions.get(topic_id_partition)
        return () if local is None else local.leader_epochs

    def pinned_leader_epochs(self, topic_id_partition: TopicIdPartition) -> Sequence[EpochEntry]:
        """Return what the pins of the partition know of it, and what was read in its batches."""
        pinned, in_batches = self.pins.epochs_of(topic_id_partition), self.record(topic_id_partition).batch_epochs
        return Lineage(in_batches).extended_by(pinned).entries if in_batches else pinned

    def lineage_on_disk(self, topic_id_partition: TopicIdPartition) -> Lineage:
        """Return the partition's history by live file and pins, for what must be known while the store is away."""
        local = self.local.partitions.get(topic_id_partition)
        if local is None:
            return Lineage()
        return Lineage(tuple(self.pinned_leader_epochs(topic_id_partition))).extended_by(local.leader_epochs)

    def leads(self, partition: TopicIdPartition, leader_epoch: LeaderEpoch) -> bool:
        """Return whether this broker still leads the partition in this very epoch, as far as we know, and what we read is its
        log."""
        tiered = self.assignment.get(partition)
        if tiered is None or tiered.role is not PartitionRole.LEADER or tiered.view.leader_epoch != leader_epoch:
            return False
        return self.is_proven(tiered)

    def is_proven(self, partition: TieredPartition) -> bool:
        """Return whether the directory that we see is the one that the broker writes; of a follower's nothing says so.

        Another of the same name and topic id may be left of an earlier disk, or under another mount.
        """
        if partition.role is not PartitionRole.LEADER:
            return True
        return self.local.partitions.get(partition.view.topic_id_partition) is not None and not self.doubt(partition)

    def doubt(self, partition: TieredPartition) -> str:
        """Return why the directory of a led partition is not taken for the broker's; empty where it is, or where there is
        none."""
        topic_id_partition = partition.view.topic_id_partition
        local = self.local.partitions.get(topic_id_partition)
        if local is None or partition.role is not PartitionRole.LEADER:
            return ""
        return reason_to_doubt_directory(partition.view, local, self.unwritten_epochs.get(topic_id_partition))

    def holds(self, partition: TieredPartition) -> bool:
        """Return whether the partition still is what it was: in the same role and leader epoch, as far as we know."""
        now = self.assignment.get(partition.view.topic_id_partition)
        return now is not None and (now.role, now.view.leader_epoch) == (partition.role, partition.view.leader_epoch)

    def see_start(self, partition: TopicIdPartition, start_offset: int) -> None:
        """Note that the remote log start is there: what an undelete brought back below the one that was seen is to be copied
        yet."""
        record = self.record(partition)
        if start_offset < record.remote_log_start:
            record.remote_log_start, record.copied_offset = start_offset, None

    def forget(self, partition: TopicIdPartition) -> None:
        """Drop what is known of a partition that is no longer ours, or that changed hands."""
        self.records.pop(partition, None)
        self.missing_owners.pop(partition.topic_id, None)
