from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

from tiersidecar.adapters.kafka.leaders import Leaders, broker_addresses, leader_views
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid

ID: Any = UUID(int=7)


def topic(name: str, *leaders: int, topic_id: Any = ID) -> MetadataResponseTopic:
    rows: Any = tuple(
        MetadataResponsePartition(
            error_code=ErrorCode.none,
            partition_index=index,  # type: ignore[arg-type]
            leader_id=leader,  # type: ignore[arg-type]
            leader_epoch=4,  # type: ignore[arg-type]
            replica_nodes=(1, 2),  # type: ignore[arg-type]
            isr_nodes=(1,),  # type: ignore[arg-type]
        )
        for index, leader in enumerate(leaders)
    )
    named: Any = name
    return MetadataResponseTopic(error_code=ErrorCode.none, name=named, topic_id=topic_id, partitions=rows)


def response(*topics: MetadataResponseTopic, brokers: tuple[tuple[int, str], ...] = ((1, "a"),)) -> MetadataResponse:
    wait: Any = timedelta(0)
    rows: Any = tuple(MetadataResponseBroker(node_id=node, host=host, port=9092) for node, host in brokers)  # type: ignore[arg-type]
    return MetadataResponse(throttle_time=wait, brokers=rows, topics=topics, error_code=ErrorCode.none)


def partition(name: str, index: int = 0, topic_id: UUID = ID) -> TopicIdPartition:
    return TopicIdPartition(topic_id=Uuid(topic_id.bytes), topic=name, partition=index)


def test_a_leader_is_known_with_its_address() -> None:
    leaders = Leaders()
    leaders.learn(response(topic("t", 1, 2), brokers=((1, "a"), (2, "::1"))), now_s=0)

    assert leaders.leader(partition("t", 1)) == 2
    assert leaders.address(BrokerId(1)) == "a:9092"
    assert leaders.address(BrokerId(2)) == "[::1]:9092"
    assert leaders.address(BrokerId(3)) is None


def test_what_stands_in_the_way_of_a_leader_has_kafkas_name() -> None:
    leaders = Leaders()
    leaders.learn(response(topic("t", -1, 9)), now_s=0)

    assert leaders.leader(partition("t", 0)) == "LEADER_NOT_AVAILABLE"
    assert leaders.leader(partition("t", 1)) == "LEADER_NOT_AVAILABLE"  # led by a broker that is not alive
    assert leaders.leader(partition("t", 2)) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert leaders.leader(partition("other")) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert leaders.leader(partition("t", 0, UUID(int=8))) == "UNKNOWN_TOPIC_ID"


def test_topics_grow_stale_with_age_and_when_forgotten() -> None:
    leaders = Leaders()
    leaders.learn(response(topic("old", 1)), now_s=0)
    leaders.learn(response(topic("new", 1)), now_s=4)

    assert leaders.stale(["new", "old", "never", "old"], now_s=5, max_age_s=5) == ["old", "never"]
    assert leaders.stale(["new"], now_s=4, max_age_s=0) == ["new"]
    leaders.forget(["new"])
    assert leaders.stale(["new"], now_s=5, max_age_s=5) == ["new"]


def test_a_view_of_the_whole_cluster_forgets_topics_that_are_gone() -> None:
    leaders = Leaders()
    leaders.learn(response(topic("gone", 1), topic("stays", 1)), now_s=0)
    leaders.learn(response(topic("stays", 1)), now_s=0, whole_cluster=True)

    assert leaders.leader(partition("gone")) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert leaders.leader(partition("stays")) == 1


def test_a_topic_that_does_not_exist_has_no_views() -> None:
    assert leader_views(topic("missing", topic_id=None)) == []


def test_views_have_what_metadata_says() -> None:
    (view,) = leader_views(topic("t", 1))

    assert view.topic_id_partition == partition("t")
    assert (view.leader_id, view.leader_epoch, view.replicas, view.in_sync_replicas) == (1, 4, (1, 2), (1,))


def test_brokers_by_id() -> None:
    assert broker_addresses(response(brokers=((1, "a"), (2, "b")))) == {1: "a:9092", 2: "b:9092"}


def test_what_is_said_once_more_of_the_whole_cluster_is_known_again() -> None:
    leaders = Leaders()
    leaders.learn(response(topic("t", 1), topic("u", 1)), now_s=0, whole_cluster=True)
    leaders.learn(response(topic("t", 2), brokers=((1, "a"), (2, "b"))), now_s=1)
    leaders.forget(["u"])

    leaders.learn_again(now_s=10)

    assert [leaders.leader(partition(name)) for name in ("t", "u")] == [1, 1]
    assert leaders.stale(["t", "u"], now_s=14, max_age_s=5) == []
    assert leaders.address(BrokerId(2)) is None
