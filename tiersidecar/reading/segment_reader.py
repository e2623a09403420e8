"""Record batches of one remote segment: index look-up, chunks, cut (S-143, S-144)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from tiersidecar.domain.epochs import Lineage
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.ports.clock import Blocking
from tiersidecar.reading.batch_cutter import BatchCutter, BatchSlice, CutPlan
from tiersidecar.reading.chunk_manager import ChunkManager
from tiersidecar.reading.index_cache import RemoteIndexCache, RemoteIndexes
from tiersidecar.reading.manifests import ManifestCache, RemoteSegment
from tiersidecar.reading.read_ahead import ReadAhead, ReadAheadBudget
from tiersidecar.reading.segment_lookup import Located


@dataclass(slots=True)
class Allowance:
    """Bytes that a read may still return; None is without limit.  The first batch of all may be larger than that if
    ``takes_any_size`` (minOneMessage, S-147).  It is used up as soon as one batch does not fit."""

    left_bytes: int | None = None
    takes_any_size: bool = True
    is_used_up: bool = False

    def take(self, size_bytes: int) -> None:
        """Charge what was returned."""
        self.takes_any_size = False
        if self.left_bytes is not None:
            self.left_bytes -= size_bytes
            self.is_used_up = self.left_bytes <= 0


class SegmentReader:
    """Reads batches of opened segments."""

    def __init__(
        self,
        *,
        manifests: ManifestCache,
        indexes: RemoteIndexCache,
        chunks: ChunkManager,
        blocking: Blocking,
        budget: ReadAheadBudget,
    ) -> None:
        self._manifests = manifests
        self._indexes = indexes
        self._chunks = chunks
        self._blocking = blocking
        self._budget = budget

    def read_ahead(self) -> ReadAhead:
        """A window for one reader: a context manager."""
        return ReadAhead(self._chunks, self._budget)

    async def slices(
        self, located: Located, offset: int, stop_offset: int, allowance: Allowance, read_ahead: ReadAhead
    ) -> AsyncGenerator[BatchSlice, None]:
        """Batches from the first whose last offset is ``offset`` or above, below ``stop_offset`` (exclusive).

        What was found broken is fetched anew, once.

        Raises:
            CorruptDataError: it was broken again.
        """
        next_offset, has_failed = offset, False
        while True:
            try:
                async with aclosing(self._read(located, next_offset, stop_offset, allowance, read_ahead)) as slices:
                    async for batches in slices:
                        next_offset = batches.next_offset
                        yield batches
                return
            except CorruptDataError:
                if has_failed:
                    raise
                has_failed = True
                await self.discard(located.metadata)

    async def warm(self, located: Located, offset: int) -> None:
        """Bring into the caches what a read from ``offset`` begins with."""
        segment = await self._manifests.open(located.metadata)
        begin = await self._beginning(located.metadata, offset)
        if begin.position < segment.chunk_index.original_file_size:
            await self._chunks.get_chunk(segment, segment.chunk_index.chunk_at(begin.position).index)

    async def _read(
        self, located: Located, offset: int, stop_offset: int, allowance: Allowance, read_ahead: ReadAhead
    ) -> AsyncGenerator[BatchSlice, None]:
        segment = await self._manifests.open(located.metadata)
        begin = await self._beginning(located.metadata, offset)
        cutter = BatchCutter(
            cut_plan(segment, begin, start_offset=offset, stop_offset=min(stop_offset, located.stop_offset)),
            max_bytes=allowance.left_bytes,
            min_one_message=allowance.takes_any_size,
        )
        async with aclosing(from_position(read_ahead, segment, begin.position)) as parts:
            async for part in parts:
                for batches in await self._blocking.run(cutter.cut, part):
                    allowance.take(len(batches))
                    yield batches
                allowance.is_used_up |= cutter.is_full
                if cutter.is_done or allowance.is_used_up:
                    return
        cutter.finish()

    async def _beginning(self, metadata: RemoteLogSegmentMetadata, offset: int) -> Beginning:
        # Who reads on from segment to segment needs no index: that is a request less for each.
        if offset <= metadata.start_offset:
            return first_batch(metadata)
        return beginning_of(await self._indexes.indexes(metadata), metadata, offset)

    async def discard(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Forget all that the reading of this segment rests on: which part was damaged is not known."""
        segment = await self._manifests.open(metadata)
        for index in range(segment.chunk_index.chunk_count):
            self._chunks.discard(segment, index)
        self._indexes.forget(segment.id)
        self._manifests.forget(segment.id)


class Beginning(NamedTuple):
    """Where reading begins, and the bounds within which the base offset of the batch there must lie."""

    position: int
    least_offset: int
    first_offset_at_most: int


def first_batch(metadata: RemoteLogSegmentMetadata) -> Beginning:
    """At the first byte."""
    return Beginning(0, metadata.start_offset, metadata.end_offset)


def beginning_of(indexes: RemoteIndexes, metadata: RemoteLogSegmentMetadata, offset: int) -> Beginning:
    """At the last index entry at or below ``offset``: it names an offset of the batches appended at its position, and the
    entry before it one of earlier batches."""
    entry = indexes.offset_index.lookup(offset)
    if entry.position == 0:
        return first_batch(metadata)
    before = indexes.offset_index.lookup(entry.offset - 1)
    is_first = before.position == 0 and before.offset == metadata.start_offset
    return Beginning(entry.position, before.offset if is_first else before.offset + 1, entry.offset)


def cut_plan(segment: RemoteSegment, begin: Beginning, *, start_offset: int, stop_offset: int) -> CutPlan:
    """What is known of ``segment`` where reading begins, and what is wanted of it."""
    return CutPlan(
        where=segment.keys.log,
        position=begin.position,
        start_offset=start_offset,
        stop_offset=stop_offset,
        first_offset_at_most=begin.first_offset_at_most,
        least_offset=begin.least_offset,
        greatest_offset=segment.metadata.end_offset,
        leader_epochs=Lineage.of(segment.metadata.segment_leader_epochs),
        file_size_bytes=segment.chunk_index.original_file_size,
    )


async def from_position(
    read_ahead: ReadAhead, segment: RemoteSegment, position: int
) -> AsyncGenerator[memoryview, None]:
    """The .log from byte ``position`` on, chunk by chunk, without copying."""
    if position >= segment.chunk_index.original_file_size:
        return
    first = segment.chunk_index.chunk_at(position)
    skipped = position - first.original.start
    async with aclosing(read_ahead.read(segment, first.index)) as chunks:
        async for chunk in chunks:
            yield memoryview(chunk)[skipped:]
            skipped = 0
