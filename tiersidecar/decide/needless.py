"""Which segments that repair, an erasure or a cleaner has put into the trash are needless still: others hold their offsets.

That others did so at the time of the decision proves nothing once the entry is due: they may have expired, been retired, or
be in the trash themselves.  So it is decided anew, here for a plan, and by the caller again right before each deletion.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tiersidecar.decide.cleanup import Removal
from tiersidecar.decide.expiry_standing import Standing
from tiersidecar.decide.expiry_view import ExpiryView
from tiersidecar.domain.ids import RemoteLogSegmentId, Uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.trash import BY_NAME, REPLACED, TrashKind


def needless_segments(view: ExpiryView, found: Sequence[Standing], given_up: Iterable[Removal]) -> list[Removal]:
    """Return segments that an entry of repair, of an erasure or of a cleaner names and that are covered now; none of
    ``given_up``, which go for another reason."""
    named: dict[Uuid, TrashKind] = {}
    for entry in view.trash:
        if entry.kind in REPLACED or (entry.kind is TrashKind.REPAIR and entry.id.generation == view.start_generation):
            named |= {uuid: _stronger(entry.kind, named.get(uuid)) for uuid in entry.segments}
    going = frozenset(removal.metadata.remote_log_segment_id for removal in given_up)
    if not named:
        return []
    standing = standing_segments(view, found, going)
    return [
        _removal(one.segment, named[one.segment.remote_log_segment_id.uuid])
        for one in found
        if one.is_valid
        and one.segment.remote_log_segment_id.uuid in named
        and one.segment.remote_log_segment_id not in going
        and is_covered(one.segment, standing)
    ]


_REASONS = {
    TrashKind.ERASURE: "erasure: another live segment holds its offsets without the erased records",
    TrashKind.COMPACTION: "compaction: another live segment holds its offsets, cleaned",
    TrashKind.REPAIR: "repair: other live segments hold all its records",
}


def _removal(segment: RemoteLogSegmentMetadata, kind: TrashKind) -> Removal:
    return Removal(metadata=segment, reason=_REASONS[kind], kind=kind)


def _stronger(kind: TrashKind, other: TrashKind | None) -> TrashKind:
    """Return the kind that counts of two for one segment: an erasure, then a cleaner.  A removal goes by its own kind."""
    return next(one for one in _REASONS if one in {kind, other})


def standing_segments(
    view: ExpiryView, found: Sequence[Standing], going: frozenset[RemoteLogSegmentId] = frozenset()
) -> list[RemoteLogSegmentMetadata]:
    """Return the segments that others may go for, ascending: wholly of this history, above the start, and themselves neither to
    go, nor named in the trash, nor damaged."""
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
    """Return whether ``standing``, ascending by start offset, hold every offset of ``segment`` without it."""
    next_offset: int = segment.start_offset
    for other in standing:
        is_another = other.remote_log_segment_id != segment.remote_log_segment_id
        if is_another and other.start_offset <= next_offset <= other.end_offset:
            next_offset = other.end_offset + 1
    return next_offset > segment.end_offset
