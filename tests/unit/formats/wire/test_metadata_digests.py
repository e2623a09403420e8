"""What two answers have to differ in to be told apart (issue 20: an idle daemon decodes no answer that says nothing new)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from tiersidecar.formats.wire.framing import SIZE_PREFIX_BYTES, write_response
from tiersidecar.formats.wire.messages import MalformedMessageError
from tiersidecar.formats.wire.metadata_digests import metadata_digest

VERSIONS = (12, 13)


def answer(version: int) -> Any:
    """Three brokers and a topic of one partition."""
    made = load_payload_module(3, version, EntityType.response)
    partition = made.MetadataResponsePartition(
        error_code=ErrorCode.none,
        partition_index=0,
        leader_id=1,
        leader_epoch=4,
        replica_nodes=(1, 2, 3),
        isr_nodes=(1, 2),
    )
    topic = made.MetadataResponseTopic(
        error_code=ErrorCode.none, name="orders", topic_id=UUID(int=7), partitions=(partition,)
    )
    return made.MetadataResponse(
        throttle_time=timedelta(0),
        brokers=tuple(
            made.MetadataResponseBroker(node_id=node, host=f"kafka-{node}", port=9092, rack="a" if node > 1 else None)
            for node in (1, 2, 3)
        ),
        cluster_id="c",
        controller_id=1,
        topics=(topic,),
        **({"error_code": ErrorCode.none} if version >= 13 else {}),
    )


def with_partition(response: Any, **changes: Any) -> Any:
    (topic,) = response.topics
    return replace(response, topics=(replace(topic, partitions=(replace(topic.partitions[0], **changes),)),))


def digest(response: Any, version: int, correlation_id: int = 1) -> bytes:
    return metadata_digest(write_response(response, correlation_id=correlation_id)[SIZE_PREFIX_BYTES:], version)


@pytest.mark.parametrize("version", VERSIONS)
def test_another_controller_throttle_time_and_correlation_id_say_nothing_new(version: int) -> None:
    said = answer(version)
    again = replace(said, controller_id=3, throttle_time=timedelta(seconds=1))
    assert digest(again, version, correlation_id=2) == digest(said, version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda said: with_partition(said, leader_id=2), id="another leader"),
        pytest.param(lambda said: with_partition(said, leader_epoch=5), id="another leader epoch"),
        pytest.param(lambda said: with_partition(said, replica_nodes=(1, 2)), id="a replica moved"),
        pytest.param(lambda said: with_partition(said, isr_nodes=(1,)), id="a replica fell out of sync"),
        pytest.param(lambda said: with_partition(said, offline_replicas=(3,)), id="a replica is offline"),
        pytest.param(lambda said: with_partition(said, error_code=ErrorCode.leader_not_available), id="no leader"),
        pytest.param(lambda said: replace(said, topics=()), id="the topic is gone"),
        pytest.param(
            lambda said: replace(said, topics=(replace(said.topics[0], topic_id=UUID(int=8)),)),
            id="the topic was created anew",
        ),
        pytest.param(lambda said: replace(said, brokers=said.brokers[:2]), id="a broker is away"),
        pytest.param(
            lambda said: replace(said, brokers=(replace(said.brokers[0], port=9093), *said.brokers[1:])),
            id="a broker listens elsewhere",
        ),
        pytest.param(lambda said: replace(said, cluster_id="d"), id="another cluster"),
    ],
)
def test_all_else_does(change: Any, version: int) -> None:
    said = answer(version)
    assert digest(change(said), version) != digest(said, version)


def test_another_version_does() -> None:
    payload = write_response(answer(12), correlation_id=1)[SIZE_PREFIX_BYTES:]
    assert metadata_digest(payload, 12) != metadata_digest(payload, 13)


@pytest.mark.parametrize("size", [0, 3, 8, 20, 60])
def test_bytes_that_end_before_the_topics_are_refused(size: int) -> None:
    with pytest.raises(MalformedMessageError):
        metadata_digest(write_response(answer(13), correlation_id=1)[SIZE_PREFIX_BYTES:][:size], 13)
