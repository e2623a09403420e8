"""Reading one partition directory: which topic it is of, its segments and the broker's leader epochs.

The functions here block and run in threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tiersidecar.adapters.log_dirs_fs.time_index import read_max_timestamp_ms
from tiersidecar.domain.epochs import EpochEntry
from tiersidecar.domain.errors import LogDirError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import LocalPartition, LocalSegment
from tiersidecar.formats.kafka.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    read_leader_epochs,
    read_partition_metadata,
)
from tiersidecar.formats.kafka.log_names import DELETED_SUFFIX, LogFileKind, parse_log_file

_LISTINGS = 4
_BLOCK_BYTES = 512
"""Of ``st_blocks``, whatever the file system's own are."""
_LOG_SUFFIX = f".{LogFileKind.LOG}"


def read_partition_directory(
    log_dir: str, directory: str, topic: str, partition: int, before: LocalPartition | None = None
) -> LocalPartition | None:
    """The partition, or None while the directory holds no segment.  ``before`` is what was read of it last: the time index of a
    sealed segment that has not changed since is not read again.

    Raises:
        FileNotFoundError: the directory is gone.
        OSError: it cannot be read.
        LogDirError: it has no partition.metadata, or its segments change faster than they can be listed.
        CorruptDataError: a checkpoint cannot be understood.
    """
    segments, deleted = _list_segments(directory)
    if not segments:
        return None
    known = {} if before is None else {one.base_offset: one for one in (*before.deleted, *before.segments)}
    return LocalPartition(
        topic_id_partition=TopicIdPartition(topic_id=_read_topic_id(directory), topic=topic, partition=partition),
        log_dir=log_dir,
        directory=directory,
        segments=tuple(_with_max_timestamp(segment, known.get(segment.base_offset)) for segment in segments),
        leader_epochs=_read_leader_epochs(directory),
        deleted=deleted,
    )


def with_active_segment_refreshed(partition: LocalPartition) -> LocalPartition:
    """The partition with the size its active segment has now: appends do not touch the directory.

    Raises:
        FileNotFoundError: it has been renamed or deleted.
    """
    active = partition.segments[-1]
    status = os.stat(active.log_path)  # noqa: PTH116 - once per partition and scan: a Path costs more than the call
    if (_written_bytes(status), status.st_mtime_ns // 1_000_000) == (active.size_bytes, active.modified_ms):
        return partition
    grown = _local_segment(partition.directory, active.base_offset, None, status)
    return replace(partition, segments=(*partition.segments[:-1], grown))


def _list_segments(directory: str) -> tuple[tuple[LocalSegment, ...], tuple[LocalSegment, ...]]:
    """Live segments, and deleted ones before them, both ascending by base offset.  A live segment that vanishes between
    listing and stat makes the listing void: without it, the one before would seem to reach to the one behind."""
    for _ in range(_LISTINGS):
        with suppress(FileNotFoundError):
            return _list_segments_once(directory)
        Path(directory).stat()
    raise LogDirError(path=directory, reason="its segments came and went faster than they could be listed")


def _list_segments_once(directory: str) -> tuple[tuple[LocalSegment, ...], tuple[LocalSegment, ...]]:
    names = os.listdir(directory)  # noqa: PTH208 - names are all that is needed
    base_offsets = _base_offsets(names)
    nexts: list[Offset | None] = [*base_offsets[1:], None]
    segments = tuple(
        _local_segment(directory, base, following, os.stat(f"{directory}/{base:020d}.log"))  # noqa: PTH116
        for base, following in zip(base_offsets, nexts if base_offsets else [], strict=True)
    )
    return segments, tuple(_list_deleted(directory, names, base_offsets[0])) if segments else ()


def _list_deleted(directory: str, names: Sequence[str], first_base_offset: Offset) -> Iterator[LocalSegment]:
    ends = (name.removesuffix(DELETED_SUFFIX) for name in names if name.endswith(DELETED_SUFFIX))
    before = [base_offset for base_offset in _base_offsets(ends) if base_offset < first_base_offset]
    for base_offset, following in zip(before, [*before[1:], first_base_offset], strict=True) if before else ():
        with suppress(FileNotFoundError):  # its time has come
            path = f"{directory}/{base_offset:020d}.log{DELETED_SUFFIX}"
            found = _local_segment(directory, base_offset, following, os.stat(path))  # noqa: PTH116
            yield replace(found, file_suffix=DELETED_SUFFIX)


def _with_max_timestamp(segment: LocalSegment, known: LocalSegment | None) -> LocalSegment:
    if segment.next_base_offset is None:
        return segment
    if known is not None and replace(known, max_timestamp_ms=segment.max_timestamp_ms) == segment:
        return known
    return replace(
        segment, max_timestamp_ms=read_max_timestamp_ms(segment.path_of(f"{segment.base_offset:020d}.timeindex"))
    )


def _base_offsets(names: Iterable[str]) -> list[Offset]:
    """Of the .log files among ``names``, ascending."""
    parsed = (parse_log_file(name) for name in names if name.endswith(_LOG_SUFFIX))
    return sorted(name.offset for name in parsed if name is not None)


def _local_segment(
    directory: str, base_offset: Offset, next_base_offset: Offset | None, status: os.stat_result
) -> LocalSegment:
    return LocalSegment(
        directory=directory,
        base_offset=base_offset,
        next_base_offset=next_base_offset,
        size_bytes=status.st_size if next_base_offset is not None else _written_bytes(status),
        modified_ms=status.st_mtime_ns // 1_000_000,
    )


def _written_bytes(status: os.stat_result) -> int:
    """Of an active segment: with ``preallocate=true`` its file has the size of a full one from its first record on, most of it
    a hole, which retention must not count.  The broker cuts the file to its true size when it rolls."""
    if status.st_blocks == 0:  # a file system that does not tell
        return status.st_size
    return min(status.st_size, status.st_blocks * _BLOCK_BYTES)


def _read_topic_id(directory: str) -> Uuid:
    path = Path(directory, PARTITION_METADATA)
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        Path(directory).stat()
        reason = f"it has no {PARTITION_METADATA}, which the broker writes once it knows the topic's id"
        raise LogDirError(path=directory, reason=reason) from error
    return read_partition_metadata(data, where=str(path))


def _read_leader_epochs(directory: str) -> tuple[EpochEntry, ...]:
    path = Path(directory, LEADER_EPOCH_CHECKPOINT)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()  # written with the first leader epoch: a partition that never had a leader has none
    return read_leader_epochs(data, where=str(path))
