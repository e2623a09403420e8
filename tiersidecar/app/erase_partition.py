"""Erase records by key from the segments of one partition, one after the other, each looked at again right before.

The order of writes is that of :mod:`~tiersidecar.tasks.segment_swap`; here is what makes a step right: the lease, what holds
now of the partition, and what was proven clean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace

import structlog

from tiersidecar.app.builders.retain import trash_delays
from tiersidecar.app.commands.session import Session, operator
from tiersidecar.app.deletion_doubts import reason_not_to_delete
from tiersidecar.app.erase_segment import Rewritten, SegmentEraser
from tiersidecar.app.held_lease import HeldLease
from tiersidecar.decide.erasure import Erasing, ErasureStep, ErasureView, decide_erasure
from tiersidecar.domain.errors import ErasureError, MetadataNotReadyError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.domain.segments import LeaderView, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import REPLACED, TrashEntry, TrashKind
from tiersidecar.ports.broker import ReplicaStarts
from tiersidecar.ports.failpoints import Failpoints
from tiersidecar.ports.store import Store
from tiersidecar.reading.hidden_segments import hidden_segments
from tiersidecar.reading.remote_objects import SegmentPresence
from tiersidecar.tasks.segment_put import Prover
from tiersidecar.tasks.segment_swap import SegmentSwap, SwapTrash

_log = structlog.get_logger(__name__)

_FINISH_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionErasure:
    """The findings in one partition.  ``records`` counts, for each segment that was read, the records to be erased;
    ``unread`` are segments that may hold some and could not be read, with the reason."""

    view: LeaderView
    seen: ErasureView
    records: Mapping[Uuid, int]
    unread: Sequence[tuple[RemoteLogSegmentMetadata, str]]
    steps: Sequence[ErasureStep]

    @property
    def owner(self) -> TopicIdPartition:
        return self.view.topic_id_partition

    def of(self, *erasing: Erasing) -> list[ErasureStep]:
        """Return the steps of these kinds."""
        return [step for step in self.steps if step.erasing in erasing]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedSegment:
    """The proof for one segment.  ``new`` and ``rewritten`` are None where others held its offsets already."""

    step: ErasureStep
    records: int
    new: RemoteLogSegmentMetadata | None = None
    rewritten: Rewritten | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureTools:
    """The tools that read, rewrite and swap segments in ``store``."""

    store: Store
    eraser: SegmentEraser
    swap: SegmentSwap
    presence: SegmentPresence


async def seen_now(session: Session, view: LeaderView, *, is_compacted: bool) -> ErasureView:
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
        is_compacted=is_compacted,
    )


class PartitionEraser:
    """The segments of one partition, one after the other."""

    def __init__(
        self,
        session: Session,
        partition: PartitionErasure,
        tools: ErasureTools,
        lease: HeldLease,
        failpoints: Failpoints,
    ) -> None:
        self._session, self._partition, self._tools = session, partition, tools
        self._lease, self._failpoints = lease, failpoints
        self._dirty = {uuid for uuid, count in partition.records.items() if count}
        self._clean = partition.records.keys() - self._dirty
        self._trash = SwapTrash(
            session.state,
            partition.view,
            clock=session.clock,
            delays=trash_delays(session.config),
            by=operator("erase"),
            kind=TrashKind.ERASURE,
        )
        self._near: Sequence[RemoteLogSegmentMetadata] = ()

    async def carry_out(self, step: ErasureStep) -> ErasedSegment | str:
        """Do one step; return why not, where the partition has changed since it was decided.

        Raises:
            LeaseHeldError: another erasure or a repair may act by now.
            MetadataNotReadyError: the topics have lost data, or deletes are paused.
            StoreError, CorruptDataError: nothing was finished.
        """
        again = await self._decided_now(step)
        if isinstance(again, str):
            return again
        step = replace(again, segment=step.segment)
        uuid = step.segment.remote_log_segment_id.uuid
        if step.erasing is Erasing.RETIRE:
            await self._put_into_trash(step.segment)
            return ErasedSegment(step=step, records=self._partition.records[uuid])
        async with self._tools.eraser.rewritten(step.segment) as rewritten:
            if rewritten.erased_records == 0:
                return "it has none of these records any more"
            await self._failpoints.reach("erase.rewritten")
            swapper = _OneErasure(self, step, rewritten)
            new = await self._tools.swap.replace(
                [step.segment], rewritten.new_segment, swapper, broker_id=step.segment.broker_id
            )
            if isinstance(new, str):
                return new
        await self._failpoints.reach("erase.trashed")
        return ErasedSegment(step=step, records=rewritten.erased_records, new=new, rewritten=rewritten)

    async def _decided_now(self, step: ErasureStep) -> ErasureStep | str:
        """Return the step as what holds now makes it, or why it is not right any more."""
        await self._lease.renew()
        seen = await seen_now(self._session, self._partition.view, is_compacted=self._partition.seen.is_compacted)
        if reason := reason_not_to_delete(self._session):
            raise MetadataNotReadyError(subject=f"{self._partition.owner} ({reason})")
        uuid = step.segment.remote_log_segment_id.uuid
        now = next((one for one in seen.segments if one.remote_log_segment_id.uuid == uuid), None)
        if now is None or now.state is not State.COPY_SEGMENT_FINISHED:
            return "it was deleted meanwhile"
        # Of others only what is written already counts here, not what is still to be.
        self._near = [one for one in seen.segments if _overlap(one, now)]
        (again,) = decide_erasure(seen, {uuid}, await self._proven())
        if again.erasing is step.erasing or (step.erasing, again.erasing) == (Erasing.REWRITE, Erasing.RETIRE):
            return again
        if again.erasing is Erasing.REWRITE:
            return "nothing else holds its offsets any more"
        return again.reason

    async def reason_to_leave(self, step: ErasureStep) -> str:
        """Return why the step is not right any more."""
        again = await self._decided_now(step)
        if isinstance(again, str):
            return again
        return "" if again.erasing is step.erasing else again.reason

    def after_ms(self) -> int:
        """Return the latest event time of the finished segments near, by the last look."""
        return max(one.event_timestamp_ms for one in self._near if one.state is State.COPY_SEGMENT_FINISHED)

    def require(self) -> None:
        """Require that the lease holds."""
        self._lease.require()

    async def until_s(self) -> float:
        """Renew the lease: COPY_SEGMENT_FINISHED is read back while it holds, or given up."""
        asked_s = self._session.clock.monotonic_s()
        await self._lease.renew_now()
        return min(asked_s + _FINISH_WITHIN_S, self._lease.until_s)

    def prover(self, stored: RemoteLogSegmentMetadata) -> Prover:
        return self._tools.eraser.prover(stored)

    async def retire(self, old: RemoteLogSegmentMetadata, new: RemoteLogSegmentMetadata, records: int) -> None:
        """Retire ``old``: ``new``, which is finished, has none of these records."""
        _log.info(
            "erase.rewritten",
            topic=self._partition.owner.topic,
            partition=self._partition.owner.partition,
            segment_id=str(old.remote_log_segment_id),
            new_segment_id=str(new.remote_log_segment_id),
            records=records,
        )
        self._clean = self._clean | {new.remote_log_segment_id.uuid}
        await self._put_into_trash(old)

    async def _proven(self) -> set[Uuid]:
        """Return segments near that were read and hold none of these records, and of which all objects are there now."""
        return {
            one.remote_log_segment_id.uuid
            for one in self._near
            if one.remote_log_segment_id.uuid in self._clean and await self._tools.presence.is_whole(one)
        }

    async def _put_into_trash(self, segment: RemoteLogSegmentMetadata) -> None:
        """Put the segment into the trash (:class:`SwapTrash`), while the lease holds."""
        await self._lease.renew()
        self._lease.require()
        await self._trash.put([segment])


class _OneErasure:
    """The :class:`~tiersidecar.tasks.segment_swap.Swapper` of one step."""

    def __init__(self, worker: PartitionEraser, step: ErasureStep, rewritten: Rewritten) -> None:
        self._worker, self._step, self._rewritten = worker, step, rewritten
        self.require, self.until_s, self.prover = worker.require, worker.until_s, worker.prover
        self.after_ms = worker.after_ms

    def copying(self, segment_id: RemoteLogSegmentId) -> AbstractAsyncContextManager[None]:
        """Note nothing: the journal is the sidecar's, and what a killed erasure leaves goes after the copy grace."""
        return nullcontext()

    async def reason_to_leave(self, old: Sequence[RemoteLogSegmentMetadata]) -> str:
        return await self._worker.reason_to_leave(self._step)

    async def retire(self, old: Sequence[RemoteLogSegmentMetadata], new: RemoteLogSegmentMetadata) -> None:
        (one,) = old
        await self._worker.retire(one, new, self._rewritten.erased_records)


def _overlap(one: RemoteLogSegmentMetadata, other: RemoteLogSegmentMetadata) -> bool:
    return one.start_offset <= other.end_offset and one.end_offset >= other.start_offset


def erasures_in_trash(session: Session, partition: PartitionErasure) -> list[TrashEntry]:
    """Return the entries of erasures of one partition, this one's and earlier ones', and those of the cleaner that name a
    segment with such records."""
    dirty = {uuid for uuid, count in partition.records.items() if count}
    return [
        one
        for one in session.state.trash(partition.owner)
        if one.kind is TrashKind.ERASURE or (one.kind in REPLACED and one.segments & dirty)
    ]
