"""Requests that ``tiersidecar repair`` writes where the store has lost something."""

from __future__ import annotations

from dataclasses import replace

from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.ports.state_records import RecopyRequest


def request_for(lost: RemoteLogSegmentMetadata) -> RecopyRequest:
    """Return a request to copy all offsets of ``lost`` again, and then give it up."""
    return RecopyRequest(
        topic_id_partition=lost.topic_id_partition,
        start_offset=lost.start_offset,
        end_offset=lost.end_offset,
        segment_uuid=lost.remote_log_segment_id.uuid,
        requested_ms=0,
    )


def rewrite_of(lacking: RemoteLogSegmentMetadata) -> RecopyRequest:
    """Return a request to write ``lacking`` again from the store: its batches are right, its indexes are not."""
    return replace(request_for(lacking), from_store=True)


async def always_wanted() -> None:
    """Return at once, for nothing else copies: for an ``upload_again`` that no lane asks for."""
