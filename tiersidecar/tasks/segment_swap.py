"""Put a new segment, written to this disk, in the place of remote ones that hold the same offsets.

In this order: COPY_SEGMENT_STARTED; the three objects; they are read back; COPY_SEGMENT_FINISHED, from which on readers have
the new one; and only then the old ones go into the trash.  A process that ends anywhere leaves the old segments as they are,
or both, of which the new one is read (docs/design/0017-remote-compaction.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from tiersidecar.decide.trash import MOST_NAMED, TrashDelays, replaced
from tiersidecar.domain.errors import (
    IllegalTransitionError,
    UnknownSegmentError,
)
from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId
from tiersidecar.domain.lease import decision_ms
from tiersidecar.domain.offsets import NO_EPOCH, EpochEntry, LeaderEpoch
from tiersidecar.domain.segments import (
    LeaderView,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
)
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import TrashKind
from tiersidecar.formats.aiven.layout import SegmentEncryption
from tiersidecar.ports.clock import Clock, Ids
from tiersidecar.ports.failpoints import Failpoints
from tiersidecar.ports.metadata_log import PublishMetadata
from tiersidecar.ports.state_records import RequestingStateLog
from tiersidecar.tasks.segment_put import NewFacts, NewSegment, Prover, SwapStore, read_back, upload


class Swapper(Protocol):
    """The leader, or command, that swaps segments, with its right to do so."""

    async def reason_to_leave(self, old: Sequence[RemoteLogSegmentMetadata]) -> str:
        """Return why ``old`` are not to be replaced any more, by what holds now; empty where they are.  Asked before STARTED
        and before FINISHED.

        Raises:
                TiersidecarError: it cannot be known.
        """

    def copying(self, segment_id: RemoteLogSegmentId) -> AbstractAsyncContextManager[None]:
        """Hold the copy of the new segment as this process's, from before STARTED on until the context ends."""

    def require(self) -> None:
        """Return if this process may act now: called right before each event, without a wait between.

        Raises:
            TiersidecarError: another process may act in its place.
        """

    def after_ms(self) -> int:
        """Return the latest time of an event of any finished segment near, by what :meth:`reason_to_leave` has just seen: of
        segments that hold the same offsets the latest is read, also by what knows their manifests alone."""

    async def until_s(self) -> float | None:
        """Return the moment, by the clock's ``monotonic_s``, after which COPY_SEGMENT_FINISHED is neither sent nor waited for,
        once the right to act is renewed; None: as always."""

    def prover(self, stored: RemoteLogSegmentMetadata) -> Prover:
        """Return what looks at the batches of ``stored``, besides their digest."""

    async def retire(self, old: Sequence[RemoteLogSegmentMetadata], new: RemoteLogSegmentMetadata) -> None:
        """Put the old segments into the trash: readers have ``new``."""


class SegmentSwap:
    """Swaps segments one group after another; ``place`` is the first part of the names of its failpoints."""

    def __init__(
        self,
        *,
        metadata: PublishMetadata,
        store: SwapStore,
        clock: Clock,
        ids: Ids,
        failpoints: Failpoints,
        place: str,
    ) -> None:
        self._metadata, self._store, self._clock, self._ids = metadata, store, clock, ids
        self._failpoints, self._place = failpoints, place

    async def replace(
        self, old: Sequence[RemoteLogSegmentMetadata], new: NewSegment, swapper: Swapper, *, broker_id: BrokerId
    ) -> RemoteLogSegmentMetadata | str:
        """Swap; return the new segment, finished and durable, or why nothing was finished.

        ``old`` ascend and hold together the offsets of ``new``.

        Raises:
            StoreError, CorruptDataError, CustomMetadataTooLargeError: nothing was finished.
            KeyServiceError, KeyRefusedError: the key service gives no key: nothing was begun.
            TiersidecarError: what the swapper or a publish raises.
        """
        segment_id = self._new_id(old)
        # Before STARTED, of which nothing would come without a key; and before the look, which is old by the time it is there.
        encryption = await self._store.objects.new_encryption(segment_id)
        if reason := await swapper.reason_to_leave(old):
            return reason
        started = self._started(segment_id, old, new.facts, broker_id, self._later_ms(swapper))
        async with swapper.copying(segment_id):
            finished = await self._copy(old, started, new, swapper, encryption)
        if not isinstance(finished, str):
            await swapper.retire(old, finished)
        return finished

    async def begin(
        self, old: Sequence[RemoteLogSegmentMetadata], new: NewFacts, swapper: Swapper, *, broker_id: BrokerId
    ) -> RemoteLogSegmentMetadata | str:
        """Publish COPY_SEGMENT_STARTED of a segment that another process puts up (:func:`put_segment`), before :meth:`end`.
        Return it, or why nothing was begun.

        Raises:
            TiersidecarError: what the swapper or a publish raises.
        """
        if reason := await swapper.reason_to_leave(old):
            return reason
        started = self._started(self._new_id(old), old, new, broker_id, self._later_ms(swapper))
        swapper.require()
        await self._metadata.publish(started)
        await self._reach("started")
        return started

    async def end(
        self,
        old: Sequence[RemoteLogSegmentMetadata],
        started: RemoteLogSegmentMetadata,
        custom_metadata: bytes | None,
        swapper: Swapper,
    ) -> RemoteLogSegmentMetadata | str:
        """Publish COPY_SEGMENT_FINISHED of a segment that was put up and read back, and retire ``old``; return it, finished and
        durable, or why nothing was finished.

        Raises:
            TiersidecarError: what the swapper or a publish raises.
        """
        await self._reach("proven")
        update = self._update(started, custom_metadata)
        finished = await self._finish(old, started.with_update(update), update, swapper)
        if not isinstance(finished, str):
            await swapper.retire(old, finished)
        return finished

    async def _copy(
        self,
        old: Sequence[RemoteLogSegmentMetadata],
        started: RemoteLogSegmentMetadata,
        new: NewSegment,
        swapper: Swapper,
        encryption: SegmentEncryption | None,
    ) -> RemoteLogSegmentMetadata | str:
        swapper.require()
        await self._metadata.publish(started)
        await self._reach("started")
        custom_metadata = await upload(self._store, started, new, encryption)
        await self._reach("uploaded")
        update = self._update(started, custom_metadata)
        finished = started.with_update(update)
        await read_back(self._store, finished, new, swapper.prover(finished))
        await self._reach("proven")
        return await self._finish(old, finished, update, swapper)

    async def _finish(
        self,
        old: Sequence[RemoteLogSegmentMetadata],
        finished: RemoteLogSegmentMetadata,
        update: RemoteLogSegmentMetadataUpdate,
        swapper: Swapper,
    ) -> RemoteLogSegmentMetadata | str:
        if reason := await swapper.reason_to_leave(old):
            return reason
        await self._reach("finishing")
        until_s = await swapper.until_s()
        if until_s is not None and until_s <= self._clock.monotonic_s():
            return "the look at it was too long ago: others may have begun since"
        swapper.require()
        try:
            await self._metadata.publish(update, until_s=until_s)
        except (IllegalTransitionError, UnknownSegmentError) as error:
            return f"its new segment was taken for dead meanwhile: {error}"
        await self._reach("finished")
        return finished

    def _new_id(self, old: Sequence[RemoteLogSegmentMetadata]) -> RemoteLogSegmentId:
        return RemoteLogSegmentId(topic_id_partition=old[0].topic_id_partition, uuid=self._ids.random_uuid())

    def _later_ms(self, swapper: Swapper) -> int:
        return max(self._clock.now_ms(), swapper.after_ms() + 1)

    def _update(
        self, started: RemoteLogSegmentMetadata, custom_metadata: bytes | None
    ) -> RemoteLogSegmentMetadataUpdate:
        return RemoteLogSegmentMetadataUpdate(
            remote_log_segment_id=started.remote_log_segment_id,
            broker_id=started.broker_id,
            event_timestamp_ms=max(self._clock.now_ms(), started.event_timestamp_ms),
            state=State.COPY_SEGMENT_FINISHED,
            custom_metadata=custom_metadata,
        )

    def _started(
        self,
        segment_id: RemoteLogSegmentId,
        old: Sequence[RemoteLogSegmentMetadata],
        new: NewFacts,
        broker_id: BrokerId,
        event_timestamp_ms: int,
    ) -> RemoteLogSegmentMetadata:
        return RemoteLogSegmentMetadata(
            remote_log_segment_id=segment_id,
            start_offset=new.start_offset,
            end_offset=new.end_offset,
            max_timestamp_ms=new.max_timestamp_ms,
            broker_id=broker_id,
            event_timestamp_ms=event_timestamp_ms,
            segment_size_in_bytes=new.size_bytes,
            segment_leader_epochs=_epochs_of(old),
            txn_index_empty=new.txn_index_empty,
            custom_metadata=self._store.objects.custom_metadata_of_started(old[0].topic_id_partition.topic),
        )

    async def _reach(self, point: str) -> None:
        await self._failpoints.reach(f"{self._place}.{point}")


class SwapTrash:
    """Trash for the swapped segments of one partition: few entries, none of which names too many."""

    def __init__(
        self,
        state: RequestingStateLog,
        view: LeaderView,
        *,
        clock: Clock,
        delays: TrashDelays,
        by: str,
        kind: TrashKind,
    ) -> None:
        self._state, self._view, self._clock = state, view, clock
        self._delays, self._by, self._kind = delays, by, kind
        self._opened_ms, self._named = -1, 0

    async def put(self, old: Sequence[RemoteLogSegmentMetadata]) -> None:
        """Put in ``old``, durably.  The leader's sidecar deletes them when that is due, if others hold their offsets then."""
        for segment in old:
            now_ms = decision_ms(self._clock.now_ms(), self._state.known_leases())
            if self._opened_ms < 0 or self._named == MOST_NAMED:
                self._opened_ms, self._named = max(now_ms, self._opened_ms + 1), 0
            self._named += 1
            entry = replaced(
                [segment],
                LeaderEpoch(max(self._view.leader_epoch, NO_EPOCH)),
                opened_ms=self._opened_ms,
                delays=self._delays,
                now_ms=now_ms,
                by=self._by,
                kind=self._kind,
            )
            await self._state.put_into_trash(self._view.topic_id_partition, [entry])


def _epochs_of(old: Sequence[RemoteLogSegmentMetadata]) -> tuple[EpochEntry, ...]:
    """Return each epoch where it begins first."""
    begins: dict[int, EpochEntry] = {}
    for segment in old:
        for entry in segment.segment_leader_epochs:
            begins.setdefault(entry.epoch, entry)
    return tuple(begins[epoch] for epoch in sorted(begins))
