"""What of a partition is still to be copied, by the board alone: cheap, and asked at every look."""

from __future__ import annotations

from tiersidecar.decide.copy import pending_segments
from tiersidecar.domain.offsets import NO_OFFSET
from tiersidecar.domain.segments import LocalPartition, LocalSegment
from tiersidecar.tasks.board import Board


def pending_copies(board: Board, local: LocalPartition, copied_offset: int) -> tuple[LocalSegment, ...]:
    """As the copy lane found remote log start and holes last."""
    tip = local.topic_id_partition
    start = board.remote_log_starts.get(tip, NO_OFFSET)
    return pending_segments(local.segments, copied_offset, start, board.copy_holes.get(tip, ()))
