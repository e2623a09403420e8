"""Segments of a partition of which there may be a hundred thousand, made without holding up the event loop."""

from __future__ import annotations

from tiersidecar.domain.metadata_cache_picture import SegmentPicture
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.ports.clock import Blocking

_MADE_ON_THE_LOOP = 256
"""One or two milliseconds."""


async def pictured_segments(
    picture: SegmentPicture, blocking: Blocking, *, from_offset: int = 0
) -> tuple[RemoteLogSegmentMetadata, ...]:
    """As :meth:`SegmentPicture.segments`; in a thread where there are many."""
    if len(picture) <= _MADE_ON_THE_LOOP:
        return picture.segments(from_offset)
    return await blocking.run(picture.segments, from_offset)
