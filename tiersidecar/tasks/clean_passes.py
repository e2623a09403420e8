"""The two passes of a cleaner over remote segments (docs/design/0017-remote-compaction.md).

In the first the dirty segments stream past and fill the offset map.  In the second each segment streams past again, and what
is left of it becomes a segment on this disk.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tiersidecar.domain.errors import StateDirError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import LocalSegment, RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.index_blob import IndexArtefacts
from tiersidecar.formats.compaction.cleaning import Cleaner, SegmentCleaner
from tiersidecar.formats.compaction.key_filter import KeyFilter, SegmentKeys
from tiersidecar.formats.compaction.offset_map import OffsetMap, OffsetMapBuilder, bytes_for, most_keys
from tiersidecar.formats.compaction.segments import SegmentRewriter, SegmentTally
from tiersidecar.formats.compaction.whole_batches import WholeBatches
from tiersidecar.formats.kafka.indexes import AbortedTransaction, read_transaction_index, write_transaction_index
from tiersidecar.formats.kafka.log_dir_files import write_leader_epochs
from tiersidecar.formats.kafka.producer_state import write_producer_snapshot
from tiersidecar.ports.clock import Blocking
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.tasks.segment_put import NewSegment, SwapStore, require

_SLICE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedSegment:
    """A cleaned segment as files on this disk; ``key_filter`` is that of what is left, where later rounds may go by one."""

    new: NewSegment
    tally: SegmentTally
    key_filter: KeyFilter | None

    @property
    def is_unchanged(self) -> bool:
        """Return whether it has the same bytes as before."""
        return self.tally.untouched_batches == self.tally.batches_read


async def aborted_of(blobs: IndexBlobReader, chain: Sequence[RemoteLogSegmentMetadata]) -> list[AbortedTransaction]:
    """Return the aborted transactions of the whole chain: a marker may lie beyond the chunk.  The index that goes up beside a
    segment is completed from its batches."""
    found: list[AbortedTransaction] = []
    for segment in chain:
        if segment.txn_index_empty:
            continue
        data = (await blobs.read_index_files(segment)).transaction_index
        where = f"transaction index of {segment.remote_log_segment_id}"
        found += read_transaction_index(data, base_offset=segment.start_offset, where=where)
    return found


class CleanPasses:
    """Reads segments past every cache.  ``scratch`` is a directory of this process's alone for one segment at a time;
    ``dedupe_buffer_bytes`` bounds the offset map."""

    def __init__(self, *, store: SwapStore, blocking: Blocking, scratch: Path, dedupe_buffer_bytes: int) -> None:
        self._stream, self._blobs, self._pace = store.stream, store.blobs, store.pace
        self._blocking, self._scratch, self._dedupe_buffer_bytes = blocking, scratch, dedupe_buffer_bytes

    async def free_bytes(self) -> int:
        """Return how much room the disk of ``scratch`` has.

        Raises:
            StateDirError: the directory cannot be made.
        """
        try:
            return await self._blocking.run(_free_bytes, self._scratch)
        except OSError as error:
            raise StateDirError(path=str(self._scratch), reason=error.strerror or str(error)) from error

    async def offset_map(
        self,
        dirty: Sequence[RemoteLogSegmentMetadata],
        first_dirty: Offset,
        aborted: Sequence[AbortedTransaction],
        progress: Callable[[str], None] = lambda text: None,
    ) -> OffsetMap:
        """Fill a map with as much of the dirty segments as it takes; ``progress`` is told of each.

        Raises:
            StoreError, CorruptDataError: a segment could not be read.
            OffsetMapTooSmallError: one batch has more keys than the map may hold.
        """
        offsets = dirty[-1].next_offset - first_dirty
        size_bytes = min(self._dedupe_buffer_bytes, bytes_for(offsets))
        offset_map = await self._blocking.run(OffsetMap, size_bytes)
        builder = OffsetMapBuilder(offset_map, first_dirty_offset=first_dirty, aborted=aborted)
        for segment in dirty:
            progress(f"reading what is dirty: offsets {segment.start_offset} to {segment.end_offset}")
            filling = _Filling(builder, str(segment.remote_log_segment_id))
            await self._feed(segment, filling.look)
            if not filling.takes_more:
                break
            filling.batches.end(where=filling.where)
            builder.end_segment(segment.next_offset)
        return offset_map

    @asynccontextmanager
    async def cleaned(
        self, segment: RemoteLogSegmentMetadata, cleaner: Cleaner, *, is_whole: bool
    ) -> AsyncIterator[CleanedSegment]:
        """Yield the segment as it is left, for as long as the body runs.  ``is_whole``: the map reaches up to its end, so that
        it is clean afterwards.

        Raises:
            StoreError, CorruptDataError: it could not be read.
            StateDirError: the disk is full, or the like.
        """
        directory = self._scratch / format_uuid(segment.remote_log_segment_id.uuid)
        try:
            try:
                await self._blocking.run(_make_anew, directory)
                cleaned = await self._write(segment, cleaner, directory, SegmentKeys() if is_whole else None)
            except OSError as error:
                raise StateDirError(path=str(directory), reason=error.strerror or str(error)) from error
            yield cleaned
        finally:
            await self._blocking.run(shutil.rmtree, directory, True)  # noqa: FBT003 - ignore_errors

    async def _write(
        self, segment: RemoteLogSegmentMetadata, cleaner: Cleaner, directory: Path, keys: SegmentKeys | None
    ) -> CleanedSegment:
        where, digest = str(segment.remote_log_segment_id), hashlib.sha256()
        one = SegmentCleaner(
            cleaner,
            size_bytes=segment.segment_size_in_bytes,
            max_timestamp_ms=segment.max_timestamp_ms,
            where=where,
        )
        rewriter = SegmentRewriter(one, base_offset=segment.start_offset, rewrite_run=one.rewrite_run)
        path = directory / f"{segment.start_offset:020d}.log"
        file = await self._blocking.run(_open_new, path)
        try:

            def rewrite(part: memoryview) -> None:
                for piece in rewriter.feed(part, where=where):
                    digest.update(piece)
                    file.write(piece)
                    if keys is not None:
                        keys.look(piece, where=where)

            await self._feed(segment, rewrite)
        finally:
            await self._blocking.run(file.close)
        rewriter.end_of_source(where=where)
        done = rewriter.finish()
        tally = done.tally
        require(segment, tally.last_offset <= segment.end_offset, "its batches go past its end")
        require(segment, tally.batches_kept > 0 or tally.batches_read == 0, "no batch of it would be left")
        newest_ms = tally.max_timestamp_ms if tally.max_timestamp_ms >= 0 else segment.max_timestamp_ms
        local = LocalSegment(
            directory=str(directory),
            base_offset=segment.start_offset,
            next_base_offset=segment.next_offset,
            size_bytes=tally.bytes_kept,
            modified_ms=segment.max_timestamp_ms,
            max_timestamp_ms=newest_ms,
        )
        artefacts = IndexArtefacts(
            offset_index=done.offset_index,
            time_index=done.time_index,
            producer_snapshot=write_producer_snapshot(await self._blobs.read_producer_snapshot(segment)),
            leader_epochs=write_leader_epochs(tuple(await self._blobs.read_leader_epochs(segment))),
            transaction_index=write_transaction_index(cleaner.take_retained()) or None,
        )
        new = NewSegment(
            local=local,
            artefacts=artefacts,
            is_compressed=bool(one.is_first_compressed),
            digest=digest.hexdigest(),
            max_timestamp_ms=newest_ms,
        )
        key_filter = None
        if keys is not None:
            key_filter = await self._blocking.run(_key_filter, keys, path, most_keys(self._dedupe_buffer_bytes))
        return CleanedSegment(new=new, tally=tally, key_filter=key_filter)

    async def _feed(self, segment: RemoteLogSegmentMetadata, look: Callable[[memoryview], None]) -> None:
        async for _ in self._stream.feed_log(segment, look, self._pace):
            pass


class _Filling:
    """Puts the batches of one .log into the map while it streams past, until the map is full."""

    def __init__(self, builder: OffsetMapBuilder, where: str) -> None:
        self._builder, self.where = builder, where
        self.batches, self.takes_more = WholeBatches(), True

    def look(self, part: memoryview) -> None:
        """Add the next bytes; what comes after the map was full is passed over."""
        self.takes_more = self.takes_more and self._builder.feed(self.batches, part, where=self.where)


def _key_filter(keys: SegmentKeys, path: Path, most_asked: int) -> KeyFilter | None:
    """Return the filter of the .log at ``path``, whose batches ``keys`` was shown when they were written."""
    if not keys.are_too_many_to_hold:
        return keys.key_filter(most_asked)
    again, where, tail = keys.for_second_look(most_asked), str(path), b""
    with path.open("rb", buffering=0) as file:
        while part := file.read(_SLICE_BYTES):
            batches = tail + part
            tail = batches[again.look(batches, where=where) :]
    return again.key_filter(most_asked)


def _free_bytes(directory: Path) -> int:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return shutil.disk_usage(directory).free


def _open_new(path: Path) -> BinaryIO:
    return path.open("xb")


def _make_anew(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, mode=0o700)
