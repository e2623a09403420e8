"""Indexes of remote segments, looked up in memory (Kafka's RemoteIndexCache; S-123 to S-132)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import RemoteLogSegmentId
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.segment_bounds import bounds_of
from tiersidecar.formats.kafka.indexes import (
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    read_offset_index,
    read_time_index,
    read_transaction_index,
)
from tiersidecar.ports.clock import Blocking
from tiersidecar.reading.byte_lru import ByteLru
from tiersidecar.reading.index_blobs import IndexFiles
from tiersidecar.reading.single_flight import SingleFlight

_OBJECTS_OF_AN_ENTRY_BYTES = 2048
"""What one entry takes besides its columns, which are as large as the files: of small segments it is most of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteIndexes:
    """The indexes of one remote segment, checked and ready for look-ups."""

    offset_index: OffsetIndex
    time_index: TimeIndex
    aborted_transactions: Sequence[AbortedTransaction]


class IndexFilesSource(Protocol):
    """Where index files come from: the store, or a cache on disk in front of it."""

    async def read_index_files(self, metadata: RemoteLogSegmentMetadata) -> IndexFiles:
        """Offset, time and transaction index of a remote segment."""

    def discard(self, segment_id: RemoteLogSegmentId) -> None:
        """Forget files whose content failed its checks, so that the next read fetches them anew (U23)."""


class RemoteIndexCache:
    """Keeps parsed indexes, at most ``max_bytes`` of them by the size of their files; fetches each segment's once for all
    who want it."""

    def __init__(self, source: IndexFilesSource, *, blocking: Blocking, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._source = source
        self._blocking = blocking
        self._kept: ByteLru[RemoteLogSegmentId, RemoteIndexes] = ByteLru(max_bytes)
        self._flights: SingleFlight[RemoteLogSegmentId, RemoteIndexes] = SingleFlight("indexes")

    async def indexes(self, metadata: RemoteLogSegmentMetadata) -> RemoteIndexes:
        """The segment's indexes.

        Raises:
            ObjectNotFoundError: the segment is gone from the store.
            CorruptDataError: an index fails its checks, also after it was fetched anew.
        """
        kept = self._kept.get(metadata.remote_log_segment_id)
        return kept or await self._flights.run(metadata.remote_log_segment_id, lambda: self._load(metadata))

    def forget(self, segment_id: RemoteLogSegmentId) -> None:
        """Drop one segment's indexes."""
        self._kept.discard(segment_id)
        self._source.discard(segment_id)

    async def aclose(self) -> None:
        """Give up what is in flight."""
        await self._flights.aclose()

    async def _load(self, metadata: RemoteLogSegmentMetadata) -> RemoteIndexes:
        try:
            files, indexes = await self._read(metadata)
        except CorruptDataError:
            self._source.discard(metadata.remote_log_segment_id)
            files, indexes = await self._read(metadata)
        self._kept.put(metadata.remote_log_segment_id, indexes, files.size_bytes + _OBJECTS_OF_AN_ENTRY_BYTES)
        return indexes

    async def _read(self, metadata: RemoteLogSegmentMetadata) -> tuple[IndexFiles, RemoteIndexes]:
        files = await self._source.read_index_files(metadata)
        return files, await self._blocking.run(parse_index_files, metadata, files)


def parse_index_files(metadata: RemoteLogSegmentMetadata, files: IndexFiles) -> RemoteIndexes:
    """Parse and check against the segment's offsets and size (``RemoteIndexCache``'s sanityCheck).

    Raises:
        CorruptDataError: with the segment and the index.
    """
    name, base_offset, end_offset = metadata.remote_log_segment_id, metadata.start_offset, metadata.end_offset
    most_entries = bounds_of(metadata).index_entries
    return RemoteIndexes(
        offset_index=read_offset_index(
            files.offset_index,
            base_offset=base_offset,
            where=f"offset index of {name}",
            segment_size_bytes=metadata.segment_size_in_bytes,
            end_offset=end_offset,
            most_entries=most_entries,
        ),
        time_index=read_time_index(
            files.time_index,
            base_offset=base_offset,
            where=f"time index of {name}",
            end_offset=end_offset,
            most_entries=most_entries,
        ),
        aborted_transactions=read_transaction_index(
            files.transaction_index, base_offset=base_offset, where=f"transaction index of {name}"
        ),
    )
