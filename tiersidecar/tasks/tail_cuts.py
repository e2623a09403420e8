"""The part of a pinned segment that is not remote yet, as a segment of its own on this disk (docs/design/0017).

A broker's cleaner merges segments, and the replicas of a partition merge differently.  So a segment may begin below what is
remote and end above it.  Copied whole it would lie over segments that look-ups give, and that a cleaner has cleaned.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from tiersidecar.decide.topics import TieredPartition
from tiersidecar.domain.errors import CorruptDataError, StateDirError
from tiersidecar.domain.offsets import NO_EPOCH, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.segments import LocalSegment, RemoteLogSegmentMetadata
from tiersidecar.formats.compaction.rewriting import RewrittenBatch, filler_batch
from tiersidecar.formats.compaction.segments import SegmentRewriter
from tiersidecar.formats.kafka.indexes import read_transaction_index, write_transaction_index
from tiersidecar.formats.kafka.log_dir_files import LogFileKind, log_file_name
from tiersidecar.formats.kafka.record_batches import RecordBatchHeader
from tiersidecar.ports.clock import Blocking
from tiersidecar.tasks.partition_table import PartitionTable

_SLICE_BYTES = 1 << 20


class UploadSegment(Protocol):
    async def upload(
        self, partition: TieredPartition, segment: LocalSegment, lineage: Lineage
    ) -> RemoteLogSegmentMetadata:
        """Copy one segment; it is COPY_SEGMENT_FINISHED, durable and read back when this returns."""


class CuttingUploader:
    """Uploads segments by ``uploader``; of one that a broker's cleaner has merged over the end of what is remote, the rest
    alone."""

    def __init__(self, *, uploader: UploadSegment, table: PartitionTable, cuts: TailCuts) -> None:
        self._uploader, self._table, self._cuts = uploader, table, cuts

    async def upload(
        self, partition: TieredPartition, segment: LocalSegment, lineage: Lineage
    ) -> RemoteLogSegmentMetadata:
        """Copy one segment, or what is to be cut from it; it is COPY_SEGMENT_FINISHED, durable and read back when this
        returns."""
        topic_id_partition = partition.view.topic_id_partition
        remote_end = self._table.record(topic_id_partition).last_copied + 1
        if topic_id_partition.topic not in self._table.compacted_topics or not is_to_be_cut(segment, remote_end):
            return await self._uploader.upload(partition, segment, lineage)
        async with self._cuts.cut(segment, Offset(max(segment.base_offset, remote_end)), lineage) as tail:
            return await self._uploader.upload(partition, tail, lineage)


class TailCuts:
    """``scratch`` is a directory of this process's alone, for one cut at a time and partition."""

    def __init__(self, *, scratch: Path, blocking: Blocking) -> None:
        self._scratch, self._blocking = scratch, blocking

    @asynccontextmanager
    async def cut(self, segment: LocalSegment, start_offset: Offset, lineage: Lineage) -> AsyncIterator[LocalSegment]:
        """Yield the part from ``start_offset`` on, which lies in ``segment``, for as long as the body runs.  Where no batch is
        left, it has an empty one at its last offset: an object without any would be no segment.

        Raises:
            CorruptDataError: a batch is damaged, or begins below ``start_offset`` and ends above it.
            StateDirError: the disk is full, or the like; the pin is gone.
        """
        name = segment.path_of("").strip("/").replace("/", "-")
        directory = self._scratch / f"{name[-150:]}{segment.base_offset}"
        try:
            try:
                cut = await self._blocking.run(_write_cut, segment, start_offset, lineage, directory)
            except OSError as error:
                raise StateDirError(path=str(directory), reason=error.strerror or str(error)) from error
            yield cut
        finally:
            await self._blocking.run(shutil.rmtree, directory, True)  # noqa: FBT003 - ignore_errors


def is_to_be_cut(segment: LocalSegment, remote_end: int) -> bool:
    """Return whether only a part of ``segment`` is to be copied, or it has no batch; ``remote_end`` is exclusive."""
    stop = segment.next_base_offset
    return stop is not None and (segment.base_offset < remote_end < stop or not segment.size_bytes)


def _write_cut(segment: LocalSegment, start_offset: Offset, lineage: Lineage, directory: Path) -> LocalSegment:
    assert segment.next_base_offset is not None, "only sealed segments are pinned"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, mode=0o700)
    cut = replace(
        segment,
        directory=str(directory),
        base_offset=start_offset,
        file_prefix="",
        file_suffix="",
    )
    rewriter = SegmentRewriter(_From(start_offset, segment.log_path), base_offset=start_offset)
    with Path(segment.log_path).open("rb") as source, Path(cut.log_path).open("xb") as target:
        while part := source.read(_SLICE_BYTES):
            for piece in rewriter.feed(part, where=segment.log_path):
                target.write(piece)
        rewriter.end_of_source(where=segment.log_path)
        if not target.tell():
            last = Offset(segment.next_base_offset - 1)
            epoch = lineage.epoch_for_offset(last)
            for piece in rewriter.feed(
                filler_batch(last, LeaderEpoch(NO_EPOCH if epoch is None else epoch)), where="filler"
            ):
                target.write(piece)
        size_bytes = target.tell()
    done = rewriter.finish()
    Path(cut.path_of(log_file_name(start_offset, LogFileKind.OFFSET_INDEX))).write_bytes(done.offset_index)
    Path(cut.path_of(log_file_name(start_offset, LogFileKind.TIME_INDEX))).write_bytes(done.time_index)
    _write_transaction_index(segment, cut)
    for offset in (start_offset, segment.next_base_offset):
        snapshot = log_file_name(offset, LogFileKind.SNAPSHOT)
        if Path(segment.path_of(snapshot)).exists():
            shutil.copyfile(segment.path_of(snapshot), cut.path_of(snapshot))
    return replace(cut, size_bytes=size_bytes, max_timestamp_ms=done.tally.max_timestamp_ms)


def _write_transaction_index(segment: LocalSegment, cut: LocalSegment) -> None:
    """Write the index with what ended in the part that is cut out."""
    path = Path(segment.path_of(log_file_name(segment.base_offset, LogFileKind.TRANSACTION_INDEX)))
    if not path.exists():
        return
    entries = read_transaction_index(path.read_bytes(), base_offset=segment.base_offset, where=str(path))
    ours = write_transaction_index([one for one in entries if one.last_offset >= cut.base_offset])
    if ours:
        Path(cut.path_of(log_file_name(cut.base_offset, LogFileKind.TRANSACTION_INDEX))).write_bytes(ours)


class _From:
    """Keeps the batches from an offset on."""

    def __init__(self, start_offset: Offset, where: str) -> None:
        self._start_offset, self._where = start_offset, where

    def __call__(self, batch: memoryview, header: RecordBatchHeader, position: int) -> RewrittenBatch:
        count = max(header.record_count, 0)
        if header.base_offset >= self._start_offset:
            return RewrittenBatch(data=batch, read=count, kept=count)
        if header.last_offset >= self._start_offset:
            reason = (
                f"a batch of offsets {header.base_offset} to {header.last_offset} is remote up to {self._start_offset}"
            )
            raise CorruptDataError(where=self._where, position=position, reason=reason)
        return RewrittenBatch(data=b"", read=count, kept=0)
