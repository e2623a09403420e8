"""Rewrite one remote segment without the records of given keys, to a local file.

What is erased is never on this machine's disk: batches are rewritten on their way from the store.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import AsyncIterator, Callable, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from tiersidecar.domain.errors import StateDirError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.offsets import EpochEntry
from tiersidecar.domain.segments import LocalSegment, RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.index_blob import IndexArtefacts
from tiersidecar.formats.compaction.erasing import KeyEraser
from tiersidecar.formats.compaction.segments import RewrittenSegment, SegmentRewriter, SegmentTally
from tiersidecar.formats.kafka.log_dir_files import write_leader_epochs
from tiersidecar.formats.kafka.producer_state import write_producer_snapshot
from tiersidecar.ports.clock import Blocking
from tiersidecar.reading.index_blobs import IndexBlobReader, IndexFiles
from tiersidecar.reading.segment_stream import Pace, SegmentStream
from tiersidecar.tasks.segment_put import NewSegment, require


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A segment without these records, as files on this disk.  Digests are SHA-256 of the whole .log."""

    local: LocalSegment
    artefacts: IndexArtefacts
    tally: SegmentTally
    is_compressed: bool
    digest_before: str
    digest_after: str

    @property
    def max_timestamp_ms(self) -> int:
        """Return the timestamp of its latest record; where none stays, the one before: its retention goes by it."""
        return self.tally.max_timestamp_ms if self.tally.max_timestamp_ms >= 0 else self.local.max_timestamp_ms

    @property
    def erased_records(self) -> int:
        return self.tally.records_read - self.tally.records_kept

    @property
    def new_segment(self) -> NewSegment:
        """Return the segment for the upload."""
        return NewSegment(
            local=self.local,
            artefacts=self.artefacts,
            is_compressed=self.is_compressed,
            digest=self.digest_after,
            max_timestamp_ms=self.max_timestamp_ms,
        )


class SegmentEraser:
    """Reads past every cache, so that what is proven stands in the store.  ``scratch`` holds one segment at a time."""

    def __init__(
        self,
        *,
        keys: Set[bytes],
        scratch: Path,
        stream: SegmentStream,
        blobs: IndexBlobReader,
        pace: Pace,
        blocking: Blocking,
    ) -> None:
        self._keys, self._scratch = keys, scratch
        self.found_keys: set[bytes] = set()
        """Keys that some record has of those that were read."""
        self._stream, self._blobs = stream, blobs
        self._pace, self._blocking = pace, blocking

    async def count(self, segment: RemoteLogSegmentMetadata) -> int:
        """Return how many records of the segment have one of the keys.

        Raises:
            StoreError: an object is missing or could not be read.
            CorruptDataError: its objects do not fit each other, or a batch is damaged.
        """
        rewriter, _ = self._rewriter(segment)
        await self._feed(segment, _drained(rewriter, str(segment.remote_log_segment_id)))
        tally = _finished(rewriter, segment).tally
        return tally.records_read - tally.records_kept

    @asynccontextmanager
    async def rewritten(self, segment: RemoteLogSegmentMetadata) -> AsyncIterator[Rewritten]:
        """Give the segment without these records, for as long as the body runs.

        Raises:
            StoreError, CorruptDataError: as :meth:`count`.
            StateDirError: the disk is full, or the like.
        """
        directory = self._scratch / format_uuid(segment.remote_log_segment_id.uuid)
        try:
            try:
                await self._blocking.run(_make_anew, directory)
                rewritten = await self._write(segment, directory)
            except OSError as error:
                raise StateDirError(path=str(directory), reason=error.strerror or str(error)) from error
            yield rewritten
        finally:
            await self._blocking.run(shutil.rmtree, directory, True)  # noqa: FBT003 - ignore_errors

    def prover(self, stored: RemoteLogSegmentMetadata) -> NoSuchRecord:
        """Return what looks whether a record of these keys is in what was stored."""
        rewriter, _ = self._rewriter(stored)
        return NoSuchRecord(stored, rewriter)

    async def _write(self, segment: RemoteLogSegmentMetadata, directory: Path) -> Rewritten:
        local = LocalSegment(
            directory=str(directory),
            base_offset=segment.start_offset,
            next_base_offset=segment.next_offset,
            size_bytes=0,
            modified_ms=segment.max_timestamp_ms,
            max_timestamp_ms=segment.max_timestamp_ms,
        )
        before, after, (rewriter, eraser) = hashlib.sha256(), hashlib.sha256(), self._rewriter(segment)
        where = str(segment.remote_log_segment_id)
        file = await self._blocking.run(_open_new, Path(local.log_path))
        try:

            def rewrite(part: memoryview) -> None:
                before.update(part)
                for piece in rewriter.feed(part, where=where):
                    after.update(piece)
                    file.write(piece)

            await self._feed(segment, rewrite)
        finally:
            await self._blocking.run(file.close)
        done = _finished(rewriter, segment)
        tally = done.tally
        require(segment, tally.batches_kept == tally.batches_read, "a batch would be lost")
        require(segment, tally.last_offset <= segment.end_offset, "its batches go past its end")
        indexes, epochs, producers = await self._beside(segment)
        return Rewritten(
            local=replace(local, size_bytes=tally.bytes_kept),
            artefacts=IndexArtefacts(
                offset_index=done.offset_index,
                time_index=done.time_index,
                producer_snapshot=producers,
                leader_epochs=write_leader_epochs(epochs),
                transaction_index=indexes.transaction_index or None,
            ),
            tally=tally,
            is_compressed=bool(eraser.is_first_compressed),
            digest_before=before.hexdigest(),
            digest_after=after.hexdigest(),
        )

    def _rewriter(self, segment: RemoteLogSegmentMetadata) -> tuple[SegmentRewriter, KeyEraser]:
        eraser = KeyEraser(self._keys, found=self.found_keys, where=str(segment.remote_log_segment_id))
        return SegmentRewriter(eraser, base_offset=segment.start_offset), eraser

    async def _feed(self, segment: RemoteLogSegmentMetadata, look: Callable[[memoryview], None]) -> None:
        async for _ in self._stream.feed_log(segment, look, self._pace):
            pass

    async def _beside(self, segment: RemoteLogSegmentMetadata) -> tuple[IndexFiles, tuple[EpochEntry, ...], bytes]:
        """Return the files beside the .log that do not change with its records; the producers' snapshot as bytes."""
        indexes = await self._blobs.read_index_files(segment)
        epochs = tuple(await self._blobs.read_leader_epochs(segment))
        return indexes, epochs, write_producer_snapshot(await self._blobs.read_producer_snapshot(segment))


class NoSuchRecord:
    """Is shown a stored .log (:class:`~tiersidecar.tasks.segment_put.Prover`), in which no record of these keys may be."""

    def __init__(self, stored: RemoteLogSegmentMetadata, rewriter: SegmentRewriter) -> None:
        self._stored, self._rewriter = stored, rewriter
        self.look = _drained(rewriter, str(stored.remote_log_segment_id))

    def finish(self) -> None:
        tally = _finished(self._rewriter, self._stored).tally
        require(self._stored, tally.records_kept == tally.records_read, "it still has records of these keys")


def _drained(rewriter: SegmentRewriter, where: str) -> Callable[[memoryview], None]:
    def drain(part: memoryview) -> None:
        for _ in rewriter.feed(part, where=where):
            pass

    return drain


def _finished(rewriter: SegmentRewriter, segment: RemoteLogSegmentMetadata) -> RewrittenSegment:
    rewriter.end_of_source(where=str(segment.remote_log_segment_id))
    return rewriter.finish()


def _open_new(path: Path) -> BinaryIO:
    return path.open("xb")


def _make_anew(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, mode=0o700)
