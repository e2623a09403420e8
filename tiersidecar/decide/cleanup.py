"""Which leftovers of copies and deletes are finished now: the part of expiry that follows a crash (S-063, S-230 to S-232)."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.domain.trash import TrashKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A remote segment to be deleted, why, and on what ground."""

    metadata: RemoteLogSegmentMetadata
    reason: str
    kind: TrashKind = TrashKind.RETENTION


def decide_cleanup(
    segments: Iterable[RemoteLogSegmentMetadata],
    broker_id: BrokerId,
    in_flight: Set[RemoteLogSegmentId],
    now_ms: int,
    grace_ms: int,
) -> tuple[Removal, ...]:
    """Copies that will never finish, and deletes that did not.

    A copy of our own broker that this process has not in flight is dead: there is one sidecar per broker.  Another
    broker's may still be running, so it gets ``grace_ms`` from its start; a clock that runs ahead by less is harmless.
    """
    return tuple(
        Removal(metadata=segment, reason=reason)
        for segment in segments
        if segment.remote_log_segment_id not in in_flight and (reason := _reason(segment, broker_id, now_ms, grace_ms))
    )


def _reason(segment: RemoteLogSegmentMetadata, broker_id: BrokerId, now_ms: int, grace_ms: int) -> str:
    match segment.state:
        case RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
            return "its deletion was started and not finished"
        case RemoteLogSegmentState.COPY_SEGMENT_STARTED if segment.broker_id == broker_id:
            return "its copy by this broker was interrupted"
        case RemoteLogSegmentState.COPY_SEGMENT_STARTED if now_ms - segment.event_timestamp_ms > grace_ms:
            return f"its copy by broker {segment.broker_id} has not finished within {grace_ms} ms"
        case _:
            return ""
