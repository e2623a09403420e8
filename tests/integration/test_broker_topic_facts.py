"""What the broker says of topics that are gone, of overrides and of sizes, on the newest Kafka and on 3.9."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_jars import KAFKA_3, KAFKA_4
from tests.support.patience import patient_s
from tests.support.produce import produce_mix
from tiersidecar.adapters.kafka.broker import KafkaBroker, open_broker
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import Uuid

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module", params=[KAFKA_4, KAFKA_3])
def cluster(request: pytest.FixtureRequest) -> KafkaCluster:
    found: KafkaCluster = request.getfixturevalue("kafka" if request.param == KAFKA_4 else "kafka_39")
    return found


@pytest.fixture
async def broker(cluster: KafkaCluster) -> AsyncIterator[KafkaBroker]:
    async with open_broker(cluster.bootstrap_servers) as opened:
        yield opened


async def id_of(broker: KafkaBroker, topic: str) -> Uuid:
    (view, *_) = await broker.describe_partitions([topic])
    return view.topic_id_partition.topic_id


def sizes_on_disk(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    """Of both partitions."""
    return {
        partition: sum(path.stat().st_size for path in cluster.brokers[0].partition_dir(topic, partition).glob("*.log"))
        for partition in range(2)
    }


async def test_a_topic_that_was_made_anew_has_another_id_and_the_old_one_is_unknown(
    broker: KafkaBroker, cluster: KafkaCluster
) -> None:
    """S-183, T-47: the positive answer that a deletion of remote data waits for."""
    await asyncio.to_thread(cluster.create_topic, "made-anew")
    old = await id_of(broker, "made-anew")
    assert await broker.describe_topic_ids([old]) == {old: None}
    await asyncio.to_thread(cluster.admin.delete_topic, "made-anew")
    await asyncio.to_thread(cluster.create_topic, "made-anew")
    new = await id_of(broker, "made-anew")
    assert await broker.describe_topic_ids([old, new]) == {old: "UNKNOWN_TOPIC_ID", new: None}
    assert await broker.describe_topic_ids([]) == {}


async def test_overrides_are_what_was_set_on_the_topic(broker: KafkaBroker, cluster: KafkaCluster) -> None:
    await asyncio.to_thread(cluster.create_topic, "overridden", configs={"retention.ms": "86400000"})
    overrides = await broker.describe_topic_overrides("overridden")
    assert overrides["retention.ms"] == "86400000"
    assert "retention.bytes" not in overrides
    with pytest.raises(BrokerRefusedError):
        await broker.describe_topic_overrides("no-such-topic")


async def test_sizes_are_bytes_of_the_leaders_log(broker: KafkaBroker, cluster: KafkaCluster) -> None:
    await asyncio.to_thread(cluster.create_topic, "weighed", partitions=2)
    await produce_mix(cluster.client_settings, "weighed", partitions=2, total_bytes=200_000)
    async with asyncio.timeout(patient_s(60)):
        while (sizes := await broker.describe_log_sizes("weighed")) != (on_disk := sizes_on_disk(cluster, "weighed")):
            # The last transaction's markers are written after its producer was answered.
            print(f"told {sizes}, on the disk {on_disk}")
            await asyncio.sleep(0.1)
    assert set(on_disk) == {0, 1}
    assert min(on_disk.values()) > 100_000
    assert await broker.describe_log_sizes("no-such-topic") == {}
