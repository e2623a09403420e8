"""From segment to segment along the lineage (S-145; U3, U25).

Read-ahead across the border between two segments (U3).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType

from tiersidecar.domain.errors import ObjectNotFoundError, TiersidecarError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.ports.metadata_log import MetadataView
from tiersidecar.reading.batch_cutter import BatchSlice
from tiersidecar.reading.segment_lookup import Located, SegmentLookup
from tiersidecar.reading.segment_reader import Allowance, SegmentReader


class NextSegment:
    """Opens the next segment, and fetches its first chunk into the cache, while a reader is still in the last chunks of the
    one before.  What goes wrong here is left to the read itself to find."""

    def __init__(self, *, lookup: SegmentLookup, segments: SegmentReader) -> None:
        self._lookup = lookup
        self._segments = segments
        self._warming: asyncio.Task[None] | None = None
        self._border: int | None = None

    async def __aenter__(self) -> NextSegment:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)

    def consider(self, located: Located, next_offset: int, stop_offset: int, window_bytes: int) -> None:
        """A reader has come to ``next_offset`` of ``located``, on its way to ``stop_offset``, reading ``window_bytes``
        ahead: begin, once, if the border lies within its window."""
        is_due = located.stop_offset < stop_offset and _bytes_left(located, next_offset) < window_bytes
        if is_due and self._border != located.stop_offset:
            self._border = located.stop_offset
            if self._warming is not None:
                self._warming.cancel()
            self._warming = asyncio.create_task(
                self._warm(located), name=f"segment after {located.metadata.remote_log_segment_id}"
            )

    async def _warm(self, located: Located) -> None:
        try:
            following = await self._lookup.locate(located.metadata.topic_id_partition, located.stop_offset)
            if following is not None:
                await self._segments.warm(following, located.stop_offset)
        except TiersidecarError:
            return


def _bytes_left(located: Located, next_offset: int) -> int:
    """About how many bytes of the segment are still to come, as if its offsets were of equal size."""
    metadata = located.metadata
    offsets = metadata.next_offset - metadata.start_offset
    return metadata.segment_size_in_bytes * max(located.stop_offset - next_offset, 0) // offsets


class SegmentWalk:
    """Batches of a partition, whatever segments hold them."""

    def __init__(self, *, metadata: MetadataView, lookup: SegmentLookup, segments: SegmentReader) -> None:
        self._metadata = metadata
        self._lookup = lookup
        self._segments = segments

    async def batches(
        self, topic_id_partition: TopicIdPartition, offset: int, stop_offset: int, allowance: Allowance
    ) -> AsyncGenerator[tuple[Located, BatchSlice], None]:
        """Batches from ``offset`` on, below ``stop_offset`` (exclusive), as far as ``allowance`` reaches, each slice with
        the segment that holds it.  ``stop_offset`` lies at the end of the remote tier at most.

        Raises:
            OffsetOutOfRangeError: no segment holds ``offset``, and it is not the end of the remote tier; or a read without
                a bound in bytes has come to a hole, which it must not skip unseen.
        """
        next_offset = Offset(offset)
        located = await self._first(topic_id_partition, offset)
        following = NextSegment(lookup=self._lookup, segments=self._segments)
        with self._segments.read_ahead() as read_ahead:
            async with following:
                while located is not None and next_offset < stop_offset and not allowance.is_used_up:
                    slices = self._segments.slices(located, next_offset, stop_offset, allowance, read_ahead)
                    try:
                        async with aclosing(slices):
                            async for batches in slices:
                                next_offset = batches.next_offset
                                following.consider(located, next_offset, stop_offset, read_ahead.window_bytes)
                                yield located, batches
                    except ObjectNotFoundError:
                        if self._is_finished(located):
                            raise
                        # Deleted under the reader's hands: what holds the offset now, if anything does, is looked up anew.
                        located = await self._first(topic_id_partition, next_offset)
                        continue
                    next_offset = max(next_offset, located.stop_offset)
                    if not allowance.is_used_up:
                        located = await self._lookup.locate(topic_id_partition, next_offset)
        if next_offset < stop_offset and allowance.left_bytes is None:
            raise await self._lookup.out_of_range(topic_id_partition, next_offset)

    async def _first(self, topic_id_partition: TopicIdPartition, offset: int) -> Located | None:
        located = await self._lookup.locate(topic_id_partition, offset)
        if located is None and offset != await self._lookup.end_offset(topic_id_partition):
            raise await self._lookup.out_of_range(topic_id_partition, offset)
        return located

    def _is_finished(self, located: Located) -> bool:
        now = self._metadata.segment(located.metadata.remote_log_segment_id)
        return now is not None and now.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
