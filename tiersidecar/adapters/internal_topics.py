"""Topics that the sidecars themselves keep: made when missing, and checked for settings that could lose events.

``__remote_log_metadata`` and ``__tiersidecar_state`` say which data may be deleted, so weak settings on one of them stop
every delete (docs/design/0002).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tiersidecar.domain.errors import BrokerRefusedError, PartitionCountError, WrongSourceError
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.broker import (
    ClusterDescription,
    CreateTopics,
    DescribeCluster,
    DescribeConfigs,
    DescribePartitions,
    ListOffsets,
)


class TopicBroker(DescribeCluster, DescribePartitions, DescribeConfigs, ListOffsets, CreateTopics, Protocol):
    """The parts of the broker that keeping a topic needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopic:
    """A topic as it must be.  ``settings`` are created with it and must hold exactly; ``min_insync_replicas`` and
    ``replication_factor`` must hold at least."""

    name: str
    partitions: int
    replication_factor: int
    min_insync_replicas: int
    settings: Mapping[str, str]

    @property
    def all_settings(self) -> dict[str, str]:
        """Return what it is created with."""
        return {**self.settings, "min.insync.replicas": str(self.min_insync_replicas)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """The topic as it is.  ``weaknesses`` has one sentence per setting that is weaker than it must be."""

    cluster_id: str
    topic_id: Uuid
    leader_epochs: Mapping[int, int]
    weaknesses: tuple[str, ...] = field(default=())


async def ensure_topic(broker: TopicBroker, topic: InternalTopic, *, may_create: bool = True) -> TopicFacts:
    """Create ``topic`` unless it is there, and say how it is.

    A replication factor that too few brokers are there for is never lowered: the refusal is retriable.

    Raises:
        PartitionCountError: it has another number of partitions than configured (S-103).
        BrokerRefusedError: it cannot be made, or is missing although ``may_create`` is false.
        BrokerUnreachableError: the broker does not answer.
    """
    cluster = await broker.describe_cluster()
    views = await broker.describe_partitions([topic.name])
    if not views:
        if not may_create:
            raise BrokerRefusedError(api="Metadata", subject=f"topic {topic.name}", error="UNKNOWN_TOPIC_OR_PARTITION")
        await broker.create_topic(
            topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            configs=topic.all_settings,
        )
        views = await broker.describe_partitions([topic.name])
    settings = (await broker.describe_topic_configs([topic.name], names=tuple(topic.all_settings))).get(topic.name)
    if not views or settings is None:  # just created: this broker has not heard of it yet
        raise BrokerRefusedError(api="Metadata", subject=f"topic {topic.name}", error="LEADER_NOT_AVAILABLE")
    if len(views) != topic.partitions:
        raise PartitionCountError(topic=topic.name, actual=len(views), configured=topic.partitions)
    return TopicFacts(
        cluster_id=cluster.cluster_id,
        topic_id=views[0].topic_id_partition.topic_id,
        leader_epochs=leader_epochs(views),
        weaknesses=tuple(_weaknesses(topic, views, settings)),
    )


def leader_epochs(views: tuple[LeaderView, ...]) -> dict[int, int]:
    """Return the leader epoch by partition."""
    return {view.topic_id_partition.partition: view.leader_epoch for view in views}


def _weaknesses(
    topic: InternalTopic, views: tuple[LeaderView, ...], settings: Mapping[str, str | None]
) -> Iterator[str]:
    replicas = min(len(view.replicas) for view in views)
    if replicas < topic.replication_factor:
        yield f"{topic.name} has {replicas} replicas, {topic.replication_factor} are configured"
    in_sync = int(settings.get("min.insync.replicas") or 1)
    if in_sync < topic.min_insync_replicas:
        yield f"{topic.name} has min.insync.replicas {in_sync}, {topic.min_insync_replicas} are configured"
    for name, expected in topic.settings.items():
        actual = settings.get(name)
        if actual != expected:
            yield f"{topic.name} has {name} {actual}, it must be {expected}"


class OthersTopics:
    """A :class:`TopicBroker` of a cluster whose topics are only read: none is made there, and one that is missing is waited
    for.

    Each session, and each look at a topic within it, asks for the cluster first: of one that is not ``cluster_id`` nothing is
    believed, and what was known stays.  Empty is any.
    """

    def __init__(self, broker: TopicBroker, cluster_id: str) -> None:
        self._describe_cluster, self._cluster_id, self._wrong = broker.describe_cluster, cluster_id, ""
        self.describe_partitions = broker.describe_partitions
        self.describe_topic_configs = broker.describe_topic_configs
        self.describe_broker_configs = broker.describe_broker_configs
        self.list_offsets = broker.list_offsets

    def reason_not_ready(self) -> str:
        """Return which cluster it was when it was asked last, if that was another; else nothing."""
        return self._wrong

    async def describe_cluster(self) -> ClusterDescription:
        """Describe the cluster (see the port).

        Raises:
            WrongSourceError: it is another cluster.
        """
        described = await self._describe_cluster()
        self._wrong = ""
        if self._cluster_id and described.cluster_id != self._cluster_id:
            error = WrongSourceError(actual=described.cluster_id, planned=self._cluster_id)
            self._wrong = str(error)
            raise error
        return described

    async def create_topic(
        self, topic: str, *, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> None:
        """
        Raises:
            BrokerRefusedError: in every case.
        """
        raise BrokerRefusedError(api="Metadata", subject=f"topic {topic}", error="UNKNOWN_TOPIC_OR_PARTITION")
