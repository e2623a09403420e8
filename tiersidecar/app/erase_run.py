"""Erase records by key from the remote log of a topic: read every segment, rewrite those that have one, prove it, publish.

For each segment, in this order: the new one is written to this disk; COPY_SEGMENT_STARTED; its objects; they are read back;
COPY_SEGMENT_FINISHED, from which on readers have the new one; and only then the old one goes into the trash, whence the
leader's sidecar deletes it when that is due, if the new one is whole then.  A process that ends anywhere leaves the old
segment as it is, or both, of which the new one is read; the command done again goes on from what is published.

One erasure or repair acts at a time: both hold the lease ``repair``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog

from tiersidecar.adapters.blocking import ThreadBlocking
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.log_dirs_fs.segment_file import OpenSegmentFile
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.builders.retain import trash_delays
from tiersidecar.app.builders.store import layout_settings, open_key_ring, open_store
from tiersidecar.app.commands.session import Session, operator
from tiersidecar.app.deletion_doubts import reason_not_ours, reason_not_to_delete
from tiersidecar.app.erase_look import seen_now
from tiersidecar.app.erase_segment import Rewritten, SegmentEraser
from tiersidecar.app.held_lease import HeldLease, claimed_lease
from tiersidecar.app.repair_run import LEASE
from tiersidecar.decide.erasure import (
    Erasing,
    ErasureStep,
    ErasureView,
    decide_erasure,
    segments_to_read,
    unreadable_segments,
)
from tiersidecar.decide.trash import MOST_NAMED, replaced
from tiersidecar.domain.errors import (
    CorruptDataError,
    CustomMetadataTooLargeError,
    ErasureError,
    MetadataNotReadyError,
    ObjectNotFoundError,
    TiersidecarError,
)
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, Uuid
from tiersidecar.domain.lease import decision_ms
from tiersidecar.domain.offsets import NO_EPOCH, LeaderEpoch
from tiersidecar.domain.segments import LeaderView, LocalSegment, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import TrashEntry, TrashKind
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.failpoints import NO_FAILPOINTS, Failpoints
from tiersidecar.ports.store import Store
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.manifests import ManifestCache, SegmentPresence
from tiersidecar.reading.segment_stream import SegmentStream
from tiersidecar.tasks.segment_objects import SegmentObjects
from tiersidecar.tasks.segment_swap import Prover, SegmentSwap, SwapStore

_log = structlog.get_logger(__name__)

_THREADS = 2
_FINISH_WITHIN_MS = 20_000

_OF_ONE_SEGMENT = (CorruptDataError, CustomMetadataTooLargeError, ObjectNotFoundError)
"""Errors that say nothing of the segments behind it."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionErasure:
    """What was found in one partition.  ``records`` counts, for each segment that was read, the records to be erased;
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
class ErasureResult:
    """``left`` were to be done and are not, with the reason: the partition had changed, or an error stood in the way."""

    erased: Sequence[ErasedSegment]
    left: Sequence[tuple[ErasureStep, str]]


class Eraser:
    """Looks, and acts.  Every step may be abandoned and done again."""

    def __init__(
        self,
        session: Session,
        keys: Set[bytes],
        scratch: Path,
        *,
        progress: Progress = lambda text: None,
        failpoints: Failpoints = NO_FAILPOINTS,
        settle_s: float = 0.0,
    ) -> None:
        self._session, self._keys, self._scratch = session, keys, scratch
        self._progress, self._failpoints, self._ids = progress, failpoints, SystemIds()
        self._settle_s, self._looked_s = settle_s, self._session.clock.monotonic_s()
        self.found_keys: set[bytes] = set()
        """Keys that some record has of those that were read."""

    async def look(self, topic: str) -> list[PartitionErasure]:
        """Read every finished segment of the topic, and decide.

        Raises:
            BrokerRefusedError: there is no such topic.
            MetadataNotReadyError: the metadata topic could not be replayed.
            StoreError: the store is away.
            ErasureError: the topic's data are not this cluster's.
        """
        async with self._open_tools() as tools:
            views = await self._session.partitions(topic)
            for view in views:
                owner = view.topic_id_partition
                if reason := await reason_not_ours(self._session, tools.store, owner, lives_here=True):
                    raise ErasureError(subject=topic, reason=reason)
            return [await self._look_at(view, tools) for view in views]

    async def apply(self, found: Sequence[PartitionErasure]) -> ErasureResult:
        """Do what :meth:`look` decided, as far as it is still right; each segment is looked at again right before.

        Raises:
            LeaseHeldError: another erasure or a repair acts.
            TiersidecarError: the first that stood in the way, where nothing was done; else it is a reason in ``left``.
        """
        erased: list[ErasedSegment] = []
        left: list[tuple[ErasureStep, str]] = []
        failed: TiersidecarError | None = None
        goes_on = True
        if any(partition.of(Erasing.REWRITE) for partition in found):
            await self._settle()
        async with self._open_tools() as tools, claimed_lease(self._session, self._ids, LEASE) as lease:
            for partition in found:
                worker = _PartitionEraser(self._session, self._ids, partition, tools, lease, self._failpoints)
                for step in partition.of(Erasing.REWRITE, Erasing.RETIRE):
                    if not goes_on:
                        left.append((step, f"not tried after an error: {failed}"))
                        continue
                    self._progress(f"{step.erasing}: {step.segment.remote_log_segment_id}")
                    try:
                        done = await worker.carry_out(step)
                    except TiersidecarError as error:
                        failed, goes_on = error, isinstance(error, _OF_ONE_SEGMENT)
                        done = f"it failed: {error}"
                    if isinstance(done, str):
                        left.append((step, done))
                    else:
                        erased.append(done)
        if failed is not None and not erased:
            raise failed
        return ErasureResult(erased=erased, left=left)

    async def _settle(self) -> None:
        """A broker that is killed comes back with the log start that it last wrote to its disk: each has written it by then."""
        left_s = self._settle_s - (self._session.clock.monotonic_s() - self._looked_s)
        if left_s > 0:
            self._progress(f"waiting {left_s:.0f} s, until brokers have written where their logs start")
            await self._session.clock.sleep(left_s)

    async def _look_at(self, view: LeaderView, tools: _Tools) -> PartitionErasure:
        seen = await seen_now(self._session, view)
        self._looked_s = self._session.clock.monotonic_s()
        records: dict[Uuid, int] = {}
        unread = unreadable_segments(seen)
        for segment in segments_to_read(seen):
            self._progress(f"reading: {segment.remote_log_segment_id}")
            try:
                records[segment.remote_log_segment_id.uuid] = await tools.eraser.count(segment)
            except (CorruptDataError, ObjectNotFoundError) as error:
                unread.append((segment, f"it cannot be read: {error}"))
        self.found_keys |= tools.eraser.found_keys
        dirty = {uuid for uuid, count in records.items() if count}
        steps = decide_erasure(seen, dirty, records.keys() - dirty)
        return PartitionErasure(view=view, seen=seen, records=records, unread=unread, steps=steps)

    @asynccontextmanager
    async def _open_tools(self) -> AsyncIterator[_Tools]:
        config, clock, telemetry = self._session.config, self._session.clock, NoTelemetry()
        pace, key_ring = UploadPace(None, clock), open_key_ring(config)
        async with (
            open_store(config, pace=pace, clock=clock, ids=self._ids, telemetry=telemetry) as store,
            ThreadBlocking(max_threads=_THREADS, name="erase") as blocking,
        ):
            manifests = ManifestCache(
                store=store,
                blocking=blocking,
                key_prefix=config.store.key_prefix,
                key_ring=key_ring,
                max_bytes=0,
                most_chunk_bytes=config.store.chunk_size,
                most_index_bytes=config.read.index_max_bytes,
            )
            stream = SegmentStream(
                store=store,
                blocking=blocking,
                key_prefix=config.store.key_prefix,
                key_ring=key_ring,
                most_chunk_bytes=config.store.chunk_size,
                most_index_bytes=config.read.index_max_bytes,
            )
            objects = SegmentObjects(
                settings=layout_settings(config, key_ring, await self._session.broker.kafka_version()),
                store=store,
                blocking=blocking,
                ids=self._ids,
                failpoints=self._failpoints,
            )
            blobs = IndexBlobReader(store=store, blocking=blocking, manifests=manifests)
            eraser = SegmentEraser(
                keys=self._keys,
                scratch=self._scratch,
                stream=stream,
                blobs=blobs,
                pace=pace,
                blocking=blocking,
            )
            assert self._session.metadata is not None, "an erasure opens its session with metadata"
            swap = SegmentSwap(
                metadata=self._session.metadata,
                store=SwapStore(
                    objects=objects,
                    stream=stream,
                    blobs=blobs,
                    pace=pace,
                    open_file=partial(_opened, blocking=blocking),
                    most_custom_metadata_bytes=config.remote_log_metadata_custom_metadata_max_bytes,
                ),
                clock=clock,
                ids=self._ids,
                failpoints=self._failpoints,
                place="erase",
            )
            presence = SegmentPresence(store, config.store.key_prefix)
            yield _Tools(store=store, eraser=eraser, swap=swap, presence=presence)
            await manifests.aclose()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tools:
    store: Store
    eraser: SegmentEraser
    swap: SegmentSwap
    presence: SegmentPresence


class _PartitionEraser:
    """The segments of one partition, one after the other."""

    def __init__(
        self,
        session: Session,
        ids: SystemIds,
        partition: PartitionErasure,
        tools: _Tools,
        lease: HeldLease,
        failpoints: Failpoints,
    ) -> None:
        self._session, self._ids, self._partition, self._tools = session, ids, partition, tools
        self._lease, self._failpoints = lease, failpoints
        self._dirty = {uuid for uuid, count in partition.records.items() if count}
        self._clean = partition.records.keys() - self._dirty
        self._opened_ms, self._named = -1, 0
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
        """The step as what holds now makes it, or why it is not right any more."""
        await self._lease.renew()
        seen = await seen_now(self._session, self._partition.view)
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
        """Why the step is not right any more."""
        again = await self._decided_now(step)
        if isinstance(again, str):
            return again
        return "" if again.erasing is step.erasing else again.reason

    def after_ms(self) -> int:
        """Of the finished segments near, by the last look."""
        return max(one.event_timestamp_ms for one in self._near if one.state is State.COPY_SEGMENT_FINISHED)

    def require(self) -> None:
        """The lease holds."""
        self._lease.require()

    async def within_ms(self) -> int:
        """COPY_SEGMENT_FINISHED is read back while the lease holds, or given up: the lease is renewed right before."""
        await self._lease.renew_now()
        return min(_FINISH_WITHIN_MS, self._lease.left_ms)

    def prover(self, stored: RemoteLogSegmentMetadata) -> Prover:
        return self._tools.eraser.prover(stored)

    async def retire(self, old: RemoteLogSegmentMetadata, new: RemoteLogSegmentMetadata, records: int) -> None:
        """``new``, which is finished, has none of these records."""
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
        """Segments near that were read and hold none of these records, and of which all objects are there now."""
        return {
            one.remote_log_segment_id.uuid
            for one in self._near
            if one.remote_log_segment_id.uuid in self._clean and await self._tools.presence.is_whole(one)
        }

    async def _put_into_trash(self, segment: RemoteLogSegmentMetadata) -> None:
        """The leader's sidecar deletes it when that is due, if others still hold its offsets then."""
        await self._lease.renew()
        now_ms = decision_ms(self._session.clock.now_ms(), self._session.state.known_leases())
        if self._opened_ms < 0 or self._named == MOST_NAMED:
            self._opened_ms, self._named = max(now_ms, self._opened_ms + 1), 0
        self._named += 1
        self._lease.require()
        entry = replaced(
            [segment],
            LeaderEpoch(max(self._partition.view.leader_epoch, NO_EPOCH)),
            opened_ms=self._opened_ms,
            delays=trash_delays(self._session.config),
            now_ms=now_ms,
            by=operator("erase"),
        )
        await self._session.state.put_into_trash(self._partition.owner, [entry])


class _OneErasure:
    """The :class:`~tiersidecar.tasks.segment_swap.Swapper` of one step."""

    def __init__(self, worker: _PartitionEraser, step: ErasureStep, rewritten: Rewritten) -> None:
        self._worker, self._step, self._rewritten = worker, step, rewritten
        self.require, self.within_ms, self.prover = worker.require, worker.within_ms, worker.prover
        self.after_ms = worker.after_ms

    def copying(self, segment_id: RemoteLogSegmentId) -> AbstractAsyncContextManager[None]:
        """The journal is the sidecar's: what a killed erasure leaves goes after the copy grace."""
        return nullcontext()

    async def reason_to_leave(self, old: Sequence[RemoteLogSegmentMetadata]) -> str:
        return await self._worker.reason_to_leave(self._step)

    async def retire(self, old: Sequence[RemoteLogSegmentMetadata], new: RemoteLogSegmentMetadata) -> None:
        (one,) = old
        await self._worker.retire(one, new, self._rewritten.erased_records)


@asynccontextmanager
async def _opened(segment: LocalSegment, *, blocking: Blocking) -> AsyncIterator[OpenSegmentFile]:
    file = OpenSegmentFile(segment, blocking=blocking)
    await file.open()
    try:
        yield file
    finally:
        await file.close()


def _overlap(one: RemoteLogSegmentMetadata, other: RemoteLogSegmentMetadata) -> bool:
    return one.start_offset <= other.end_offset and one.end_offset >= other.start_offset


def erasures_in_trash(session: Session, owner: TopicIdPartition) -> list[TrashEntry]:
    """Return the entries of erasures of one partition, this one's and earlier ones'."""
    return [one for one in session.state.trash(owner) if one.kind is TrashKind.ERASURE]
