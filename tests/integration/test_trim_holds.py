"""Trims wait for groups, on real brokers (issue 6: "nor past consumer groups' committed offsets if so configured"), and
never go past a share group's start offset unless that is configured."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT, active_base, produce, started, wait_until_trimmed
from tests.support.daemon import Daemon, wait_for
from tests.support.kafka_admin import wait_until
from tests.support.kafka_broker import java_command
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_jars import KAFKA_3, KAFKA_4
from tiersidecar.adapters.kafka.broker import KafkaBroker, open_broker
from tiersidecar.domain.offsets import Offset
from tiersidecar.ports.broker import GroupAnswer, GroupType

pytestmark = pytest.mark.broker


@pytest.fixture(params=[KAFKA_4, KAFKA_3])
def either(request: pytest.FixtureRequest) -> KafkaCluster:
    found: KafkaCluster = request.getfixturevalue("kafka" if request.param == KAFKA_4 else "kafka_39")
    return found


@pytest.fixture
async def broker(either: KafkaCluster) -> AsyncIterator[KafkaBroker]:
    async with open_broker(either.bootstrap_servers) as opened:
        yield opened


async def commit(cluster: KafkaCluster, group: str, topic: str, offset: int) -> None:
    """As a consumer that has read all before ``offset``."""
    consumer = AIOKafkaConsumer(**cluster.client_settings, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        await consumer.commit({TopicPartition(topic, 0): offset})
    finally:
        await consumer.stop()


def read_as_share_group(cluster: KafkaCluster, group: str, topic: str, records: int) -> None:
    """Acknowledge the first ``records`` with Kafka's own share consumer."""
    servers = ("--bootstrap-server", cluster.bootstrap_servers)
    setting = ("--alter", "--add-config", "share.auto.offset.reset=earliest")
    cluster.run_tool("kafka.admin.ConfigCommand", *servers, "--entity-type", "groups", "--entity-name", group, *setting)
    cluster.run_tool(
        "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
        *servers,
        *("--topic", topic, "--group", group, "--max-messages", str(records), "--timeout-ms", "45000"),
        *("--formatter", "org.apache.kafka.tools.consumer.NoOpMessageFormatter"),  # the records are no text
    )


async def test_what_groups_have_committed(either: KafkaCluster, broker: KafkaBroker) -> None:
    topic = either.create_topic("held-adapter", partitions=2)
    key = (topic, 0)
    await commit(either, "reader", topic, 7)
    listed = await broker.groups.list_groups()
    assert listed["reader"] is GroupType.CONSUMER
    assert await broker.groups.committed_offsets(["reader", "nobody"], [key, (topic, 1)]) == {
        "reader": GroupAnswer(offsets={key: Offset(7)}),
        "nobody": GroupAnswer(offsets={}),
    }
    assert await broker.groups.committed_offsets([], [key]) == {}
    assert "reader" not in await broker.groups.list_share_groups()


def local_start(cluster: KafkaCluster, topic: str) -> int:
    return cluster.admin.earliest_offset(topic, 0)


def held_reason(daemon: Daemon) -> str:
    (row,) = json.loads(daemon.status("/status")[1])["partitions"]
    return str(row["held_back_reason"] or "")


async def share_start(cluster: KafkaCluster, group: str, topic: str) -> int:
    """As the adapter sees it; a share group never passes for a consumer group."""
    async with open_broker(cluster.bootstrap_servers) as broker:
        assert group in await broker.groups.list_share_groups()
        assert await broker.groups.committed_offsets([group], [(topic, 0)]) == {group: GroupAnswer(offsets={})}
        answer = (await broker.groups.share_start_offsets([group], [(topic, 0)]))[group]
        assert answer.error is None
        return answer.offsets[topic, 0]


@contextmanager
def idle_share_consumer(cluster: KafkaCluster, group: str, topic: str) -> Iterator[None]:
    """A member that is given the topic's partitions and gets no record: a share group begins at the end by default."""
    command = [
        *java_command(cluster.version, level="WARN", target="err"),
        *("org.apache.kafka.tools.consumer.ConsoleShareConsumer", "--bootstrap-server", cluster.bootstrap_servers),
        *("--topic", topic, "--group", group),
    ]
    with subprocess.Popen(command, cwd=cluster.directory, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


async def has_begun(cluster: KafkaCluster, group: str, topic: str) -> bool:
    async with open_broker(cluster.bootstrap_servers) as broker:
        answer = (await broker.groups.share_start_offsets([group], [(topic, 0)]))[group]
    return answer == GroupAnswer(offsets={}, begun=frozenset({(topic, 0)}))


def test_a_trim_waits_for_a_share_group_that_has_acknowledged_nothing(kafka: KafkaCluster, tmp_path: Path) -> None:
    """What its members have been given is nowhere told: below the broker's log start it would be archived unread."""
    topic, bystander = "held-unread", "held-by-nobody"
    for name in (topic, bystander):
        kafka.create_topic(name, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produce(kafka, topic, total_bytes=200_000)
    with idle_share_consumer(kafka, "beginner", topic):
        wait_until(lambda: asyncio.run(has_begun(kafka, "beginner", topic)), "the group has begun")
        with started(tmp_path, kafka, topic, rule={"local.retention.bytes": 1}) as daemon:
            daemon.wait_until_ready()
            wait_for(
                lambda: held_reason(daemon) == "share group beginner has begun and acknowledged nothing", "", daemon
            )
            assert local_start(kafka, topic) == 0
    assert not asyncio.run(has_begun(kafka, "beginner", bystander)), "of what it does not read"


def test_a_trim_waits_for_a_named_group_and_for_share_groups(kafka: KafkaCluster, tmp_path: Path) -> None:
    """A group that is named and has not begun holds everything, a share group holds unasked; what both have read goes, whole
    segments only."""
    topic = "held"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produced = produce(kafka, topic, total_bytes=400_000)
    read_as_share_group(kafka, "queue", topic, 5)
    start = asyncio.run(share_start(kafka, "queue", topic))
    assert 0 < start < produced[len(produced) // 4].offset
    rule = {"local.retention.bytes": 1, "trim.consumer.groups": ["billing"]}
    with started(tmp_path, kafka, topic, rule=rule) as daemon:
        daemon.wait_until_ready()
        wait_for(lambda: "consumer group billing has no committed offset" in held_reason(daemon), "it is held", daemon)
        middle = produced[len(produced) // 2].offset
        asyncio.run(commit(kafka, "billing", topic, middle))
        by_share = f"share group queue has read up to {start}"
        wait_for(
            lambda: f"{by_share}; consumer group billing has read up to {middle}" == held_reason(daemon), "", daemon
        )
        assert local_start(kafka, topic) == 0
        assert daemon.metric("tiersidecar_trim_held_by_group_bytes", group="queue") > 0
        assert [event["bytes"] for event in daemon.events("trim.held_back")]
        assert daemon.stop() == 0

        daemon.settings["trim.share.groups"] = "ignore"
        daemon.start()
        wait_for(lambda: local_start(kafka, topic) > 0, "what billing has read is trimmed", daemon)
        assert local_start(kafka, topic) <= middle < active_base(kafka, topic)
        asyncio.run(commit(kafka, "billing", topic, produced[-1].offset + 1))
        wait_until_trimmed(kafka, daemon, topic)
        wait_for(lambda: held_reason(daemon) == "", "nothing is held any more", daemon)
        wait_for(lambda: not daemon.metric("tiersidecar_trim_held_bytes", topic=topic), "and told so", daemon)
