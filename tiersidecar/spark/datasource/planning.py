"""Plan on the driver, from options to shares, with the metadata and a few small reads of the store."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tiersidecar.domain.errors import OffsetOutOfRangeError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import ByteRange, Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.reading.open_transactions import Undecided
from tiersidecar.reading.read_path import ReadPath
from tiersidecar.reading.segment_lookup import History, Located
from tiersidecar.spark.datasource.filters import PushedBounds
from tiersidecar.spark.datasource.offset_ranges import LogBounds, OffsetRange, check_named, wanted_range
from tiersidecar.spark.datasource.options import ReadOptions
from tiersidecar.spark.datasource.plan import SegmentSlice, Share, plan_shares

_AT_ONCE = 16


class AbortedBeyond(Protocol):
    async def aborted_beyond(
        self, topic_id_partition: TopicIdPartition, history: History, open_at_end: frozenset[tuple[int, int]]
    ) -> Sequence[AbortedTransaction] | None:
        """Return the aborted transactions that reach over the end of ``history``, by the broker's own log from there on.
        ``open_at_end`` has producer id and first offset of those that are open at the end of the remote tier: the end of each
        is searched for.

        None when it is not known: a transaction is still open there, or the offset is not in the broker's log.
        """


@dataclass(frozen=True, slots=True)
class RemoteEnd:
    """The offset (exclusive) up to which the remote tier can be read, and the aborted transactions with markers past it."""

    offset: int
    beyond: tuple[AbortedTransaction, ...] = ()


class RemoteTier:
    """The remote tier of each partition, as seen at ``read_committed`` or not."""

    def __init__(self, reads: ReadPath, border: AbortedBeyond, *, read_committed: bool) -> None:
        self._reads, self._border, self._read_committed = reads, border, read_committed
        self._ends: dict[TopicIdPartition, RemoteEnd] = {}

    async def bounds(self, partition: TopicIdPartition) -> LogBounds:
        """Return the offsets that can be read."""
        found = await self._reads.lookup.bounds(partition)
        end = (await self.end(partition)).offset
        return LogBounds(start=min(found.start, end), end=end, log_start=found.log_start)

    async def end(self, partition: TopicIdPartition) -> RemoteEnd:
        """Return where it ends; the same at each call."""
        if partition not in self._ends:
            self._ends[partition] = await self._find_end(partition)
        return self._ends[partition]

    async def find_offset(self, topic_id_partition: TopicIdPartition, timestamp_ms: int) -> int | None:
        """Return the first offset whose record is of ``timestamp_ms`` or later; None when there is none."""
        end = (await self.end(topic_id_partition)).offset
        found = await self._reads.timestamps.find(topic_id_partition, timestamp_ms, stop_offset=end)
        return None if found is None or found.offset >= end else found.offset

    async def _find_end(self, partition: TopicIdPartition) -> RemoteEnd:
        end = (await self._reads.lookup.bounds(partition)).end
        if not self._read_committed:
            return RemoteEnd(end)
        stable = await self._reads.reader.last_stable_offset(partition)
        if stable >= end:
            return RemoteEnd(end)
        open_at_end = await self._reads.reader.open_at(partition, end)
        history = await self._reads.lookup.history(partition)
        if history.end != end:
            return RemoteEnd(stable)  # it moves on: the next read sees more
        beyond = await self._border.aborted_beyond(partition, history, open_at_end)
        return RemoteEnd(stable) if beyond is None else RemoteEnd(end, tuple(beyond))


class Planner:
    """Plans reads of the remote tier."""

    def __init__(self, reads: ReadPath, tier: RemoteTier, options: ReadOptions) -> None:
        self._reads, self._tier, self._options = reads, tier, options

    async def plan(self, partitions: Sequence[TopicIdPartition], pushed: PushedBounds) -> tuple[Share, ...]:
        """Return shares for all that is wanted of ``partitions``.

        Raises:
            ConfigError, OffsetOutOfRangeError: as :func:`check_named` and :func:`wanted_range`.
            TiersidecarError: the store is away, or has broken indexes.
        """
        check_named(self._options, partitions)
        places = asyncio.Semaphore(_AT_ONCE)

        async def segment_slices(partition: TopicIdPartition) -> list[SegmentSlice]:
            async with places:
                return [segment_slice async for segment_slice in self._segment_slices(partition, pushed)]

        wanted = [segment_slices(one) for one in partitions if pushed.takes(one.topic, one.partition)]
        tasks = [asyncio.create_task(one) for one in wanted]
        try:
            # Not a TaskGroup: an error is to be raised as it is, not as a group of one.
            found = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return plan_shares(
            found,
            max_bytes=self._options.max_bytes_per_partition,
            min_shares=self._options.min_partitions,
        )

    async def _segment_slices(self, partition: TopicIdPartition, pushed: PushedBounds) -> AsyncIterator[SegmentSlice]:
        bounds = await self._tier.bounds(partition)
        wanted = await wanted_range(partition, self._options, bounds, self._tier)
        start, stop = max(wanted.start, pushed.min_offset), min(wanted.end, pushed.stop_offset)
        undecided = await self._undecided(partition, start, stop)
        async for located, begin in self._segments(partition, OffsetRange(start=start, end=max(start, stop))):
            latest_ms = located.metadata.max_timestamp_ms
            if pushed.min_timestamp_ms is None or latest_ms >= pushed.min_timestamp_ms:
                segment_slice = await self._segment_slice(located, begin, min(located.stop_offset, stop))
                yield replace(segment_slice, aborted=(*segment_slice.aborted, *_hidden(undecided, segment_slice)))

    async def _undecided(self, partition: TopicIdPartition, start: int, stop: int) -> list[Undecided]:
        """Return the transactions that begin in the wanted offsets and whose end lies in a hole, where data may be lost."""
        if not self._options.read_committed:
            return []
        above = await self._reads.undecided.above(partition, start)
        wanted = [one for one in above if one.first_offset < stop]
        if wanted and self._options.fail_on_data_loss:
            first = min(wanted, key=lambda one: one.first_offset)
            raise self._reads.undecided.error(partition, max(first.first_offset, start), first)
        return wanted

    async def _segments(self, partition: TopicIdPartition, wanted: OffsetRange) -> AsyncIterator[tuple[Located, int]]:
        """Yield the segments that hold the offsets, along the lineage, each with the first offset to read of it."""
        offset = wanted.start
        while offset < wanted.end:
            located = await self._reads.lookup.locate(partition, offset)
            if located is None:
                if self._options.fail_on_data_loss:
                    raise OffsetOutOfRangeError(
                        subject=f"{partition} (a hole in the remote tier)", offset=offset, start=offset, stop=offset
                    )
                offset = await self._after_hole(partition, offset, wanted.end)
                continue
            yield located, offset
            offset = located.stop_offset

    async def _after_hole(self, partition: TopicIdPartition, offset: int, end: int) -> int:
        async for segment in self._reads.lookup.segments(partition, lambda one: one.start_offset > offset):
            return min(segment.start_offset, end)
        return end

    async def _segment_slice(self, located: Located, start: int, stop: int) -> SegmentSlice:
        metadata = located.metadata
        byte_range = ByteRange(0, metadata.segment_size_in_bytes)
        if start > metadata.start_offset or stop < metadata.next_offset:
            byte_range = await self._bytes_of(located, start, stop)
        return SegmentSlice(
            metadata=metadata,
            start_offset=Offset(start),
            stop_offset=Offset(stop),
            byte_range=byte_range,
            aborted=await self._aborted(located, start, stop),
        )

    async def _bytes_of(self, located: Located, start: int, stop: int) -> ByteRange:
        """Return the bytes from a batch that the index names at or before ``start``, to one that it names past ``stop``."""
        index = (await self._reads.indexes.indexes(located.metadata)).offset_index
        begin = index.lookup(start).position
        # The batch that the first entry at or above ``stop`` names may begin below it; the next entry's cannot.
        following = bisect_left(index.relative_offsets, stop - index.base_offset) + 1
        end = index.positions[following] if following < len(index) else located.metadata.segment_size_in_bytes
        return ByteRange(begin, max(begin, end))

    async def _aborted(self, located: Located, start: int, stop: int) -> tuple[AbortedTransaction, ...]:
        if not self._options.read_committed:
            return ()
        found = await self._reads.aborted.collect(located, start, stop)
        beyond = (await self._tier.end(located.metadata.topic_id_partition)).beyond
        return (*found, *(transaction for transaction in beyond if transaction.first_offset < stop))


def _hidden(undecided: Sequence[Undecided], segment_slice: SegmentSlice) -> tuple[AbortedTransaction, ...]:
    """Return those that reach into the slice, as if they had been aborted in their holes."""
    return tuple(
        AbortedTransaction(one.producer_id, one.first_offset, Offset(one.hole.stop - 1), Offset(one.hole.stop))
        for one in undecided
        if one.first_offset < segment_slice.stop_offset and segment_slice.start_offset < one.hole.start
    )
