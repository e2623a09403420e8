"""Key filters of clean segments, as files of this sidecar (docs/design/0017-remote-compaction.md).

They are caches: without the one of a segment the next round reads the segment, and makes it anew.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from tiersidecar.domain.ids import TopicIdPartition, format_uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.compaction.key_filter import KeyFilter, read_key_filter, write_key_filter
from tiersidecar.formats.compaction.offset_map import OffsetMap
from tiersidecar.formats.kafka.record_batches import Buffer
from tiersidecar.ports.clock import Blocking

log = structlog.get_logger(__name__)

_LEAST_FREE_SHARE = 10
"""Of the disk a tenth stays free."""

_NEW_SUFFIX = ".new"


class KeyFilters:
    """Keeps them in ``directory``, which is this process's alone, with a directory of each partition.  What cannot be read or
    written counts as none."""

    def __init__(self, directory: Path, blocking: Blocking) -> None:
        self._directory, self._blocking = directory, blocking

    async def rule_out(self, segment: RemoteLogSegmentMetadata, offset_map: OffsetMap, *, now_ms: int) -> bool:
        """Return whether the segment, which is clean, has a filter by which a round with this map takes nothing out of it."""
        uuid = segment.remote_log_segment_id.uuid
        return await self._blocking.run(_rules_out, self._path(segment), uuid, offset_map, now_ms)

    async def keep(self, segment: RemoteLogSegmentMetadata, key_filter: KeyFilter | None) -> None:
        """Keep the filter of the segment, if it has one and the disk has room."""
        if key_filter is None:
            return
        parts = write_key_filter(key_filter, segment.remote_log_segment_id.uuid)
        reason = await self._blocking.run(_write, self._path(segment), parts)
        if reason:
            log.info("segment.filter.not_kept", segment_id=str(segment.remote_log_segment_id), reason=reason)

    async def drop_others(
        self, segments: Iterable[RemoteLogSegmentMetadata], partitions: Iterable[TopicIdPartition]
    ) -> None:
        """Drop the filters of all other segments of the partition that ``segments`` are of, what a killed process has left
        there, and the filters of all partitions that are not among ``partitions``."""
        kept = {self._path(one) for one in segments}
        owners = {self._directory / _name_of(one) for one in partitions}
        await self._blocking.run(_drop_others, self._directory, kept, owners)

    def _path(self, segment: RemoteLogSegmentMetadata) -> Path:
        name = format_uuid(segment.remote_log_segment_id.uuid)
        return self._directory / _name_of(segment.topic_id_partition) / name


def _name_of(owner: TopicIdPartition) -> str:
    return f"{format_uuid(owner.topic_id)}-{owner.partition}"


def _rules_out(path: Path, segment_id: bytes, offset_map: OffsetMap, now_ms: int) -> bool:
    try:
        data = path.read_bytes()
    except OSError:
        return False
    key_filter = read_key_filter(data, segment_id)
    return key_filter is not None and key_filter.rules_out(offset_map, now_ms=now_ms)


def _write(path: Path, parts: Sequence[Buffer]) -> str:
    """Return why the file was not written.  It is renamed when it is whole, and not synced: what a power cut has left of it is
    found by its checksum."""
    new = path.with_name(path.name + _NEW_SUFFIX)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        disk = shutil.disk_usage(path.parent)
        if disk.free - sum(map(len, parts)) < disk.total // _LEAST_FREE_SHARE:
            return "the disk is nearly full"
        with new.open("wb") as file:
            file.writelines(parts)
        new.replace(path)
    except OSError as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        return error.strerror or str(error)
    return ""


def _drop_others(directory: Path, kept: set[Path], owners: set[Path]) -> None:
    of_partition = {path.parent for path in kept}
    try:
        for owner in list(directory.iterdir()):
            if owner not in owners:
                shutil.rmtree(owner, ignore_errors=True)
            elif owner in of_partition:
                for path in set(owner.iterdir()) - kept:
                    path.unlink(missing_ok=True)
    except FileNotFoundError:
        return
    except OSError as error:
        log.info("segment.filters.not_dropped", reason=error.strerror or str(error))
