"""Verify remote segments of a running cluster: find them in the metadata topic, and read each back from the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.builders.store import open_key_ring, open_store
from tiersidecar.app.commands.session import Session, open_session
from tiersidecar.app.config.config import Config
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import TopicIdPartition, format_uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.reconcile.verify import Preceding, ReadsAtPace, SegmentVerifier, Verdict, Verified

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A topic, one partition of it, or, with ``may_be_segment``, what may be a segment's id as well."""

    name: str
    partition: int | None = None
    may_be_segment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """``begin`` gets the number of segments and bytes to read, ``read`` the bytes read so far, ``verified`` each segment
    once it is done."""

    begin: Callable[[int, int], None]
    read: Callable[[int], None]
    verified: Callable[[Verified], None]


async def verify_segments(config: Config, target: Target, bytes_per_s: int | None, listener: Listener) -> int:
    """Read what ``target`` names back, a segment at a time, and return how many of them are not sound.

    Raises:
        BrokerRefusedError: there is no such topic, partition or segment.
        StoreError: the store is away.
    """
    clock, ids = SystemClock(), SystemIds()
    pace = UploadPace(None, clock)
    async with (
        open_session(config, with_metadata=True) as session,
        open_store(config, pace=pace, clock=clock, ids=ids, telemetry=NoTelemetry()) as opened,
    ):
        partitions, wanted = await _found(session, target)
        segments = [segment for some in wanted for segment in some]
        listener.begin(len(segments), sum(one.segment_size_in_bytes for one in segments))
        store = ReadsAtPace(opened, UploadPace(bytes_per_s, clock), listener.read)
        verifier = SegmentVerifier(
            store=store,
            key_prefix=config.store.key_prefix,
            is_plain=config.store.is_plain,
            open_key_ring=cache(partial(open_key_ring, config)),
        )
        not_sound = 0
        for beside, some in zip(partitions, wanted, strict=True):
            preceding = verifier.preceding(beside)
            for segment in some:
                found = await _verify(session, verifier, segment, preceding)
                not_sound += found.verdict in (Verdict.DAMAGED, Verdict.NOT_CHECKED, Verdict.UNFINISHED)
                listener.verified(found)
        return not_sound


async def _verify(
    session: Session, verifier: SegmentVerifier, segment: RemoteLogSegmentMetadata, preceding: Preceding
) -> Verified:
    """Verify the segment; a fault does not count if its deletion has begun since it was listed."""
    if segment.state is _FINISHED and not await _is_live(session, segment):
        return Verified(segment=segment, verdict=Verdict.GONE, findings=(), read_bytes=0)
    found = await verifier.verify(segment, preceding, session.clock.now_ms())
    if found.verdict in (Verdict.DAMAGED, Verdict.NOT_CHECKED) and not await _is_live(session, segment):
        return replace(found, verdict=Verdict.GONE, findings=())
    return found


async def _is_live(session: Session, segment: RemoteLogSegmentMetadata) -> bool:
    assert session.metadata is not None  # opened with it
    topic_id_partition, last = segment.topic_id_partition, segment.segment_leader_epochs[-1]
    await session.metadata.catch_up(topic_id_partition)
    held = session.metadata.finished_segments_at(topic_id_partition, last.epoch, segment.end_offset)
    return any(one.remote_log_segment_id == segment.remote_log_segment_id for one in held)


Segments = list[RemoteLogSegmentMetadata]


async def _found(session: Session, target: Target) -> tuple[list[Segments], list[Segments]]:
    """Return each partition's segments, and those to read: all finished ones of a topic, else the one that was named."""
    views = await session.broker.describe_partitions()
    named = [view.topic_id_partition for view in views if view.topic_id_partition.topic == target.name]
    if named:
        topic_id_partitions = [one for one in named if target.partition in (None, one.partition)]
        if not topic_id_partitions:
            raise _unknown(f"{target.name}-{target.partition}")
        partitions = list((await session.remote_segments(topic_id_partitions)).values())
        return partitions, [[one for one in some if one.state is _FINISHED] for some in partitions]
    if not target.may_be_segment:
        raise _unknown(f"topic {target.name}")
    tiered = [view.topic_id_partition for view in views if _is_tiered(session, view.topic_id_partition)]
    for some in (await session.remote_segments(tiered)).values():
        for one in some:
            if format_uuid(one.remote_log_segment_id.uuid) == target.name:
                return [some], [[one]]
    raise _unknown(f"{target.name}, which is neither a topic nor a remote segment of a tiered one")


def _is_tiered(session: Session, topic_id_partition: TopicIdPartition) -> bool:
    """Return whether it is, or once was: what is remote of a detached topic stays."""
    return (
        session.policy(topic_id_partition.topic, topic_id_partition.topic_id) is not None
        or session.topic_state(topic_id_partition.topic_id) is not None
    )


def _unknown(subject: str) -> BrokerRefusedError:
    return BrokerRefusedError(api="Metadata", subject=subject, error="UNKNOWN_TOPIC_OR_PARTITION")
