"""See one partition as an erasure decides on it: segments, trash, what readers are given, where each replica's log starts."""

from __future__ import annotations

from tiersidecar.app.commands.session import Session
from tiersidecar.decide.erasure import ErasureView
from tiersidecar.domain.errors import ErasureError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.broker import ReplicaStarts
from tiersidecar.reading.hidden_segments import hidden_segments


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
