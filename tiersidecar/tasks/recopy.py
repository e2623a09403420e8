"""The recopy lane: what the store has lost, and this broker's disk still has, is copied again on request (U12).

New segments first, each finished, durable and read back; then, when they hold every offset, the damaged one goes the way of
every deletion.  A process that ends anywhere leaves a request that the next one takes up where this one stopped.

A remote segment as files on disk, for as long as it takes to write it again under a new id: its .log is right, and what
was uploaded beside it is not.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol

import structlog

from tiersidecar.decide.cleanup import Removal
from tiersidecar.decide.recopy import RecopyAction, RecopyStep, RecopyView, decide_recopy
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.decide.undelete import final_start
from tiersidecar.domain.errors import (
    CorruptDataError,
    IllegalTransitionError,
    MetadataNotReadyError,
    PartitionHaltedError,
    SegmentChangedError,
    SegmentNotReadyError,
    StateDirError,
    UnknownSegmentError,
)
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, format_uuid
from tiersidecar.domain.offsets import Lineage, Offset
from tiersidecar.domain.policy import PauseKind
from tiersidecar.domain.segments import LocalSegment, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.domain.trash import replaced_segments
from tiersidecar.formats.kafka.log_dir_files import LogFileKind, log_file_name
from tiersidecar.formats.kafka.producer_state import write_producer_snapshot
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.state_records import RecopyRequest
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.lineage import of_pictured
from tiersidecar.reading.remote_objects import SegmentPresence
from tiersidecar.reading.segment_stream import Pace, SegmentStream
from tiersidecar.tasks.copy_admission import CopyAdmission, copied_offset_of
from tiersidecar.tasks.edges import Actor, Edges, Sources
from tiersidecar.tasks.segment_upload import CopyTarget, StillWanted


class FetchedSegments:
    """Keeps one directory per segment below ``directory``, and nothing afterwards.  What a process that was killed has left
    goes with the next fetch of that segment."""

    def __init__(
        self, *, directory: Path, stream: SegmentStream, blobs: IndexBlobReader, pace: Pace, blocking: Blocking
    ) -> None:
        self._directory, self._stream, self._blobs = directory, stream, blobs
        self._pace, self._blocking = pace, blocking

    @asynccontextmanager
    async def fetched(self, metadata: RemoteLogSegmentMetadata) -> AsyncIterator[LocalSegment]:
        """Yield the segment as a broker would have it.  It counts as pinned: all of it is read before anything is published.

        Raises:
            StoreError: an object is missing or could not be read.
            CorruptDataError: manifest, sizes, chunks or indexes do not fit.
            StateDirError: the disk is full, or the like.
        """
        directory = self._directory / format_uuid(metadata.remote_log_segment_id.uuid)
        segment = LocalSegment(
            directory=str(directory),
            base_offset=metadata.start_offset,
            next_base_offset=metadata.next_offset,
            size_bytes=metadata.segment_size_in_bytes,
            modified_ms=metadata.max_timestamp_ms,
            max_timestamp_ms=metadata.max_timestamp_ms,
            pinned=True,
        )
        try:
            try:
                await self._blocking.run(_make_anew, directory)
                await self._write_log(metadata, Path(segment.log_path))
                await self._write_companions(metadata, directory)
            except OSError as error:
                raise StateDirError(path=str(directory), reason=error.strerror or str(error)) from error
            yield segment
        finally:
            await self._blocking.run(shutil.rmtree, directory, True)  # noqa: FBT003 - ignore_errors

    async def _write_log(self, metadata: RemoteLogSegmentMetadata, path: Path) -> None:
        file = await self._blocking.run(_open_new, path)
        try:

            def write(part: memoryview) -> None:
                file.write(part)

            async for _ in self._stream.feed_log(metadata, write, self._pace):
                pass
        finally:
            await self._blocking.run(file.close)

    async def _write_companions(self, metadata: RemoteLogSegmentMetadata, directory: Path) -> None:
        indexes = await self._blobs.read_index_files(metadata)
        producers = await self._blobs.read_producer_snapshot(metadata)
        start, stop = metadata.start_offset, metadata.next_offset
        files = {
            log_file_name(start, LogFileKind.OFFSET_INDEX): indexes.offset_index,
            log_file_name(start, LogFileKind.TIME_INDEX): indexes.time_index,
            log_file_name(stop, LogFileKind.SNAPSHOT): write_producer_snapshot(producers),
        }
        if indexes.transaction_index:
            files[log_file_name(start, LogFileKind.TRANSACTION_INDEX)] = indexes.transaction_index
        for name, data in files.items():
            await self._blocking.run((directory / name).write_bytes, data)


_COMPACTED = (
    "its topic is compacted, and this broker's disk has the segment of another moment by now: tombstones may be missing. Tier "
    "the topic anew: tiersidecar disable --delete-remote, then enable"
)


def _open_new(path: Path) -> BinaryIO:
    return path.open("xb")


def _make_anew(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)


log = structlog.get_logger(__name__)


class UploadAgain(Protocol):
    async def upload_again(
        self, partition: TieredPartition, segment: LocalSegment, lineage: Lineage, still_wanted: StillWanted
    ) -> RemoteLogSegmentMetadata:
        """Copy one segment though its offsets are remote; finished, durable and read back when this returns.

        ``still_wanted`` raises SegmentChangedError where another lane or sidecar has made it needless meanwhile."""


class FetchSegment(Protocol):
    def fetched(self, metadata: RemoteLogSegmentMetadata) -> AbstractAsyncContextManager[LocalSegment]:
        """Open the remote segment as files, until the context ends."""


class RecopyTask:
    """Serves the requests of one partition at a time; a leader all that it has not declined, a follower those that the leader
    has."""

    def __init__(
        self,
        *,
        sources: Sources,
        edges: Edges,
        actor: Actor,
        target: CopyTarget,
        presence: SegmentPresence,
        uploader: UploadAgain,
        fetched: FetchSegment,
        admission: CopyAdmission,
    ) -> None:
        self._table, self._metadata = sources.table, sources.metadata
        self._state, self._lineages = sources.state, sources.lineages
        self._presence, self._uploader, self._fetched, self._admission = presence, uploader, fetched, admission
        self._remover, self._in_flight = target.remover, target.in_flight
        self._guard, self._broker_id, self._observe_only = actor.guard, actor.broker_id, actor.observe_only
        self._blocking, self._failpoints = edges.blocking, edges.failpoints

    def has_work(self, partition: TieredPartition) -> bool:
        """Return whether there is a request for us: cheap, and asked at every look."""
        topic_id_partition = partition.view.topic_id_partition
        try:
            requests = self._state.recopies(topic_id_partition)
        except MetadataNotReadyError:
            return False
        return any(self._is_ours(partition, request) for request in requests) and self.may_act(partition)

    def may_act(self, partition: TieredPartition) -> bool:
        """Return whether requests may be served now, and could be."""
        topic_id_partition = partition.view.topic_id_partition
        local = self._table.local_partition(topic_id_partition)
        if local is None or not self._table.pins.are_known(local.log_dir):
            return False
        if self._observe_only or topic_id_partition.topic in self._table.refused_topics:
            return False
        if self._guard.reason_not_to_delete_of(topic_id_partition.topic_id) or self._state.readiness_reason is not None:
            return False
        return not self._state.why_paused(topic_id_partition.topic_id, PauseKind.COPIES)

    async def run(self, partition: TieredPartition) -> None:
        """Serve what there is; what must wait is looked at again by a later round.  A segment on this disk that cannot be
        copied now keeps no other request waiting: its error is raised at the end."""
        failure: SegmentNotReadyError | SegmentChangedError | PartitionHaltedError | None = None
        for request in self._state.recopies(partition.view.topic_id_partition):
            if not self._is_ours(partition, request):
                continue
            try:
                await self._serve(partition, request)
            except (SegmentNotReadyError, SegmentChangedError, PartitionHaltedError) as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _is_ours(self, partition: TieredPartition, request: RecopyRequest) -> bool:
        if self._broker_id in request.declined:
            return False
        return partition.role is PartitionRole.LEADER or partition.view.leader_id in request.declined

    async def _serve(self, partition: TieredPartition, request: RecopyRequest) -> None:
        topic_id_partition = partition.view.topic_id_partition
        copied: list[LocalSegment | None] = []
        is_rewritten = False
        while self._table.holds(partition):
            lineage = await self._lineages.lineage(topic_id_partition)
            step = decide_recopy(await self._view(topic_id_partition, request, lineage))
            if topic_id_partition.topic in self._table.compacted_topics and step.action is not RecopyAction.FORGET:
                step = RecopyStep(action=RecopyAction.DECLINE, reason=_COMPACTED)
            if step.local in copied or (is_rewritten and step.action is RecopyAction.REWRITE):
                # Never again and again: a store that takes objects and has not got them is no case for more copies.
                step = RecopyStep(action=RecopyAction.DECLINE, reason="the store has not got the copy just made of it")
            match step.action:
                case RecopyAction.COPY:
                    if not await self._copy(partition, request, step, lineage):
                        return
                    copied.append(step.local)
                    continue
                case RecopyAction.REWRITE:
                    if not await self._rewrite(partition, request, step, lineage):
                        return
                    is_rewritten = True
                    continue
                case RecopyAction.RETIRE if self._guard.reason_not_to_delete_remote_of(topic_id_partition.topic_id):
                    return
                case RecopyAction.RETIRE:
                    await self._retire(request, step)
                    await self._state.forget_recopy(request)
                case RecopyAction.FORGET:
                    await self._state.forget_recopy(request)
                case RecopyAction.DECLINE:
                    await self._state.decline_recopy(request, self._broker_id, step.reason)
                case RecopyAction.WAIT:
                    pass
            self._log_step(request, step)
            return

    async def _view(self, topic_id_partition: TopicIdPartition, request: RecopyRequest, lineage: Lineage) -> RecopyView:
        state, local = self._state.partition_state(topic_id_partition), self._table.local_partition(topic_id_partition)
        named = _named(request)
        return RecopyView(
            start_offset=request.start_offset,
            end_offset=request.end_offset,
            names_segment=named is not None,
            segment=None if named is None else self._metadata.segment(named),
            lineage=lineage,
            whole=await self._whole(topic_id_partition, request, lineage),
            local=() if local is None else local.segments,
            copied_offset=await copied_offset_of(self._metadata, topic_id_partition, lineage, self._blocking),
            remote_log_start_offset=state.start_in(lineage),
            final_start_offset=final_start(
                state.user_deletes, self._state.trash(topic_id_partition), state.start_generation, lineage
            ),
            from_store=request.from_store,
        )

    async def _whole(
        self, topic_id_partition: TopicIdPartition, request: RecopyRequest, lineage: Lineage
    ) -> list[RemoteLogSegmentMetadata]:
        """Return segments that hold some of the offsets; none that is itself to be given up, or that an erasure has
        replaced."""
        doubted = {_named(one) for one in (*self._state.recopies(topic_id_partition), request)}
        erased = replaced_segments(self._state.trash(topic_id_partition))

        def holding(segments: Sequence[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
            return [
                segment
                for segment in segments
                if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
                and segment.remote_log_segment_id not in doubted
                and segment.remote_log_segment_id.uuid not in erased
                and segment.start_offset <= request.end_offset
                and segment.is_within(lineage)
            ]

        picture = self._metadata.picture(topic_id_partition)
        held = await of_pictured(picture, self._blocking, holding, from_offset=request.start_offset)
        return [one for one in held if await self._presence.is_whole(one)]

    async def _copy(
        self, partition: TieredPartition, request: RecopyRequest, step: RecopyStep, lineage: Lineage
    ) -> bool:
        topic_id_partition, local = partition.view.topic_id_partition, step.local
        assert local is not None, "a step that copies says what"
        still_wanted = partial(self._check_still_wanted, topic_id_partition, request, step, lineage)
        try:
            async with self._admission.admitted(topic_id_partition, local.size_bytes):
                await self._uploader.upload_again(partition, local, lineage, still_wanted)
        except CorruptDataError as error:
            await self._decline(request, f"this broker's copy is damaged too: {error}")
            return False
        await self._failpoints.reach("recopy.copied")
        return True

    async def _rewrite(
        self, partition: TieredPartition, request: RecopyRequest, step: RecopyStep, lineage: Lineage
    ) -> bool:
        """Copy with the batches' transactions, and what was open before them, in the new segment's indexes."""
        named = _named(request)
        metadata = None if named is None else self._metadata.segment(named)
        if metadata is None:
            return False
        topic_id_partition, size_bytes = partition.view.topic_id_partition, metadata.segment_size_in_bytes
        still_wanted = partial(self._check_still_wanted, topic_id_partition, request, step, lineage)
        try:
            async with (
                self._admission.admitted(topic_id_partition, size_bytes),
                self._fetched.fetched(metadata) as local,
            ):
                await self._uploader.upload_again(partition, local, lineage, still_wanted)
        except CorruptDataError as error:
            await self._decline(request, f"it cannot be read from the store: {error}")
            return False
        await self._failpoints.reach("recopy.copied")
        return True

    async def _check_still_wanted(
        self, topic_id_partition: TopicIdPartition, request: RecopyRequest, step: RecopyStep, lineage: Lineage
    ) -> None:
        """Raise where it is needless: the copy lane fills a hole below what is remote by itself, and so may another broker's
        sidecar."""
        now = decide_recopy(await self._view(topic_id_partition, request, lineage))
        if now.action is not step.action or _base_of(now) != _base_of(step):
            raise SegmentChangedError(
                path=topic_id_partition.qualified, reason=f"it is not to be copied now: {now.reason}"
            )

    async def _decline(self, request: RecopyRequest, reason: str) -> None:
        await self._state.decline_recopy(request, self._broker_id, reason)
        self._log_step(request, RecopyStep(action=RecopyAction.DECLINE, reason=reason))

    async def _retire(self, request: RecopyRequest, step: RecopyStep) -> None:
        named = _named(request)
        metadata = None if named is None else self._metadata.segment(named)
        if named is None or metadata is None:
            return
        try:
            with self._in_flight.holding(named):
                await self._remover.remove(
                    Removal(metadata=metadata, reason=f"its indexes or objects were wrong, and {step.reason}")
                )
        except (IllegalTransitionError, UnknownSegmentError):
            return  # another sidecar was faster
        await self._failpoints.reach("recopy.retired")

    def _log_step(self, request: RecopyRequest, step: RecopyStep) -> None:
        owner = request.topic_id_partition
        say = log.error if step.action is RecopyAction.DECLINE else log.info
        say(
            f"recopy.{step.action}",
            topic=owner.topic,
            partition=owner.partition,
            start_offset=request.start_offset,
            end_offset=request.end_offset,
            segment_id=None if request.segment_uuid is None else format_uuid(request.segment_uuid),
            reason=step.reason,
        )


def _named(request: RecopyRequest) -> RemoteLogSegmentId | None:
    if request.segment_uuid is None:
        return None
    return RemoteLogSegmentId(topic_id_partition=request.topic_id_partition, uuid=request.segment_uuid)


def _base_of(step: RecopyStep) -> Offset | None:
    return None if step.local is None else step.local.base_offset
