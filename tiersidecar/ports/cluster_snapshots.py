"""What a cluster has of its tiered topics, in the store: how they were made, and where the consumer groups stand.

With the snapshots of partitions it is enough to set the topics up in another cluster (``tiersidecar mount``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tiersidecar.domain.cluster_topics import ClusterTopic, Commit, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCommits:
    """What one group has committed, by topic and partition; or Kafka's name of what kept it from being read."""

    commits: Mapping[TopicPartition, Commit] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """Topics by name, and the commits of each group on their partitions, at ``written_ms`` by the clock of the sidecar of
    broker ``broker_id``.  ``groups_problem`` is why groups are as the snapshot before had them, empty where none is."""

    cluster_id: str
    written_ms: int
    broker_id: int
    topics: Mapping[str, ClusterTopic]
    groups: Mapping[str, Mapping[TopicPartition, Commit]]
    groups_problem: str = ""


class ReadCommits(Protocol):
    async def commits(self, groups: Collection[str]) -> dict[str, GroupCommits]:
        """Everything that these consumer groups have committed; of one that does not exist, nothing.

        Raises:
            BrokerUnreachableError: no broker returned their coordinators.
        """


class ClusterSnapshotShelf(Protocol):
    """Where snapshots of clusters are kept."""

    async def latest(self, cluster_id: str) -> ClusterSnapshot | None:
        """The latest that can be read; None where there is none.

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
