"""Staged files take their places in the log dirs of a stopped broker, and are taken out again.  It blocks.

The staged.json was carried around with the plan: it is believed only as far as the planned replicas' own directories go.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tiersidecar.adapters.broker_files import sync_directory
from tiersidecar.adapters.log_dirs_fs.log_dir_scan import read_partition_directory
from tiersidecar.adapters.os_errors import explain_os_error
from tiersidecar.adapters.restored_segment import STAGED, RestoredFile, digest_of
from tiersidecar.app.handover.coverage import log_holes
from tiersidecar.app.handover.files import LogDirChanges
from tiersidecar.app.handover.plan import Plan, PlannedPartition
from tiersidecar.app.handover.staged import Staged, StagedPartition, in_order, staged_path
from tiersidecar.domain.errors import CorruptDataError, HandoverError, LogDirError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.formats.kafka.log_dir_files import LogFileKind, parse_log_file

_ANSWER_S = 2.0
_SNAPSHOT = f".{LogFileKind.SNAPSHOT}"
"""One of the broker's own may be there still, and says more of the producers."""


def own_partitions(plan: Plan, staged: Staged, log_dirs: Sequence[Path]) -> tuple[StagedPartition, ...]:
    """Return what was staged, each for a replica of the plan, in its directory of a configured log dir.

    Raises:
        HandoverError: the file names another one.
    """
    planned = {one.owner for one in plan.partitions if staged.node_id in one.replicas}
    for one in staged.partitions:
        if one.owner not in planned:
            raise HandoverError(
                subject=str(one.owner), reason="what was staged names it, and the plan has no such replica"
            )
        path = Path(one.directory)
        if path.parent not in log_dirs or path.name != f"{one.owner.topic}-{one.owner.partition}" or path.is_symlink():
            reason = f"what was staged names {path}, which is not its directory in a configured log dir"
            raise HandoverError(subject=str(one.owner), reason=reason)
        if not _is_of(path, one.owner):
            raise HandoverError(subject=str(path), reason="it is not of the topic that the plan has")
    return staged.partitions


def _is_of(directory: Path, owner: TopicIdPartition) -> bool:
    """Return whether the directory is there, and of the topic with this id."""
    try:
        local = read_partition_directory(str(directory.parent), str(directory), owner.topic, owner.partition)
    except OSError as error:
        raise HandoverError(subject=str(directory), reason=explain_os_error(error)) from error
    except (LogDirError, CorruptDataError) as error:
        raise HandoverError(subject=str(directory), reason=str(error)) from error
    return local is not None and local.topic_id_partition.topic_id == owner.topic_id


def place_faults(changes: LogDirChanges, staged: Staged, *, reads_all: bool) -> Iterator[str]:
    """Yield why the staged files do not fit the log dirs as they are now.  ``reads_all`` compares their digests, too."""
    if staged.node_id != changes.node_id:
        yield f"what was staged is of broker {staged.node_id}, and this is broker {changes.node_id}"
        return
    for change in changes.partitions:
        one = staged.of(change.partition.owner)
        if one is None:
            yield f"{change.partition.owner}: nothing was staged for it"
        elif Path(one.directory) != Path(change.directory):
            yield f"{change.partition.owner}: it was staged in {one.directory}, now it is in {change.directory}: stage it again"
        else:
            yield from _of_partition(one, Path(change.directory), reads_all=reads_all)
            yield from _holes(change.partition, one, Path(change.directory))


def _holes(planned: PlannedPartition, one: StagedPartition, directory: Path) -> Iterator[str]:
    """Yield what the log would lack, by the plan: a staged.json may be of a run that saw only a part."""
    restored = {
        name.offset for file in one.files if (name := parse_log_file(file.name)) and name.kind is LogFileKind.LOG
    }
    try:
        local = read_partition_directory(
            str(directory.parent), str(directory), planned.owner.topic, planned.owner.partition
        )
        if local is None:
            return
        for start, stop in log_holes(planned, local, restored, planned.log_start_offset):
            yield (
                f"{directory}: it would lack the offsets [{start}, {stop}), which the plan has: --undo or --discard, and stage "
                "it again"
            )
    except OSError as error:
        yield f"{directory}: {explain_os_error(error)}"
    except (LogDirError, CorruptDataError) as error:
        yield f"{directory}: {error}"


def places_taken(staged: Staged) -> Iterator[str]:
    """Yield partitions of which a staged segment has its place already: staging would take it for the log's own."""
    for one in staged.partitions:
        logs = [file.name for file in one.files if file.name.endswith(f".{LogFileKind.LOG}")]
        if any(os.path.lexists(Path(one.directory) / name) for name in logs):
            yield f"{one.owner}: files are in place already, at least in part: continue with --carry-out, or --undo it"


def _of_partition(one: StagedPartition, directory: Path, *, reads_all: bool) -> Iterator[str]:
    restored = {file.name for file in one.files}
    logs = [
        name for path in directory.iterdir() if (name := parse_log_file(path.name)) and name.kind is LogFileKind.LOG
    ]
    first = min((name.offset for name in logs if str(name) not in restored), default=None)
    if first != one.local_start:
        yield (
            f"{directory}: the log began at {one.local_start} when it was staged, and begins at {first} now: stage it again "
            "(retention must be off, and nothing trim it)"
        )
    for file in one.files:
        found = _found(directory, file)
        if found is None:
            yield f"{directory}: {file.name} is not there any more: stage it again"
            continue
        if all(os.path.lexists(path) for path in _places(directory, file)) and not file.name.endswith(_SNAPSHOT):
            yield f"{directory}: {file.name} is there already, and not the one that was staged: remove it, or stage it again"
            continue
        status = found.lstat()
        if (status.st_size, status.st_mtime_ns) != (file.size_bytes, file.modified_ns) or (
            reads_all and digest_of(found) != file.sha256
        ):
            yield f"{found}: it has changed since it was staged: stage it again"


def _found(directory: Path, file: RestoredFile) -> Path | None:
    """Return where the file is, beside its place or in it; no link counts."""
    for path in _places(directory, file):
        if path.is_file() and not path.is_symlink():
            return path
    return None


def _places(directory: Path, file: RestoredFile) -> tuple[Path, Path]:
    return staged_path(directory, file), directory / file.name


def running_brokers(brokers: Mapping[int, str], nodes: Iterable[int]) -> Iterator[str]:
    """Yield brokers that answer at the address that the plan has: one that starts too early takes back what is restored."""
    for node_id in sorted(set(nodes)):
        host, _, port = brokers.get(node_id, "").rpartition(":")
        if not host or not port.isdecimal():
            continue
        try:
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
        except OSError:
            continue
        yield f"broker {node_id} runs ({host}:{port} answers): stop all that have replicas, by SIGTERM"


def nodes_of(plan: Plan) -> set[int]:
    """Return the brokers that have replicas."""
    return {node for one in plan.partitions for node in one.replicas}


def take_places(partitions: Sequence[StagedPartition]) -> int:
    """Rename what is staged, and return how many files were; what has its place is left.

    Raises:
        HandoverError: a file could not be renamed.
    """
    return _moved(partitions, back=False)


def leave_places(partitions: Sequence[StagedPartition]) -> int:
    """Rename files in their places back, so that the log begins where it did; return how many files were renamed.

    Raises:
        HandoverError: a file could not be renamed.
    """
    return _moved(partitions, back=True)


def are_waiting(partitions: Sequence[StagedPartition]) -> bool:
    """Return whether :func:`take_places` has anything to rename."""
    return any(_is_waiting(*_places(Path(one.directory), file)) for one in partitions for file in one.files)


def _is_waiting(source: Path, target: Path) -> bool:
    return source.is_file() and not source.is_symlink() and not os.path.lexists(target)


def return_faults(partitions: Sequence[StagedPartition]) -> Iterator[str]:
    """Yield files that :func:`leave_places` would move and that are not those that were staged, by size, age and digest."""
    for one in partitions:
        for file in one.files:
            beside, place = _places(Path(one.directory), file)
            if os.path.lexists(beside):
                continue
            if not _is_waiting(place, beside):
                yield f"{place}: it is gone, in its place and beside it"
                continue
            status = place.lstat()
            is_same = (status.st_size, status.st_mtime_ns) == (file.size_bytes, file.modified_ns)
            if not is_same or digest_of(place) != file.sha256:
                yield f"{place}: it is not the file that was staged, and stays"


def _moved(partitions: Sequence[StagedPartition], *, back: bool) -> int:
    count = 0
    for one in partitions:
        directory = Path(one.directory)
        try:
            for file in reversed(in_order(one.files)) if back else in_order(one.files):
                place, beside = directory / file.name, staged_path(directory, file)
                source, target = (place, beside) if back else (beside, place)
                if _is_waiting(source, target):
                    source.rename(target)
                    count += 1
                elif not os.path.lexists(target):
                    raise HandoverError(subject=str(place), reason="it is gone, in its place and beside it")
            sync_directory(directory)
        except OSError as error:
            raise HandoverError(subject=str(directory), reason=explain_os_error(error)) from error
    return count


def discard(plan: Plan, log_dirs: Sequence[Path]) -> int:
    """Remove what any run has staged for partitions of the plan; return how many files were removed.

    Raises:
        HandoverError: a file could not be removed.
    """
    count = 0
    for directory in _directories(plan, log_dirs):
        try:
            for path in _staged_in(directory):
                path.unlink()
                count += 1
            sync_directory(directory)
        except OSError as error:
            raise HandoverError(subject=str(directory), reason=explain_os_error(error)) from error
    return count


def _directories(plan: Plan, log_dirs: Sequence[Path]) -> Iterator[Path]:
    for planned in plan.partitions:
        for log_dir in log_dirs:
            directory = log_dir / f"{planned.owner.topic}-{planned.owner.partition}"
            if directory.is_dir() and not directory.is_symlink() and _is_of(directory, planned.owner):
                yield directory


def _staged_in(directory: Path) -> list[Path]:
    return [
        path
        for path in sorted(directory.glob(f"*{STAGED}"))
        if parse_log_file(path.name.removesuffix(STAGED)) and path.is_file() and not path.is_symlink()
    ]
