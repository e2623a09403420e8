"""Indexes of remote segments: ranged GETs of parts of an index blob, and lookups in memory (Kafka's RemoteIndexCache; S-123 to
S-132)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import RemoteLogSegmentId
from tiersidecar.domain.offsets import ByteRange, EpochEntry, Lineage
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.index_blob import IndexKind, bounds_of
from tiersidecar.formats.kafka.indexes import (
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    read_offset_index,
    read_time_index,
    read_transaction_index,
)
from tiersidecar.formats.kafka.log_dir_files import read_leader_epochs
from tiersidecar.formats.kafka.producer_state import ProducerState, read_producer_snapshot
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.metrics.reading import READ_STORE_BYTES, READ_STORE_REQUESTS
from tiersidecar.ports.store import Buffer, FetchRange
from tiersidecar.ports.telemetry import NoTelemetry, Telemetry
from tiersidecar.reading.remote_objects import (
    FETCH_TIMEOUT_S,
    ByteLru,
    ManifestCache,
    RemoteSegment,
    SingleFlight,
    fetch_within,
)

T = TypeVar("T")

_ENTRY_BYTES = {IndexKind.OFFSET: 8, IndexKind.TIMESTAMP: 12}

_MERGED_GAP_BYTES = 64 * 1024
"""Bytes between two wanted parts that cost less than a second GET (U4)."""

_MERGED_BYTES = 8 * 1024 * 1024
"""Most bytes of parts that are fetched together: both are in memory twice then."""

_MOST_EPOCH_READS = 4
_MOST_SHOWN = 8
"""Epochs, in an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFiles:
    """The three indexes of a segment, as the broker had them in its files; no aborted transaction: empty (S-128, S-159)."""

    offset_index: bytes
    time_index: bytes
    transaction_index: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.offset_index) + len(self.time_index) + len(self.transaction_index)


class IndexBlobReader:
    """Fetch parts of index blobs; keep nothing.  It is the :class:`~tiersidecar.ports.metadata_log.ReadEpochs`."""

    def __init__(
        self,
        *,
        store: FetchRange,
        blocking: Blocking,
        manifests: ManifestCache,
        timeout_s: float = FETCH_TIMEOUT_S,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._store = store
        self._blocking = blocking
        self._manifests = manifests
        self._timeout_s = timeout_s
        self._telemetry = telemetry or NoTelemetry()

    async def read_index_files(self, metadata: RemoteLogSegmentMetadata) -> IndexFiles:
        """Return the offset, time and transaction index.

        Raises:
            ObjectNotFoundError: the manifest or the blob is gone.
            CorruptDataError: twice a part did not open; its content is not looked at.  Or the transaction index was not
                the same when it was fetched a second time.
        """
        offsets, times, transactions = await self._read(
            metadata, _as_they_are, IndexKind.OFFSET, IndexKind.TIMESTAMP, IndexKind.TRANSACTION
        )
        if transactions:
            await self._fetch_again(metadata, transactions)
        return IndexFiles(offset_index=offsets, time_index=times, transaction_index=transactions)

    async def _fetch_again(self, metadata: RemoteLogSegmentMetadata, transactions: bytes) -> None:
        """Fetch the transaction index again and compare.  Unless encrypted, its entries alone have nothing to be checked by,
        and one wrong bit shows what was aborted (simulation, cluster seed 684)."""
        segment = await self._manifests.open(metadata)
        if segment.transform.cipher is not None:
            return
        (again,) = await self._read(metadata, _as_they_are, IndexKind.TRANSACTION)
        if again != transactions:
            reason = "a transaction index was not the same when it was fetched a second time"
            raise CorruptDataError(where=segment.keys.indexes, position=0, reason=reason)

    def discard(self, segment_id: RemoteLogSegmentId) -> None:
        """Forget the manifest, so that it is fetched anew too: it may be what is wrong."""
        self._manifests.forget(segment_id)

    async def read_leader_epochs(self, metadata: RemoteLogSegmentMetadata) -> Sequence[EpochEntry]:
        """Return all epochs that start below the segment's next base offset.

        The file has no checksum and decides what is history.  The epochs of the segment's own range are compared with the
        metadata; with others, unless encrypted, the file is fetched until it is the same twice (simulation, questions).

        Raises:
            CorruptDataError: it does not open, or differs, also when fetched anew.
        """
        seen = list[Sequence[EpochEntry]]()
        while len(seen) < _MOST_EPOCH_READS:
            segment, entries = await self._read_epochs(metadata)
            is_checked = segment.transform.cipher is not None or tuple(entries) == metadata.segment_leader_epochs
            if is_checked or entries in seen:
                return entries
            seen.append(entries)
        where = f"leader epochs of {metadata.remote_log_segment_id}"
        reason = f"each of {_MOST_EPOCH_READS} reads gave others; the last two {_text(seen[-2])}, and {_text(seen[-1])}"
        raise CorruptDataError(where=where, position=0, reason=reason)

    async def _read_epochs(self, metadata: RemoteLogSegmentMetadata) -> tuple[RemoteSegment, Sequence[EpochEntry]]:
        def parse(segment: RemoteSegment, parts: Sequence[bytes]) -> tuple[RemoteSegment, Sequence[EpochEntry]]:
            return segment, _checked_epochs(parts[0], segment)

        return await self._read(metadata, parse, IndexKind.LEADER_EPOCH)

    async def read_producer_snapshot(self, metadata: RemoteLogSegmentMetadata) -> Sequence[ProducerState]:
        """Return the producers' state at the segment's next base offset; none where the topic never had a producer id.

        Raises:
            CorruptDataError: it does not open, or its checksum differs, also when fetched anew.
        """

        def parse(segment: RemoteSegment, parts: Sequence[bytes]) -> Sequence[ProducerState]:
            return read_producer_snapshot(parts[0], where=f"producer snapshot in {segment.keys.indexes}")

        return await self._read(metadata, parse, IndexKind.PRODUCER_SNAPSHOT)

    async def _read(
        self,
        metadata: RemoteLogSegmentMetadata,
        parse: Callable[[RemoteSegment, Sequence[bytes]], T],
        *kinds: IndexKind,
    ) -> T:
        try:
            segment = await self._manifests.open(metadata)
            return parse(segment, await self._fetch_parts(segment, *kinds))
        except CorruptDataError:
            # Once more, the manifest too: bytes are damaged on the way more often than at rest.
            self._manifests.forget(metadata.remote_log_segment_id)
        segment = await self._manifests.open(metadata)
        return parse(segment, await self._fetch_parts(segment, *kinds))

    async def _fetch_parts(self, segment: RemoteSegment, *kinds: IndexKind) -> list[bytes]:
        wanted = [(kind, segment.manifest.indexes.range_of(kind) or ByteRange(0, 0)) for kind in kinds]
        parts = dict.fromkeys(kinds, b"")
        key = segment.keys.indexes
        for span in merged_ranges([one for _, one in wanted if len(one)], _MERGED_GAP_BYTES, _MERGED_BYTES):
            stored = await fetch_within(self._timeout_s, key, self._store.fetch_range(key, span))
            within = {
                kind: one for kind, one in wanted if len(one) and span.start <= one.start and one.stop <= span.stop
            }
            parts |= await self._blocking.run(_opened_parts, segment, within, span, stored)
            self._telemetry.count(READ_STORE_REQUESTS, kind="index")
            self._telemetry.count(READ_STORE_BYTES, len(span))
        return [parts[kind] for kind in kinds]


def merged_ranges(ranges: Sequence[ByteRange], gap_bytes: int, most_bytes: int) -> list[ByteRange]:
    """Return ``ranges`` in order, those merged that lie no further apart than ``gap_bytes``, up to ``most_bytes``."""
    merged: list[ByteRange] = []
    for range_ in sorted(ranges, key=lambda range_: range_.start):
        is_near = merged and range_.start - merged[-1].stop <= gap_bytes
        if is_near and max(range_.stop, merged[-1].stop) - merged[-1].start <= most_bytes:
            merged[-1] = ByteRange(merged[-1].start, max(merged[-1].stop, range_.stop))
        else:
            merged.append(range_)
    return merged


def _as_they_are(segment: RemoteSegment, parts: Sequence[bytes]) -> Sequence[bytes]:
    return parts


def _checked_epochs(data: bytes, segment: RemoteSegment) -> Sequence[EpochEntry]:
    where = f"leader epochs in {segment.keys.indexes}"
    entries, metadata = read_leader_epochs(data, where=where), segment.metadata
    own = Lineage.of(entries).entries_in_range(metadata.start_offset, metadata.next_offset)
    if own != metadata.segment_leader_epochs:
        reason = f"it has {_text(own)} for the segment, the metadata {_text(metadata.segment_leader_epochs)}"
        raise CorruptDataError(where=where, position=0, reason=reason)
    return entries


def _text(entries: Sequence[EpochEntry]) -> str:
    shown = [f"epoch {epoch} from {start}" for epoch, start in entries[:_MOST_SHOWN]]
    if len(entries) > _MOST_SHOWN:
        shown.append(f"{len(entries) - _MOST_SHOWN} more")
    return ", ".join(shown) or "no epoch"


def _opened_parts(
    segment: RemoteSegment, wanted: Mapping[IndexKind, ByteRange], span: ByteRange, stored: Buffer
) -> dict[IndexKind, bytes]:
    if len(stored) != len(span):
        reason = f"{len(stored)} of {len(span)} bytes of its indexes are there"
        raise CorruptDataError(where=segment.keys.indexes, position=span.start, reason=reason)
    return {
        kind: _opened(segment, kind, memoryview(stored)[_within(one, span)], stored) for kind, one in wanted.items()
    }


def _within(one: ByteRange, span: ByteRange) -> slice:
    return slice(one.start - span.start, one.stop - span.start)


def _opened(segment: RemoteSegment, kind: IndexKind, part: memoryview, stored: Buffer) -> bytes:
    cipher = segment.transform.cipher
    if cipher:
        opened = cipher.decrypt(part, where=segment.keys.indexes)
    else:
        opened = stored if isinstance(stored, bytes) and len(stored) == len(part) else bytes(part)
    entry_bytes = _ENTRY_BYTES.get(kind)
    if entry_bytes is None or len(opened) % entry_bytes:
        return opened
    # Preallocated space is not kept.
    used = len(opened.rstrip(b"\0"))
    return opened[: -(-used // entry_bytes) * entry_bytes]


_OBJECTS_OF_AN_ENTRY_BYTES = 2048
"""The size of one entry besides its columns, which are as large as the files: of small segments it is most of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteIndexes:
    """The indexes of one remote segment, checked and ready for look-ups."""

    offset_index: OffsetIndex
    time_index: TimeIndex
    aborted_transactions: Sequence[AbortedTransaction]


class IndexFilesSource(Protocol):
    """Source of index files: the store, or a cache on disk in front of it."""

    async def read_index_files(self, metadata: RemoteLogSegmentMetadata) -> IndexFiles:
        """Return the offset, time and transaction index of a remote segment."""

    def discard(self, segment_id: RemoteLogSegmentId) -> None:
        """Forget files whose content failed its checks, so that the next read fetches them anew (U23)."""


class RemoteIndexCache:
    """Keep parsed indexes, at most ``max_bytes`` of them by the size of their files; each segment's are fetched once for all
    callers."""

    def __init__(self, source: IndexFilesSource, *, blocking: Blocking, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._source = source
        self._blocking = blocking
        self._kept: ByteLru[RemoteLogSegmentId, RemoteIndexes] = ByteLru(max_bytes)
        self._flights: SingleFlight[RemoteLogSegmentId, RemoteIndexes] = SingleFlight("indexes")

    async def indexes(self, metadata: RemoteLogSegmentMetadata) -> RemoteIndexes:
        """Return the segment's indexes.

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
