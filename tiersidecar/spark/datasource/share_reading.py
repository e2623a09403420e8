"""Read a share of remote segments on an executor, from the store to rows in Arrow.

Chunks are fetched ahead in a background loop, as far as the share reaches; batches are cut, checked and decoded here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import pyarrow as pa

from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import AbortedRanges, aborted_ranges
from tiersidecar.ports.store import Buffer
from tiersidecar.reading.batch_cutter import BatchCutter
from tiersidecar.reading.chunk_manager import ChunkManager
from tiersidecar.reading.index_blobs import RemoteIndexCache, RemoteIndexes
from tiersidecar.reading.remote_objects import ManifestCache, RemoteSegment
from tiersidecar.reading.segment_reader import Beginning, beginning_of, cut_plan, first_batch
from tiersidecar.spark.datasource.background_loop import BackgroundLoop
from tiersidecar.spark.datasource.batch_columns import (
    BatchColumns,
    Chosen,
    hidden_by,
    is_format_2,
    read_batch_columns,
)
from tiersidecar.spark.datasource.opened_batches import BatchCollector
from tiersidecar.spark.datasource.plan import SegmentSlice, Share
from tiersidecar.spark.datasource.record_columns import RowShape, legacy_rows, rows_of

MOST_ROWS = 65_536
"""Most bytes of one Arrow batch: Spark holds it whole, outside its heap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRows:
    """Records from ``start_offset`` up to, not including, ``stop_offset``; none of a transaction that ``aborted`` has.

    Batches without a record at ``min_timestamp_ms`` or later are left out; others may bring earlier records with them.
    """

    start_offset: int
    stop_offset: int
    aborted: AbortedRanges = field(default_factory=lambda: AbortedRanges({}))
    min_timestamp_ms: int | None = None


class RowMaker:
    """Takes slices in order, and returns rows once there are enough of them; the rest at the end."""

    def __init__(self, shape: RowShape, wanted: WantedRows, *, where: str) -> None:
        self._shape, self._wanted, self._where = shape, wanted, where
        self._collector = BatchCollector(where)

    def feed(self, buffer: memoryview, position: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield rows, of earlier slices too.  ``buffer`` holds whole batches whose checksums hold, from byte ``position`` of
        the .log on.

        Raises:
            CorruptDataError: bytes that are no records, or do not open.
        """
        if not is_format_2(buffer):
            yield from self._legacy(buffer)
            return
        batches = read_batch_columns(buffer, where=self._where)
        batches = batches.those(self._is_wanted(batches))
        while len(batches):
            taken = self._collector.add(buffer, batches, position)
            batches = batches.those(slice(taken, None))
            if self._collector.is_full:
                yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that have been fed and not been returned."""
        if self._collector:
            rows = rows_of(self._collector.take(), self._shape, self._wanted.start_offset, self._wanted.stop_offset)
            for begin in range(0, rows.num_rows, MOST_ROWS):
                yield rows.slice(begin, MOST_ROWS)

    def _is_wanted(self, batches: BatchColumns) -> Chosen:
        wanted = self._wanted
        chosen: Chosen = (batches.last_offset >= wanted.start_offset) & (batches.base_offset < wanted.stop_offset)
        if wanted.min_timestamp_ms is not None:
            chosen &= batches.max_timestamp >= wanted.min_timestamp_ms
        chosen &= ~batches.is_control & ~hidden_by(wanted.aborted, batches) & (batches.record_count != 0)
        return chosen

    def _legacy(self, buffer: memoryview) -> Iterator[pa.RecordBatch]:
        yield from self.finish()
        wanted = self._wanted
        for begin, header in iter_batch_headers(buffer, where=self._where):
            message = buffer[begin : begin + header.size_bytes]
            is_late = wanted.min_timestamp_ms is None or header.max_timestamp >= wanted.min_timestamp_ms
            rows = legacy_rows(message, header, self._shape, wanted.start_offset, wanted.stop_offset, where=self._where)
            if is_late and rows.num_rows:
                yield rows


AHEAD_BYTES = 16 * 1024 * 1024
"""Most bytes that one task fetches ahead of the decoding: two chunks at least."""
_MOST_CHUNKS_AHEAD = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """The readers of a share; used in the loop only."""

    manifests: ManifestCache
    indexes: RemoteIndexCache
    chunks: ChunkManager


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """A segment slice with its manifest: batches from ``begin`` up to byte ``stop`` (exclusive), where a batch begins."""

    segment_slice: SegmentSlice
    segment: RemoteSegment
    begin: Beginning
    stop: int


class ShareReader:
    """Read one share."""

    def __init__(
        self, loop: BackgroundLoop, reads: Reads, *, include_headers: bool, min_timestamp_ms: int | None = None
    ) -> None:
        self._loop, self._reads = loop, reads
        self._include_headers, self._min_timestamp_ms = include_headers, min_timestamp_ms

    def rows(self, share: Share) -> Iterator[pa.RecordBatch]:
        """Yield all rows of the share, in the order of their offsets.

        Raises:
            ObjectNotFoundError: a segment has been deleted since the plan was made.
            StoreError: the store is away.
            CorruptDataError: the bytes there are damaged.
        """
        opening: deque[Future[_Opened]] = deque()
        for number, _ in enumerate(share.segment_slices):
            # The next one's manifest is fetched while this one is read.
            while len(opening) < 2 and number + len(opening) < len(share.segment_slices):
                opening.append(self._loop.start(self._open(share.segment_slices[number + len(opening)])))
            yield from self._rows_of(opening.popleft().result())

    async def _open(self, segment_slice: SegmentSlice) -> _Opened:
        metadata = segment_slice.metadata
        segment = await self._reads.manifests.open(metadata)
        size = metadata.segment_size_in_bytes
        if segment_slice.is_whole and self._min_timestamp_ms is None:
            return _Opened(segment_slice=segment_slice, segment=segment, begin=first_batch(metadata), stop=size)
        indexes = await self._reads.indexes.indexes(metadata)
        begin = max(self._begin_at_offset(segment_slice, indexes), _begin_at_byte(segment_slice, indexes))
        return _Opened(
            segment_slice=segment_slice,
            segment=segment,
            begin=begin,
            stop=_batch_at(indexes, segment_slice.byte_range.stop, size),
        )

    def _begin_at_offset(self, segment_slice: SegmentSlice, indexes: RemoteIndexes) -> Beginning:
        offset = int(segment_slice.start_offset)
        if self._min_timestamp_ms is not None:
            # No record up to this entry's offset is as late as wanted.
            offset = max(offset, indexes.time_index.lookup(self._min_timestamp_ms - 1).offset)
        if offset <= segment_slice.metadata.start_offset:
            return first_batch(segment_slice.metadata)
        return beginning_of(indexes, segment_slice.metadata, offset)

    def _rows_of(self, opened: _Opened) -> Iterator[pa.RecordBatch]:
        segment_slice = opened.segment_slice
        topic_id_partition, key = segment_slice.metadata.topic_id_partition, opened.segment.keys.log
        maker = RowMaker(
            RowShape(
                topic=topic_id_partition.topic,
                partition=topic_id_partition.partition,
                include_headers=self._include_headers,
            ),
            WantedRows(
                start_offset=segment_slice.start_offset,
                stop_offset=segment_slice.stop_offset,
                aborted=aborted_ranges(segment_slice.aborted),
                min_timestamp_ms=self._min_timestamp_ms,
            ),
            where=key,
        )
        plan = cut_plan(
            opened.segment, opened.begin, start_offset=segment_slice.start_offset, stop_offset=segment_slice.stop_offset
        )
        # A batch ends at the stop, and nothing comes behind it.
        cutter = BatchCutter(replace(plan, file_size_bytes=opened.stop))
        for position, part in self._parts(opened):
            for batches in cutter.cut(part):
                yield from maker.feed(batches.buffer, position)
            if cutter.is_done:
                break
        else:
            cutter.finish()
        yield from maker.finish()

    def _parts(self, opened: _Opened) -> Iterator[tuple[int, memoryview]]:
        """Yield the bytes from the beginning to the stop, chunk by chunk, and where each part begins."""
        begin, stop, index = opened.begin.position, opened.stop, opened.segment.chunk_index
        if begin >= stop:
            return
        numbers = iter(range(index.chunk_at(begin).index, index.chunk_at(stop - 1).index + 1))
        depth = min(max(AHEAD_BYTES // index.original_chunk_size, 2), _MOST_CHUNKS_AHEAD)
        ahead: deque[tuple[int, Future[Buffer]]] = deque()
        try:
            while True:
                for number in numbers:
                    ahead.append((number, self._loop.start(self._reads.chunks.get_chunk(opened.segment, number))))
                    if len(ahead) > depth:
                        break
                if not ahead:
                    return
                number, chunk = ahead.popleft()
                original = index.chunk(number).original
                position = max(begin, original.start)
                yield position, memoryview(chunk.result())[position - original.start : stop - original.start]
        finally:
            for _, chunk in ahead:
                chunk.cancel()


def _begin_at_byte(segment_slice: SegmentSlice, indexes: RemoteIndexes) -> Beginning:
    positions = indexes.offset_index.positions
    place = bisect_left(positions, segment_slice.byte_range.start)
    if segment_slice.byte_range.start == 0:
        return first_batch(segment_slice.metadata)
    if place == len(positions):
        return Beginning(
            segment_slice.metadata.segment_size_in_bytes,
            segment_slice.metadata.next_offset,
            segment_slice.metadata.next_offset,
        )
    offset = indexes.offset_index.base_offset + indexes.offset_index.relative_offsets[place]
    return beginning_of(indexes, segment_slice.metadata, offset)


def _batch_at(indexes: RemoteIndexes, position: int, size: int) -> int:
    """Return where the first batch begins that the index names at or after ``position``; the end of the .log if none does."""
    positions = indexes.offset_index.positions
    place = bisect_left(positions, position)
    return positions[place] if place < len(positions) else size
