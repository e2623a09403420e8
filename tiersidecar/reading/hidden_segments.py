"""Which finished segments readers are not given: others that hold the same offsets were finished later."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.ports.metadata_log import MetadataView


def hidden_segments(metadata: MetadataView, segments: Sequence[RemoteLogSegmentMetadata]) -> frozenset[Uuid]:
    """Return the finished segments that no look-up gives, at any of their offsets in any of their epochs."""
    finished = sorted(
        (one for one in segments if one.state is State.COPY_SEGMENT_FINISHED), key=lambda one: one.start_offset
    )
    hidden: set[Uuid] = set()
    for near in _overlapping(finished):
        edges = sorted({edge for one in near for edge in _edges(one)})
        hidden |= {
            one.remote_log_segment_id.uuid for one in near if len(near) > 1 and not _is_given(metadata, one, edges)
        }
    return frozenset(hidden)


def _overlapping(ascending: Sequence[RemoteLogSegmentMetadata]) -> Iterator[list[RemoteLogSegmentMetadata]]:
    """Yield runs of segments each of which has offsets of one before it."""
    run: list[RemoteLogSegmentMetadata] = []
    stop = -1
    for one in ascending:
        if one.start_offset >= stop and run:
            yield run
            run = []
        run.append(one)
        stop = max(stop, one.next_offset)
    if run:
        yield run


def _edges(segment: RemoteLogSegmentMetadata) -> list[int]:
    """Return the offsets where the result of a look-up changes: where a segment, or an epoch of one, begins or ends."""
    return [*(entry.start_offset for entry in segment.segment_leader_epochs), segment.next_offset]


def _is_given(metadata: MetadataView, segment: RemoteLogSegmentMetadata, edges: Sequence[int]) -> bool:
    for entry, stop in zip(segment.segment_leader_epochs, _edges(segment)[1:], strict=True):
        for offset in edges[bisect_left(edges, entry.start_offset) : bisect_left(edges, stop)]:
            given = metadata.remote_log_segment_metadata(segment.topic_id_partition, entry.epoch, Offset(offset))
            if given is not None and given.remote_log_segment_id == segment.remote_log_segment_id:
                return True
    return False
