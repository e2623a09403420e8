"""Start of a partition's remote log where none is set yet.

What is remote decides nothing here by itself: a copy that comes late must not give up what lies before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiersidecar.decide.expiry_standing import Standing
from tiersidecar.domain.offsets import NO_OFFSET, Offset
from tiersidecar.domain.segments import LocalSegment


def first_start(
    *,
    log_start_offset: int | None,
    found: Sequence[Standing],
    segments: Sequence[LocalSegment],
    broker_expires: bool,
    trim_offset: int,
    held_offset: int,
) -> Offset:
    """Return the broker's own log start, so that what users deleted before the first copy is not readable again; a lower one
    where segments are remote, which a former release copied without setting a start.

    Where the broker deletes by itself (``broker_expires``), or the log begins where a trim of ours has made it begin, for room
    on the disk (``trim_offset``), data that only pins hold is not given up.  Where a trim has given up what was remote
    (``held_offset``) and nothing is, the metadata is not whole: 0 gives up nothing.
    ``log_start_offset`` is None before the broker was asked: then the first offset that is known stands for it, as a hint.
    """
    serving = [standing.segment.start_offset for standing in found if standing.serves]
    if log_start_offset is None:
        known = [*serving, *(segment.base_offset for segment in segments)]
        return Offset(min(known, default=NO_OFFSET))
    if held_offset > 0 and not serving:
        return Offset(0)
    is_ours = broker_expires or log_start_offset <= trim_offset
    pinned = [segment.base_offset for segment in segments if segment.pinned] if is_ours else []
    return Offset(min([log_start_offset, *serving, *pinned]))
