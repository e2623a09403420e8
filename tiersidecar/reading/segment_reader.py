"""Record batches of one remote segment: index look-up, chunks, cut (S-143, S-144).

Where small reads have begun and ended is remembered, so that one that goes on there is not taken for one at a random offset
(U4, U19).  A bounded read that goes on where another has ended begins at that very byte: without the index, and without the
batches between an index entry and the wanted one (S-143, U4).

A .log that the store keeps as a local file is read and cut in one go (:mod:`~tiersidecar.reading.local_cut`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import RemoteLogSegmentId
from tiersidecar.domain.offsets import ByteRange, Lineage
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.ports.clock import Blocking
from tiersidecar.reading.batch_cutter import BatchCutter, BatchSlice, CutPlan, CutStep, step_of
from tiersidecar.reading.chunk_manager import ChunkManager
from tiersidecar.reading.index_blobs import RemoteIndexCache, RemoteIndexes
from tiersidecar.reading.local_cut import LocalCut
from tiersidecar.reading.read_ahead import ReadAhead, ReadAheadBudget
from tiersidecar.reading.remote_objects import ManifestCache, RemoteSegment
from tiersidecar.reading.segment_lookup import Located

_MOST_ENDS = 1024


class EndedReads:
    """Remember where the last bounded reads ended, by the offset that follows what they returned."""

    def __init__(self, most_places: int = _MOST_ENDS) -> None:
        self._most_places = most_places
        self._positions: OrderedDict[tuple[RemoteLogSegmentId, int], int] = OrderedDict()

    def add(self, segment_id: RemoteLogSegmentId, next_offset: int, position: int) -> None:
        """Note that a read has returned all batches below ``next_offset``, and that the batch it did not take begins at byte
        ``position`` of the .log."""
        place = (segment_id, next_offset)
        self._positions[place] = position
        self._positions.move_to_end(place)
        if len(self._positions) > self._most_places:
            self._positions.popitem(last=False)

    def position_of(self, segment_id: RemoteLogSegmentId, offset: int) -> int | None:
        """Return where the first batch whose last offset is ``offset`` or above begins, if a read has ended there."""
        return self._positions.get((segment_id, offset))

    def forget(self, segment_id: RemoteLogSegmentId) -> None:
        """Forget a segment of which some part was found broken."""
        for place in [place for place in self._positions if place[0] == segment_id]:
            del self._positions[place]


_BLOCK_BYTES = 16 * 1024
_MOST_PLACES = 512
"""Places of 256 readers.  The more are remembered, the more reads at random offsets are mistaken for others that go on."""


class BegunReads:
    """Remember the places, to 16 KiB, at which the last reads began and ended."""

    def __init__(self) -> None:
        self._places: OrderedDict[tuple[RemoteLogSegmentId, int], None] = OrderedDict()

    def add(self, segment_id: RemoteLogSegmentId, position: int) -> None:
        """Note that a read has begun or ended at byte ``position`` of the .log."""
        place = (segment_id, position // _BLOCK_BYTES)
        self._places[place] = None
        self._places.move_to_end(place)
        if len(self._places) > _MOST_PLACES:
            self._places.popitem(last=False)

    def reads_on(self, segment_id: RemoteLogSegmentId, position: int) -> bool:
        """Return whether a read from byte ``position`` on comes back, or goes on where another has ended: it begins at the
        index entry before that."""
        block = position // _BLOCK_BYTES
        return (segment_id, block) in self._places or (segment_id, block + 1) in self._places


_BESIDES_BYTES = 32 * 1024
"""Fetched with a part besides what is wanted: from the index entry to the batch asked for, and the rest of the last batch."""
_SMALL_SHARE = 8
"""A part is fetched alone if it is so many times smaller than its chunk."""
_CUT_ON_THE_LOOP_BYTES = 128 * 1024


@dataclass(slots=True)
class Allowance:
    """Bytes that a read may still return; None is without limit.  The first batch of all may be larger if ``takes_any_size``
    (minOneMessage, S-147).  It is used up as soon as one batch does not fit."""

    left_bytes: int | None = None
    takes_any_size: bool = True
    is_used_up: bool = False

    def take(self, size_bytes: int) -> None:
        """Charge what was returned."""
        self.takes_any_size = False
        if self.left_bytes is not None:
            self.left_bytes -= size_bytes
            self.is_used_up = self.left_bytes <= 0

    def give_back(self, size_bytes: int, *, takes_any_size: bool) -> None:
        """Undo the charge of what is not returned after all; nothing was before it if it ``takes_any_size``."""
        self.takes_any_size |= takes_any_size
        if self.left_bytes is not None:
            self.left_bytes += size_bytes
            self.is_used_up = False


class SegmentReader:
    """Read batches of opened segments."""

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
        self._begun = BegunReads()
        self._ended = EndedReads()

    def read_ahead(self) -> ReadAhead:
        """Return a window for one reader: a context manager."""
        return ReadAhead(self._chunks, self._budget)

    async def slices(
        self, located: Located, offset: int, stop_offset: int, allowance: Allowance, read_ahead: ReadAhead
    ) -> AsyncGenerator[BatchSlice, None]:
        """Yield batches from the first whose last offset is ``offset`` or above, below ``stop_offset`` (exclusive).

        Broken bytes are fetched anew, once.

        Raises:
            CorruptDataError: they were broken again.
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

    async def open_at(self, located: Located, offset: int) -> tuple[RemoteSegment, int] | None:
        """Return the segment, and the number of the chunk with which a read from ``offset`` begins; None if it reads a local
        file, or nothing."""
        segment = await self._manifests.open(located.metadata)
        if self._chunks.is_local(segment):
            return None
        begin = await self._beginning(located.metadata, offset)
        if begin.position >= segment.chunk_index.original_file_size:
            return None
        return segment, segment.chunk_index.chunk_at(begin.position).index

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
        async with aclosing(self.cut(segment, cutter, allowance.left_bytes, read_ahead)) as steps:
            async for step in steps:
                for batches in step.slices:
                    allowance.take(len(batches))
                    yield batches
                allowance.is_used_up |= step.is_full
                if step.is_done or allowance.is_used_up:
                    if allowance.left_bytes is not None:
                        self._begun.add(segment.id, step.position)
                        self._ended.add(segment.id, step.next_offset, step.position)
                    return
        cutter.finish()

    async def cut(
        self, segment: RemoteSegment, cutter: BatchCutter, left_bytes: int | None, read_ahead: ReadAhead
    ) -> AsyncGenerator[CutStep, None]:
        """Yield the .log from the cutter's position on, cut step by step; ``left_bytes`` of it are wanted, None: all."""
        if self._chunks.is_local(segment):
            wanted_bytes = None if left_bytes is None else left_bytes + _BESIDES_BYTES
            steps = LocalCut(self._chunks, segment, cutter, read_ahead).steps(wanted_bytes)
            async with aclosing(steps):
                async for step in steps:
                    yield step
            return
        async with aclosing(self._parts(segment, cutter.position, left_bytes, read_ahead)) as parts:
            async for part in parts:
                yield step_of(cutter, await self._cut(cutter, part, left_bytes))

    async def _parts(
        self, segment: RemoteSegment, position: int, left_bytes: int | None, read_ahead: ReadAhead
    ) -> AsyncGenerator[memoryview, None]:
        """Yield the .log from byte ``position`` on; a small read that no other goes on from gets that part alone at first."""
        if left_bytes is not None and position < segment.chunk_index.original_file_size:
            chunk = segment.chunk_index.chunk_at(position)
            stop = position + left_bytes + _BESIDES_BYTES
            is_small = stop < chunk.original.stop and stop - position <= len(chunk.original) // _SMALL_SHARE
            if is_small and not self._begun.reads_on(segment.id, position):
                self._begun.add(segment.id, position)
                part = await self._chunks.get_part(segment, ByteRange(position, stop))
                yield part
                position += len(part)
        async with aclosing(from_position(read_ahead, segment, position)) as parts:
            async for part in parts:
                yield part

    async def _cut(self, cutter: BatchCutter, part: memoryview, left_bytes: int | None) -> list[BatchSlice]:
        if left_bytes is not None and left_bytes <= _CUT_ON_THE_LOOP_BYTES:
            # A hop to a thread and back is two turns of the loop, which a crowd makes long; this is some headers.
            return cutter.cut(part)
        return await self._blocking.run(cutter.cut, part)

    async def _beginning(self, metadata: RemoteLogSegmentMetadata, offset: int) -> Beginning:
        # A reader that goes from segment to segment needs no index: that is a request less for each.
        if offset <= metadata.start_offset:
            return first_batch(metadata)
        position = self._ended.position_of(metadata.remote_log_segment_id, offset)
        if position is not None:
            return Beginning(position, offset, metadata.end_offset)
        return beginning_of(await self._indexes.indexes(metadata), metadata, offset)

    async def discard(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Forget all that reading this segment rests on: which part was damaged is not known."""
        segment = await self._manifests.open(metadata)
        for index in range(segment.chunk_index.chunk_count):
            self._chunks.discard(segment, index)
        self._indexes.forget(segment.id)
        self._ended.forget(segment.id)
        self._manifests.forget(segment.id)


class Beginning(NamedTuple):
    """The position where reading begins, and the bounds of the base offset of the batch there."""

    position: int
    least_offset: int
    first_offset_at_most: int


def first_batch(metadata: RemoteLogSegmentMetadata) -> Beginning:
    """Return the first byte."""
    return Beginning(0, metadata.start_offset, metadata.end_offset)


def beginning_of(indexes: RemoteIndexes, metadata: RemoteLogSegmentMetadata, offset: int) -> Beginning:
    """Return the last index entry at or below ``offset``: it names an offset of the batches appended at its position, and the
    entry before it one of earlier batches."""
    entry = indexes.offset_index.lookup(offset)
    if entry.position == 0:
        return first_batch(metadata)
    before = indexes.offset_index.lookup(entry.offset - 1)
    is_first = before.position == 0 and before.offset == metadata.start_offset
    return Beginning(entry.position, before.offset if is_first else before.offset + 1, entry.offset)


def cut_plan(segment: RemoteSegment, begin: Beginning, *, start_offset: int, stop_offset: int) -> CutPlan:
    """Return what is known of ``segment`` where reading begins, and what is wanted of it."""
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
    """Yield the .log from byte ``position`` on, chunk by chunk, without copying."""
    if position >= segment.chunk_index.original_file_size:
        return
    first = segment.chunk_index.chunk_at(position)
    skipped = position - first.original.start
    async with aclosing(read_ahead.read(segment, first.index)) as chunks:
        async for chunk in chunks:
            yield memoryview(chunk)[skipped:]
            skipped = 0
