"""Recover: makes remote log metadata and state anew from what lies in the store, partition by partition.

The bucket is listed once for the plan, and once more when it is carried out: what is published is decided on what holds then.
One partition at a time is in memory (some, at once), whatever the bucket has.  One recovery or repair acts at a time: it holds
the lease ``repair``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tiersidecar.adapters.blocking import ThreadBlocking
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.snapshots.shelf import SnapshotKeys, list_snapshots, read_latest
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.builders.store import open_store
from tiersidecar.app.commands.session import Session
from tiersidecar.app.held_lease import HeldLease, claimed_lease
from tiersidecar.app.reconcile_parts import read_owner
from tiersidecar.app.recover_report import PartitionPlan, RecoverReport
from tiersidecar.app.repair_run import LEASE
from tiersidecar.decide.recover import (
    Recovery,
    RecoveryView,
    SnapshotSegments,
    StoredObjects,
    decide_recovery,
    events_of,
    recovery_below,
    wanted_manifests,
    waves_of,
)
from tiersidecar.domain.errors import CorruptDataError, MetadataNotReadyError, ObjectNotFoundError
from tiersidecar.domain.ids import TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.segments import MetadataEvent, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.ports.metadata_log import MetadataLog
from tiersidecar.ports.partition_snapshots import PartitionSnapshot, state_with
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.ports.store import Store
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.reading.manifests import recorded_keys
from tiersidecar.reconcile.bucket_walk import MANIFESTS_AT_ONCE, BucketPartition, read_manifests, walk_bucket

_PARTITIONS_AT_ONCE = 8
_EVENTS_AT_ONCE = 256
_READY_TIMEOUT_S = 3600.0
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED

Say = Callable[[str], None]
Act = Callable[[PartitionPlan], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerCluster:
    """Whose topics this cluster has taken over: ``ends``, by topic id and partition, are where their logs went on here;
    ``earlier`` are clusters whose topics that one had taken over."""

    cluster_id: str
    ends: Mapping[tuple[Uuid, int], int]
    earlier: tuple[str, ...] = ()


class Recoverer:
    """Of the ``topics`` named, or of all that the cluster has.  ``say`` is told which step begins, for people.  What was the
    ``former`` cluster's counts as this one's."""

    def __init__(self, session: Session, topics: Sequence[str], say: Say, former: FormerCluster | None = None) -> None:
        self._session, self._topics, self._say, self._former = session, topics, say, former
        self._prefix = session.config.store.key_prefix
        self._manifest_turn = asyncio.Semaphore(MANIFESTS_AT_ONCE)
        self._event_turn = asyncio.Semaphore(_EVENTS_AT_ONCE)

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
        async with self._open_store() as store, claimed_lease(self._session, SystemIds(), LEASE) as lease:
            return await self._go(store, lambda plan: self._publish(plan, lease))

    # -- looking

    async def _go(self, store: Store, act: Act | None) -> RecoverReport:
        self._say("asking the cluster for its topics")
        owners = await self._owners()
        metadata = await self._followed(owners)
        self._say("listing the snapshots")
        snapshots = await list_snapshots(store, self._prefix)
        report = RecoverReport(names_topics=bool(self._topics), mounts=self._former is not None)
        async with ThreadBlocking(max_threads=2) as blocking:
            look = _Look(self._session, metadata, store, snapshots, blocking, self._manifest_turn, self._former)
            partitions = self._partitions(store, owners, report)
            await self._each(partitions, look, report, act)
        return report

    async def _owners(self) -> dict[tuple[Uuid, int], TopicIdPartition]:
        """The partitions of the cluster that may have remote data."""
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
                    await metadata.wait_until_ready(topic_id_partition)
        except TimeoutError:
            raise MetadataNotReadyError(subject=metadata.readiness_reason or "the metadata topic") from None
        return await self._session.follow(list(owners.values()))

    async def _partitions(
        self, store: Store, owners: dict[tuple[Uuid, int], TopicIdPartition], report: RecoverReport
    ) -> AsyncIterator[BucketPartition]:
        """Those of the bucket, and after them those that have no object: a snapshot, perhaps, or events."""
        below = (
            sorted({f"{one.topic}-{format_uuid(one.topic_id)}/" for one in owners.values()}) if self._topics else ("",)
        )
        seen: set[tuple[Uuid, int]] = set()
        segments = 0
        async for found in walk_bucket(store, self._prefix, below):
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
        self, partitions: AsyncIterator[BucketPartition], look: _Look, report: RecoverReport, act: Act | None
    ) -> None:
        """Some partitions at once; the listing waits for them."""
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
        metadata = self._session.metadata
        assert metadata is not None, "recover opens its session with metadata"

        async def publish(events: Iterable[MetadataEvent]) -> None:
            for event in events:
                async with self._event_turn:
                    lease.require()
                    await metadata.publish(event)

        for wave in waves_of(plan.recovery.segments, _EVENTS_AT_ONCE):
            await lease.renew()
            await _together(publish(events_of(segment)) for segment in wave)
        for update in plan.recovery.updates:
            await lease.renew()
            await publish([update])

    async def _publish_state(self, snapshot: PartitionSnapshot, merged: PartitionState, lease: HeldLease) -> None:
        """Pauses first, the start last: whatever ends this half-way, nothing is deleted for want of a record."""
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


class _Look:
    """One pass over the bucket: what it finds of each partition, and what is decided on it."""

    def __init__(
        self,
        session: Session,
        metadata: MetadataLog,
        store: Store,
        snapshots: SnapshotKeys,
        blocking: ThreadBlocking,
        turn: asyncio.Semaphore,
        former: FormerCluster | None,
    ) -> None:
        self._session, self._metadata, self._store, self._snapshots = session, metadata, store, snapshots
        self._former = former
        self._blocking, self._turn = blocking, turn
        self._prefix = session.config.store.key_prefix
        self._recorded = {(one.topic_id, one.partition) for one in session.state.partitions()}
        self._cluster_id = ""
        self._topic_owners: dict[Uuid, str | None] = {}

    async def plan(self, partition: BucketPartition) -> PartitionPlan:
        owner = partition.owner
        if reason := await self._not_ours(owner.topic_id):
            return PartitionPlan(owner=owner, not_ours=reason)
        snapshot, faults = await self._snapshot(owner)
        if snapshot is not None and not self._is_known(snapshot.cluster_id):
            if self._topic_owners[owner.topic_id] is None:
                reason = f"no cluster has claimed it in the store, and its snapshot is of cluster {snapshot.cluster_id}"
                return PartitionPlan(owner=owner, not_ours=reason)
            snapshot = None
        known_state = self._session.state.partition_state(owner)
        state = known_state if snapshot is None else state_with(snapshot.state, known_state)
        known = {
            one.remote_log_segment_id.uuid: one
            for one in await self._blocking.run(self._metadata.picture(owner).segments)
        }
        listed = None if snapshot is None else segments_of(snapshot)
        stored = {**partition.stored, **await self._stored_elsewhere(partition, known, listed)}
        wanted = wanted_manifests(known, listed, partition.stored)
        view = RecoveryView(
            known=known,
            snapshot=listed,
            stored=stored,
            manifests=await read_manifests(self._store, self._prefix, partition, wanted, self._turn),
            start_for=state.start_for,
            absent=await self._absent(known, partition),
        )
        has_record = (owner.topic_id, owner.partition) in self._recorded
        return PartitionPlan(
            owner=owner,
            snapshot=snapshot,
            state=state,
            faults=tuple(faults),
            recovery=self._below_end(owner, decide_recovery(view)),
            restores_state=snapshot is not None and (not has_record or _is_behind(known_state, state)),
            state_contradicts=has_record and _is_behind(known_state, state),
            lacks_state=snapshot is None and not has_record and bool(stored),
        )

    def _is_known(self, cluster_id: str | None) -> bool:
        """Return whether it is this cluster, or one whose topics it has taken over."""
        former = () if self._former is None else (self._former.cluster_id, *self._former.earlier)
        return cluster_id in (self._cluster_id, *former)

    def _below_end(self, owner: TopicIdPartition, recovery: Recovery) -> Recovery:
        end = None if self._former is None else self._former.ends.get((owner.topic_id, owner.partition))
        return recovery if end is None else recovery_below(recovery, end)

    async def _not_ours(self, topic_id: Uuid) -> str:
        if not self._cluster_id:
            self._cluster_id = (await self._session.broker.describe_cluster()).cluster_id
        if topic_id not in self._topic_owners:
            self._topic_owners[topic_id] = await read_owner(self._store, self._prefix, format_uuid(topic_id))
        said = self._topic_owners[topic_id]
        return "" if said is None or self._is_known(said) else f"the store says that its data are cluster {said}'s"

    async def _snapshot(self, owner: TopicIdPartition) -> tuple[PartitionSnapshot | None, list[str]]:
        """The last one, which may be another cluster's, and what is wrong with those after it."""
        place = owner.topic_id, owner.partition
        snapshot, faults = await read_latest(self._store, self._snapshots.get(place, ()), place, self._blocking)
        if snapshot is not None and not (self._is_known(snapshot.cluster_id) and snapshot.topic_id_partition == owner):
            named = snapshot.topic_id_partition.qualified
            faults = [*faults, f"the snapshot of {owner} is of cluster {snapshot.cluster_id}, {named}"]
            return (None if self._is_known(snapshot.cluster_id) else snapshot), faults
        return snapshot, faults

    async def _stored_elsewhere(
        self,
        partition: BucketPartition,
        known: dict[Uuid, RemoteLogSegmentMetadata],
        listed: SnapshotSegments | None,
    ) -> dict[Uuid, StoredObjects]:
        """Objects of the snapshot's segments that were written under a former ``key.prefix``: they are asked for one by one."""
        found: dict[Uuid, StoredObjects] = {}

        async def look(uuid: Uuid, segment: RemoteLogSegmentMetadata) -> None:
            log, indexes, manifest = recorded_keys(segment, self._prefix).in_upload_order
            objects = StoredObjects(
                start_offset=segment.start_offset,
                has_log=await self._exists(log),
                has_indexes=await self._exists(indexes),
                has_manifest=await self._exists(manifest),
            )
            if objects.has_log or objects.has_indexes or objects.has_manifest:
                found[uuid] = objects

        missing = [
            (uuid, segment)
            for uuid, segment in (listed.segments if listed is not None else {}).items()
            if uuid not in partition.stored
            and (uuid not in known or known[uuid].state is RemoteLogSegmentState.COPY_SEGMENT_STARTED)
            and _is_readable(segment)
        ]
        await _together(look(uuid, segment) for uuid, segment in missing)
        return found

    async def _absent(self, known: dict[Uuid, RemoteLogSegmentMetadata], partition: BucketPartition) -> frozenset[Uuid]:
        absent: set[Uuid] = set()

        async def look(uuid: Uuid, segment: RemoteLogSegmentMetadata) -> None:
            if not await self._exists(recorded_keys(segment, self._prefix).manifest):
                absent.add(uuid)

        doubted = [
            (uuid, segment)
            for uuid, segment in known.items()
            if segment.state is _FINISHED and uuid not in partition.stored and _is_readable(segment)
        ]
        await _together(look(uuid, segment) for uuid, segment in doubted)
        return frozenset(absent)

    async def _exists(self, key: str) -> bool:
        async with self._turn:
            try:
                await self._store.head_object(key)
            except ObjectNotFoundError:
                return False
            return True


def segments_of(snapshot: PartitionSnapshot) -> SnapshotSegments:
    """Return what a snapshot says of segments."""
    return SnapshotSegments(
        written_ms=snapshot.written_ms,
        segments={segment.remote_log_segment_id.uuid: segment for segment in snapshot.segments},
        highest_offsets=snapshot.highest_offsets,
    )


def _is_behind(known: PartitionState, merged: PartitionState) -> bool:
    """Whether the state topic's record lets read what was deleted by then, or lets retention delete what an undelete keeps: it
    was written after the topic was lost."""
    return (
        merged.highest_start > known.highest_start
        or set(known.merged_with(merged).user_deletes) != set(known.user_deletes)
        or merged.start_generation > known.start_generation
        or merged.hold != known.hold
    )


def _is_readable(segment: RemoteLogSegmentMetadata) -> bool:
    """Return whether its custom metadata tell where its objects are: those of another plugin do not."""
    try:
        recorded_keys(segment, "")
    except CorruptDataError:
        return False
    return True


async def _together(steps: Iterable[Awaitable[None]]) -> None:
    """All of them; the first error ends the others."""

    async def run(step: Awaitable[None]) -> None:
        await step

    try:
        async with asyncio.TaskGroup() as running:
            for step in steps:
                running.create_task(run(step))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
