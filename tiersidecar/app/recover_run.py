"""Recover: makes remote log metadata and state anew from what lies in the store, partition by partition.

The bucket is listed once for the plan, and once more when it is carried out: what is published is decided on what holds then.
One partition at a time is in memory (some, at once), whatever the bucket has.  One recovery or repair acts at a time: it holds
the lease ``repair``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from tiersidecar.adapters.clock import SystemIds, ThreadBlocking
from tiersidecar.adapters.snapshots.shelf import list_snapshots
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.builders.store import open_store
from tiersidecar.app.commands.session import Session
from tiersidecar.app.held_lease import HeldLease, claimed_lease, kept_renewed
from tiersidecar.app.rare_collections import rare_collections
from tiersidecar.app.recover_look import FormerCluster, RecoverLook
from tiersidecar.app.recover_report import PartitionPlan, RecoverReport
from tiersidecar.app.repair_run import LEASE
from tiersidecar.decide.recover import events_of, in_order_of_events
from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, SegmentEvent
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.aiven.keys import CustomMetadata, place_in, write_custom_metadata
from tiersidecar.ports.metadata_log import MetadataLog
from tiersidecar.ports.partition_snapshots import PartitionSnapshot
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.ports.store import Store
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.reconcile.bucket_walk import MANIFESTS_AT_ONCE, BucketPartition, walk_places

_PARTITIONS_AT_ONCE = 8
_SEGMENTS_AT_ONCE = 500
_READY_TIMEOUT_S = 3600.0
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED

T = TypeVar("T")
Say = Callable[[str], None]
Act = Callable[[PartitionPlan], Awaitable[None]]


class Recoverer:
    """Recovers the ``topics`` named, or all that the cluster has, from what lies in all places.  ``say`` gets a line for each
    step, for people.  Data of the ``former`` cluster counts as this one's.
    """

    def __init__(self, session: Session, topics: Sequence[str], say: Say, former: FormerCluster | None = None) -> None:
        self._session, self._topics, self._say, self._former = session, topics, say, former
        self._prefix = session.config.store.key_prefix
        self._manifest_turn = asyncio.Semaphore(MANIFESTS_AT_ONCE)

    async def plan(self) -> RecoverReport:
        """Return what there is to do; changes nothing.

        Raises:
            StoreError: the store is away.
            MetadataNotReadyError: the metadata topic could not be replayed.
            BrokerRefusedError: there is no topic of a name.
        """
        async with self._open_store() as store:
            return await self._go(store, None)

    async def apply(self) -> RecoverReport:
        """Decide again, and do it: of each partition what the state topic said first, so that nothing is readable or deleted
        that must not be.  It may be done again after a failure: what is there already is left.

        Raises:
            LeaseHeldError: another recovery or repair acts.
            TiersidecarError: the first that stands in the way.
        """
        async with (
            self._open_store() as store,
            claimed_lease(self._session, SystemIds(), LEASE, self._say) as lease,
            kept_renewed(lease, self._session.clock),
        ):
            return await self._go(store, lambda plan: self._publish(plan, lease))

    # -- looking

    async def _go(self, store: Store, act: Act | None) -> RecoverReport:
        self._say("asking the cluster for its topics")
        owners = await self._owners()
        metadata = await self._followed(owners)
        self._say("listing the snapshots")
        snapshots = await list_snapshots(store, self._prefix)
        report = RecoverReport(names_topics=bool(self._topics), mounts=self._former is not None)
        with rare_collections():
            async with ThreadBlocking(max_threads=2) as blocking:
                look = RecoverLook(
                    self._session, metadata, store, snapshots, blocking, self._manifest_turn, self._former
                )
                partitions = self._partitions(store, owners, report)
                await self._each(partitions, look, report, act)
        return report

    async def _owners(self) -> dict[tuple[Uuid, int], TopicIdPartition]:
        """Return the partitions of the cluster that may have remote data."""
        if self._topics:
            views = [view for topic in self._topics for view in await self._session.partitions(topic)]
        else:
            internal = self._session.config.internal_topics
            described = await self._session.broker.describe_partitions()
            views = [view for view in described if view.topic_id_partition.topic not in internal]
        return {(one.topic_id, one.partition): one for one in (view.topic_id_partition for view in views)}

    async def _followed(self, owners: dict[tuple[Uuid, int], TopicIdPartition]) -> MetadataLog:
        metadata = self._session.metadata
        assert metadata is not None, "recover opens its session with metadata"
        self._say("reading what the metadata topic has")
        await metadata.assign(owners.values())
        try:
            async with asyncio.timeout(_READY_TIMEOUT_S):
                for topic_id_partition in owners.values():
                    await self._session.unless_refused(metadata.wait_until_ready(topic_id_partition))
        except TimeoutError:
            raise MetadataNotReadyError(subject=metadata.readiness_reason or "the metadata topic") from None
        return await self._session.follow(list(owners.values()))

    async def _partitions(
        self, store: Store, owners: dict[tuple[Uuid, int], TopicIdPartition], report: RecoverReport
    ) -> AsyncIterator[BucketPartition]:
        """Yield those of the bucket, and after them those that have no object: a snapshot, perhaps, or events."""
        below = (
            sorted({f"{one.topic}-{format_uuid(one.topic_id)}/" for one in owners.values()}) if self._topics else ("",)
        )
        seen: set[tuple[Uuid, int]] = set()
        segments = 0
        async for found in walk_places(store, self._prefix, self._session.config.places, below):
            segments += len(found.stored)
            self._say(f"listing the store: {segments:,} segments, {len(seen):,} partitions")
            place = found.owner.topic_id, found.owner.partition
            if place not in owners:
                report.take_unknown(found.owner, len(found.stored))
            elif owners[place] != found.owner:
                report.take_unknown(
                    found.owner, len(found.stored)
                )  # another name before the same id: not Kafka's doing
            else:
                seen.add(place)
                yield found
        for place, owner in owners.items():
            if place not in seen:
                yield BucketPartition(owner=owner)

    async def _each(
        self, partitions: AsyncIterator[BucketPartition], look: RecoverLook, report: RecoverReport, act: Act | None
    ) -> None:
        """Recover some partitions at once; the listing waits for them."""
        ready: asyncio.Queue[BucketPartition | None] = asyncio.Queue(_PARTITIONS_AT_ONCE)

        async def take_them() -> None:
            while (partition := await ready.get()) is not None:
                plan = await look.plan(partition)
                if act is not None:
                    await act(plan)
                report.take(plan)

        async def hand_out() -> None:
            async for partition in partitions:
                await ready.put(partition)
            for _ in range(_PARTITIONS_AT_ONCE):
                await ready.put(None)

        try:
            async with asyncio.TaskGroup() as working:
                working.create_task(hand_out())
                for _ in range(_PARTITIONS_AT_ONCE):
                    working.create_task(take_them())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    # -- doing

    async def _publish(self, plan: PartitionPlan, lease: HeldLease) -> None:
        if plan.snapshot is not None and plan.restores_state:
            await self._publish_state(plan.snapshot, plan.state, lease)
        for segments in _parts_of(in_order_of_events(plan.recovery.segments)):
            events = [event for segment in segments for event in events_of(segment, _place_alone(segment))]
            await self._publish_events(events, lease)
        for updates in _parts_of(plan.recovery.updates):
            await self._publish_events(updates, lease)

    async def _publish_events(self, events: Sequence[SegmentEvent], lease: HeldLease) -> None:
        metadata = self._session.metadata
        assert metadata is not None, "recover opens its session with metadata"
        await lease.renew()
        lease.require()
        await metadata.publish_all(events, until_s=lease.until_s)

    async def _publish_state(self, snapshot: PartitionSnapshot, merged: PartitionState, lease: HeldLease) -> None:
        """Publish pauses first, the start last: whatever ends this half-way, nothing is deleted for want of a record."""
        state, owner = self._session.state, snapshot.topic_id_partition
        await lease.renew()
        lease.require()
        known = {one.thing for one in state.pauses()}
        for pause in snapshot.pauses:
            if pause.thing not in known:
                await state.publish_pause(pause)
        if snapshot.topic_state is not None and state.topic_state(owner.topic_id) is None:
            await state.publish_topic_state(owner.topic_id, snapshot.topic_state)
        await state.put_into_trash(owner, snapshot.trash)
        lease.require()
        await state.publish_partition_state(owner, merged)

    @asynccontextmanager
    async def _open_store(self) -> AsyncIterator[Store]:
        clock = self._session.clock
        async with open_store(
            self._session.config, pace=UploadPace(None, clock), clock=clock, ids=SystemIds(), telemetry=NoTelemetry()
        ) as store:
            yield store


def _place_alone(segment: RemoteLogSegmentMetadata) -> bytes | None:
    """Return custom metadata that name the segment's place and nothing besides; None for the default place."""
    return write_custom_metadata(CustomMetadata(place=place_in(segment.custom_metadata or b""))) or None


def _parts_of(several: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield what is published between two looks at the lease: some tens of milliseconds' work."""
    for start in range(0, len(several), _SEGMENTS_AT_ONCE):
        yield several[start : start + _SEGMENTS_AT_ONCE]
