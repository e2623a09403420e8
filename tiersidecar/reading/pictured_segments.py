"""Segments of a partition, which may have a hundred thousand, made without holding up the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tiersidecar.domain.metadata_cache_rows import SegmentPicture
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.ports.clock import Blocking

T = TypeVar("T")

_MADE_ON_THE_LOOP = 256
"""One or two milliseconds."""


async def pictured_segments(
    picture: SegmentPicture, blocking: Blocking, *, from_offset: int = 0
) -> tuple[RemoteLogSegmentMetadata, ...]:
    """Return :meth:`SegmentPicture.segments`; made in a thread where there are many."""
    if len(picture) <= _MADE_ON_THE_LOOP:
        return picture.segments(from_offset)
    return await blocking.run(picture.segments, from_offset)


async def of_pictured(
    picture: SegmentPicture,
    blocking: Blocking,
    found_in: Callable[[Sequence[RemoteLogSegmentMetadata]], T],
    *,
    from_offset: int = 0,
) -> T:
    """Return ``found_in(segments)``; called in a thread, too, where there are many: it must look at nothing that changes."""
    if len(picture) <= _MADE_ON_THE_LOOP:
        return found_in(picture.segments(from_offset))
    return await blocking.run(lambda: found_in(picture.segments(from_offset)))
