"""Snapshots in the store of how the tiered topics were made and where the consumer groups stand on them, some minutes old at
most.

One sidecar of the cluster does it, the one beside the leader of the metadata topic's partition 0: no setting of its own, and
it moves when that broker dies.  Two that both believe so write objects of their own, and readers take the later one.  Nothing
waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from tiersidecar.decide.cluster_snapshots import has_lost_topics
from tiersidecar.domain.cluster_topics import ClusterTopic, Commit, TopicPartition
from tiersidecar.domain.errors import MetadataNotReadyError, RetriableError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.broker import DescribeOverrides, DescribePartitions, GroupType, ReadGroups
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.cluster_snapshots import ClusterSnapshot, ClusterSnapshotShelf, ReadCommits
from tiersidecar.ports.metrics.process import CLUSTER_SNAPSHOT_AGE, CLUSTER_SNAPSHOTS
from tiersidecar.ports.telemetry import Telemetry

log = structlog.get_logger(__name__)

_GROUPS_AT_ONCE = 50
"""Groups whose commits are asked for, or compared, together; between two goes other work has the loop."""
_MOST_NAMED = 5

Commits = Mapping[str, Mapping[TopicPartition, Commit]]


class CommitsAndGroups(ReadGroups, ReadCommits, Protocol):
    """Lists groups, and reads what they have committed."""


class AskedBroker(DescribePartitions, DescribeOverrides, Protocol):
    """Questions to the cluster about its topics."""


class TieredPartitions(Protocol):
    def partitions(self) -> Collection[TopicIdPartition]:
        """Return all partitions of the cluster that ever were tiered, as the state topic has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLook:
    """Takes a snapshot of a cluster."""

    broker: AskedBroker
    groups: CommitsAndGroups
    state: TieredPartitions
    clock: Clock
    cluster_id: str
    broker_id: BrokerId

    async def take(self, before: ClusterSnapshot | None) -> ClusterSnapshot:
        """Return what holds now.  Commits of groups whose coordinator does not answer are those of the snapshot ``before``.

        Raises:
            MetadataNotReadyError: the state topic has not been read.
            BrokerRefusedError, BrokerUnreachableError: the topics cannot be looked at.
        """
        topics = await self._topics()
        known: Commits = {} if before is None else before.groups
        groups, problem = await self._groups(topics, known) if topics else ({}, "")
        return ClusterSnapshot(
            cluster_id=self.cluster_id,
            written_ms=self.clock.now_ms(),
            broker_id=self.broker_id,
            topics=topics,
            groups=groups,
            groups_problem=problem,
        )

    async def _topics(self) -> dict[str, ClusterTopic]:
        """Return those that exist: a topic that was made anew under its name has another id."""
        tiered = {(one.topic, one.topic_id) for one in self.state.partitions()}
        views = await self.broker.describe_partitions(sorted({name for name, _ in tiered})) if tiered else ()
        by_topic: dict[str, list[LeaderView]] = {}
        for view in views:
            owner = view.topic_id_partition
            if (owner.topic, owner.topic_id) in tiered:
                by_topic.setdefault(owner.topic, []).append(view)
        return {name: await self._topic(name, found) for name, found in sorted(by_topic.items())}

    async def _topic(self, name: str, views: Iterable[LeaderView]) -> ClusterTopic:
        ordered = sorted(views, key=lambda view: view.topic_id_partition.partition)
        overrides = await self.broker.describe_topic_overrides(name)
        return ClusterTopic(
            topic_id=ordered[0].topic_id_partition.topic_id,
            replication_factor=max(len(view.replicas) for view in ordered),
            leader_epochs=tuple(int(view.leader_epoch) for view in ordered),
            configs={key: value for key, value in sorted(overrides.items()) if value is not None},
        )

    async def _groups(self, topics: Mapping[str, ClusterTopic], known: Commits) -> tuple[Commits, str]:
        try:
            listed = await self.groups.list_groups()
            names = sorted(group for group, kind in listed.items() if kind is GroupType.CONSUMER)
            found: dict[str, Mapping[TopicPartition, Commit]] = {}
            unanswered: dict[str, str] = {}
            for start in range(0, len(names), _GROUPS_AT_ONCE):
                answers = await self.groups.commits(names[start : start + _GROUPS_AT_ONCE])
                for group, answer in answers.items():
                    if answer.error:
                        unanswered[group] = answer.error
                        found[group] = known.get(group, {})
                    else:
                        found[group] = {place: one for place, one in answer.commits.items() if place[0] in topics}
                await asyncio.sleep(0)
        except RetriableError as error:
            return known, str(error)
        problem = "; ".join(f"{group}: {error}" for group, error in sorted(unanswered.items())[:_MOST_NAMED])
        return {group: commits for group, commits in found.items() if commits}, problem


@dataclass(slots=True, kw_only=True)
class _Standing:
    """The snapshot that counts, as this process knows it; ``looked_s`` is when it last matched the cluster, on the monotonic
    clock."""

    last: ClusterSnapshot | None = None
    is_known: bool = False
    looked_s: float | None = None
    problem: str = ""
    has_said_gone: bool = False


@dataclass(slots=True, kw_only=True)
class ClusterSnapshotLane:
    """``rests`` is why nothing is to be looked at, empty else; ``metadata_topic`` is the topic whose partition 0 decides which
    sidecar writes.  ``turns`` is how often this process has lost the role to another one, which may have written then."""

    taker: ClusterLook
    shelf: ClusterSnapshotShelf
    telemetry: Telemetry
    rests: Callable[[], str]
    metadata_topic: str
    interval_s: float
    turns: Callable[[], int] = lambda: 0
    _turn: int = field(init=False, default=0)
    _standing: _Standing = field(init=False, default_factory=_Standing)

    def __post_init__(self) -> None:
        for outcome in ("written", "failed"):  # a series that begins with its first event shows no increase
            self.telemetry.count(CLUSTER_SNAPSHOTS, 0, outcome=outcome)

    async def run(self) -> None:
        """Look, until cancelled.  A fault of a look ends nothing but the look: this process also copies."""
        while True:
            await self.taker.clock.sleep(self.interval_s)
            try:
                await self.look()
            except Exception as error:
                self.telemetry.count(CLUSTER_SNAPSHOTS, outcome="failed")
                log.exception("cluster_snapshot.look.failed", reason=str(error) or repr(error))

    async def look(self) -> None:
        """Put a snapshot where something has changed, if it is this sidecar's turn."""
        try:
            if self.rests() or not await self._is_ours():
                self._standing = _Standing()
                self.telemetry.gauge(CLUSTER_SNAPSHOT_AGE, 0)
                return
            if self._turn != self.turns():
                self._turn, self._standing = self.turns(), _Standing()
            await self._put_if_changed()
        except MetadataNotReadyError:
            return
        except RetriableError as error:
            self.telemetry.count(CLUSTER_SNAPSHOTS, outcome="failed")
            log.warning("cluster_snapshot.failed", reason=str(error))
        self._report_age()

    async def _is_ours(self) -> bool:
        views = await self.taker.broker.describe_partitions([self.metadata_topic])
        return any(view.topic_id_partition.partition == 0 and view.leader_id == self.taker.broker_id for view in views)

    async def _put_if_changed(self) -> None:
        standing = self._standing
        if not standing.is_known:
            standing.last, standing.is_known = await self.shelf.latest(self.taker.cluster_id), True
            standing.looked_s = self.taker.clock.monotonic_s()
        now = await self.taker.take(standing.last)
        if now.groups_problem and now.groups_problem != standing.problem:
            log.warning("cluster_snapshot.groups.unknown", reason=now.groups_problem)
        standing.problem = now.groups_problem
        if standing.last is not None and has_lost_topics(standing.last.topics, now.topics):
            self._say_topics_gone(standing.last)
        elif bool(now.topics) if standing.last is None else await _has_changed(standing.last, now):
            await self._put(now)
        if now.topics:
            standing.has_said_gone = False
        if not now.groups_problem:
            standing.looked_s = self.taker.clock.monotonic_s()

    def _say_topics_gone(self, last: ClusterSnapshot) -> None:
        if not self._standing.has_said_gone:
            self._standing.has_said_gone = True
            log.warning("cluster_snapshot.topics.gone", topics=len(last.topics), groups=len(last.groups))

    async def _put(self, now: ClusterSnapshot) -> None:
        await self.shelf.put(now)
        self._standing.last = now
        self.telemetry.count(CLUSTER_SNAPSHOTS, outcome="written")
        log.debug("cluster_snapshot.written", topics=len(now.topics), groups=len(now.groups))

    def _report_age(self) -> None:
        looked_s = self._standing.looked_s
        if looked_s is not None:
            self.telemetry.gauge(CLUSTER_SNAPSHOT_AGE, max(0.0, self.taker.clock.monotonic_s() - looked_s))


async def _has_changed(last: ClusterSnapshot, now: ClusterSnapshot) -> bool:
    """Return whether anything but time and writer differs.  Of many groups, some are compared before other work has the
    loop."""
    if (last.topics, last.groups_problem, last.groups.keys()) != (now.topics, now.groups_problem, now.groups.keys()):
        return True
    for number, (group, commits) in enumerate(now.groups.items(), 1):
        if last.groups[group] != commits:
            return True
        if number % _GROUPS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return False
