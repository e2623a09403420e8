"""Deletions that others began and the broker's own tiering finishes: ``RemoteLogManager.RLMExpirationTask``, where retention is
without limit and nothing was trimmed, as beside ``Hazard`` ``NATIVE``."""

from __future__ import annotations

from collections.abc import Iterable

from tiersidecar.domain.offsets import Lineage
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State


def deletions_in_reach(
    segments: Iterable[RemoteLogSegmentMetadata], lineage: Lineage, log_end_offset: int
) -> list[RemoteLogSegmentMetadata]:
    """Return those of a partition's ``segments`` whose deletion was begun and that the walk gets to, with the leader's own
    ``lineage``.  ``cleanupExpiredRemoteLogSegments`` takes each epoch's segments by start offset, finished ones first, and ends
    at the first of this history that it keeps.

    What lies behind that one stays until retention has taken what is before it; here for good.  Kafka lists no finished segment
    whose place in an epoch a shorter one of another history has taken; here it still ends the walk, so that less is asked for.
    """
    there = sorted(
        (one for one in segments if one.state is not State.DELETE_SEGMENT_FINISHED),
        key=lambda one: (one.start_offset, one.state is not State.COPY_SEGMENT_FINISHED),
    )
    found: list[RemoteLogSegmentMetadata] = []
    for epoch in (entry.epoch for entry in lineage.entries):
        for segment in there:
            if all(entry.epoch != epoch for entry in segment.segment_leader_epochs):
                continue
            if segment.state is not State.DELETE_SEGMENT_STARTED:
                if segment.is_within(lineage, log_end_offset):
                    return found
            elif segment not in found:
                found.append(segment)
    return found
