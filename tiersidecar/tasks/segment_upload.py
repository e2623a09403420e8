"""Copy one sealed segment: STARTED, its objects, the last checks, FINISHED (S-029 to S-037).

Abandoned at any await, it leaves a COPY_SEGMENT_STARTED that the retain lane finds and deletes; a retry is a new segment id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from weakref import WeakValueDictionary

import structlog

from tiersidecar.decide.cleanup import Removal
from tiersidecar.decide.pin import is_remote
from tiersidecar.decide.topics import TieredPartition
from tiersidecar.domain.errors import (
    CorruptDataError,
    CustomMetadataTooLargeError,
    IllegalTransitionError,
    RetriableError,
    SegmentChangedError,
    SegmentNotReadyError,
    UnknownSegmentError,
)
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition
from tiersidecar.domain.offsets import EpochEntry, Lineage, Offset
from tiersidecar.domain.segments import LocalSegment, RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.aiven.layout import SegmentEncryption
from tiersidecar.ports.log_dirs import LogDirs, SegmentFile
from tiersidecar.ports.metrics.copying import (
    COMPLETED_TRANSACTIONS,
    COPY_BYTES,
    COPY_ERRORS,
    COPY_REQUESTS,
    REBUILT_ARTEFACTS,
)
from tiersidecar.reading.carried_transactions import CarriedTransactions
from tiersidecar.tasks.copy_admission import copied_offset_of
from tiersidecar.tasks.edges import Actor, Edges, Sources
from tiersidecar.tasks.lanes import Backoff
from tiersidecar.tasks.ownership import InFlight
from tiersidecar.tasks.removal import SegmentRemover
from tiersidecar.tasks.segment_objects import SegmentObjects
from tiersidecar.tasks.segment_reading import (
    CheckedSegment,
    CompletedTransactions,
    SegmentChecker,
    SegmentReading,
    next_base_offset_of,
)
from tiersidecar.tasks.store_gates import StoreGates
from tiersidecar.tasks.transaction_waits import TransactionWaits

log = structlog.get_logger(__name__)


StillWanted = Callable[[], Awaitable[None]]
"""Raises where the copy is not wanted any more: asked once it is known to all that it was begun, and before that where another
lane of this process has just copied something of the partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTarget:
    """Target of a copy, while ``gates`` find its store there, with what clears away a copy that failed."""

    objects: SegmentObjects
    gates: StoreGates
    remover: SegmentRemover
    in_flight: InFlight


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadSettings:
    """``backoff`` is between the attempts at one step."""

    custom_metadata_max_bytes: int
    backoff: Backoff


@dataclass(eq=False)
class _Turn:
    """Turn of one partition.  ``copies`` have it or wait for it: between two of them the lock is free, and still not to be
    had."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    copies: int = 0


class SegmentUploader:
    """Copies segments on behalf of ``broker_id``; one instance serves all partitions.

    ``custom_metadata_max_bytes`` is ``remote.log.metadata.custom.metadata.max.bytes``; ``backoff`` is between the attempts to
    publish one COPY_SEGMENT_FINISHED.
    """

    def __init__(
        self,
        *,
        sources: Sources,
        edges: Edges,
        actor: Actor,
        target: CopyTarget,
        carried: CarriedTransactions,
        log_dirs: LogDirs,
        waits: TransactionWaits,
        settings: UploadSettings,
    ) -> None:
        self._table, self._lineages, self._metadata_log = sources.table, sources.lineages, sources.metadata
        self._objects, self._gates, self._remover = target.objects, target.gates, target.remover
        self._in_flight = target.in_flight
        self._carried, self._log_dirs, self._waits = carried, log_dirs, waits
        self._checker = SegmentChecker(log_dirs=log_dirs, clock=edges.clock)
        self._custom_metadata_max_bytes, self._backoff = settings.custom_metadata_max_bytes, settings.backoff
        self._broker_id, self._ownership = actor.broker_id, actor.ownership
        self._blocking, self._clock, self._ids = edges.blocking, edges.clock, edges.ids
        self._failpoints, self._telemetry = edges.failpoints, edges.telemetry
        self._turns: WeakValueDictionary[TopicIdPartition, _Turn] = WeakValueDictionary()

    async def upload(
        self, partition: TieredPartition, segment: LocalSegment, lineage: Lineage
    ) -> RemoteLogSegmentMetadata:
        """Copy ``segment``; it is finished, durable and read back when this returns.

        Raises:
            SegmentNotReadyError: the broker has not written all of its files yet.
            SegmentChangedError: it changed, or the partition changed hands, while it was copied: nothing was finished.
            CorruptDataError: a batch fails its checks: nothing was finished.
            CustomMetadataTooLargeError: its objects were deleted again.
            KeyRefusedError: the key service gives no key: nothing was begun.
            StoreError, KeyServiceError, SourceStalledError, PublishTimeoutError: a later attempt may succeed.
        """
        still_wanted = partial(self._check_still_wanted, partition.view.topic_id_partition, segment, lineage)
        return await self._gated(partition, segment, lineage, still_wanted)

    async def upload_again(
        self, partition: TieredPartition, segment: LocalSegment, lineage: Lineage, still_wanted: StillWanted
    ) -> RemoteLogSegmentMetadata:
        """Copy ``segment`` as :meth:`upload` does, of offsets that are remote already, and also by a follower: what there is of
        them is damaged."""
        return await self._gated(partition, segment, lineage, still_wanted)

    async def _gated(
        self, partition: TieredPartition, segment: LocalSegment, lineage: Lineage, still_wanted: StillWanted
    ) -> RemoteLogSegmentMetadata:
        topic = partition.view.topic_id_partition.topic
        self._telemetry.count(COPY_REQUESTS, topic=topic)
        try:
            async with self._turn(partition.view.topic_id_partition) as has_waited:
                if has_waited:
                    await still_wanted()
                self._gates.of_topic(
                    topic
                ).require_open()  # it was waited for before the slot, which this copy has by now
                async with self._gates.watching():
                    await self._ownership.confirm(partition.view.topic_id_partition)
                    return await self._upload(partition, segment, lineage, still_wanted)
        except Exception:
            self._telemetry.count(COPY_ERRORS, topic=topic)
            raise

    @asynccontextmanager
    async def _turn(self, topic_id_partition: TopicIdPartition) -> AsyncIterator[bool]:
        """Hold the turn of a partition, for one copy at a time: a hole below what is remote is filled by the copy lane and, on
        request, by the recopy lane, and both at once would make two copies, or one and a STARTED that nothing finishes.  Yields
        whether another copy had to be waited for."""
        turn = self._turns.setdefault(topic_id_partition, _Turn())
        has_waited = turn.copies > 0
        turn.copies += 1
        try:
            async with turn.lock:
                yield has_waited
        finally:
            turn.copies -= 1

    async def _upload(
        self, partition: TieredPartition, segment: LocalSegment, lineage: Lineage, still_wanted: StillWanted
    ) -> RemoteLogSegmentMetadata:
        topic_id_partition = partition.view.topic_id_partition
        began_s = self._clock.monotonic_s()
        segment_id = RemoteLogSegmentId(topic_id_partition=topic_id_partition, uuid=self._ids.random_uuid())
        # First of all: without a key nothing is read, and nothing published that would have to be deleted.
        encryption = await self._objects.new_encryption(segment_id)
        async with self._log_dirs.open_segment(segment) as file:
            before = await file.fingerprint()
            carried = await self._carried.at(topic_id_partition, segment.base_offset, lineage)
            is_compacted = topic_id_partition.topic in self._table.compacted_topics
            checked = await self._checker.check(segment, file, lineage, carried, is_compacted=is_compacted)
            started = self._started(segment_id, segment, file, checked)
            await self._failpoints.reach("copy.checked")
            async with self._in_flight.copying(started.remote_log_segment_id):
                self._ownership.require_role()
                await self._metadata_log.publish(started)
                await self._failpoints.reach("copy.started.published")
                await still_wanted()
                custom_metadata, completed = await self._put(started, segment, file, checked, lineage, encryption)
                if await file.fingerprint() != before:
                    raise SegmentChangedError(path=segment.log_path, reason="its size or time of change moved")
                await self._check_still_ours(partition, segment, checked.epochs)
                await self._failpoints.reach("copy.proven")
                finished = await self._finish(partition, started, custom_metadata)
        self._carried.keep(finished, completed.open_at_end)
        self._log_finished(partition, segment, checked, finished, began_s)
        self._log_added(finished, completed)
        await self._waits.lost(topic_id_partition, finished.next_offset, completed.undecided)
        return finished

    def _started(
        self, segment_id: RemoteLogSegmentId, segment: LocalSegment, file: SegmentFile, checked: CheckedSegment
    ) -> RemoteLogSegmentMetadata:
        return RemoteLogSegmentMetadata(
            remote_log_segment_id=segment_id,
            start_offset=segment.base_offset,
            end_offset=Offset(next_base_offset_of(segment) - 1),
            max_timestamp_ms=_largest_timestamp(segment, checked),
            broker_id=self._broker_id,
            event_timestamp_ms=self._clock.now_ms(),
            segment_size_in_bytes=file.size_bytes,
            segment_leader_epochs=checked.epochs,
            txn_index_empty=not checked.has_aborted,
            custom_metadata=self._objects.custom_metadata_of_started(segment_id.topic_id_partition.topic),
        )

    async def _put(
        self,
        started: RemoteLogSegmentMetadata,
        segment: LocalSegment,
        file: SegmentFile,
        checked: CheckedSegment,
        lineage: Lineage,
        encryption: SegmentEncryption | None,
    ) -> tuple[bytes | None, CompletedTransactions]:
        reading = SegmentReading(segment, checked, lineage)
        try:
            custom_metadata = await self._objects.put(
                started, file, reading, is_compressed=checked.is_compressed, encryption=encryption
            )
        except (CorruptDataError, SegmentNotReadyError):
            # Next time it is read first: damage must not cost the metadata topic three events per attempt.
            self._checker.suspect(segment)
            raise
        return custom_metadata, reading.transactions()

    async def _check_still_wanted(
        self, topic_id_partition: TopicIdPartition, segment: LocalSegment, lineage: Lineage
    ) -> None:
        """Publish STARTED.  With it everything is read back that the topic has before it: what a deposed leader finished late,
        too."""
        copied_offset = await copied_offset_of(self._metadata_log, topic_id_partition, lineage, self._blocking)
        if copied_offset < next_base_offset_of(segment) - 1:
            return
        # Below what is remote it may be a hole, which was never copied.
        if is_remote(lineage, partial(self._metadata_log.finished_segments_at, topic_id_partition), segment):
            raise SegmentChangedError(path=segment.log_path, reason="a copy of it was finished meanwhile")

    async def _check_still_ours(
        self, partition: TieredPartition, segment: LocalSegment, epochs: tuple[EpochEntry, ...]
    ) -> None:
        """Check the segment once more.  A file that kept its size may have been cut off from the log all the same: leader and
        epochs are looked at again."""
        topic_id_partition = partition.view.topic_id_partition
        if not self._table.holds(partition):
            raise SegmentChangedError(path=segment.log_path, reason="the partition changed hands")
        self._table.local = await self._log_dirs.scan()
        if self._table.local_partition(topic_id_partition) is None:
            raise SegmentChangedError(path=segment.log_path, reason="its partition is not on this broker any more")
        lineage = await self._lineages.lineage(topic_id_partition)
        if lineage.entries_in_range(segment.base_offset, next_base_offset_of(segment)) != epochs:
            raise SegmentChangedError(path=segment.log_path, reason="the partition's leader epochs changed")
        if not self._table.is_proven(partition):
            raise SegmentChangedError(
                path=segment.log_path, reason="its directory is not the one that the broker writes"
            )

    async def _finish(
        self, partition: TieredPartition, started: RemoteLogSegmentMetadata, custom_metadata: bytes | None
    ) -> RemoteLogSegmentMetadata:
        size_bytes, limit_bytes = len(custom_metadata or b""), self._custom_metadata_max_bytes
        if size_bytes > limit_bytes:
            doomed = replace(started, custom_metadata=custom_metadata)
            await self._remover.remove(Removal(metadata=doomed, reason="its custom metadata is too large"))
            await self._in_flight.settle(started.remote_log_segment_id)
            raise CustomMetadataTooLargeError(
                segment=str(started.remote_log_segment_id), size_bytes=size_bytes, limit_bytes=limit_bytes
            )
        update = RemoteLogSegmentMetadataUpdate(
            remote_log_segment_id=started.remote_log_segment_id,
            broker_id=self._broker_id,
            event_timestamp_ms=self._clock.now_ms(),
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            custom_metadata=custom_metadata,
        )
        await self._failpoints.reach("copy.finish.begun")
        try:
            await self._publish_finished(partition, update)
        except (IllegalTransitionError, UnknownSegmentError) as error:
            # Another leader took this copy for dead and deleted it: that is no reason to park the partition.
            raise SegmentChangedError(path=started.topic_id_partition.qualified, reason=str(error)) from error
        await self._failpoints.reach("copy.finished.published")
        return started.with_update(update)

    async def _publish_finished(self, partition: TieredPartition, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Publish until it is read back, refused, or no longer ours to say.

        Given up at the first trouble it may be durable all the same, and the retain lane, to which this is then a copy that no
        lane works on, would delete what followers have unpinned for.  Said twice it is the same state again.
        """
        failures = 0
        while True:
            try:
                self._ownership.require_role()
                return await self._metadata_log.publish(update)
            except RetriableError as error:
                topic_id_partition = partition.view.topic_id_partition
                if not self._table.holds(partition):
                    raise
                failures += 1
                delay_s = self._backoff.delay_s(failures, self._ids.random())
                log.warning(
                    "segment.copy.finish.retry",
                    topic=topic_id_partition.topic,
                    partition=topic_id_partition.partition,
                    segment_id=str(update.remote_log_segment_id),
                    error=str(error),
                    failures=failures,
                    backoff_ms=int(delay_s * 1000),
                )
            await self._clock.sleep(delay_s)

    def _log_finished(
        self,
        partition: TieredPartition,
        segment: LocalSegment,
        checked: CheckedSegment,
        finished: RemoteLogSegmentMetadata,
        began_s: float,
    ) -> None:
        topic_id_partition = partition.view.topic_id_partition
        self._checker.forget(segment)
        self._telemetry.count(COPY_BYTES, finished.segment_size_in_bytes, topic=topic_id_partition.topic)
        bound = log.bind(
            topic=topic_id_partition.topic,
            partition=topic_id_partition.partition,
            leader_epoch=partition.view.leader_epoch,
            segment_id=str(finished.remote_log_segment_id),
        )
        bound.info(
            "segment.copy.finished",
            start_offset=finished.start_offset,
            end_offset=finished.end_offset,
            bytes=finished.segment_size_in_bytes,
            elapsed_ms=int((self._clock.monotonic_s() - began_s) * 1000),
        )
        if checked.rebuild:
            for artefact in checked.rebuild:
                self._telemetry.count(REBUILT_ARTEFACTS, topic=topic_id_partition.topic, artefact=artefact.value)
            bound.warning(
                "segment.artefacts.rebuilt",
                artefacts=sorted(checked.rebuild),
                reasons=[fault.reason for fault in checked.artefacts.faults],
                from_earlier_snapshot=checked.artefacts.earlier_snapshot is not None,
            )

    def _log_added(self, finished: RemoteLogSegmentMetadata, completed: CompletedTransactions) -> None:
        topic_id_partition = finished.topic_id_partition
        bound = log.bind(
            topic=topic_id_partition.topic,
            partition=topic_id_partition.partition,
            segment_id=str(finished.remote_log_segment_id),
        )
        if completed.added:
            self._telemetry.count(COMPLETED_TRANSACTIONS, len(completed.added), topic=topic_id_partition.topic)
            producer_ids = sorted({one.producer_id for one in completed.added})
            bound.warning("segment.transactions.completed", producer_ids=producer_ids, entries=len(completed.added))


def _largest_timestamp(segment: LocalSegment, checked: CheckedSegment) -> int:
    """Return it as ``LogSegment.largestTimestamp`` has it: where no record has a timestamp, when the file was last changed.
    With -1 a broker's own expiration would take the segment at once."""
    return checked.max_timestamp_ms if checked.max_timestamp_ms >= 0 else segment.modified_ms
