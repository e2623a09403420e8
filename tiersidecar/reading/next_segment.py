"""Read-ahead across the border between two segments (U3)."""

from __future__ import annotations

import asyncio
from types import TracebackType

from tiersidecar.domain.errors import TiersidecarError
from tiersidecar.reading.segment_lookup import Located, SegmentLookup
from tiersidecar.reading.segment_reader import SegmentReader


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
