"""Short ways to make local and remote segments in tests of decisions."""

from __future__ import annotations

from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.segments import LocalSegment, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState

TOPIC_ID_PARTITION = TopicIdPartition(topic_id=Uuid(b"topic-id-16bytes"), topic="orders", partition=3)
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def local_segments(*bases: int, size_bytes: int = 100, modified_ms: int = 0) -> tuple[LocalSegment, ...]:
    """Return segments with these base offsets; the last one is active."""
    following = (*bases[1:], None)[: len(bases)]
    return tuple(
        LocalSegment(
            directory="/logs/orders-3",
            base_offset=Offset(base),
            next_base_offset=None if after is None else Offset(after),
            size_bytes=size_bytes,
            modified_ms=modified_ms,
        )
        for base, after in zip(bases, following, strict=True)
    )


def remote_segment(
    start: int,
    end: int,
    *,
    epochs: tuple[tuple[int, int], ...] = ((0, 0),),
    state: RemoteLogSegmentState = FINISHED,
    broker_id: int = 1,
    uuid: bytes | None = None,
    event_timestamp_ms: int = 0,
    max_timestamp_ms: int = 0,
    size_bytes: int = 100,
    topic_id_partition: TopicIdPartition = TOPIC_ID_PARTITION,
) -> RemoteLogSegmentMetadata:
    """Return a remote segment of offsets [start, end], both inclusive; the first epoch's start is raised to ``start``."""
    raised = [(epoch, max(offset, start)) for epoch, offset in epochs]
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(
            topic_id_partition=topic_id_partition, uuid=Uuid(uuid or f"{start:08d}{end:08d}".encode())
        ),
        start_offset=Offset(start),
        end_offset=Offset(end),
        max_timestamp_ms=max_timestamp_ms,
        broker_id=BrokerId(broker_id),
        event_timestamp_ms=event_timestamp_ms,
        segment_size_in_bytes=size_bytes,
        segment_leader_epochs=tuple(EpochEntry(LeaderEpoch(e), Offset(o)) for e, o in raised),
        state=state,
    )
