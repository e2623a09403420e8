"""Leftovers of copies and deletes that are finished now: the part of expiry that follows a crash (S-063, S-230 to S-232)."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from tiersidecar.domain.ids import RemoteLogSegmentId, Uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.domain.trash import TrashKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A remote segment to be deleted, why, and on what ground.  ``of_another``: its copy may still be running, in another
    sidecar or in the broker itself (native tiering), so that the topic's settings must be asked right before."""

    metadata: RemoteLogSegmentMetadata
    reason: str
    kind: TrashKind = TrashKind.RETENTION
    of_another: bool = False


def decide_cleanup(
    segments: Iterable[RemoteLogSegmentMetadata],
    begun: Set[Uuid],
    in_flight: Set[RemoteLogSegmentId],
    now_ms: int,
    grace_ms: int,
) -> tuple[Removal, ...]:
    """Return removals of copies that will never finish, and of deletes that did not.

    A copy that our own journal has as ``begun``, and that this process has not in flight, is dead: the journal is this
    process's alone.  Any other may still be running, also one with our broker's id: native tiering writes the same.  So it
    gets ``grace_ms`` from its start; a clock that runs ahead by less is harmless.
    """
    found = (
        _leftover(segment, begun, now_ms, grace_ms)
        for segment in segments
        if segment.remote_log_segment_id not in in_flight
    )
    return tuple(removal for removal in found if removal is not None)


def _leftover(segment: RemoteLogSegmentMetadata, begun: Set[Uuid], now_ms: int, grace_ms: int) -> Removal | None:
    match segment.state:
        case RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
            return Removal(metadata=segment, reason="its deletion was started and not finished")
        case RemoteLogSegmentState.COPY_SEGMENT_STARTED if segment.remote_log_segment_id.uuid in begun:
            return Removal(metadata=segment, reason="its copy by this sidecar was interrupted")
        case RemoteLogSegmentState.COPY_SEGMENT_STARTED if now_ms - segment.event_timestamp_ms > grace_ms:
            reason = f"its copy beside broker {segment.broker_id} has not finished within {grace_ms} ms"
            return Removal(metadata=segment, reason=reason, of_another=True)
        case _:
            return None
