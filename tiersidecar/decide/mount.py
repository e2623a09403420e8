"""Plan for setting a lost cluster up again in another one, at the same offsets: its bucket's content in, a plan out.

The topics of the new cluster have the ids of the former ones, so that keys and events name what they named.  A partition's
log begins at N, the end of what was copied; its history stays remote.  Its leader epochs begin above all known ones, so that
history, groups and clients know none from the future.

The owner object of each topic id has the bucket's lineage: a cluster, and those whose data it took over, latest first.  So a
mount that ended after the claim, and is begun anew in a third cluster, still knows what the first one put into the bucket.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

from tiersidecar.decide.topics import INTERNAL_TOPICS
from tiersidecar.domain.cluster_topics import ClusterTopic, Commit, NewPartition, NewTopic, TopicPartition
from tiersidecar.domain.errors import MountRefusedError
from tiersidecar.domain.ids import Uuid, topic_name_fault
from tiersidecar.domain.mounts import MOUNTED_START
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState

EPOCHS_APART = 1000
"""Elections that may have been after the last one that the bucket knows of.  A client that was never stopped takes no metadata
of an earlier epoch than it has seen."""
MOST_LEADER_EPOCH = 2**31 - 1 - 1000 * EPOCHS_APART
"""Epochs of a history that can be mounted: elections come after it, and more mounts."""
FOLLOWED_EPOCHS_APART = 500 * EPOCHS_APART
"""Elections that a source which lives on may have before its leaders' epochs, which clients commit, reach those of a read-only
mount."""
_FIRST_FOLLOWED_MS = 1_767_225_600_000
"""2026-01-01T00:00Z.  Each second since then is one more leader epoch of a read-only mount: a mount that takes the place of an
earlier one begins above it, however often that one has elected, and clients that run on take its metadata."""
_MOST_FOLLOWED_EPOCH = 2**31 - 1 - 400 * EPOCHS_APART
STRICT_CONFIGS = {"retention.bytes": "-1", "retention.ms": "-1"}
"""Retention of a topic whose settings are not known: its broker deletes nothing by itself."""
NATIVE_CONFIGS = frozenset({"remote.storage.enable", "remote.log.copy.disable", "remote.log.delete.on.disable"})
_OF_WRITTEN_LOGS = frozenset({"segment.bytes", "min.insync.replicas"})
_PRODUCER_IDS_APART = 1_000_000
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def mounted_name_fault(name: str) -> str:
    """Return why no topic of this name is mounted, for the operator; empty where it may be."""
    if name in INTERNAL_TOPICS:
        return f"{name} is internal: a cluster makes its own"
    return topic_name_fault(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRemains:
    """The remains of a partition.  ``segments`` are those that come back.  A snapshot adds ``highest_offsets``, by leader
    epoch the highest offset (inclusive) that was ever copied, ``log_start`` (-1: not recorded), and ``leader_epochs``, all that
    it names."""

    segments: Sequence[RemoteLogSegmentMetadata] = ()
    highest_offsets: Mapping[int, int] = field(default_factory=dict)
    log_start: int = -1
    leader_epochs: Collection[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEnd:
    """The point where a partition goes on: ``start`` is the first offset that can be read, ``end`` is N, both -1 and 0 where
    nothing was copied.  ``holes`` are offsets, [from, to), between the two that no segment has."""

    start: int
    end: int
    leader_epoch: int
    segments: int = 0
    last: RemoteLogSegmentMetadata | None = None
    holes: tuple[tuple[int, int], ...] = ()
    cut: int = 0
    """How many offsets behind the end were copied, and are later than what was asked for."""

    @property
    def is_known(self) -> bool:
        """Return whether a segment or a snapshot names the partition: an object alone may be there by mistake."""
        return self.leader_epoch >= 0


def decide_end(remains: PartitionRemains, at_ms: int | None = None) -> PartitionEnd:
    """Return where the partition's log ended, as far as its copies are left; or where it ended at ``at_ms``.

    That is the end of what the highest leader epoch copied: what a deposed leader copied beyond it is no history.  Where all
    was deleted, it is the end of what was ever copied.

    At an earlier time it is before the first offset that only later segments have.  One is earlier if it was copied by then,
    or all its records have timestamps up to then: a copy that was made anew since, by compaction say, counts by its records.
    """
    live = [one for one in remains.segments if one.state is _FINISHED]
    newest = max(live, key=lambda one: (one.segment_leader_epochs[-1].epoch, one.end_offset), default=None)
    deleted = max(remains.highest_offsets.items(), default=(-1, -1))
    last_end = max(deleted[1] + 1 if newest is None else newest.next_offset, remains.log_start)
    end = last_end if at_ms is None else max(_end_at(live, last_end, at_ms), remains.log_start)
    within = [one for one in live if one.start_offset < end]
    newest = newest if end == last_end else _ending_at(within, end)
    start = max(remains.log_start, min(one.start_offset for one in within)) if within else -1
    return PartitionEnd(
        start=start,
        end=end,
        leader_epoch=max(_epochs(remains), default=-1),
        segments=len(within),
        last=newest if newest is not None and newest.next_offset == end else None,
        holes=tuple(_holes(within, start)),
        cut=last_end - end,
    )


def _end_at(live: Sequence[RemoteLogSegmentMetadata], end: int, at_ms: int) -> int:
    """Return the first offset below ``end`` that later segments have, and no earlier one."""
    earlier = [one for one in live if _is_of(one, at_ms)]
    later = [one for one in live if not _is_of(one, at_ms)]
    starts, ends = list[int](), list[int]()  # of the ranges that the earlier ones cover, ascending
    for one in sorted(earlier, key=lambda one: one.start_offset):
        if not ends or one.start_offset > ends[-1]:
            starts.append(one.start_offset)
            ends.append(one.next_offset)
        ends[-1] = max(ends[-1], one.next_offset)
    for one in later:
        place = bisect_right(starts, one.start_offset) - 1
        uncovered = max(one.start_offset, ends[place] if place >= 0 else 0)
        if uncovered < one.next_offset:
            end = min(end, uncovered)
    return end


def _is_of(segment: RemoteLogSegmentMetadata, at_ms: int) -> bool:
    return segment.event_timestamp_ms <= at_ms or 0 <= segment.max_timestamp_ms <= at_ms


def _ending_at(live: Iterable[RemoteLogSegmentMetadata], end: int) -> RemoteLogSegmentMetadata | None:
    found = (one for one in live if one.next_offset == end)
    return max(found, key=lambda one: one.segment_leader_epochs[-1].epoch, default=None)


def _epochs(remains: PartitionRemains) -> Iterator[int]:
    """Yield every leader epoch that any source names."""
    yield from remains.leader_epochs
    yield from remains.highest_offsets
    for segment in remains.segments:
        yield from (int(entry.epoch) for entry in segment.segment_leader_epochs)


def _holes(segments: Iterable[RemoteLogSegmentMetadata], start: int) -> Iterator[tuple[int, int]]:
    reached = start
    for segment in sorted(segments, key=lambda one: one.start_offset):
        if segment.start_offset > reached:
            yield reached, segment.start_offset
        reached = max(reached, segment.next_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRemains:
    """A topic's partitions by number, as far as anything is left of them; ``described`` is its cluster's description in the
    store, None if there is none.  ``committed_epoch`` is the highest that a group has committed on any of its partitions."""

    name: str
    topic_id: Uuid
    ends: Mapping[int, PartitionEnd]
    described: ClusterTopic | None = None
    committed_epoch: int = -1


def decide_topic(remains: TopicRemains, brokers: Sequence[int], replication_factor: int | None = None) -> NewTopic:
    """Return the topic as the new cluster begins with it.

    It has as many partitions as it had, with replicas spread over ``brokers`` as evenly as by ``CreateTopics``, and no more of
    them than there are brokers.  All its partitions get leader epochs above all that any source names.

    Raises:
        MountRefusedError: there are hardly any leader epochs left.
    """
    described, there = remains.described, [number for number, end in remains.ends.items() if end.is_known]
    known = _known_epoch(remains)
    if known > MOST_LEADER_EPOCH:
        raise MountRefusedError(
            reason=f"{remains.name} has the leader epoch {known}, which leaves no room for higher ones: the snapshot or the "
            "manifest that names it is damaged or forged. Move it away, or leave the topic out (--topic)"
        )
    count = max([0, *(number + 1 for number in there), 0 if described is None else len(described.leader_epochs)])
    wanted = replication_factor or (3 if described is None else described.replication_factor)
    leader_epoch = max(known, believed_epoch(remains), 0) + EPOCHS_APART
    configs = STRICT_CONFIGS if described is None else described.configs
    return NewTopic(
        name=remains.name,
        topic_id=remains.topic_id,
        partitions=tuple(
            NewPartition(
                partition=number,
                replicas=_replicas(remains.name, number, brokers, min(wanted, len(brokers))),
                leader_epoch=leader_epoch,
                start_offset=remains.ends[number].end if number in remains.ends else 0,
            )
            for number in range(count)
        ),
        configs=tuple(sorted((key, value) for key, value in configs.items() if key not in NATIVE_CONFIGS)),
    )


def read_only_topic(topic: NewTopic, made_ms: int) -> NewTopic:
    """Return the topic as a cluster begins with it that serves, and never writes, what another one goes on to copy; by a plan
    that is made at ``made_ms``.

    All its replicas are empty and stay so: any of them may lead, and the controller elects one by itself.  Settings of what is
    written are left out; brokers of Kafka 4 do not start with a small ``segment.bytes``.
    """
    configs = {key: value for key, value in topic.configs if key not in _OF_WRITTEN_LOGS}
    return replace(
        topic,
        partitions=tuple(
            replace(one, start_offset=MOUNTED_START, leader_epoch=followed_epoch(one.leader_epoch, made_ms))
            for one in topic.partitions
        ),
        configs=tuple(sorted({**configs, "unclean.leader.election.enable": "true"}.items())),
    )


def followed_epoch(leader_epoch: int, made_ms: int) -> int:
    """Return the first leader epoch of a read-only mount, where one that takes over would have ``leader_epoch``."""
    apart = FOLLOWED_EPOCHS_APART + max(made_ms - _FIRST_FOLLOWED_MS, 0) // 1000
    return min(leader_epoch + apart, _MOST_FOLLOWED_EPOCH)


def believed_epoch(remains: TopicRemains) -> int:
    """Return the highest epoch that groups have committed, as far as it can be one of the cluster: a broker accepts any from a
    client."""
    return min(remains.committed_epoch, max(_known_epoch(remains), 0) + EPOCHS_APART)


def _known_epoch(remains: TopicRemains) -> int:
    """Return the highest epoch that brokers have reported."""
    described = () if remains.described is None else remains.described.leader_epochs
    return max([-1, *described, *(end.leader_epoch for end in remains.ends.values())])


def _replicas(topic: str, number: int, brokers: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the replicas, the same for the same arguments, so that a plan may be made again."""
    first = crc32(topic.encode()) + number
    return tuple(brokers[(first + step) % len(brokers)] for step in range(count))


def next_producer_id(highest: int) -> int:
    """Return the first producer id that the new cluster gives out, ``highest`` being the highest known of the former one, -1
    for none: a producer of the history must not be taken for a new one."""
    return 0 if highest < 0 else highest + _PRODUCER_IDS_APART


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRestore:
    """Offsets committed for a group.  ``ahead`` are commits above the end of what was copied, with that end: they are set back
    to it.  ``there_already`` counts partitions of which the group has a commit in the new cluster, which stays."""

    commits: Mapping[TopicPartition, Commit]
    ahead: Mapping[TopicPartition, tuple[int, int]]
    there_already: int = 0


def decide_group(
    commits: Mapping[TopicPartition, Commit],
    ends: Mapping[TopicPartition, int],
    known: Collection[TopicPartition],
    epochs: Mapping[TopicPartition, int],
) -> GroupRestore:
    """Return what to commit for a group, of which the new cluster has the commits of ``known`` partitions already.  ``epochs``
    are the leader epochs in which the partitions begin there: a client would wait forever for one above, so it is left out.

    Nothing is committed on partitions that are not mounted.  What a group has read beyond N is lost, and other records will
    have those offsets: it goes on at N.
    """
    wanted: dict[TopicPartition, Commit] = {}
    ahead: dict[TopicPartition, tuple[int, int]] = {}
    there_already = 0
    for place, commit in sorted(commits.items()):
        if place not in ends:
            continue
        if place in known:
            there_already += 1
            continue
        if commit.leader_epoch > epochs[place]:
            commit = replace(commit, leader_epoch=-1)
        end = ends[place]
        if commit.offset > end:
            ahead[place] = (commit.offset, end)
            commit = Commit(offset=end, metadata=commit.metadata)
        wanted[place] = commit
    return GroupRestore(commits=wanted, ahead=ahead, there_already=there_already)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPartition:
    """A partition of the new cluster: ``log_start`` and ``log_end`` (exclusive) are -1 where it has no leader."""

    topic_id: Uuid
    leader_epoch: int
    has_leader: bool = True
    log_start: int = -1
    log_end: int = -1


def partition_fault(topic_id: Uuid, planned: NewPartition, seen: SeenPartition | None) -> str:
    """Return why a partition of the new cluster is not the planned one, for the operator; empty where it is."""
    if seen is None:
        return "it does not exist: its controllers were not seeded before their first start"
    if seen.topic_id != topic_id:
        return "it has another topic id: it was created here, not seeded"
    if not seen.has_leader:
        # Only a partition that was never led has all replicas empty: any may be elected.
        was_led = seen.leader_epoch > planned.leader_epoch
        return "it has been led, and has no leader now: start its brokers" if was_led else ""
    if seen.leader_epoch <= planned.leader_epoch:
        return (
            f"its leader epoch is {seen.leader_epoch}, not above {planned.leader_epoch}: it was created by another plan"
        )
    if seen.log_start < planned.start_offset:
        return (
            f"its log begins at {seen.log_start}, not at {planned.start_offset}: its leader was not seeded before its first "
            "start, and records that are written there now would get offsets of the history"
        )
    return ""


Lineage = tuple[str, ...]


def lineage_of(cluster_id: str, known: Iterable[Lineage]) -> Lineage:
    """Return the cluster, and those whose data it took over, by all lineages ``known``."""
    found = [cluster_id]
    for lineage in known:
        if cluster_id in lineage:
            found += [one for one in lineage[lineage.index(cluster_id) + 1 :] if one not in found]
    return tuple(found)


def latest_clusters(known: Collection[Lineage]) -> list[str]:
    """Return the owners whose data no other owner took over, ascending.  Of clusters that took over from each other, all."""
    owners = {lineage[0] for lineage in known}
    former = {one for lineage in known for one in lineage[1:]}
    return sorted(owners - former) or sorted(owners)
