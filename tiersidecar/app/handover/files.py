"""Changes that a hand-over makes in the log dirs of one broker: its log starts, and the leader epochs of its partitions.

Found by what the directories hold now: a plan is made while brokers run, so elections and new records after it are allowed, and
anything that would make it wrong is a fault.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tiersidecar.adapters.broker_backup import FileChange
from tiersidecar.adapters.broker_files import CLEAN_SHUTDOWN
from tiersidecar.adapters.log_dirs_fs.log_dir_scan import read_partition_directory
from tiersidecar.adapters.log_dirs_fs.log_end import read_log_end
from tiersidecar.adapters.os_errors import explain_os_error
from tiersidecar.app.handover.plan import Plan, PlannedPartition
from tiersidecar.decide.handover import decide_epochs
from tiersidecar.domain.errors import CorruptDataError, HandoverError, LogDirError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import LocalPartition
from tiersidecar.formats.kafka.log_dir_files import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    META_PROPERTIES,
    DirectoryKind,
    parse_log_directory,
    read_meta_properties,
    read_offset_checkpoint,
    write_leader_epochs,
    write_offset_checkpoint,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChange:
    """Changes of one replica.  ``former_start`` is None where the checkpoint has no entry: the log begins with its first
    segment, which under native tiering means at 0."""

    partition: PlannedPartition
    directory: str
    former_start: Offset | None
    first_segment: Offset
    epochs: FileChange

    @property
    def log_start_now(self) -> Offset:
        """Return where the broker lets the log begin by the files that it has."""
        return max(self.first_segment, self.former_start or Offset(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirChanges:
    """Changes of all log dirs of a broker.  ``faults`` keep everything from being changed.  ``borders`` are the log starts as
    they are now, written out: a broker has no entry where its log begins with its first segment, and a segment below would move
    it."""

    node_id: int
    partitions: tuple[PartitionChange, ...]
    checkpoints: tuple[FileChange, ...]
    borders: tuple[FileChange, ...]
    faults: tuple[str, ...] = field(default=())

    @property
    def files(self) -> tuple[FileChange, ...]:
        """Return all files, those of partitions first: epochs without their log start do no harm, the other way round they
        would."""
        return (*(one.epochs for one in self.partitions), *self.checkpoints)


def planned_changes(plan: Plan, log_dirs: Sequence[Path]) -> LogDirChanges:
    """Return the changes of ``plan`` in ``log_dirs``, by what they hold now.

    Raises:
        HandoverError: a directory is no log dir, or another cluster's.
    """
    partitions: list[PartitionChange] = []
    seen = set[tuple[str, int]]()
    checkpoints, borders = list[FileChange](), list[FileChange]()
    faults: list[str] = []
    if not plan.changes_files:
        faults.append("the plan is one of from-native, which changes no files")
    node_ids = {node_id_of(plan, log_dir) for log_dir in log_dirs}
    if len(node_ids) > 1:
        faults.append(f"the log dirs are of several brokers: {', '.join(map(str, sorted(node_ids)))}")
    for log_dir in log_dirs:
        if not (log_dir / CLEAN_SHUTDOWN).exists():
            faults.append(
                f"{log_dir} has no {CLEAN_SHUTDOWN}: the broker was killed before it had closed its logs, which may end "
                "before the last copy once it has recovered them. Start it, and let it end by SIGTERM"
            )
        starts = read_starts(log_dir / LOG_START_OFFSET_CHECKPOINT)
        found = list(_planned_in(plan, log_dir, starts.offsets, faults, seen))
        partitions += found
        checkpoints.append(starts.changed_by((one.partition, one.partition.log_start_offset) for one in found))
        borders.append(starts.changed_by((one.partition, one.log_start_now) for one in found))
    faults += misplaced_replicas(plan, min(node_ids), seen)
    return LogDirChanges(
        node_id=min(node_ids),
        partitions=tuple(partitions),
        checkpoints=tuple(checkpoints),
        borders=tuple(borders),
        faults=tuple(faults),
    )


def misplaced_replicas(plan: Plan, node_id: int, seen: Collection[tuple[str, int]]) -> Iterator[str]:
    """Yield planned replicas of this broker that were not ``seen``, and those seen that are not planned."""
    for one in plan.partitions if plan.changes_files else ():
        is_here = (one.owner.topic, one.owner.partition) in seen
        if node_id in one.replicas and not is_here:
            yield (
                f"{one.owner}: broker {node_id} has a replica of it, and none of the configured log dirs has: name all of the "
                "broker's in log.dirs, or plan again if its replicas were moved"
            )
        elif is_here and node_id not in one.replicas:
            known = ", ".join(map(str, one.replicas))
            yield (
                f"{one.owner}: the plan knows replicas on brokers {known}, not on broker {node_id}: they were moved since. "
                "Plan again"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStarts:
    """A log-start-offset-checkpoint."""

    path: Path
    data: bytes
    offsets: dict[tuple[str, int], Offset]

    def changed_by(self, wanted: Iterable[tuple[PlannedPartition, Offset]]) -> FileChange:
        """Return the checkpoint's change.  Other topics' entries stay; a log that starts at 0 has no entry, as a broker writes
        it."""
        offsets = dict(self.offsets)
        for partition, start in wanted:
            owner = partition.owner
            offsets.pop((owner.topic, owner.partition), None)
            if start > 0:
                offsets[owner.topic, owner.partition] = start
        after = self.data if offsets == self.offsets else write_offset_checkpoint(offsets)
        return FileChange(path=self.path, before=self.data, after=after)


def read_starts(path: Path) -> LogStarts:
    """Read the log starts of a log dir.

    Raises:
        HandoverError: it cannot be read.
    """
    try:
        data = path.read_bytes()
        return LogStarts(path=path, data=data, offsets=read_offset_checkpoint(data, where=str(path)))
    except OSError as error:
        raise HandoverError(subject=str(path), reason=explain_os_error(error)) from error
    except CorruptDataError as error:
        raise HandoverError(subject=str(path), reason=str(error)) from error


def node_id_of(plan: Plan, log_dir: Path) -> int:
    """Return the broker that a log dir is of.

    Raises:
        HandoverError: it is no log dir, or another cluster's.
    """
    path = log_dir / META_PROPERTIES
    try:
        meta = read_meta_properties(path.read_bytes(), where=str(path))
    except OSError as error:
        raise HandoverError(subject=str(log_dir), reason=explain_os_error(error)) from error
    except CorruptDataError as error:
        raise HandoverError(subject=str(path), reason=str(error)) from error
    if meta.cluster_id != plan.cluster_id:
        reason = f"it is of cluster {meta.cluster_id}, and the plan of cluster {plan.cluster_id}"
        raise HandoverError(subject=str(log_dir), reason=reason)
    return meta.node_id


def _planned_in(
    plan: Plan,
    log_dir: Path,
    starts: dict[tuple[str, int], Offset],
    faults: list[str],
    seen: set[tuple[str, int]],
) -> Iterator[PartitionChange]:
    wanted = plan.of_topic_partition()
    for directory in sorted(log_dir.iterdir()):
        name = parse_log_directory(directory.name)
        if name is None or (name.topic, name.partition) not in wanted:
            continue
        planned = wanted[name.topic, name.partition]
        if name.kind is DirectoryKind.CURRENT:
            seen.add((name.topic, name.partition))
        if name.kind is DirectoryKind.FUTURE:
            faults.append(f"{directory} is being moved to another log dir: let that end, or cancel it")
        elif name.kind is DirectoryKind.CURRENT:
            found = _change_of(planned, log_dir, directory, starts.get((name.topic, name.partition)))
            if isinstance(found, str):
                faults.append(f"{directory}: {found}")
            else:
                yield found


def _change_of(
    planned: PlannedPartition, log_dir: Path, directory: Path, former_start: Offset | None
) -> PartitionChange | str:
    """Return what changes, or what is wrong with the directory."""
    owner, path = planned.owner, directory / LEADER_EPOCH_CHECKPOINT
    try:
        local = read_partition_directory(str(log_dir), str(directory), owner.topic, owner.partition)
        before = path.read_bytes()
    except OSError as error:
        return explain_os_error(error)
    except (LogDirError, CorruptDataError) as error:
        return str(error)
    if local is None or not local.segments:
        return "it has no segment"
    if local.topic_id_partition.topic_id != owner.topic_id:
        return f"it is of another topic of this name, with id {format_uuid(local.topic_id_partition.topic_id)}"
    try:
        fault = (
            begins_later(planned, local, former_start)
            or _other_log(planned, local, former_start)
            or _beyond_its_end(planned, local)
        )
    except OSError as error:
        return explain_os_error(error)
    if fault:
        return fault
    epochs = decide_epochs(planned.leader_epochs, local.leader_epochs)
    if epochs is None:
        return "its leader epochs are another history than the plan's: an election has changed it. Plan again"
    after = before if epochs == local.leader_epochs else write_leader_epochs(epochs)
    return PartitionChange(
        partition=planned,
        directory=str(directory),
        former_start=former_start,
        first_segment=local.segments[0].base_offset,
        epochs=FileChange(path=path, before=before, after=after),
    )


def begins_later(planned: PlannedPartition, local: LocalPartition, former_start: Offset | None) -> str:
    """Return why a log start would bring back what was deleted after the plan; empty if it would not."""
    border = planned.broker_log_start_offset
    first = max(local.segments[0].base_offset, former_start or 0)
    if border is None or first <= border:
        return ""
    return (
        f"its log starts at {first}, and the leader's started at {border} at the time of the plan: records were deleted since "
        "(by users, or by retention), and would come back. Plan again"
    )


def _other_log(planned: PlannedPartition, local: LocalPartition, former_start: Offset | None) -> str:
    """Return why the log is not the one that was planned for; empty if it is."""
    first = max(local.segments[0].base_offset, former_start or 0)
    if first > planned.copied_stop and planned.copied_stop > 0:
        return (
            f"it begins at offset {first}, and the last copy ends at {planned.copied_stop}: records between would be lost. "
            "Start the broker and the sidecar, and plan again"
        )
    latest = max((one.epoch for one in planned.leader_epochs), default=-1)
    for one in local.leader_epochs:
        if one.epoch > latest and one.start_offset < planned.copied_stop:
            return (
                f"epoch {one.epoch} begins at offset {one.start_offset}, and the last copy ends at {planned.copied_stop}: an "
                "unclean election has given up records that are copied. Start the broker and the sidecar, and plan again"
            )
    return ""


def _beyond_its_end(planned: PlannedPartition, local: LocalPartition) -> str:
    """Return why the log start cannot be this replica's; empty if it can.  A broker deletes a whole log that ends before its
    start."""
    start, active = planned.log_start_offset, local.segments[-1]
    if start <= active.base_offset or start <= (end := read_log_end(active)):
        return ""
    return f"the log is to start at {start}, and this replica ends at {end}: it is not the log of the plan. Plan again"
