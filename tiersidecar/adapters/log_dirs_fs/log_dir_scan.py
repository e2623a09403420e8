"""Scanning one log dir, again and again: only directories that changed are listed anew."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tiersidecar.adapters.log_dirs_fs.partition_directory import (
    read_partition_directory,
    with_active_segment_refreshed,
)
from tiersidecar.adapters.os_errors import explain_os_error
from tiersidecar.domain.errors import CorruptDataError, LogDirError
from tiersidecar.domain.segments import LocalPartition
from tiersidecar.formats.kafka.checkpoints import META_PROPERTIES
from tiersidecar.formats.kafka.log_names import DirectoryKind, LogDirectoryName, parse_log_directory

_CLUSTER_METADATA = "__cluster_metadata"
_SETTLED_MS = 2_000
"""A directory that changed so short before it was listed is listed again next time: a change in the same tick of the file
system's clock (4 ms on ext4, a second elsewhere) would not show in its mtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirScan:
    """One log dir at one moment; ``directories`` are those of partitions, read or not."""

    partitions: tuple[LocalPartition, ...] = ()
    faults: Mapping[str, str]
    directories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Listed:
    """What a directory held when its mtime was ``mtime_ns``."""

    inode: int
    mtime_ns: int
    is_settled: bool
    partition: LocalPartition | None


class LogDirScanner:
    """Reads one log dir.  Blocks; for one thread at a time."""

    def __init__(self, log_dir: str, *, now_ms: Callable[[], int]) -> None:
        self._log_dir, self._now_ms = log_dir, now_ms
        self._listed: dict[str, _Listed] = {}

    def scan(self) -> LogDirScan:
        """All partitions of the log dir; what cannot be read is a fault of its own and disturbs nothing else."""
        try:
            names = dict(self._partition_names())
        except OSError as error:
            return LogDirScan(faults={self._log_dir: explain_os_error(error)})
        except LogDirError as error:
            return LogDirScan(faults={self._log_dir: error.reason})
        self._listed = {directory: listed for directory, listed in self._listed.items() if directory in names}
        partitions: list[LocalPartition] = []
        faults: dict[str, str] = {}
        for directory, name in names.items():
            try:
                partition = self._read(directory, name)
            except FileNotFoundError:
                continue  # deleted, or renamed for deletion, this moment
            except OSError as error:
                faults[directory] = explain_os_error(error)
            except LogDirError as error:
                faults[directory] = error.reason
            except CorruptDataError as error:
                faults[directory] = str(error)
            else:
                if partition is not None:
                    partitions.append(partition)
        return LogDirScan(partitions=tuple(partitions), faults=faults, directories=tuple(names))

    def _partition_names(self) -> Iterator[tuple[str, LogDirectoryName]]:
        """Directories of partitions that the broker serves: not those that wait for deletion, move between log dirs or
        are stray, not KRaft's own log, not ``remote-log-index-cache``, and nothing of other names."""
        has_meta_properties = False
        with os.scandir(self._log_dir) as entries:
            for entry in entries:
                has_meta_properties |= entry.name == META_PROPERTIES
                name = parse_log_directory(entry.name)
                if name is None or name.kind is not DirectoryKind.CURRENT or name.topic == _CLUSTER_METADATA:
                    continue
                if entry.is_dir():
                    yield f"{self._log_dir}/{entry.name}", name
        if not has_meta_properties:
            reason = f"it has no {META_PROPERTIES}: not a log dir of a broker, or its volume is not mounted"
            raise LogDirError(path=self._log_dir, reason=reason)

    def _read(self, directory: str, name: LogDirectoryName) -> LocalPartition | None:
        status = os.stat(directory)  # noqa: PTH116 - thousands per scan
        listed = self._listed.get(directory)
        if listed is not None and listed.is_settled and (listed.inode, listed.mtime_ns) == _identity(status):
            try:
                return self._refresh(directory, listed)
            except FileNotFoundError:
                pass  # renamed after the stat: list it again
        self._listed.pop(directory, None)
        now_ms, before = self._now_ms(), None if listed is None or listed.inode != status.st_ino else listed.partition
        partition = read_partition_directory(self._log_dir, directory, name.topic, name.partition, before)
        is_settled = now_ms - status.st_mtime_ns // 1_000_000 > _SETTLED_MS
        self._listed[directory] = _Listed(*_identity(status), is_settled, partition)
        return partition

    def _refresh(self, directory: str, listed: _Listed) -> LocalPartition | None:
        if listed.partition is None:
            return None
        partition = with_active_segment_refreshed(listed.partition)
        if partition is not listed.partition:
            self._listed[directory] = _Listed(listed.inode, listed.mtime_ns, listed.is_settled, partition)
        return partition


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mtime_ns
