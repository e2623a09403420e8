"""From segment to segment along the lineage (S-145; U3, U25)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from tiersidecar.domain.errors import ObjectNotFoundError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.ports.metadata_log import MetadataView
from tiersidecar.reading.batch_cutter import BatchSlice
from tiersidecar.reading.next_segment import NextSegment
from tiersidecar.reading.segment_lookup import Located, SegmentLookup
from tiersidecar.reading.segment_reader import Allowance, SegmentReader


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
