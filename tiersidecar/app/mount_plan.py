"""Looks through a bucket for what can be mounted: some partitions at once are in memory, and nothing is written."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tiersidecar.adapters.snapshots.cluster_shelf import StoreClusterShelf
from tiersidecar.adapters.snapshots.shelf import SnapshotKeys, list_snapshots, read_latest
from tiersidecar.app.mount_claims import read_lineages, snapshot_of
from tiersidecar.app.mount_file import MountPlan, OpenTransaction
from tiersidecar.app.rare_collections import rare_collections
from tiersidecar.app.reconcile_parts import UNREADABLE_OWNER
from tiersidecar.app.recover_look import segments_of
from tiersidecar.decide.mount import (
    Lineage,
    PartitionEnd,
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
from tiersidecar.decide.recover import LeftSegment, RecoveryView, decide_recovery, wanted_manifests
from tiersidecar.domain.cluster_topics import TopicPartition
from tiersidecar.domain.errors import (
    CorruptDataError,
    DataKeyError,
    KeyRefusedError,
    KeyServiceError,
    MountRefusedError,
    ObjectNotFoundError,
    ObjectTooLargeError,
)
from tiersidecar.domain.ids import TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.own_objects import MOST_OWNER_BYTES
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.cluster_snapshots import ClusterSnapshot
from tiersidecar.ports.partition_snapshots import PartitionSnapshot
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.ports.store import Store
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reconcile.bucket_walk import MANIFESTS_AT_ONCE, BucketPartition, read_manifests, walk_bucket
from tiersidecar.tasks.topic_owners import owner_key, read_topic_owner

_PARTITIONS_AT_ONCE = 16
_NO_CLUSTER = ""

Owner = tuple[str, Uuid]
"""Name and id of a topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the operator asks for.  Empty ``topics`` are all; ``former_cluster_id`` is None if the bucket is to decide,
    ``cluster_snapshot`` None for the latest.  ``at_ms`` is the time whose state is wanted, None for the last one.
    With ``is_read_only`` the cluster lives on, and goes on to own and fill the bucket."""

    brokers: tuple[int, ...]
    topics: tuple[str, ...] = ()
    former_cluster_id: str | None = None
    cluster_snapshot: str | None = None
    replication_factor: int | None = None
    at_ms: int | None = None
    is_read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPartition:
    """What there is of a partition.  ``open_transactions`` are those where its log goes on; ``problem`` is why they are not
    known."""

    owner: TopicIdPartition
    end: PartitionEnd
    snapshot_ms: int | None = None
    open_transactions: tuple[OpenTransaction, ...] = ()
    highest_producer_id: int = -1
    left: tuple[LeftSegment, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The plan, and what it is made of, by topic.  ``shadowed`` are ids of a name that another id has; ``foreign`` are topics
    of other clusters, or of none, by the cluster that the store names, ``refused`` says what cannot be mounted, and why.
    ``doubtful_epochs`` are committed by groups, by topic, and no leader's."""

    plan: MountPlan
    partitions: Mapping[Owner, Sequence[FoundPartition]]
    cluster: ClusterSnapshot | None
    shadowed: Sequence[Owner] = ()
    foreign: Mapping[str, Collection[Owner]] = field(default_factory=dict)
    refused: Sequence[str] = ()
    doubtful_epochs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPlanner:
    """Of what lies under ``key_prefix``.  ``say`` is called with each step that begins, for people."""

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
        for owner, several in list(found.items()):
            if not _is_there(owner, several, cluster):
                refused.add(f"{owner[0]}-{format_uuid(owner[1])}, of which no segment can be mounted")
                del found[owner]
        chosen, shadowed = _one_of_each_name(found, cluster)
        if not chosen:
            raise MountRefusedError(reason=f"the store has nothing of {former or 'any cluster'} that could be mounted")
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
        """The topics with an id that another name has: by its owner object, else by the cluster, else with more segments."""
        by_id: defaultdict[Uuid, list[str]] = defaultdict(list)
        for name, topic_id in found:
            by_id[topic_id].append(name)
        wrong: list[Owner] = []
        for topic_id, names in by_id.items():
            right = await self._owner_name(topic_id) or _likely_name(topic_id, names, found, cluster)
            wrong += [(name, topic_id) for name in names if name != right]
        return wrong

    async def _owner_name(self, topic_id: Uuid) -> str:
        """The name under which the id was claimed; empty if the store does not say."""
        key = owner_key(self.key_prefix, topic_id)
        try:
            return read_topic_owner(await self.store.fetch_object(key, max_bytes=MOST_OWNER_BYTES)).topic
        except (ObjectNotFoundError, ObjectTooLargeError, ValueError):
            return ""

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
            left=recovery.left,
            problems=(*faults, *problem),
        )

    async def _producers(self, last: RemoteLogSegmentMetadata | None) -> tuple[list[OpenTransaction], tuple[str, ...]]:
        """The producers where the log goes on, each with the first offset of its open transaction, -1 without one."""
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
        committed = _committed_epochs(cluster)
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
            open_transactions={} if wanted.is_read_only else _open_by_place(partitions),
            is_read_only=wanted.is_read_only,
        )


async def _key_at(lineage: Lineage, shelf: StoreClusterShelf, at_ms: int) -> str | None:
    """The key of the snapshot that the latest cluster that has any had put by then."""
    for cluster_id in lineage:
        if cluster_id and (key := await shelf.key_at(cluster_id, at_ms)) is not None:
            return key
    return None


def _former_cluster(owners: Collection[Lineage], wanted: Wanted) -> str:
    """The cluster whose data are mounted; empty if no cluster has claimed anything in the store: native tiering does not."""
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
            reason=f"none of the {len(unreadable)} owner objects in the store can be read, so that nobody knows whose its data "
            "are: find out what else writes to the bucket"
        )
    latest = latest_clusters(owners)
    if len(latest) > 1:
        raise MountRefusedError(
            reason=f"the store has data of {len(latest)} clusters ({', '.join(latest)}): name one by --former-cluster"
        )
    return latest[0] if latest else _NO_CLUSTER


def _likely_name(
    topic_id: Uuid,
    names: Sequence[str],
    found: Mapping[Owner, Sequence[FoundPartition]],
    cluster: ClusterSnapshot | None,
) -> str:
    def rank(name: str) -> tuple[bool, int, str]:
        described = None if cluster is None else cluster.topics.get(name)
        segments = sum(one.end.segments for one in found[name, topic_id])
        return described is not None and described.topic_id == topic_id, segments, name

    return max(names, key=rank)


def _is_there(owner: Owner, several: Sequence[FoundPartition], cluster: ClusterSnapshot | None) -> bool:
    described = None if cluster is None else cluster.topics.get(owner[0])
    return any(one.end.is_known for one in several) or (described is not None and described.topic_id == owner[1])


def _one_of_each_name(
    found: Mapping[Owner, Sequence[FoundPartition]], cluster: ClusterSnapshot | None
) -> tuple[list[Owner], list[Owner]]:
    """Of a topic that was made anew under its name: the id that the cluster had last, else the one that was copied last."""
    by_name: defaultdict[str, list[Owner]] = defaultdict(list)
    for owner in found:
        by_name[owner[0]].append(owner)

    def rank(owner: Owner) -> tuple[bool, int, bytes]:
        described = None if cluster is None else cluster.topics.get(owner[0])
        newest = (one.end.last.event_timestamp_ms for one in found[owner] if one.end.last is not None)
        return described is not None and described.topic_id == owner[1], max(newest, default=-1), owner[1]

    chosen = [max(owners, key=rank) for owners in by_name.values()]
    return chosen, sorted(found.keys() - set(chosen))


def _committed_epochs(cluster: ClusterSnapshot | None) -> dict[str, int]:
    found: dict[str, int] = {}
    for commits in () if cluster is None else cluster.groups.values():
        for (topic, _), commit in commits.items():
            found[topic] = max(found.get(topic, -1), commit.leader_epoch)
    return found


def _open_by_place(partitions: Sequence[FoundPartition]) -> dict[TopicPartition, tuple[OpenTransaction, ...]]:
    return {
        (one.owner.topic, one.owner.partition): one.open_transactions for one in partitions if one.open_transactions
    }


def _epochs_in(snapshot: PartitionSnapshot) -> list[int]:
    """Every leader epoch that a snapshot speaks of, but for its segments'."""
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
