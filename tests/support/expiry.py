"""Short ways to make views of an expiry, in units that read well: a segment has 100 offsets and 1024 bytes."""

from __future__ import annotations

from typing import Any

from tests.support.segments import local_segments, remote_segment
from tiersidecar.decide.expire import ExpiryPlan
from tiersidecar.decide.expiry_view import ExpiryLimits, ExpiryView
from tiersidecar.domain.offsets import Lineage
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import RemoteLogSegmentMetadata

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
SEGMENT_BYTES = 1024
UNGUARDED = ExpiryLimits(max_share=1.0)


def segments(
    count: int, *, first: int = 0, youngest_h: int = 0, size_bytes: int = SEGMENT_BYTES, **fields: Any
) -> tuple[RemoteLogSegmentMetadata, ...]:
    """``count`` segments of 100 offsets; the last one is ``youngest_h`` hours old, each before it an hour older."""
    return tuple(
        segment(
            first + 100 * n, first + 100 * n + 99, age_h=youngest_h + count - 1 - n, size_bytes=size_bytes, **fields
        )
        for n in range(count)
    )


def segment(
    start: int, end: int, *, age_h: float = 0, copied_h: float | None = None, size_bytes: int = SEGMENT_BYTES, **f: Any
) -> RemoteLogSegmentMetadata:
    """Return a finished segment whose newest record is ``age_h`` hours old, copied as long ago unless said otherwise."""
    copied_ago_h = age_h if copied_h is None else copied_h
    return remote_segment(
        start,
        end,
        max_timestamp_ms=int(NOW_MS - age_h * HOUR_MS),
        event_timestamp_ms=int(NOW_MS - copied_ago_h * HOUR_MS),
        size_bytes=size_bytes,
        **f,
    )


def view(
    remote: tuple[RemoteLogSegmentMetadata, ...] = (),
    *,
    retention_h: float | None = None,
    retention_bytes: int = -1,
    local: tuple[int, ...] = (),
    local_bytes: int = SEGMENT_BYTES,
    local_age_h: float = 0,
    lineage: tuple[tuple[int, int], ...] = ((0, 0),),
    start: int = -1,
    **fields: Any,
) -> ExpiryView:
    """Return a view that nothing stops; ``local`` are base offsets, the last one active; ``start`` our remote log start.  What
    was trimmed was remote, unless ``held_offset`` says something else."""
    retention_ms = -1 if retention_h is None else int(retention_h * HOUR_MS)
    policy = fields.pop("policy", TopicPolicy(retention_ms=retention_ms, retention_bytes=retention_bytes))
    return ExpiryView(
        policy=policy,
        lineage=Lineage.of(lineage),
        remote_segments=tuple(sorted(remote, key=lambda one: one.start_offset)),
        local_segments=local_segments(*local, size_bytes=local_bytes, modified_ms=int(NOW_MS - local_age_h * HOUR_MS)),
        now_ms=NOW_MS,
        begun=frozenset(one.remote_log_segment_id.uuid for one in remote if one.broker_id == 1),
        remote_log_start_offset=start,
        **{"limits": UNGUARDED, "held_offset": fields.get("trim_offset", -1), **fields},
    )


def going(plan: ExpiryPlan) -> list[tuple[int, int]]:
    """Return offsets of the segments that expire, both inclusive."""
    return [(removal.metadata.start_offset, removal.metadata.end_offset) for removal in plan.expired]
