"""The findings of recover for each partition: topics, snapshot, objects and manifests, and the decisions on them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.adapters.snapshots.shelf import SnapshotKeys, read_latest
from tiersidecar.app.at_once import at_once
from tiersidecar.app.commands.session import Session
from tiersidecar.app.reconcile_parts import read_owner, reason_of_another_place
from tiersidecar.app.recover_report import PartitionPlan
from tiersidecar.decide.recover import (
    Recovery,
    RecoveryView,
    SnapshotSegments,
    StoredObjects,
    decide_recovery,
    recovery_below,
    wanted_manifests,
)
from tiersidecar.domain.errors import CorruptDataError, ObjectNotFoundError
from tiersidecar.domain.ids import DEFAULT_PLACE, TopicIdPartition, Uuid, format_uuid, named_place, place_prefix
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.aiven.keys import place_in
from tiersidecar.ports.metadata_log import MetadataLog
from tiersidecar.ports.partition_snapshots import PartitionSnapshot, state_with
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.ports.store import Store
from tiersidecar.reading.remote_objects import recorded_keys
from tiersidecar.reconcile.bucket_walk import MANIFESTS_AT_ONCE, BucketPartition, read_manifests

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerCluster:
    """Whose topics this cluster has taken over: ``ends``, by topic id and partition, are where their logs went on here;
    ``earlier`` are clusters whose topics that one had taken over."""

    cluster_id: str
    ends: Mapping[tuple[Uuid, int], int]
    earlier: tuple[str, ...] = ()


class RecoverLook:
    """One pass over the bucket."""

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
        self._doubts_of_places: dict[tuple[Uuid, str], str] = {}

    async def plan(self, partition: BucketPartition) -> PartitionPlan:
        owner = partition.owner
        if reason := await self._not_ours(owner.topic_id) or await self._not_ours_in_places(partition):
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
        place_of_each = _place_of_each(known, listed)
        partition = _where_expected(partition, place_of_each)
        out_of_reach = {
            uuid: place for uuid, place in place_of_each.items() if place and place not in self._session.config.places
        }
        stored = {**partition.stored, **await self._stored_elsewhere(partition, known, listed, out_of_reach)}
        wanted = wanted_manifests(known, listed, partition.stored)
        view = RecoveryView(
            known=known,
            snapshot=listed,
            stored=stored,
            manifests=await read_manifests(self._store, self._prefix, partition, wanted, self._turn),
            start_for=state.start_for,
            absent=await self._absent(known, partition, out_of_reach),
            out_of_reach=out_of_reach,
        )
        has_record = (owner.topic_id, owner.partition) in self._recorded
        return PartitionPlan(
            owner=owner,
            snapshot=snapshot,
            state=state,
            faults=tuple(faults),
            unknown_places=tuple(
                sorted({*out_of_reach.values(), *state.places_seen} - self._session.config.places.keys())
            ),
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

    async def _not_ours_in_places(self, partition: BucketPartition) -> str:
        """Return why what lies in a place is another cluster's, for several may share one, or another place's."""
        for place in sorted({objects.place for objects in partition.stored.values()}):
            asked = partition.owner.topic_id, place
            if asked not in self._doubts_of_places:
                self._doubts_of_places[asked] = await self._doubt_of_place(place, format_uuid(partition.owner.topic_id))
            if doubt := self._doubts_of_places[asked]:
                return doubt
        return ""

    async def _doubt_of_place(self, place: str, topic_id: str) -> str:
        said = await read_owner(self._store, place_prefix(place) or self._prefix, topic_id)
        if said is not None and not self._is_known(said):
            return f"{named_place(place)} says that its data are cluster {said}'s"
        return await reason_of_another_place(self._store, self._prefix, place, topic_id) if self._is_known(said) else ""

    async def _snapshot(self, owner: TopicIdPartition) -> tuple[PartitionSnapshot | None, list[str]]:
        """Return the last one, which may be another cluster's, and what is wrong with those after it."""
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
        out_of_reach: Mapping[Uuid, str],
    ) -> dict[Uuid, StoredObjects]:
        """Find objects of the snapshot's segments that were written under a former ``key.prefix``, or lie in two places, one by
        one."""
        found: dict[Uuid, StoredObjects] = {}

        async def look(listed: tuple[Uuid, RemoteLogSegmentMetadata]) -> None:
            uuid, segment = listed
            log, indexes, manifest = recorded_keys(segment, self._prefix).in_upload_order
            objects = StoredObjects(
                start_offset=segment.start_offset,
                has_log=await self._exists(log),
                has_indexes=await self._exists(indexes),
                has_manifest=await self._exists(manifest),
                place=place_in(segment.custom_metadata or b""),
            )
            if objects.has_log or objects.has_indexes or objects.has_manifest:
                found[uuid] = objects

        missing = [
            (uuid, segment)
            for uuid, segment in (listed.segments if listed is not None else {}).items()
            if uuid not in partition.stored
            and uuid not in out_of_reach
            and (uuid not in known or known[uuid].state is RemoteLogSegmentState.COPY_SEGMENT_STARTED)
            and self._is_readable(segment)
        ]
        await at_once(look, missing, MANIFESTS_AT_ONCE)
        return found

    async def _absent(
        self,
        known: dict[Uuid, RemoteLogSegmentMetadata],
        partition: BucketPartition,
        out_of_reach: Mapping[Uuid, str],
    ) -> frozenset[Uuid]:
        absent: set[Uuid] = set()

        async def look(doubted: tuple[Uuid, RemoteLogSegmentMetadata]) -> None:
            uuid, segment = doubted
            if not await self._exists(recorded_keys(segment, self._prefix).manifest):
                absent.add(uuid)

        doubted = [
            (uuid, segment)
            for uuid, segment in known.items()
            if segment.state is _FINISHED
            and uuid not in partition.stored
            and uuid not in out_of_reach
            and self._is_readable(segment)
        ]
        await at_once(look, doubted, MANIFESTS_AT_ONCE)
        return frozenset(absent)

    def _is_readable(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether its custom metadata say where its objects are: those of another plugin do not."""
        try:
            recorded_keys(segment, self._prefix)
        except CorruptDataError:
            return False
        return True

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


def places_of(snapshot: PartitionSnapshot) -> tuple[str, ...]:
    """Return the places besides the default one where a snapshot's segments lie, ascending."""
    return tuple(sorted({place_in(one.custom_metadata or b"") for one in snapshot.segments} - {DEFAULT_PLACE}))


def _place_of_each(known: Mapping[Uuid, RemoteLogSegmentMetadata], listed: SnapshotSegments | None) -> dict[Uuid, str]:
    """Return the places of the segments that the topic or the snapshot has, by what both say together: the snapshot of those
    of which the topic has only the beginning."""
    said = {uuid: place_in(one.custom_metadata or b"") for uuid, one in known.items()}
    for uuid, one in ({} if listed is None else listed.segments).items():
        if uuid not in known or known[uuid].state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            said[uuid] = place_in(one.custom_metadata or b"")
    return said


def _where_expected(partition: BucketPartition, place_of_each: Mapping[Uuid, str]) -> BucketPartition:
    """Return the partition without objects that lie in another place than is said of their segment: a copy of a bucket."""
    stored = {
        uuid: objects
        for uuid, objects in partition.stored.items()
        if place_of_each.get(uuid, objects.place) == objects.place
    }
    return replace(partition, stored=stored)


def _is_behind(known: PartitionState, merged: PartitionState) -> bool:
    """Return whether the state topic's record allows reads of what was deleted by then, or retention to delete what an
    undelete keeps: it was written after the topic was lost."""
    return (
        merged.highest_start > known.highest_start
        or set(known.merged_with(merged).user_deletes) != set(known.user_deletes)
        or merged.start_generation > known.start_generation
        or merged.hold != known.hold
    )
