"""Making and checking the topics that the sidecars keep (S-086, S-103, S-104)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest

from tiersidecar.adapters.internal_topics import OthersTopics, ensure_topic
from tiersidecar.adapters.metadata_topic.settings import MetadataTopicSettings
from tiersidecar.adapters.state_topic.settings import StateTopicSettings
from tiersidecar.domain.errors import BrokerRefusedError, PartitionCountError, WrongSourceError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.broker import ClusterDescription, OffsetAnswer, OffsetSpec

TOPIC = MetadataTopicSettings(bootstrap_servers="broker:9092").required_topic
GOOD = {**TOPIC.all_settings, "segment.bytes": "1073741824"}


class OneTopicBroker:
    """A broker that has, or gets, one topic."""

    def __init__(self, *, partitions: int = 0, replicas: int = 3, settings: Mapping[str, str | None] = GOOD) -> None:
        self.partitions, self.replicas, self.settings = partitions, replicas, dict(settings)
        self.created: list[tuple[str, int, int, Mapping[str, str]]] = []
        self.asked_for: list[Sequence[str] | None] = []
        self.knows_at_once, self.cluster_id = True, "cluster"

    async def describe_cluster(self) -> ClusterDescription:
        return ClusterDescription(cluster_id=self.cluster_id, brokers={})

    async def describe_partitions(self, topics: Sequence[str] | None = None) -> tuple[LeaderView, ...]:
        assert topics is not None
        return tuple(
            LeaderView(
                topic_id_partition=TopicIdPartition(topic_id=Uuid(bytes(16)), topic=topics[0], partition=number),
                leader_id=BrokerId(1),
                leader_epoch=LeaderEpoch(number),
                replicas=tuple(BrokerId(n) for n in range(self.replicas)),
                in_sync_replicas=(BrokerId(1),),
            )
            for number in range(self.partitions)
        )

    async def describe_topic_configs(
        self, topics: Iterable[str], *, names: Sequence[str] | None = None
    ) -> dict[str, dict[str, str | None]]:
        self.asked_for.append(names)
        return dict.fromkeys(topics, self.settings) if self.partitions else {}

    async def describe_broker_configs(self, broker_id: BrokerId) -> dict[str, str | None]:
        raise NotImplementedError

    async def list_offsets(
        self,
        partitions: Mapping[TopicIdPartition, LeaderEpoch],
        spec: OffsetSpec | int,
        *,
        read_committed: bool = False,
    ) -> dict[TopicIdPartition, OffsetAnswer]:
        raise NotImplementedError

    async def create_topic(
        self, topic: str, *, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> None:
        self.created.append((topic, partitions, replication_factor, configs))
        if self.knows_at_once:
            self.partitions = partitions


async def test_a_missing_topic_is_made_as_kafka_makes_it() -> None:
    broker = OneTopicBroker()
    facts = await ensure_topic(broker, TOPIC)
    assert broker.created == [
        (
            "__remote_log_metadata",
            50,
            3,
            {
                "cleanup.policy": "delete",
                "retention.ms": "-1",
                "retention.bytes": "-1",
                "unclean.leader.election.enable": "false",
                "min.insync.replicas": "2",
            },
        )
    ]
    assert (facts.cluster_id, facts.weaknesses, facts.leader_epochs[49]) == ("cluster", (), 49)


async def test_no_more_settings_are_asked_for_than_are_looked_at() -> None:
    """Every few seconds: a topic has forty."""
    broker = OneTopicBroker(partitions=50)
    await ensure_topic(broker, TOPIC)
    assert [set(names or ()) for names in broker.asked_for] == [
        {"cleanup.policy", "retention.ms", "retention.bytes", "unclean.leader.election.enable", "min.insync.replicas"}
    ]


async def test_a_topic_that_the_broker_has_not_heard_of_yet_is_waited_for() -> None:
    broker = OneTopicBroker()
    broker.knows_at_once = False
    with pytest.raises(BrokerRefusedError, match="LEADER_NOT_AVAILABLE"):
        await ensure_topic(broker, TOPIC)


async def test_a_topic_that_was_known_is_not_made_anew() -> None:
    broker = OneTopicBroker()
    with pytest.raises(BrokerRefusedError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        await ensure_topic(broker, TOPIC, may_create=False)
    assert broker.created == []


async def test_another_partition_count_is_refused_with_both_numbers() -> None:
    with pytest.raises(PartitionCountError, match="has 5 partitions but 50 are configured"):
        await ensure_topic(OneTopicBroker(partitions=5), TOPIC)


@pytest.mark.parametrize(
    ("broker", "weakness"),
    [
        pytest.param({"replicas": 2}, "has 2 replicas, 3 are configured", id="fewer replicas"),
        pytest.param(
            {"settings": {**GOOD, "min.insync.replicas": "1"}},
            "has min.insync.replicas 1, 2 are configured",
            id="fewer in-sync replicas",
        ),
        pytest.param(
            {"settings": {**GOOD, "unclean.leader.election.enable": "true"}},
            "has unclean.leader.election.enable true, it must be false",
            id="unclean elections",
        ),
        pytest.param(
            {"settings": {**GOOD, "retention.ms": "604800000"}},
            "has retention.ms 604800000, it must be -1",
            id="events go after a week: live segments would become unreferenced (S-104)",
        ),
        pytest.param(
            {"settings": {**GOOD, "cleanup.policy": "compact"}},
            "has cleanup.policy compact, it must be delete",
            id="compaction of records without keys",
        ),
    ],
)
async def test_weaker_settings_are_named(broker: dict[str, object], weakness: str) -> None:
    facts = await ensure_topic(OneTopicBroker(partitions=50, **broker), TOPIC)  # type: ignore[arg-type]
    assert facts.weaknesses == (f"__remote_log_metadata {weakness}",)


async def test_stronger_settings_are_fine() -> None:
    broker = OneTopicBroker(partitions=50, replicas=5, settings={**GOOD, "min.insync.replicas": "3"})
    assert (await ensure_topic(broker, TOPIC)).weaknesses == ()


async def test_the_state_topic_has_one_partition_and_is_compacted() -> None:
    broker = OneTopicBroker()
    broker.settings = {
        "cleanup.policy": "compact",
        "unclean.leader.election.enable": "false",
        "min.insync.replicas": "2",
    }
    facts = await ensure_topic(broker, StateTopicSettings(bootstrap_servers="broker:9092").required_topic)
    assert facts.weaknesses == ()
    assert broker.created[0][:3] == ("__tiersidecar_state", 1, 3)


async def test_in_another_cluster_no_topic_is_made() -> None:
    """Of a read-only mount: it is waited for."""
    broker = OneTopicBroker()
    with pytest.raises(BrokerRefusedError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        await ensure_topic(OthersTopics(broker, "cluster"), TOPIC)
    assert broker.created == []


async def test_of_another_cluster_than_was_planned_nothing_is_believed() -> None:
    """A source that was formatted anew under its address, or a slip in source.bootstrap.servers: with its empty topics nothing
    would be known of any mounted log, and all readers' offsets would be out of range."""
    broker = OneTopicBroker(partitions=50)
    topics = OthersTopics(broker, "planned")
    assert topics.reason_not_ready() == ""
    with pytest.raises(WrongSourceError):
        await ensure_topic(topics, TOPIC)
    assert topics.reason_not_ready() == (
        "source.bootstrap.servers lead to cluster cluster, but source.mount.plan is of cluster planned"
    )
    broker.cluster_id = "planned"
    assert (await ensure_topic(topics, TOPIC)).cluster_id == "planned"
    assert topics.reason_not_ready() == ""
    assert (await ensure_topic(OthersTopics(broker, ""), TOPIC)).cluster_id == "planned", "a plan that names none"
