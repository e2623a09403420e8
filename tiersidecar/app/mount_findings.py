"""Findings in a bucket for a mount, and the choice of its topics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tiersidecar.app.mount_file import MountPlan, OpenTransaction
from tiersidecar.decide.deleted_topics import DeletedTopic, DeletionView, deletion_sign
from tiersidecar.decide.mount import PartitionEnd
from tiersidecar.decide.recover import LeftSegment
from tiersidecar.domain.cluster_topics import TopicPartition
from tiersidecar.domain.ids import TopicIdPartition, Uuid, format_uuid
from tiersidecar.ports.cluster_snapshots import ClusterSnapshot
from tiersidecar.tasks.topic_owners import TopicOwner

Owner = tuple[str, Uuid]
"""Name and id of a topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The operator's wishes.  Empty ``topics`` are all; ``former_cluster_id`` is None if the bucket is to decide,
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
    """The findings about a partition.  ``open_transactions`` are those where its log goes on; ``problems`` say what is not
    known.  ``segments`` and ``size`` are of all that is whole, also what is later than the plan's time; ``latest_ms`` is when
    the last of what is known of it was written, ``deleted_ms`` when its topic came into the trash as a deleted one, -1 if it
    is not there; ``places`` besides the default one have segments of it, which a mount does not reach."""

    owner: TopicIdPartition
    end: PartitionEnd
    snapshot_ms: int | None = None
    open_transactions: tuple[OpenTransaction, ...] = ()
    highest_producer_id: int = -1
    segments: int = 0
    size: int = 0
    latest_ms: int = -1
    deleted_ms: int = -1
    left: tuple[LeftSegment, ...] = ()
    problems: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The plan, and what it is made of, by topic.  ``shadowed`` are ids of a name that another id has; ``foreign`` are topics
    of other clusters, or of none, by the cluster that the store names, ``refused`` says what cannot be mounted, and why.
    ``deleted`` were deleted by users, and are left out unless they were asked for by name.  ``doubtful_epochs`` are committed
    by groups, by topic, and no leader's."""

    plan: MountPlan
    partitions: Mapping[Owner, Sequence[FoundPartition]]
    cluster: ClusterSnapshot | None
    shadowed: Sequence[Owner] = ()
    foreign: Mapping[str, Collection[Owner]] = field(default_factory=dict)
    refused: Sequence[str] = ()
    deleted: Sequence[DeletedTopic] = ()
    doubtful_epochs: Mapping[str, int] = field(default_factory=dict)


def likely_name(
    topic_id: Uuid,
    names: Sequence[str],
    found: Mapping[Owner, Sequence[FoundPartition]],
    cluster: ClusterSnapshot | None,
) -> str:
    def rank(name: str) -> tuple[bool, int, str]:
        segments = sum(one.end.segments for one in found[name, topic_id])
        return is_described((name, topic_id), cluster), segments, name

    return max(names, key=rank)


def is_there(owner: Owner, several: Sequence[FoundPartition], cluster: ClusterSnapshot | None) -> bool:
    return any(one.end.is_known for one in several) or is_described(owner, cluster)


def is_described(owner: Owner, cluster: ClusterSnapshot | None) -> bool:
    """Return whether the cluster had the topic, by name and id."""
    described = None if cluster is None else cluster.topics.get(owner[0])
    return described is not None and described.topic_id == owner[1]


def one_of_each_name(
    found: Mapping[Owner, Sequence[FoundPartition]], cluster: ClusterSnapshot | None
) -> tuple[list[Owner], list[Owner]]:
    """Choose one id of a topic that was made anew under its name: the cluster's last one, else the one copied last."""
    by_name: defaultdict[str, list[Owner]] = defaultdict(list)
    for owner in found:
        by_name[owner[0]].append(owner)

    def rank(owner: Owner) -> tuple[bool, int, bytes]:
        newest = (one.end.last.event_timestamp_ms for one in found[owner] if one.end.last is not None)
        return is_described(owner, cluster), max(newest, default=-1), owner[1]

    chosen = [max(owners, key=rank) for owners in by_name.values()]
    return chosen, sorted(found.keys() - set(chosen))


def may_be_deleted(owner: Owner, several: Sequence[FoundPartition], cluster: ClusterSnapshot | None) -> bool:
    """Return whether its owner object is worth a look."""
    return any(one.deleted_ms >= 0 for one in several) or (cluster is not None and not is_described(owner, cluster))


def sign_of_deletion(
    owner: Owner,
    several: Sequence[FoundPartition],
    cluster: ClusterSnapshot | None,
    claim: TopicOwner | None,
    at_ms: int | None,
) -> str:
    """Return what says that users deleted the topic, for people; empty where nothing does.  A cluster that took over some of a
    former one's topics says nothing of the others: only the snapshot of the one that owns a topic counts."""
    speaks = cluster is not None and claim is not None and claim.cluster_id == cluster.cluster_id
    return deletion_sign(
        DeletionView(
            trashed_ms=max((one.deleted_ms for one in several), default=-1),
            latest_ms=max((*(one.latest_ms for one in several), -1 if claim is None else claim.claimed_ms)),
            cluster_ms=cluster.written_ms if cluster is not None and speaks else -1,
            is_listed=is_described(owner, cluster),
            at_ms=at_ms,
        )
    )


def committed_epochs(cluster: ClusterSnapshot | None) -> dict[str, int]:
    found: dict[str, int] = {}
    for commits in () if cluster is None else cluster.groups.values():
        for (topic, _), commit in commits.items():
            found[topic] = max(found.get(topic, -1), commit.leader_epoch)
    return found


def open_by_place(partitions: Sequence[FoundPartition]) -> dict[TopicPartition, tuple[OpenTransaction, ...]]:
    return {
        (one.owner.topic, one.owner.partition): one.open_transactions for one in partitions if one.open_transactions
    }


def without_those_in_places(found: dict[Owner, list[FoundPartition]]) -> set[str]:
    """Take topics with segments in places out of ``found``, and return them with the reason.  A former topic of the same name
    goes with them: it would be mounted instead."""
    places = {
        name: ", ".join(sorted({place for one in several for place in one.places}))
        for (name, _), several in found.items()
        if any(one.places for one in several)
    }
    taken = [owner for owner in found if owner[0] in places]
    for owner in taken:
        del found[owner]
    return {
        f"{name}-{format_uuid(topic_id)}, of whose name a topic has segments in {places[name]}: only section store is looked at"
        for name, topic_id in taken
    }
