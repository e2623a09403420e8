"""Checks that a log which gets segments back is whole: by the plan and by what its directory has, whatever staged.json says."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tiersidecar.adapters.log_dirs_fs.log_end import read_log_end
from tiersidecar.app.handover.plan import PlannedPartition, PlannedPiece
from tiersidecar.decide.back_to_local import uncovered
from tiersidecar.domain.segments import LocalPartition, LocalSegment


@dataclass(frozen=True, slots=True)
class Covered:
    """The offsets, [``start``, ``stop``), that a segment has."""

    start: int
    stop: int


def log_holes(
    planned: PlannedPartition, local: LocalPartition, restored: Collection[int], start: int
) -> Iterator[tuple[int, int]]:
    """Yield the offsets from ``start`` to where the leader's log began that no segment has, and that were not given up.

    ``restored`` are base offsets of segments that have been staged, in their places or beside them.  It blocks.

    Raises:
        OSError: a segment cannot be read.
    """
    border = planned.broker_log_start_offset
    if border is None:
        return
    pieces = (_piece_of(planned, base) for base in restored)
    spans = [Covered(one.start_offset, one.stop_offset) for one in pieces if one is not None]
    spans += [
        Covered(one.base_offset, _stop_of(planned, one))
        for one in local.segments
        if one.base_offset < border and one.base_offset not in restored
    ]
    spans += [Covered(one.base_offset, border) for one in local.segments if one.base_offset == border]
    for hole in uncovered(sorted(spans, key=lambda one: one.start), start, border):
        if not any(first <= hole[0] and hole[1] <= stop for first, stop in planned.gaps):
            yield hole


def _piece_of(planned: PlannedPartition, base: int) -> PlannedPiece | None:
    """Return what a restored segment is from; the first one may begin below its piece, within a batch."""
    below = [one for one in planned.pieces if one.start_offset <= base] or list(planned.pieces[:1])
    return below[-1] if below and base < below[-1].stop_offset else None


def _stop_of(planned: PlannedPartition, segment: LocalSegment) -> int:
    """Return where a segment in its place ends.  It is read only where neither a piece nor the next segment shows it."""
    piece = _piece_of(planned, segment.base_offset)
    known = piece.stop_offset if piece is not None and piece.start_offset == segment.base_offset else 0
    following = segment.next_base_offset
    return known if following is not None and known >= following else max(known, read_log_end(segment))
