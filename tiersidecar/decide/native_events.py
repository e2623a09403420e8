"""Events for Kafka's own metadata topic about a partition whose events the sidecar has in another one."""

from __future__ import annotations

from collections.abc import Iterator

from tiersidecar.decide.recover import events_of, in_order_of_events
from tiersidecar.domain.native_segments import NativeSegments
from tiersidecar.domain.segments import MetadataEvent, RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState, is_valid_transition


def published_into(
    native: NativeSegments, ours: NativeSegments, now_ms: int
) -> tuple[NativeSegments, tuple[MetadataEvent, ...]]:
    """Return ``native`` with the segments of ``ours`` that it lacks or knows in an earlier state, and without those which
    ``ours`` lacks; and the events that lead there, in their order."""
    states = {one.remote_log_segment_id.uuid: one.state for one in native}
    behind = [one for one in ours if _is_behind(states.get(one.remote_log_segment_id.uuid), one.state)]
    events: list[MetadataEvent] = [event for one in gone_from(native, ours) for event in _deletion_of(one, now_ms)]
    for segment in in_order_of_events(behind):
        start, *updates = events_of(segment)
        events += updates if segment in native else [start, *updates]
    updated = native.copy()
    for event in events:
        updated.apply(event)
    return updated, tuple(events)


def gone_from(native: NativeSegments, ours: NativeSegments) -> list[RemoteLogSegmentMetadata]:
    """Return segments that only ``native`` has: the sidecar has deleted them since a former plan, or a native broker copied
    them."""
    return [segment for segment in native if segment not in ours]


def _is_behind(state: RemoteLogSegmentState | None, ours: RemoteLogSegmentState) -> bool:
    return state is None or (state is not ours and is_valid_transition(state, ours))


def _deletion_of(segment: RemoteLogSegmentMetadata, now_ms: int) -> Iterator[MetadataEvent]:
    for state in (RemoteLogSegmentState.DELETE_SEGMENT_STARTED, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED):
        yield RemoteLogSegmentMetadataUpdate(
            remote_log_segment_id=segment.remote_log_segment_id,
            broker_id=segment.broker_id,
            event_timestamp_ms=now_ms,
            state=state,
            custom_metadata=segment.custom_metadata,
        )
