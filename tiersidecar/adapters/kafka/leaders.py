"""Remember partition leaders and broker addresses from the last Metadata responses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from kio.schema.metadata.v13 import MetadataResponse
from kio.schema.metadata.v13.response import MetadataResponseTopic

from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import NO_EPOCH, LeaderEpoch
from tiersidecar.domain.segments import LeaderView


@dataclass(frozen=True, slots=True, kw_only=True)
class _TopicLeaders:
    topic_id: Uuid
    leaders: Mapping[int, BrokerId]
    epochs: Mapping[int, LeaderEpoch]


class Leaders:
    """A small memory, no authority: the leader epoch in a request decides, and an answer that says otherwise clears it."""

    def __init__(self) -> None:
        self._topics: dict[str, _TopicLeaders] = {}
        self._seen_at_s: dict[str, float] = {}
        self._whole_cluster: tuple[Mapping[BrokerId, str], Mapping[str, _TopicLeaders]] = ({}, {})
        self._addresses: Mapping[BrokerId, str] = {}
        self.digest = b""
        """The digest of the last answer for the whole cluster; empty where none was taken."""

    def learn(
        self, response: MetadataResponse, *, now_s: float, whole_cluster: bool = False, digest: bytes = b""
    ) -> None:
        """Learn from ``response``; with ``whole_cluster`` topics that are not in it are forgotten, and ``digest`` is its."""
        self._addresses = broker_addresses(response)
        if whole_cluster:
            self._topics.clear()
        for topic in response.topics:
            if topic.name is None or topic.topic_id is None:
                continue
            self._topics[topic.name] = _TopicLeaders(
                topic_id=Uuid(topic.topic_id.bytes),
                leaders={row.partition_index: BrokerId(row.leader_id) for row in topic.partitions},
                epochs={row.partition_index: LeaderEpoch(row.leader_epoch) for row in topic.partitions},
            )
            self._seen_at_s[topic.name] = now_s
        if whole_cluster:
            self._whole_cluster, self.digest = (self._addresses, dict(self._topics)), digest

    def learn_again(self, *, now_s: float) -> None:
        """Learn what the last answer for the whole cluster said, that of :attr:`digest`: the broker has said it once more."""
        self._addresses, topics = self._whole_cluster
        self._topics, self._seen_at_s = dict(topics), dict.fromkeys(topics, now_s)

    def forget(self, topics: Iterable[str]) -> None:
        """Forget the topics, so that they are looked up before their next use."""
        for topic in topics:
            self._topics.pop(topic, None)

    def stale(self, topics: Iterable[str], *, now_s: float, max_age_s: float) -> list[str]:
        """Return those of ``topics`` that were last seen more than ``max_age_s`` ago, or never."""
        return [
            topic
            for topic in dict.fromkeys(topics)
            if topic not in self._topics or now_s - self._seen_at_s[topic] >= max_age_s
        ]

    def leader(self, topic_id_partition: TopicIdPartition, leader_epoch: LeaderEpoch = NO_EPOCH) -> BrokerId | str:
        """Return the leader's id, or Kafka's name of the error that prevents an answer: also where ``leader_epoch``, unless it
        is -1, is not the one it leads in."""
        topic = self._topics.get(topic_id_partition.topic)
        if topic is None or topic_id_partition.partition not in topic.leaders:
            return "UNKNOWN_TOPIC_OR_PARTITION"
        if topic.topic_id != topic_id_partition.topic_id:
            return "UNKNOWN_TOPIC_ID"
        if leader_epoch not in (NO_EPOCH, topic.epochs[topic_id_partition.partition]):
            return "FENCED_LEADER_EPOCH"
        leader = topic.leaders[topic_id_partition.partition]
        return leader if leader in self._addresses else "LEADER_NOT_AVAILABLE"

    def address(self, broker_id: BrokerId) -> str | None:
        """Return ``host:port`` of a broker that is alive, on the listener we came through."""
        return self._addresses.get(broker_id)


def broker_addresses(response: MetadataResponse) -> dict[BrokerId, str]:
    """Return ``host:port`` of each broker in ``response``."""
    return {BrokerId(row.node_id): _address(row.host, row.port) for row in response.brokers}


def leader_views(topic: MetadataResponseTopic) -> list[LeaderView]:
    """Return each partition of a topic that exists, ascending; ``leader_id`` is -1 while there is none."""
    if topic.name is None or topic.topic_id is None:
        return []
    topic_id = Uuid(topic.topic_id.bytes)
    return [
        LeaderView(
            topic_id_partition=TopicIdPartition(topic_id=topic_id, topic=topic.name, partition=row.partition_index),
            leader_id=BrokerId(row.leader_id),
            leader_epoch=LeaderEpoch(row.leader_epoch),
            replicas=_same_brokers(row.replica_nodes),
            in_sync_replicas=_same_brokers(row.isr_nodes),
        )
        for row in sorted(topic.partitions, key=lambda row: row.partition_index)
    ]


@lru_cache(4096)
def _same_brokers(nodes: tuple[int, ...]) -> tuple[BrokerId, ...]:
    """Return one object for all partitions that are on the same brokers: they are kept as long as the broker says the same."""
    return tuple(map(BrokerId, nodes))


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
