"""Two clusters on one store: the second, with the first one's topics mirrored to it, deletes nothing of the first one's."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT, finished, produce, started, wait_until_trimmed
from tests.support.daemon import Daemon, wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.remote_events import object_keys_in

pytestmark = pytest.mark.broker

METADATA, STATE, PARTITIONS = "__remote_log_metadata", "__tiersidecar_state", 5
GRACE_MS = 1_000


async def mirror(source: Mapping[str, Any], target: Mapping[str, Any], topic: str, partitions: int) -> int:
    """Every record, byte for byte, into the same partition; how many."""
    count = 0
    async with (
        AIOKafkaConsumer(**source, auto_offset_reset="none", enable_auto_commit=False) as consumer,
        AIOKafkaProducer(**target, acks="all") as producer,
    ):
        wanted = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(wanted)
        ends = await consumer.end_offsets(wanted)
        for one in wanted:
            consumer.seek(one, 0)
        while any([await consumer.position(one) < ends[one] for one in wanted]):
            for one, records in (await consumer.getmany(timeout_ms=200)).items():
                for record in records:
                    await producer.send_and_wait(
                        topic, record.value, record.key, partition=one.partition, timestamp_ms=record.timestamp
                    )
                    count += 1
    return count


def beside(cluster: KafkaCluster, directory: Path, topic: str, store: Path) -> Daemon:
    return started(
        directory,
        cluster,
        topic,
        **{
            "store": {"type": "filesystem", "root": str(store)},
            "remote.log.metadata.topic.name": METADATA,
            "state.topic.name": STATE,
            "remote.log.metadata.topic.num.partitions": PARTITIONS,
            "deletes.topic.grace.ms": GRACE_MS,
        },
    )


def tier(cluster: KafkaCluster, daemon: Daemon, topic: str) -> None:
    cluster.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produce(cluster, topic, total_bytes=400_000)
    wait_until_trimmed(cluster, daemon, topic)


def adopt(daemon: Daemon, topic_id: str, *options: str) -> dict[str, Any]:
    """What the command prints as JSON."""
    command = [*daemon.command[:3], "adopt", topic_id, "--config", str(daemon.config_path), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return dict(found.get("facts", found))


def test_a_rehearsal_of_disaster_recovery_deletes_nothing(
    kafka_cluster: Callable[..., KafkaCluster], tmp_path: Path
) -> None:
    """Both topics mirrored byte for byte, the same store, every topic id of the first unknown in the second.  What the second
    cluster tiers itself does go with its topic: so its sidecar has looked, more than once, beyond every grace."""
    store = tmp_path / "store"
    store.mkdir()
    first, second = kafka_cluster(), kafka_cluster()
    with beside(first, tmp_path / "first", "orders", store) as daemon:
        tier(first, daemon, "orders")
        theirs = object_keys_in(store)
        assert len(finished(first, daemon)) > 2
        assert daemon.stop() == 0
    replication = {"min.insync.replicas": "1", "unclean.leader.election.enable": "false"}
    second.create_topic(
        METADATA, partitions=PARTITIONS, configs={"cleanup.policy": "delete", "retention.ms": "-1", **replication}
    )
    second.create_topic(STATE, configs={"cleanup.policy": "compact", **replication})
    for topic, partitions in ((METADATA, PARTITIONS), (STATE, 1)):
        assert asyncio.run(mirror(first.client_settings, second.client_settings, topic, partitions)) > 0
    with beside(second, tmp_path / "second", "rehearsed", store) as daemon:
        tier(second, daemon, "rehearsed")
        wait_for(lambda: object_keys_in(store) - theirs, "the second cluster's objects are there", daemon)
        for _ in range(2):
            second.admin.delete_topic("rehearsed")
            wait_for(lambda: not object_keys_in(store) - theirs, "they go with their topic", daemon)
            assert object_keys_in(store) == theirs
            tier(second, daemon, "rehearsed")
        assert object_keys_in(store) >= theirs
        topic_id = str(next(iter(theirs))).split("/")[0].removeprefix("orders-")
        shown = adopt(daemon, topic_id)
        assert (shown["exists_here"], shown["owner_in_the_store"]) == (False, first.cluster_id)
        assert object_keys_in(store) >= theirs, "dry by default"
        assert topic_id not in {event["topic_id"] for event in daemon.events("topic.gone")}
        assert daemon.events("state.record.of_another_cluster")
