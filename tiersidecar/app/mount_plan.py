"""Looks through a bucket for what can be mounted: some partitions at once are in memory, and nothing is written."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tiersidecar.adapters.snapshots.cluster_shelf import StoreClusterShelf
from tiersidecar.adapters.snapshots.shelf import SnapshotKeys, list_snapshots, read_latest
from tiersidecar.app.at_once import at_once
from tiersidecar.app.mount_claims import owner_at, read_lineages, snapshot_of
from tiersidecar.app.mount_file import MountPlan, OpenTransaction
from tiersidecar.app.mount_findings import (
    Findings,
    FoundPartition,
    Owner,
    Wanted,
    committed_epochs,
    is_there,
    likely_name,
    may_be_deleted,
    one_of_each_name,
    open_by_place,
    sign_of_deletion,
    without_those_in_places,
)
from tiersidecar.app.rare_collections import rare_collections
from tiersidecar.app.reconcile_parts import UNREADABLE_OWNER
from tiersidecar.app.recover_look import places_of, segments_of
from tiersidecar.decide.deleted_topics import DeletedTopic
from tiersidecar.decide.mount import (
    Lineage,
    PartitionRemains,
    TopicRemains,
    believed_epoch,
    decide_end,
    decide_topic,
    latest_clusters,
    lineage_of,
    mounted_name_fault,
    next_producer_id,
    read_only_topic,
)
from tiersidecar.decide.recover import RecoveryView, decide_recovery, wanted_manifests
from tiersidecar.domain.errors import (
    CorruptDataError,
    DataKeyError,
    KeyRefusedError,
    KeyServiceError,
    MountRefusedError,
    ObjectNotFoundError,
)
from tiersidecar.domain.ids import Uuid, format_uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.domain.trash import TrashKind
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.cluster_snapshots import ClusterSnapshot
from tiersidecar.ports.partition_snapshots import PartitionSnapshot
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.ports.store import Store
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reconcile.bucket_walk import MANIFESTS_AT_ONCE, BucketPartition, read_manifests, walk_bucket
from tiersidecar.tasks.topic_owners import owner_key

_PARTITIONS_AT_ONCE = 16
_NO_CLUSTER = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPlanner:
    """Plans the mount of what lies under ``key_prefix``.  ``say`` is called with each step that begins, for people."""

    store: Store
    key_prefix: str
    blobs: IndexBlobReader
    blocking: Blocking
    clock: Clock
    say: Callable[[str], None]

    async def find(self, wanted: Wanted) -> Findings:
        """Look through the bucket.

        Raises:
            MountRefusedError: it is not clear which cluster's data are meant, or there are none; or the snapshot that was named
                is another cluster's.
            CorruptDataError: what was named is no snapshot of a cluster.
            StoreError: the store is away.
        """
        with rare_collections():
            return await self._find(wanted)

    async def _find(self, wanted: Wanted) -> Findings:
        self.say("listing owners and snapshots")
        owners = await read_lineages(self.store, self.key_prefix)
        former = _former_cluster(list(owners.values()), wanted)
        lineage = lineage_of(former, owners.values())
        shelf = StoreClusterShelf(self.store, self.key_prefix, self.blocking)
        key = wanted.cluster_snapshot
        if key is None and wanted.at_ms is not None:
            key = await _key_at(lineage, shelf, wanted.at_ms)
        cluster = await snapshot_of(lineage, shelf, key)
        snapshots = await list_snapshots(self.store, self.key_prefix)
        refused: set[str] = set()
        found, foreign = await self._partitions(wanted, lineage, owners, snapshots, refused)
        for name, topic_id in await self._misnamed(found, cluster):
            refused.add(f"{name}-{format_uuid(topic_id)}, whose id is another topic's")
            del found[name, topic_id]
        refused |= without_those_in_places(found)
        for owner, several in list(found.items()):
            if not is_there(owner, several, cluster):
                refused.add(f"{owner[0]}-{format_uuid(owner[1])}, of which no segment can be mounted")
                del found[owner]
        deleted = await self._without_deleted(found, cluster, wanted)
        chosen, shadowed = one_of_each_name(found, cluster)
        if not chosen:
            but = f"; {deleted[0].text()} (named by --topic, it is mounted)" if deleted else ""
            raise MountRefusedError(
                reason=f"the store has nothing of {former or 'any cluster'} that could be mounted{but}"
            )
        self.say("deciding")
        doubtful: dict[str, int] = {}
        plan = self._plan(wanted, former, {owner: found[owner] for owner in chosen}, cluster, doubtful)
        plan = replace(plan, at_ms=wanted.at_ms, cluster_snapshot=key)
        return Findings(
            plan=plan,
            partitions={owner: found[owner] for owner in chosen},
            cluster=cluster,
            shadowed=shadowed,
            foreign=foreign,
            refused=sorted(refused),
            deleted=deleted,
            doubtful_epochs=doubtful,
        )

    async def _partitions(
        self,
        wanted: Wanted,
        lineage: Lineage,
        owners: Mapping[str, Lineage],
        snapshots: SnapshotKeys,
        refused: set[str],
    ) -> tuple[dict[Owner, list[FoundPartition]], dict[str, set[Owner]]]:
        found: defaultdict[Owner, list[FoundPartition]] = defaultdict(list)
        foreign: defaultdict[str, set[Owner]] = defaultdict(set)
        turn, manifests = asyncio.Semaphore(_PARTITIONS_AT_ONCE), asyncio.Semaphore(MANIFESTS_AT_ONCE)
        segments = 0

        async def look(partition: BucketPartition) -> None:
            try:
                one = await self._look(partition, lineage, snapshots, manifests, wanted.at_ms)
                found[one.owner.topic, one.owner.topic_id].append(one)
            finally:
                turn.release()

        try:
            async with asyncio.TaskGroup() as looking:
                async for partition in self._listed(snapshots):
                    owner = partition.owner
                    if wanted.topics and owner.topic not in wanted.topics:
                        continue
                    if fault := mounted_name_fault(owner.topic):
                        refused.add(fault)
                        continue
                    claimed = owners.get(format_uuid(owner.topic_id), (_NO_CLUSTER,))[0]
                    if claimed not in lineage:
                        foreign[claimed].add((owner.topic, owner.topic_id))
                        continue
                    segments += len(partition.stored)
                    self.say(f"listing the store: {segments:,} segments")
                    await turn.acquire()
                    looking.create_task(look(partition))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        return dict(found), dict(foreign)

    async def _misnamed(
        self, found: Mapping[Owner, Sequence[FoundPartition]], cluster: ClusterSnapshot | None
    ) -> list[Owner]:
        """Return topics whose id belongs to another name: by its owner object, else by the cluster, else with more segments."""
        by_id: defaultdict[Uuid, list[str]] = defaultdict(list)
        for name, topic_id in found:
            by_id[topic_id].append(name)
        wrong: list[Owner] = []
        for topic_id, names in by_id.items():
            right = await self._owner_name(topic_id) or likely_name(topic_id, names, found, cluster)
            wrong += [(name, topic_id) for name in names if name != right]
        return wrong

    async def _owner_name(self, topic_id: Uuid) -> str:
        """Return the name under which the id was claimed; empty if the store does not say."""
        owner = await owner_at(self.store, owner_key(self.key_prefix, topic_id))
        return "" if owner is None else owner.topic

    async def _without_deleted(
        self, found: dict[Owner, list[FoundPartition]], cluster: ClusterSnapshot | None, wanted: Wanted
    ) -> list[DeletedTopic]:
        """Take the topics that users deleted out of ``found``, and return them, by name.  One that is asked for by name stays,
        unless its name has been given to another topic since."""
        doubtful = [owner for owner, several in found.items() if may_be_deleted(owner, several, cluster)]
        keys = [owner_key(self.key_prefix, topic_id) for _, topic_id in doubtful]
        claims = await at_once(partial(owner_at, self.store), keys, _PARTITIONS_AT_ONCE)
        signs = {
            owner: sign
            for owner, claim in zip(doubtful, claims, strict=True)
            if (sign := sign_of_deletion(owner, found[owner], cluster, claim, wanted.at_ms))
        }
        live = {name for name, topic_id in found if (name, topic_id) not in signs}
        deleted: list[DeletedTopic] = []
        for owner, sign in sorted(signs.items()):
            name, topic_id = owner
            is_mounted = name in wanted.topics and name not in live
            deleted.append(
                DeletedTopic(
                    name=name,
                    topic_id=topic_id,
                    sign=sign,
                    segments=sum(one.segments for one in found[owner]),
                    size=sum(one.size for one in found[owner]),
                    is_mounted=is_mounted,
                )
            )
            if not is_mounted:
                del found[owner]
        return deleted

    async def _listed(self, snapshots: SnapshotKeys) -> AsyncIterator[BucketPartition]:
        """Yield partitions that have objects, and after them those that only have a snapshot, whose topics are named by it."""
        seen: set[tuple[Uuid, int]] = set()
        async for partition in walk_bucket(self.store, self.key_prefix):
            seen.add((partition.owner.topic_id, partition.owner.partition))
            yield partition
        for place, keys in snapshots.items():
            if place not in seen:
                snapshot, _ = await read_latest(self.store, keys, place, self.blocking)
                if snapshot is not None:
                    yield BucketPartition(owner=snapshot.topic_id_partition)

    async def _look(
        self,
        partition: BucketPartition,
        lineage: Lineage,
        snapshots: SnapshotKeys,
        turn: asyncio.Semaphore,
        at_ms: int | None,
    ) -> FoundPartition:
        owner = partition.owner
        place = owner.topic_id, owner.partition
        snapshot, faults = await read_latest(self.store, snapshots.get(place, ()), place, self.blocking)
        if snapshot is not None and snapshot.cluster_id not in lineage:
            faults.append(f"its snapshot is of cluster {snapshot.cluster_id}")
            snapshot = None
        state = PartitionState() if snapshot is None else snapshot.state
        listed = None if snapshot is None else segments_of(snapshot)
        wanted = wanted_manifests({}, listed, partition.stored)
        recovery = decide_recovery(
            RecoveryView(
                known={},
                snapshot=listed,
                stored=partition.stored,
                manifests=await read_manifests(self.store, self.key_prefix, partition, wanted, turn),
                start_for=state.start_for,
            )
        )
        # What was only begun is no history: users' deletes of the epochs before it count.
        finished = [one for one in recovery.segments if one.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED]
        newest_epoch = max((one.segment_leader_epochs[-1].epoch for one in finished), default=-1)
        end = decide_end(
            PartitionRemains(
                segments=recovery.segments,
                highest_offsets={} if snapshot is None else snapshot.highest_offsets,
                log_start=int(state.start_for(newest_epoch)),
                leader_epochs=() if snapshot is None else tuple(_epochs_in(snapshot)),
            ),
            at_ms,
        )
        producers, problem = await self._producers(end.last)
        return FoundPartition(
            owner=owner,
            end=end,
            snapshot_ms=None if snapshot is None else snapshot.written_ms,
            open_transactions=tuple(one for one in producers if one.first_offset >= 0),
            highest_producer_id=max((one.producer_id for one in producers), default=-1),
            segments=len(finished),
            size=sum(one.segment_size_in_bytes for one in finished),
            latest_ms=max(
                (*(one.event_timestamp_ms for one in finished), -1 if snapshot is None else snapshot.written_ms)
            ),
            deleted_ms=_deleted_ms(snapshot),
            left=recovery.left,
            problems=(
                *faults,
                *problem,
                *(f"no segment has its offsets {first} to {last}" for first, last in recovery.holes),
            ),
            places=() if snapshot is None else places_of(snapshot),
        )

    async def _producers(self, last: RemoteLogSegmentMetadata | None) -> tuple[list[OpenTransaction], tuple[str, ...]]:
        """Return the producers where the log goes on, each with the first offset of its open transaction, -1 without one."""
        if last is None:
            return [], ()
        try:
            states = await self.blobs.read_producer_snapshot(last)
        except (CorruptDataError, DataKeyError, KeyRefusedError, KeyServiceError, ObjectNotFoundError) as error:
            return [], (f"which transactions are open at its end cannot be read: {error}",)
        return [
            OpenTransaction(
                producer_id=state.producer_id,
                producer_epoch=state.epoch,
                first_offset=state.current_transaction_first_offset,
            )
            for state in states
        ], ()

    def _plan(
        self,
        wanted: Wanted,
        former: str,
        found: Mapping[Owner, Sequence[FoundPartition]],
        cluster: ClusterSnapshot | None,
        doubtful: dict[str, int],
    ) -> MountPlan:
        committed = committed_epochs(cluster)
        partitions = [one for several in found.values() for one in several]
        topics, made_ms = [], self.clock.now_ms()
        for (name, topic_id), several in sorted(found.items()):
            described = None if cluster is None else cluster.topics.get(name)
            remains = TopicRemains(
                name=name,
                topic_id=topic_id,
                ends={one.owner.partition: one.end for one in several},
                described=described if described is not None and described.topic_id == topic_id else None,
                committed_epoch=committed.get(name, -1),
            )
            if believed_epoch(remains) < remains.committed_epoch:
                doubtful[name] = remains.committed_epoch
            topic = decide_topic(remains, wanted.brokers, wanted.replication_factor)
            topics.append(read_only_topic(topic, made_ms) if wanted.is_read_only else topic)
        return MountPlan(
            made_ms=made_ms,
            former_cluster_id=former,
            topics=tuple(topics),
            next_producer_id=next_producer_id(max((one.highest_producer_id for one in partitions), default=-1)),
            open_transactions={} if wanted.is_read_only else open_by_place(partitions),
            is_read_only=wanted.is_read_only,
        )


async def _key_at(lineage: Lineage, shelf: StoreClusterShelf, at_ms: int) -> str | None:
    """Return the key of the snapshot that the latest cluster that has any had put by then."""
    for cluster_id in lineage:
        if cluster_id and (key := await shelf.key_at(cluster_id, at_ms)) is not None:
            return key
    return None


def _former_cluster(owners: Collection[Lineage], wanted: Wanted) -> str:
    """Return the cluster whose data are mounted; empty if none has claimed anything in the store: native tiering does not."""
    unreadable = [owner for owner in owners if owner[0] == UNREADABLE_OWNER]
    owners = [owner for owner in owners if owner[0] != UNREADABLE_OWNER]
    asked, known = wanted.former_cluster_id, sorted({owner[0] for owner in owners})
    if asked is not None:
        if asked and known and asked not in known:
            reason = f"nothing in the store is of cluster {asked}; it has data of {', '.join(known)}"
            raise MountRefusedError(reason=reason)
        return asked
    if unreadable and not owners:
        raise MountRefusedError(
            reason=f"none of the {len(unreadable)} owner objects in the store can be read, so the owner of its data is unknown "
            "are: find out what else writes to the bucket"
        )
    latest = latest_clusters(owners)
    if len(latest) > 1:
        raise MountRefusedError(
            reason=f"the store has data of {len(latest)} clusters ({', '.join(latest)}): name one by --former-cluster"
        )
    return latest[0] if latest else _NO_CLUSTER


def _deleted_ms(snapshot: PartitionSnapshot | None) -> int:
    entries = () if snapshot is None else snapshot.trash
    return max((entry.decided_ms for entry in entries if entry.kind is TrashKind.TOPIC), default=-1)


def _epochs_in(snapshot: PartitionSnapshot) -> list[int]:
    """Return every leader epoch that a snapshot speaks of, but for its segments'."""
    state = snapshot.state
    return [
        snapshot.version.leader_epoch,
        state.remote_log_start_epoch,
        state.trim_epoch,
        state.held_epoch,
        state.accepted_loss_epoch,
        *(entry.epoch for entry in state.leader_epochs),
        *(one.leader_epoch for one in state.earlier_starts),
        *(one.leader_epoch for one in (*state.user_deletes, *state.undone)),
        *(entry.id.leader_epoch for entry in (*snapshot.trash, *state.kept)),
        *(() if state.seen is None else (state.seen.leader_epoch,)),
    ]
