"""A remote segment as files on disk, for as long as it takes to write it again under a new id: its .log is right, and what
was uploaded beside it is not."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

from tiersidecar.domain.errors import StateDirError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.segments import LocalSegment, RemoteLogSegmentMetadata
from tiersidecar.formats.kafka.log_names import LogFileKind, log_file_name
from tiersidecar.formats.kafka.producer_snapshots import write_producer_snapshot
from tiersidecar.ports.clock import Blocking
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.segment_stream import Pace, SegmentStream


class FetchedSegments:
    """Keeps one directory per segment below ``directory``, and nothing afterwards.  What a process that was killed has left
    goes with the next fetch of that segment."""

    def __init__(
        self, *, directory: Path, stream: SegmentStream, blobs: IndexBlobReader, pace: Pace, blocking: Blocking
    ) -> None:
        self._directory, self._stream, self._blobs = directory, stream, blobs
        self._pace, self._blocking = pace, blocking

    @asynccontextmanager
    async def fetched(self, metadata: RemoteLogSegmentMetadata) -> AsyncIterator[LocalSegment]:
        """The segment as a broker would have it.  It counts as pinned: all of it is read before anything is published.

        Raises:
            StoreError: an object is missing or could not be read.
            CorruptDataError: manifest, sizes, chunks or indexes do not fit.
            StateDirError: the disk is full, or the like.
        """
        directory = self._directory / format_uuid(metadata.remote_log_segment_id.uuid)
        segment = LocalSegment(
            directory=str(directory),
            base_offset=metadata.start_offset,
            next_base_offset=metadata.next_offset,
            size_bytes=metadata.segment_size_in_bytes,
            modified_ms=metadata.max_timestamp_ms,
            max_timestamp_ms=metadata.max_timestamp_ms,
            pinned=True,
        )
        try:
            try:
                await self._blocking.run(_make_anew, directory)
                await self._write_log(metadata, Path(segment.log_path))
                await self._write_companions(metadata, directory)
            except OSError as error:
                raise StateDirError(path=str(directory), reason=error.strerror or str(error)) from error
            yield segment
        finally:
            await self._blocking.run(shutil.rmtree, directory, True)  # noqa: FBT003 - ignore_errors

    async def _write_log(self, metadata: RemoteLogSegmentMetadata, path: Path) -> None:
        file = await self._blocking.run(_open_new, path)
        try:

            def write(part: memoryview) -> None:
                file.write(part)

            async for _ in self._stream.feed_log(metadata, write, self._pace):
                pass
        finally:
            await self._blocking.run(file.close)

    async def _write_companions(self, metadata: RemoteLogSegmentMetadata, directory: Path) -> None:
        indexes = await self._blobs.read_index_files(metadata)
        producers = await self._blobs.read_producer_snapshot(metadata)
        start, stop = metadata.start_offset, metadata.next_offset
        files = {
            log_file_name(start, LogFileKind.OFFSET_INDEX): indexes.offset_index,
            log_file_name(start, LogFileKind.TIME_INDEX): indexes.time_index,
            log_file_name(stop, LogFileKind.SNAPSHOT): write_producer_snapshot(producers),
        }
        if indexes.transaction_index:
            files[log_file_name(start, LogFileKind.TRANSACTION_INDEX)] = indexes.transaction_index
        for name, data in files.items():
            await self._blocking.run((directory / name).write_bytes, data)


def _open_new(path: Path) -> BinaryIO:
    return path.open("xb")


def _make_anew(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
