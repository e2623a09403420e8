"""Rewrite one remote segment without the records of given keys: to a local file first, then up, then read back.

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

from tiersidecar.adapters.log_dirs_fs.segment_file import OpenSegmentFile
from tiersidecar.domain.epochs import EpochEntry
from tiersidecar.domain.errors import CorruptDataError, CustomMetadataTooLargeError, StateDirError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.segments import LocalSegment, RemoteLogSegmentMetadata, SegmentScan
from tiersidecar.formats.aiven.index_blob import IndexArtefacts
from tiersidecar.formats.compaction.erasing import KeyEraser
from tiersidecar.formats.compaction.segments import RewrittenSegment, SegmentRewriter, SegmentTally
from tiersidecar.formats.kafka.checkpoints import write_leader_epochs
from tiersidecar.formats.kafka.producer_snapshots import write_producer_snapshot
from tiersidecar.formats.kafka.segment_scan import SegmentScanner
from tiersidecar.ports.clock import Blocking
from tiersidecar.reading.index_blobs import IndexBlobReader, IndexFiles
from tiersidecar.reading.segment_stream import Pace, SegmentStream
from tiersidecar.tasks.segment_objects import SegmentObjects


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
        """Of its latest record; where none stays, as before: its retention goes by it."""
        return self.tally.max_timestamp_ms if self.tally.max_timestamp_ms >= 0 else self.local.max_timestamp_ms

    @property
    def erased_records(self) -> int:
        return self.tally.records_read - self.tally.records_kept


class SegmentEraser:
    """Reads past every cache, so that what is proven stands in the store.  ``scratch`` holds one segment at a time."""

    def __init__(
        self,
        *,
        keys: Set[bytes],
        scratch: Path,
        stream: SegmentStream,
        blobs: IndexBlobReader,
        objects: SegmentObjects,
        pace: Pace,
        blocking: Blocking,
        most_custom_metadata_bytes: int,
    ) -> None:
        self._keys, self._scratch = keys, scratch
        self.found_keys: set[bytes] = set()
        """Keys that some record has of those that were read."""
        self._stream, self._blobs, self._objects = stream, blobs, objects
        self._pace, self._blocking, self._most_custom_bytes = pace, blocking, most_custom_metadata_bytes

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

    async def upload(self, started: RemoteLogSegmentMetadata, rewritten: Rewritten) -> bytes | None:
        """Store the three objects of ``started``, durably; return the custom metadata that names them.

        Raises:
            StoreError: one could not be stored.
            CorruptDataError: the file is not what was written.
            CustomMetadataTooLargeError: the event could not carry them.
        """
        file = OpenSegmentFile(rewritten.local, blocking=self._blocking)
        await file.open()
        try:
            reading = _FileReading(started, rewritten)
            custom = await self._objects.put(started, file, reading, is_compressed=rewritten.is_compressed)
        finally:
            await file.close()
        if len(custom or b"") > self._most_custom_bytes:
            raise CustomMetadataTooLargeError(
                segment=str(started.remote_log_segment_id),
                size_bytes=len(custom or b""),
                limit_bytes=self._most_custom_bytes,
            )
        return custom

    async def read_back(self, stored: RemoteLogSegmentMetadata, rewritten: Rewritten) -> None:
        """Read the objects again, and compare them with what was written: bytes, indexes, and that no such record is in them.

        Raises:
            StoreError: an object is missing or could not be read.
            CorruptDataError: something differs.
        """
        digest, (rewriter, _) = hashlib.sha256(), self._rewriter(stored)
        drain = _drained(rewriter, str(stored.remote_log_segment_id))

        def look(part: memoryview) -> None:
            digest.update(part)
            drain(part)

        await self._feed(stored, look)
        found = _finished(rewriter, stored)
        _require(stored, digest.hexdigest() == rewritten.digest_after, "its .log differs from what was uploaded")
        _require(stored, found.tally.records_kept == found.tally.records_read, "it still has records of these keys")
        indexes, epochs, producers = await self._beside(stored)
        said = rewritten.artefacts
        is_same = (
            indexes.offset_index == said.offset_index
            and indexes.time_index == said.time_index
            and indexes.transaction_index == (said.transaction_index or b"")
            and write_leader_epochs(epochs) == said.leader_epochs
            and producers == said.producer_snapshot
        )
        _require(stored, is_same, "its indexes differ from what was uploaded")

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
        _require(segment, tally.batches_kept == tally.batches_read, "a batch would be lost")
        _require(segment, tally.last_offset <= segment.end_offset, "its batches go past its end")
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
        """What lies beside the .log and does not change with its records; the producers' snapshot as bytes."""
        indexes = await self._blobs.read_index_files(segment)
        epochs = tuple(await self._blobs.read_leader_epochs(segment))
        return indexes, epochs, write_producer_snapshot(await self._blobs.read_producer_snapshot(segment))


class _FileReading:
    """The rewritten file on its way up (:class:`~tiersidecar.tasks.segment_objects.LogReading`): every checksum is looked at
    again, and the whole must be what was written."""

    def __init__(self, started: RemoteLogSegmentMetadata, rewritten: Rewritten) -> None:
        self._started, self._rewritten = started, rewritten
        self._digest = hashlib.sha256()
        self._scanner = SegmentScanner(
            where=rewritten.local.log_path, base_offset=started.start_offset, next_base_offset=started.next_offset
        )
        self.scan: SegmentScan | None = None

    def look(self, part: memoryview) -> None:
        self._digest.update(part)
        self._scanner.feed(part)

    def finish(self) -> None:
        scan = self._scanner.finish()
        _require(self._started, self._digest.hexdigest() == self._rewritten.digest_after, "its file has changed")
        self.scan = scan

    def artefacts(self) -> IndexArtefacts:
        return self._rewritten.artefacts


def _drained(rewriter: SegmentRewriter, where: str) -> Callable[[memoryview], None]:
    def drain(part: memoryview) -> None:
        for _ in rewriter.feed(part, where=where):
            pass

    return drain


def _finished(rewriter: SegmentRewriter, segment: RemoteLogSegmentMetadata) -> RewrittenSegment:
    rewriter.end_of_source(where=str(segment.remote_log_segment_id))
    return rewriter.finish()


def _require(segment: RemoteLogSegmentMetadata, is_right: bool, reason: str) -> None:
    if not is_right:
        raise CorruptDataError(where=str(segment.remote_log_segment_id), position=0, reason=reason)


def _open_new(path: Path) -> BinaryIO:
    return path.open("xb")


def _make_anew(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, mode=0o700)
