"""Answers to a sidecar of its broker, and through it of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from tests.simulation.broker_offsets import diverges, epoch_end
from tests.simulation.broker_side import BrokerSide, read_replica
from tests.simulation.cluster import Cluster, SimulatedPartition
from tests.simulation.network import FaultRates, Network
from tests.simulation.topics import SimulatedTopic
from tests.support.topic_settings import with_names
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError, HistoryChangedError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import NO_EPOCH, LeaderEpoch, Offset
from tiersidecar.domain.segments import LeaderView
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.ports.broker import (
    ClusterDescription,
    Credentials,
    EpochAsked,
    EpochEndAnswer,
    GroupAnswer,
    GroupType,
    LocalBatches,
    OffsetAnswer,
    OffsetSpec,
    TrimAnswer,
)

T = TypeVar("T")


class NoGroups:
    """``ports.broker.ReadGroups`` of a cluster without consumer and share groups."""

    async def list_groups(self) -> dict[str, GroupType]:
        return {}

    async def list_share_groups(self) -> tuple[str, ...]:
        return ()

    async def committed_offsets(
        self, groups: Collection[str], partitions: Collection[tuple[str, int]]
    ) -> dict[str, GroupAnswer]:
        return {}

    async def share_start_offsets(
        self, groups: Collection[str], partitions: Collection[tuple[str, int]]
    ) -> dict[str, GroupAnswer]:
        return {}


class SimulatedBroker:
    """``ports.broker.Broker`` of the sidecar beside ``broker_id``.  ``configs`` are those of the user's topics, ``side`` has
    what the broker answers to clients; ``acts`` is reply what is asked of it that cannot be taken back."""

    def __init__(
        self,
        cluster: Cluster,
        topics: dict[str, SimulatedTopic],
        network: Network,
        *,
        broker_id: int,
        side: BrokerSide,
        rates: FaultRates,
        configs: Mapping[str, str],
        new_topic: Callable[[str, int, Mapping[str, str]], SimulatedTopic],
        trimmed: Callable[[SimulatedPartition, int], None] = lambda partition, offset: None,
        acts: Callable[[str], None] = lambda what: None,
    ) -> None:
        self._acts = acts
        self._cluster, self._topics, self._network = cluster, topics, network
        self._broker_id, self._side, self.rates = broker_id, side, rates
        self._configs, self._new_topic, self._trimmed = configs, new_topic, trimmed
        self._said_of_all: tuple[LeaderView, ...] = ()

    @property
    def groups(self) -> NoGroups:
        return NoGroups()

    async def describe_cluster(self) -> ClusterDescription:
        return await self._ask("cluster", self._described)

    async def describe_partitions(self, topics: Sequence[str] | None = None) -> tuple[LeaderView, ...]:
        views = await self._ask("metadata", lambda: self._views(topics))
        if topics is None and views == self._said_of_all:
            return self._said_of_all
        if topics is None:
            self._said_of_all = views
        return views

    async def describe_topic_ids(self, topic_ids: Iterable[Uuid]) -> dict[Uuid, str | None]:
        asked = list(topic_ids)
        known = {topic_id_partition.topic_id for topic_id_partition in self._cluster.partitions}
        return await self._ask(
            "topic ids", lambda: {one: None if one in known else "UNKNOWN_TOPIC_ID" for one in asked}
        )

    async def list_offsets(
        self,
        partitions: Mapping[TopicIdPartition, LeaderEpoch],
        spec: OffsetSpec | int,
        *,
        read_committed: bool = False,
    ) -> dict[TopicIdPartition, OffsetAnswer]:
        asked = dict(partitions)
        return await self._ask(
            "offsets",
            lambda: {
                topic_id_partition: self._offset(topic_id_partition, epoch, spec, read_committed)
                for topic_id_partition, epoch in asked.items()
            },
        )

    async def end_of_epochs(
        self, asked: Mapping[TopicIdPartition, EpochAsked]
    ) -> dict[TopicIdPartition, EpochEndAnswer]:
        questions = dict(asked)
        return await self._ask(
            "epoch ends",
            lambda: {
                topic_id_partition: self._epoch_end(topic_id_partition, question)
                for topic_id_partition, question in questions.items()
            },
        )

    async def delete_records(
        self,
        offsets: Mapping[TopicIdPartition, Offset],
        *,
        leader_epochs: Mapping[TopicIdPartition, LeaderEpoch] | None = None,
    ) -> dict[TopicIdPartition, TrimAnswer]:
        asked, epochs = dict(offsets), dict(leader_epochs or {})
        self._acts(f"trims {asked}")
        return await self._ask(
            "delete records",
            lambda: {
                topic_id_partition: self._delete(topic_id_partition, offset, epochs.get(topic_id_partition, NO_EPOCH))
                for topic_id_partition, offset in asked.items()
            },
        )

    async def describe_topic_configs(
        self, topics: Iterable[str], *, names: Sequence[str] | None = None
    ) -> dict[str, dict[str, str | None]]:
        asked = list(topics)
        return await self._ask(
            "configs", lambda: {topic: with_names(self._configs_of(topic), names) for topic in asked}
        )

    async def describe_broker_configs(self, broker_id: BrokerId) -> dict[str, str | None]:
        return {}

    async def describe_topic_overrides(self, topic: str) -> dict[str, str | None]:
        return await self._ask("overrides", lambda: self._configs_of(topic))

    async def describe_log_sizes(self, topic: str) -> dict[int, int]:
        return {}

    async def alter_topic_configs(self, topic: str, changes: Mapping[str, str | None]) -> None:
        raise BrokerUnreachableError(address="simulated", reason="settings do not change in a simulation")

    async def create_topic(
        self, topic: str, *, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> None:
        def create() -> None:
            if topic not in self._topics:
                self._topics[topic] = self._new_topic(topic, partitions, configs)

        await self._ask("create topic", create)

    # -- as a client reads (``ports.broker.ReadLocal``)

    async def fetch(
        self,
        credentials: Credentials,
        topic_id_partition: TopicIdPartition,
        offset: int,
        *,
        max_bytes: int,
        read_committed: bool = False,
        last_fetched_epoch: LeaderEpoch = NO_EPOCH,
    ) -> LocalBatches:
        return await self._ask(
            "fetch",
            lambda: self._fetched(
                topic_id_partition, offset, max_bytes, last_fetched_epoch, read_committed=read_committed
            ),
        )

    async def find_offset(
        self, credentials: Credentials, topic_id_partition: TopicIdPartition, timestamp_ms: int
    ) -> OffsetAnswer:
        answer = (await self.list_offsets({topic_id_partition: NO_EPOCH}, timestamp_ms))[topic_id_partition]
        if answer.error:
            raise BrokerRefusedError(api="ListOffsets", subject=str(topic_id_partition), error=answer.error)
        return answer

    async def answer(self, place: str, api_key: ApiKey, version: int, body: bytes) -> bytes:
        """Answer a Kafka client behind the gateway; ``place`` names the lots of its network."""
        return await self._ask(place, lambda: self._side.answer(api_key, version, body))

    # -- what the cluster says

    async def _ask(self, what: str, answer: Callable[[], T]) -> T:
        def arrive() -> T:
            if self._broker_id not in self._cluster.alive:
                raise BrokerUnreachableError(address=f"broker {self._broker_id}", reason="connection refused")
            return answer()

        return await self._network.ask(
            what, arrive, lambda reason: BrokerUnreachableError(address="simulated", reason=reason), self.rates
        )

    def _described(self) -> ClusterDescription:
        brokers = {BrokerId(broker): f"broker-{broker}:9092" for broker in sorted(self._cluster.alive)}
        return ClusterDescription(cluster_id=self._cluster.cluster_id, brokers=brokers)

    def _views(self, topics: Sequence[str] | None) -> tuple[LeaderView, ...]:
        everyone = self._cluster.broker_ids()
        views = [
            LeaderView(
                topic_id_partition=topic_id_partition,
                leader_id=BrokerId(-1 if partition.leader is None else partition.leader),
                leader_epoch=LeaderEpoch(partition.epoch),
                replicas=everyone,
                in_sync_replicas=tuple(BrokerId(one) for one in sorted(partition.in_sync)),
            )
            for topic_id_partition, partition in self._cluster.partitions.items()
        ]
        views += [
            LeaderView(
                topic_id_partition=TopicIdPartition(topic_id=topic.topic_id, topic=topic.name, partition=number),
                leader_id=BrokerId(1),
                leader_epoch=LeaderEpoch(0),
                replicas=everyone,
                in_sync_replicas=everyone,
            )
            for topic in self._topics.values()
            for number in range(len(topic.partitions))
        ]
        return tuple(view for view in views if topics is None or view.topic_id_partition.topic in topics)

    def _offset(
        self, topic_id_partition: TopicIdPartition, epoch: int, spec: OffsetSpec | int, read_committed: bool
    ) -> OffsetAnswer:
        topic = self._topics.get(topic_id_partition.topic)
        if topic is not None:
            end = len(topic.partitions[topic_id_partition.partition])
            return _answer(0 if spec == OffsetSpec.EARLIEST else end, 0)
        partition = self._cluster.partitions[topic_id_partition]
        error = self._refusal(partition, epoch)
        if error:
            return OffsetAnswer(offset=Offset(-1), timestamp_ms=-1, leader_epoch=LeaderEpoch(-1), error=error)
        if spec == OffsetSpec.EARLIEST:
            return _answer(partition.leader_log.log_start_offset, partition.epoch)
        end = partition.last_stable_offset() if read_committed else partition.leader_log.high_watermark
        return _answer(end, partition.epoch)

    def _epoch_end(self, topic_id_partition: TopicIdPartition, asked: EpochAsked) -> EpochEndAnswer:
        partition = self._cluster.partitions[topic_id_partition]
        error = self._refusal(partition, asked.current_epoch)
        if error:
            return EpochEndAnswer(epoch=NO_EPOCH, end_offset=Offset(-1), error=error)
        reply = epoch_end(partition.leader_log, asked.epoch)
        return EpochEndAnswer(epoch=LeaderEpoch(reply.leader_epoch), end_offset=Offset(reply.offset))

    def _refusal(self, partition: SimulatedPartition, epoch: int) -> str:
        if partition.leader is None or partition.leader not in self._cluster.alive:
            return "LEADER_NOT_AVAILABLE"
        if epoch < 0 or epoch == partition.epoch:
            return ""
        return "FENCED_LEADER_EPOCH" if epoch < partition.epoch else "UNKNOWN_LEADER_EPOCH"

    def _delete(self, topic_id_partition: TopicIdPartition, offset: int, epoch: LeaderEpoch) -> TrimAnswer:
        """Delete records.  Kafka's DeleteRecords knows no leader epoch: the adapter holds ``epoch`` against Metadata, and asks
        the broker that leads in it alone, which refuses once another leads."""
        partition = self._cluster.partitions[topic_id_partition]
        if epoch not in (NO_EPOCH, partition.epoch):
            return TrimAnswer(low_watermark=Offset(-1), error="FENCED_LEADER_EPOCH")
        if partition.leader is None:
            return TrimAnswer(low_watermark=Offset(-1), error="LEADER_NOT_AVAILABLE")
        if self._configs.get("cleanup.policy") == "compact":
            return TrimAnswer(low_watermark=Offset(-1), error="POLICY_VIOLATION")
        log = partition.leader_log
        if offset > log.high_watermark:
            return TrimAnswer(low_watermark=Offset(-1), error="OFFSET_OUT_OF_RANGE")
        self._trimmed(partition, offset)
        log.raise_log_start(offset)
        return TrimAnswer(low_watermark=Offset(log.log_start_offset))

    def _configs_of(self, topic: str) -> dict[str, str | None]:
        own = self._topics.get(topic)
        return dict(self._configs if own is None else own.configs)

    def _fetched(
        self,
        topic_id_partition: TopicIdPartition,
        offset: int,
        max_bytes: int,
        last_fetched_epoch: int,
        *,
        read_committed: bool,
    ) -> LocalBatches:
        partition = self._cluster.partitions[topic_id_partition]
        log = partition.logs[self._broker_id]
        if diverges(log, last_fetched_epoch, offset) and offset >= log.log_start_offset:
            raise HistoryChangedError(subject=str(topic_id_partition), end_offset=offset)
        return read_replica(partition, self._broker_id, offset, max_bytes, read_committed=read_committed)


def _answer(offset: int, epoch: int) -> OffsetAnswer:
    return OffsetAnswer(offset=Offset(offset), timestamp_ms=-1, leader_epoch=LeaderEpoch(epoch))
