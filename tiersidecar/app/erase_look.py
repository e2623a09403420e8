"""See one partition as an erasure decides on it: segments, trash, what readers are given, where each replica's log starts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from tiersidecar.app.commands.session import Session
from tiersidecar.decide.erasure import ErasureView
from tiersidecar.domain.errors import ErasureError
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.offsets import ByteRange, Offset
from tiersidecar.domain.segments import LeaderView, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.ports.broker import ReplicaStarts
from tiersidecar.ports.metadata_log import MetadataView


async def seen_now(session: Session, view: LeaderView) -> ErasureView:
    """Return the partition as it is now: both topics are read to their ends, and every replica is asked.

    Raises:
        BrokerRefusedError: the topic is gone, or another has its name.
    """
    owner = view.topic_id_partition
    await session.state.catch_up()
    segments = (await session.remote_segments([owner]))[owner]
    assert session.metadata is not None, "an erasure opens its session with metadata"
    hidden = hidden_segments(session.metadata, segments)
    now = await session.partition(owner.topic, owner.partition)
    if now.topic_id_partition != owner:
        raise ErasureError(subject=owner.topic, reason="it was deleted and created again")
    starts: ReplicaStarts = (await session.broker.replica_log_starts([now]))[owner]
    return ErasureView(
        segments=segments,
        trash=session.state.trash(owner),
        log_starts=starts.starts,
        silent=starts.silent,
        hidden=hidden,
        asked=[
            ByteRange(one.start_offset, one.end_offset + 1) for one in session.state.recopies(owner) if not one.declined
        ],
    )


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
    """Runs of segments each of which has offsets of one before it."""
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
    """What a look-up gives changes where a segment, or an epoch of one, begins or ends, and nowhere else."""
    return [*(entry.start_offset for entry in segment.segment_leader_epochs), segment.next_offset]


def _is_given(metadata: MetadataView, segment: RemoteLogSegmentMetadata, edges: Sequence[int]) -> bool:
    for entry, stop in zip(segment.segment_leader_epochs, _edges(segment)[1:], strict=True):
        for offset in edges[bisect_left(edges, entry.start_offset) : bisect_left(edges, stop)]:
            given = metadata.remote_log_segment_metadata(segment.topic_id_partition, entry.epoch, Offset(offset))
            if given is not None and given.remote_log_segment_id == segment.remote_log_segment_id:
                return True
    return False
