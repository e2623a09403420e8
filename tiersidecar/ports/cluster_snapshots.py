"""Snapshots of a cluster's tiered topics in the store: their settings, and the offsets of the consumer groups.

With the snapshots of partitions it is enough to set the topics up in another cluster (``tiersidecar mount``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tiersidecar.domain.cluster_topics import ClusterTopic, Commit, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCommits:
    """Commits of one group, by topic and partition; or Kafka's name of the error that prevented reading them."""

    commits: Mapping[TopicPartition, Commit] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """Topics by name, and the commits of each group on their partitions, at ``written_ms`` by the clock of the sidecar of
    broker ``broker_id``.  ``groups_problem`` says why groups are those of the snapshot before, empty where they are not."""

    cluster_id: str
    written_ms: int
    broker_id: int
    topics: Mapping[str, ClusterTopic]
    groups: Mapping[str, Mapping[TopicPartition, Commit]]
    groups_problem: str = ""


class ReadCommits(Protocol):
    async def commits(self, groups: Collection[str]) -> dict[str, GroupCommits]:
        """Return all that these consumer groups have committed; of one that does not exist, nothing.

        Raises:
            BrokerUnreachableError: no broker returned their coordinators.
        """


class ClusterSnapshotShelf(Protocol):
    """Storage of cluster snapshots."""

    async def latest(self, cluster_id: str) -> ClusterSnapshot | None:
        """Return the latest that can be read; None where there is none.

        Raises:
            StoreError: the store is away.
        """

    async def put(self, snapshot: ClusterSnapshot) -> None:
        """Store it beside the earlier ones, under a later time than theirs.  Of these the last few stay, and some of the last
        hours and days.

        Raises:
            ObjectExistsError: this broker has written one of that moment.
            StoreError: the store is away.
        """
