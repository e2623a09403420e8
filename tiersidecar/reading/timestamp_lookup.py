"""Offset for a timestamp in the remote tier (``RemoteLogManager.findOffsetByTimestamp``; S-149, T-48 to T-50, U17)."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import structlog

from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.formats.kafka.opened_memory import OpenedMemory
from tiersidecar.formats.kafka.record_batches import NO_TIMESTAMP, iter_batch_headers, read_batch_header
from tiersidecar.formats.kafka.records import iter_record_times
from tiersidecar.reading.admission import Place, ReaderPool
from tiersidecar.reading.index_blobs import RemoteIndexCache
from tiersidecar.reading.opening import Opening, Steps
from tiersidecar.reading.segment_lookup import Located, SegmentLookup
from tiersidecar.reading.segment_reader import Allowance, SegmentReader

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampAndOffset:
    """A record found by its timestamp."""

    timestamp_ms: int
    offset: Offset
    leader_epoch: LeaderEpoch


class TimestampLookup:
    """Answer from the segments' metadata where these say enough, then from the indexes, and from record batches last."""

    def __init__(
        self,
        *,
        lookup: SegmentLookup,
        segments: SegmentReader,
        indexes: RemoteIndexCache,
        pool: ReaderPool,
        opening: Opening,
    ) -> None:
        self._lookup = lookup
        self._segments = segments
        self._indexes = indexes
        self._pool = pool
        self._opening = opening

    async def find(
        self, topic_id_partition: TopicIdPartition, timestamp_ms: int, *, stop_offset: int | None = None
    ) -> TimestampAndOffset | None:
        """Return the first record, by offset, whose timestamp is ``timestamp_ms`` or later; None when the remote tier has none.

        Segments that begin at ``stop_offset`` or above are not looked into: the caller has them elsewhere (T-51).

        Raises:
            QuotaExceededError: shed, at once.
        """
        async with self._pool.admit() as place:
            start = (await self._lookup.bounds(topic_id_partition)).start
            candidates = self._lookup.readable(
                topic_id_partition,
                lambda segment: (
                    segment.max_timestamp_ms >= timestamp_ms
                    and segment.end_offset >= start
                    and (stop_offset is None or segment.start_offset < stop_offset)
                ),
            )
            async for located in candidates:
                found = await self._find_in(located, timestamp_ms, start, place)
                if found is not None:
                    return found
        return None

    async def find_latest(
        self, topic_id_partition: TopicIdPartition, *, stop_offset: int | None = None, at_least_ms: int = NO_TIMESTAMP
    ) -> TimestampAndOffset | None:
        """Return the first of the records with the largest timestamp (ListOffsets -3); None when there are no records, or only
        earlier ones than ``at_least_ms``.  Records without a timestamp have -1, the smallest.  ``stop_offset`` as for
        :meth:`find`.

        Raises:
            QuotaExceededError: shed, at once.
        """
        start = (await self._lookup.bounds(topic_id_partition)).start
        candidates = [
            located
            async for located in self._lookup.readable(
                topic_id_partition,
                lambda one: one.end_offset >= start and (stop_offset is None or one.start_offset < stop_offset),
            )
        ]
        latest_ms = at_least_ms - 1
        for located in sorted(candidates, key=lambda candidate: candidate.metadata.max_timestamp_ms, reverse=True):
            if located.metadata.max_timestamp_ms <= latest_ms:
                break
            latest_ms = max(latest_ms, await self._latest_in(located, start))
        if not candidates or latest_ms < at_least_ms:
            return None
        return await self.find(topic_id_partition, latest_ms, stop_offset=stop_offset)

    async def _latest_in(self, located: Located, start_offset: Offset) -> int:
        """Return the largest timestamp of the records from ``start_offset`` on, -1 where none has one.

        The metadata may say more: the time of a record below ``start_offset``, or past what the lineage has of the segment, or
        that of the file's last change where no record has a timestamp (``LogSegment.largestTimestamp``).  Then all of them
        are looked at.
        """
        async with self._pool.admit() as place:
            if not len((await self._indexes.indexes(located.metadata)).time_index):
                return NO_TIMESTAMP
            if await self._find_in(located, located.metadata.max_timestamp_ms, start_offset, place) is not None:
                return located.metadata.max_timestamp_ms
            latest_ms = NO_TIMESTAMP
            first = Offset(max(located.metadata.start_offset, start_offset))
            with self._segments.read_ahead() as read_ahead:
                slices = self._segments.slices(located, first, located.stop_offset, Allowance(), read_ahead)
                async with aclosing(slices):
                    async for batches in slices:
                        steps = partial(latest_in, batches.buffer, start_offset)
                        found = await self._opening.run_steps(steps, away=place.given_back)
                        latest_ms = max(latest_ms, found)
            return latest_ms

    async def _find_in(
        self, located: Located, timestamp_ms: int, start_offset: Offset, place: Place
    ) -> TimestampAndOffset | None:
        segment = located.metadata
        time_index = (await self._indexes.indexes(segment)).time_index
        if not len(time_index) and timestamp_ms > NO_TIMESTAMP:
            return None  # no record has a timestamp, whatever the metadata say
        # Records up to that entry's offset are none later than its timestamp: those of the timestamp itself lie there too.
        entry = time_index.lookup(timestamp_ms - 1)
        begin = Offset(max(segment.start_offset, start_offset))
        if begin < entry.offset < located.stop_offset:
            try:
                return await self._search(
                    located, entry.offset, timestamp_ms, start_offset, place, index_says_ms=entry[0]
                )
            except _WrongEntryError:
                self._indexes.forget(segment.remote_log_segment_id)
                log.warning("time.index.wrong", segment_id=str(segment.remote_log_segment_id), offset=entry.offset)
        return await self._search(located, begin, timestamp_ms, start_offset, place)

    async def _search(
        self,
        located: Located,
        first: Offset,
        timestamp_ms: int,
        start_offset: Offset,
        place: Place,
        *,
        index_says_ms: int | None = None,
    ) -> TimestampAndOffset | None:
        """Search from ``first`` on, whose batch is of ``index_says_ms`` at the latest by the time index.

        Raises:
            _WrongEntryError: it is of another time.  Entries have no checksum, and one wrong bit leads past records
                (simulation, cluster seed 5).
        """
        with self._segments.read_ahead() as read_ahead:
            slices = self._segments.slices(located, first, located.stop_offset, Allowance(), read_ahead)
            async with aclosing(slices):
                async for batches in slices:
                    if index_says_ms not in (None, read_batch_header(batches.buffer).max_timestamp):
                        raise _WrongEntryError
                    index_says_ms = None
                    steps = partial(first_at, batches.buffer, timestamp_ms, start_offset)
                    found = await self._opening.run_steps(steps, away=place.given_back)
                    if found is not None:
                        return found
        if index_says_ms is not None:
            raise _WrongEntryError
        return None


class _WrongEntryError(Exception):
    """The batch that a time index names is not of the time that it says."""


_RECORDS_A_STEP = 16


def first_at(
    buffer: memoryview, timestamp_ms: int, start_offset: int, memory: OpenedMemory
) -> Steps[TimestampAndOffset | None]:
    """Return the first record of ``buffer`` at ``start_offset`` or above that is of ``timestamp_ms`` or later, or None.

    Raises:
        CorruptDataError: a batch does not open.
        NoMemoryLeftError, NotSmallError, TooLargeToOpenError: of ``memory``.
    """
    for position, header in iter_batch_headers(buffer):
        if header.max_timestamp < timestamp_ms or header.last_offset < start_offset:
            continue
        batch = buffer[position : position + header.size_bytes]
        for number, (offset, found_ms) in enumerate(iter_record_times(batch, memory=memory)):
            if found_ms >= timestamp_ms and offset >= start_offset:
                return TimestampAndOffset(
                    timestamp_ms=found_ms, offset=Offset(offset), leader_epoch=header.partition_leader_epoch
                )
            if not number % _RECORDS_A_STEP:
                yield
    return None


def latest_in(buffer: memoryview, start_offset: int, memory: OpenedMemory) -> Steps[int]:
    """Return the largest timestamp of the records of ``buffer`` from ``start_offset`` on, -1 where none has one.  Raise what
    :func:`first_at` does."""
    latest_ms = NO_TIMESTAMP
    for position, header in iter_batch_headers(buffer):
        if header.base_offset >= start_offset:
            latest_ms = max(latest_ms, header.max_timestamp)
        elif header.last_offset >= start_offset:
            batch = buffer[position : position + header.size_bytes]
            for number, (offset, found_ms) in enumerate(iter_record_times(batch, memory=memory)):
                if offset >= start_offset:
                    latest_ms = max(latest_ms, found_ms)
                if not number % _RECORDS_A_STEP:
                    yield
    return latest_ms
