"""Which segments that repair or an erasure has put into the trash are needless still: others hold all their offsets.

That others did when it was decided proves nothing once the entry is due: what covered them may have expired, been retired, or
be in the trash itself.  So it is decided anew, here for a plan, and by the caller again right before each deletion.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tiersidecar.decide.cleanup import Removal
from tiersidecar.decide.expiry_standing import Standing
from tiersidecar.decide.expiry_view import ExpiryView
from tiersidecar.domain.ids import RemoteLogSegmentId
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.trash import BY_NAME, TrashKind, erased_segments


def needless_segments(view: ExpiryView, found: Sequence[Standing], given_up: Iterable[Removal]) -> list[Removal]:
    """Segments that an entry of repair or of an erasure names and that are covered now; none of ``given_up``, which go for
    another reason."""
    erased = erased_segments(view.trash)
    named = erased | {
        uuid
        for entry in view.trash
        if entry.kind is TrashKind.REPAIR and entry.id.generation == view.start_generation
        for uuid in entry.segments
    }
    going = frozenset(removal.metadata.remote_log_segment_id for removal in given_up)
    if not named:
        return []
    standing = standing_segments(view, found, going)
    return [
        _removal(one.segment, is_erased=one.segment.remote_log_segment_id.uuid in erased)
        for one in found
        if one.is_valid
        and one.segment.remote_log_segment_id.uuid in named
        and one.segment.remote_log_segment_id not in going
        and is_covered(one.segment, standing)
    ]


def _removal(segment: RemoteLogSegmentMetadata, *, is_erased: bool) -> Removal:
    if is_erased:
        reason = "erasure: another live segment holds its offsets without the erased records"
        return Removal(metadata=segment, reason=reason, kind=TrashKind.ERASURE)
    return Removal(metadata=segment, reason="repair: other live segments hold all its records", kind=TrashKind.REPAIR)


def standing_segments(
    view: ExpiryView, found: Sequence[Standing], going: frozenset[RemoteLogSegmentId] = frozenset()
) -> list[RemoteLogSegmentMetadata]:
    """Those that others may go for, ascending: wholly of this history, above the start, and themselves neither to go, nor named
    in the trash, nor damaged."""
    trashed = {uuid for entry in view.trash if entry.kind in BY_NAME for uuid in entry.segments}
    return [
        standing.segment
        for standing in found
        if standing.is_valid
        and standing.segment.end_offset >= view.remote_log_start_offset
        and standing.segment.remote_log_segment_id not in going
        and standing.segment.remote_log_segment_id not in view.in_flight
        and standing.segment.remote_log_segment_id.uuid not in trashed
        and standing.segment.remote_log_segment_id.uuid not in view.damaged
    ]


def is_covered(segment: RemoteLogSegmentMetadata, standing: Iterable[RemoteLogSegmentMetadata]) -> bool:
    """Whether ``standing``, ascending by start offset, hold every offset of ``segment`` without it."""
    next_offset: int = segment.start_offset
    for other in standing:
        is_another = other.remote_log_segment_id != segment.remote_log_segment_id
        if is_another and other.start_offset <= next_offset <= other.end_offset:
            next_offset = other.end_offset + 1
    return next_offset > segment.end_offset
