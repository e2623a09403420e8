"""Scanning one log dir, again and again: only directories that changed are listed anew, and only some are looked at where it is
known which may have changed.

Reading one partition directory: which topic it is of, its segments and the broker's leader epochs.

The functions here block and run in threads.

The newest timestamp of a sealed segment, from the last entry of its time index: 12 bytes instead of a walk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from struct import Struct

from tiersidecar.adapters.os_errors import explain_os_error
from tiersidecar.domain.errors import CorruptDataError, LogDirError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import EpochEntry, Offset
from tiersidecar.domain.segments import NO_TIMESTAMP_MS, LocalPartition, LocalSegment
from tiersidecar.formats.kafka.log_dir_files import (
    DELETED_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    META_PROPERTIES,
    PARTITION_METADATA,
    DirectoryKind,
    LogDirectoryName,
    LogFileKind,
    parse_log_directory,
    parse_log_file,
    read_leader_epochs,
    read_partition_metadata,
)

_ENTRY = Struct(">qi")
"""Timestamp, and offset relative to the segment's base."""


def read_max_timestamp_ms(path: str) -> int:
    """Return the newest timestamp as Kafka's LogSegment.largestTimestamp has it, which the broker writes there when it rolls;
    -1 where the records have no time, or the index is away or not whole.

    Raises:
        OSError: it cannot be read.
    """
    try:
        file = os.open(path, os.O_RDONLY)  # of each segment at start: a file object would take as long as all the rest
    except FileNotFoundError:
        return NO_TIMESTAMP_MS
    try:
        size_bytes = os.lseek(file, 0, os.SEEK_END)
        if size_bytes < _ENTRY.size or size_bytes % _ENTRY.size:
            return NO_TIMESTAMP_MS
        entry = os.pread(file, _ENTRY.size, size_bytes - _ENTRY.size)
    finally:
        os.close(file)
    if len(entry) < _ENTRY.size:  # it has become shorter since
        return NO_TIMESTAMP_MS
    timestamp_ms, _ = _ENTRY.unpack(entry)
    return timestamp_ms if timestamp_ms > 0 else NO_TIMESTAMP_MS


_LISTINGS = 4
_BLOCK_BYTES = 512
"""The unit of ``st_blocks``, whatever the file system's own blocks are."""
_LOG_SUFFIX = f".{LogFileKind.LOG}"


def read_partition_directory(
    log_dir: str, directory: str, topic: str, partition: int, before: LocalPartition | None = None
) -> LocalPartition | None:
    """Read the partition, or return None while the directory holds no segment.  ``before`` is what was read of it last: the
    time index of a sealed segment that has not changed since is not read again.

    Raises:
        FileNotFoundError: the directory is gone.
        OSError: it cannot be read.
        LogDirError: it has no partition.metadata, or its segments change faster than they can be listed.
        CorruptDataError: a checkpoint cannot be understood.
    """
    known = {} if before is None else {one.base_offset: one for one in (*before.deleted, *before.segments)}
    segments, deleted = _list_segments(directory, known)
    if not segments:
        return None
    topic_id_partition = TopicIdPartition(topic_id=_read_topic_id(directory), topic=topic, partition=partition)
    if before is not None and before.topic_id_partition == topic_id_partition:
        topic_id_partition = before.topic_id_partition  # what is the same object need not be compared
    return LocalPartition(
        topic_id_partition=topic_id_partition,
        log_dir=log_dir,
        directory=directory,
        segments=segments,
        leader_epochs=_read_leader_epochs(directory),
        deleted=deleted,
        made_ms=_modified_ms(os.stat(f"{directory}/{PARTITION_METADATA}")),  # noqa: PTH116 - of each partition at start
    )


def with_active_segment_refreshed(partition: LocalPartition) -> LocalPartition:
    """Return the partition with the size its active segment has now: appends do not touch the directory.

    Raises:
        FileNotFoundError: it has been renamed or deleted.
    """
    active = partition.segments[-1]
    status = os.stat(active.log_path)  # noqa: PTH116 - once per partition and scan: a Path costs more than the call
    if (_written_bytes(status), _modified_ms(status)) == (active.size_bytes, active.modified_ms):
        return partition
    grown = _active_segment(partition.directory, active.base_offset, status)
    return replace(partition, segments=(*partition.segments[:-1], grown))


def _list_segments(
    directory: str, known: Mapping[Offset, LocalSegment]
) -> tuple[tuple[LocalSegment, ...], tuple[LocalSegment, ...]]:
    """List live segments, and deleted ones before them, both ascending by base offset.  A live segment that vanishes between
    listing and stat makes the listing void: without it, the one before would seem to reach to the one behind."""
    for _ in range(_LISTINGS):
        with suppress(FileNotFoundError):
            return _list_segments_once(directory, known)
        Path(directory).stat()
    raise LogDirError(path=directory, reason="its segments came and went faster than they could be listed")


def _list_segments_once(
    directory: str, known: Mapping[Offset, LocalSegment]
) -> tuple[tuple[LocalSegment, ...], tuple[LocalSegment, ...]]:
    names = os.listdir(directory)  # noqa: PTH208 - names are all that is needed
    base_offsets = _base_offsets(names)
    if not base_offsets:
        return (), ()
    sealed = [
        _sealed_segment(directory, base, following, known.get(base)) for base, following in pairwise(base_offsets)
    ]
    last = base_offsets[-1]
    active = _active_segment(directory, last, os.stat(f"{directory}/{last:020d}.log"))  # noqa: PTH116
    return (*sealed, active), tuple(_list_deleted(directory, names, base_offsets[0]))


def _list_deleted(directory: str, names: Sequence[str], first_base_offset: Offset) -> Iterator[LocalSegment]:
    ends = (name.removesuffix(DELETED_SUFFIX) for name in names if name.endswith(DELETED_SUFFIX))
    before = [base_offset for base_offset in _base_offsets(ends) if base_offset < first_base_offset]
    for base_offset, following in zip(before, [*before[1:], first_base_offset], strict=True) if before else ():
        with suppress(FileNotFoundError):  # its time has come
            path = f"{directory}/{base_offset:020d}.log{DELETED_SUFFIX}"
            status = os.stat(path)  # noqa: PTH116
            yield LocalSegment(
                directory=directory,
                base_offset=base_offset,
                next_base_offset=following,
                size_bytes=status.st_size,
                modified_ms=_modified_ms(status),
                file_suffix=DELETED_SUFFIX,
                inode=status.st_ino,
            )


def _sealed_segment(
    directory: str, base_offset: Offset, next_base_offset: Offset, known: LocalSegment | None
) -> LocalSegment:
    """Return ``known`` where the file is as it was then."""
    path = f"{directory}/{base_offset:020d}"
    status = os.stat(f"{path}.log")  # noqa: PTH116 - of each segment at start
    now = (directory, next_base_offset, status.st_ino, status.st_size, _modified_ms(status), "")
    if known is not None and now == (
        known.directory,
        known.next_base_offset,
        known.inode,
        known.size_bytes,
        known.modified_ms,
        known.file_suffix,
    ):
        return known
    return LocalSegment(
        directory=directory,
        base_offset=base_offset,
        next_base_offset=next_base_offset,
        size_bytes=status.st_size,
        modified_ms=_modified_ms(status),
        max_timestamp_ms=read_max_timestamp_ms(f"{path}.timeindex"),
        inode=status.st_ino,
    )


def _base_offsets(names: Iterable[str]) -> list[Offset]:
    """Return those of the .log files among ``names``, ascending."""
    parsed = (parse_log_file(name) for name in names if name.endswith(_LOG_SUFFIX))
    return sorted(name.offset for name in parsed if name is not None)


def _active_segment(directory: str, base_offset: Offset, status: os.stat_result) -> LocalSegment:
    return LocalSegment(
        directory=directory,
        base_offset=base_offset,
        next_base_offset=None,
        size_bytes=_written_bytes(status),
        modified_ms=_modified_ms(status),
        inode=status.st_ino,
    )


def _modified_ms(status: os.stat_result) -> int:
    return status.st_mtime_ns // 1_000_000


def _written_bytes(status: os.stat_result) -> int:
    """Return the written bytes of an active segment: with ``preallocate=true`` its file has the size of a full one from its
    first record on, most of it a hole, which retention must not count.  The broker cuts the file to its true size when it
    rolls."""
    if status.st_blocks == 0:  # a file system that does not count them
        return status.st_size
    return min(status.st_size, status.st_blocks * _BLOCK_BYTES)


def _read_topic_id(directory: str) -> Uuid:
    path = f"{directory}/{PARTITION_METADATA}"
    try:
        data = _read_file(path)
    except FileNotFoundError as error:
        Path(directory).stat()
        reason = f"it has no {PARTITION_METADATA}, which the broker writes once it knows the topic's id"
        raise LogDirError(path=directory, reason=reason) from error
    return read_partition_metadata(data, where=path)


def _read_leader_epochs(directory: str) -> tuple[EpochEntry, ...]:
    path = f"{directory}/{LEADER_EPOCH_CHECKPOINT}"
    try:
        data = _read_file(path)
    except FileNotFoundError:
        return ()  # written with the first leader epoch: a partition that never had a leader has none
    return read_leader_epochs(data, where=path)


def _read_file(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - two of each partition at start: a Path takes twice as long
        return file.readall()


_CLUSTER_METADATA = "__cluster_metadata"
_SETTLED_MS = 2_000
"""A directory that changed so short before it was listed is listed again next time: a change in the same tick of the file
system's clock (4 ms on ext4, a second elsewhere) would not show in its mtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirScan:
    """One log dir at one moment; ``directories`` are those of partitions, read or not.

    ``changed`` are those of them that hold other segments or leader epochs than in the scan before, the sizes of active ones
    apart; with the log dir itself if it holds other partitions.
    """

    partitions: tuple[LocalPartition, ...] = ()
    faults: Mapping[str, str]
    directories: tuple[str, ...] = ()
    changed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Listed:
    """Contents of a directory when its mtime was ``mtime_ns``."""

    inode: int
    mtime_ns: int
    is_settled: bool
    partition: LocalPartition | None


class LogDirScanner:
    """Reads one log dir.  Blocks; for one thread at a time."""

    def __init__(self, log_dir: str, *, now_ms: Callable[[], int]) -> None:
        self._log_dir, self._now_ms = log_dir, now_ms
        self._listed: dict[str, _Listed] = {}
        self._names: dict[str, LogDirectoryName] = {}
        self._faults: dict[str, str] = {}
        self._changed: set[str] = set()
        self._last: LogDirScan | None = None
        self._place: tuple[int, int] | None = None

    def scan(self) -> LogDirScan:
        """Scan all partitions of the log dir; what cannot be read is a fault of its own and disturbs nothing else."""
        self._place = None
        try:
            place, names = _place_of(self._log_dir), dict(self._partition_names())
        except OSError as error:
            return LogDirScan(faults={self._log_dir: explain_os_error(error)})
        except LogDirError as error:
            return LogDirScan(faults={self._log_dir: error.reason})
        self._changed = set() if names.keys() == self._names.keys() else {self._log_dir}
        self._names, self._faults, mended = names, {}, self._faults.keys()
        self._listed = {directory: listed for directory, listed in self._listed.items() if directory in names}
        for directory, name in names.items():
            with suppress(FileNotFoundError):  # deleted, or renamed for deletion, this moment
                self._look(directory, name)
        self._changed -= mended  # what kept a directory from being read may end without a file event
        self._place, self._last = place, self._found()
        return self._last

    def scan_again(self, directories: Iterable[str]) -> LogDirScan:
        """Return the last scan, with these directories read again, those that are at fault, and those that were just being
        changed.

        The same object if nothing has changed.  All is read if the log dir is not what it was.
        """
        if self._last is None or self._place is None or self._has_another_place():
            return self.scan()
        unsettled = (directory for directory, listed in self._listed.items() if not listed.is_settled)
        anew, faults = {*directories, *self._faults, *unsettled}, dict(self._faults)
        before = {directory: self._partition_in(directory) for directory in anew}
        self._changed = set()
        for directory in anew:
            name = self._names.get(directory)
            if name is None:
                return self.scan()
            self._faults.pop(directory, None)
            try:
                self._look(directory, name)
            except FileNotFoundError:
                return self.scan()
        is_same = all(self._partition_in(directory) is before[directory] for directory in anew)
        if not is_same or self._faults != faults:
            self._last = self._found()
        return self._last

    def _has_another_place(self) -> bool:
        """Return whether something was mounted over it, or it was unmounted."""
        try:
            return _place_of(self._log_dir) != self._place
        except OSError:
            return True

    def _found(self) -> LogDirScan:
        partitions = (self._partition_in(directory) for directory in self._names)
        return LogDirScan(
            partitions=tuple(one for one in partitions if one is not None),
            faults=dict(self._faults),
            directories=tuple(self._names),
            changed=frozenset(self._changed),
        )

    def _partition_in(self, directory: str) -> LocalPartition | None:
        listed = self._listed.get(directory)
        return None if listed is None else listed.partition

    def _partition_names(self) -> Iterator[tuple[str, LogDirectoryName]]:
        """Yield the directories of partitions that the broker serves: not those that wait for deletion, move between log dirs
        or are stray, not KRaft's own log, not ``remote-log-index-cache``, and nothing of other names."""
        has_meta_properties = False
        with os.scandir(self._log_dir) as entries:
            for entry in entries:
                has_meta_properties |= entry.name == META_PROPERTIES
                directory = f"{self._log_dir}/{entry.name}"
                name = self._names.get(directory) or parse_log_directory(entry.name)
                if name is None or name.kind is not DirectoryKind.CURRENT or name.topic == _CLUSTER_METADATA:
                    continue
                if entry.is_dir():
                    yield directory, name
        if not has_meta_properties:
            reason = f"it has no {META_PROPERTIES}: not a log dir of a broker, or its volume is not mounted"
            raise LogDirError(path=self._log_dir, reason=reason)

    def _look(self, directory: str, name: LogDirectoryName) -> None:
        """Note what one directory holds, or what is wrong with it.

        Raises:
            FileNotFoundError: it is gone.
        """
        try:
            self._read(directory, name)
        except FileNotFoundError:
            self._listed.pop(directory, None)
            raise
        except OSError as error:
            self._faults[directory] = explain_os_error(error)
        except LogDirError as error:
            self._faults[directory] = error.reason
        except CorruptDataError as error:
            self._faults[directory] = str(error)
        if directory in self._faults:
            self._listed.pop(directory, None)

    def _read(self, directory: str, name: LogDirectoryName) -> None:
        status = os.stat(directory)  # noqa: PTH116 - thousands per scan
        listed = self._listed.get(directory)
        if listed is not None and listed.is_settled and (listed.inode, listed.mtime_ns) == _identity(status):
            try:
                self._refresh(directory, listed)
            except FileNotFoundError:
                pass  # renamed after the stat: list it again
            else:
                return
        now_ms, before = self._now_ms(), None if listed is None or listed.inode != status.st_ino else listed.partition
        partition = read_partition_directory(self._log_dir, directory, name.topic, name.partition, before)
        if partition == before:
            partition = before
        elif not _hold_the_same(partition, before):
            self._changed.add(directory)
        is_settled = now_ms - status.st_mtime_ns // 1_000_000 > _SETTLED_MS
        self._listed[directory] = _Listed(*_identity(status), is_settled, partition)

    def _refresh(self, directory: str, listed: _Listed) -> None:
        if listed.partition is None:
            return
        partition = with_active_segment_refreshed(listed.partition)
        if partition is not listed.partition:
            self._listed[directory] = _Listed(listed.inode, listed.mtime_ns, listed.is_settled, partition)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mtime_ns


def _place_of(log_dir: str) -> tuple[int, int]:
    status = os.stat(log_dir)  # noqa: PTH116 - at every look
    return status.st_dev, status.st_ino


def _hold_the_same(one: LocalPartition | None, other: LocalPartition | None) -> bool:
    """Return whether both are of the same topic and have the same segments and leader epochs, whatever their sizes."""
    if one is None or other is None:
        return one is other
    return (one.topic_id_partition, one.leader_epochs) == (other.topic_id_partition, other.leader_epochs) and all(
        [segment.base_offset for segment in these] == [segment.base_offset for segment in those]
        for these, those in ((one.segments, other.segments), (one.deleted, other.deleted))
    )
