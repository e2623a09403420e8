"""Topics that were just made, or made anew, through a gateway in a process of its own, with default intervals (issue 17).

With the short intervals of other tests each look at the cluster comes before anybody asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from tests.support.daemon import Daemon, daemon_settings
from tests.support.gateway import GatewayDaemon
from tests.support.gateway_attacker import DELETE_RECORDS, Attacker, read_answer, request_frame
from tests.support.kafka_admin import wait_until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_jars import KAFKA_3, KAFKA_4

pytestmark = [pytest.mark.broker, pytest.mark.slow]

RULES = [{"pattern": "new-.*"}]
INTERVALS: dict[str, Any] = {"remote.log.manager.task.interval.ms": 30_000}
KEPT = {"retention.ms": "-1", "retention.bytes": "-1"}
RECORDS, OFFSET = 10, 5


@dataclass(frozen=True, slots=True)
class Stage:
    cluster: KafkaCluster
    gateway: GatewayDaemon

    async def make(self, topic: str) -> None:
        self.cluster.create_topic(topic, configs=KEPT)
        async with AIOKafkaProducer(**self.cluster.client_settings) as producer:
            for number in range(RECORDS):
                await producer.send_and_wait(topic, b"%d" % number, partition=0)

    async def make_anew(self, topic: str) -> None:
        self.cluster.admin.delete_topic(topic)
        wait_until(lambda: self._is_gone(topic), f"{topic} is gone from the disk")
        await self.make(topic)

    def _is_gone(self, topic: str) -> bool:
        return not (self.cluster[1].log_dirs[0] / f"{topic}-0").exists()

    def delete(self, topic: str, timeout: timedelta = timedelta(seconds=30)) -> tuple[ErrorCode, int]:
        """Of one request, which nobody repeats."""
        schema: Any = load_request_schema(DELETE_RECORDS, 2)
        topic_type = schema.__dataclass_fields__["topics"].type.__args__[0]
        row_type = topic_type.__dataclass_fields__["partitions"].type.__args__[0]
        rows = (topic_type(name=topic, partitions=(row_type(partition_index=0, offset=OFFSET),)),)
        with Attacker(int(self.gateway.bootstrap_server.rpartition(":")[2])) as client:
            client.send(request_frame(DELETE_RECORDS, 2, topics=rows, timeout=timeout))
            answer = client.frame()
        assert answer is not None
        row = read_answer(DELETE_RECORDS, 2, answer).topics[0].partitions[0]
        return row.error_code, row.low_watermark


@pytest.fixture(scope="module", params=[KAFKA_3, KAFKA_4])
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory: Path = tmp_path_factory.mktemp("new-topics")
    with KafkaCluster(directory / "kafka", version=request.param) as cluster:
        broker = cluster[1]
        settings = daemon_settings(
            directory / "tier",
            bootstrap_servers=broker.bootstrap_server,
            log_dirs=list(broker.log_dirs),
            topics=RULES,
            **INTERVALS,
        )
        store = settings["store"]
        with (
            Daemon(directory / "tier", settings, roles="tier") as tier,
            GatewayDaemon(directory / "gateway", broker, topics=RULES, store=store, **INTERVALS) as gateway,
        ):
            tier.wait_until_ready()
            gateway.wait_until_ready()
            wait_until(lambda: tier.events("tier_lease.held"), "the tier role is the sidecar's")
            yield Stage(cluster, gateway)


async def test_a_delete_is_carried_out_at_the_first_try(stage: Stage) -> None:
    for number in range(3):
        await stage.make(f"new-deleted-{number}")
        assert stage.delete(f"new-deleted-{number}") == (ErrorCode.none, OFFSET)
        assert stage.delete(f"new-deleted-{number}", timedelta(0)) == (ErrorCode.none, OFFSET)


async def test_so_is_one_of_a_topic_that_was_made_anew(stage: Stage) -> None:
    await stage.make("new-again")
    assert stage.delete("new-again") == (ErrorCode.none, OFFSET)
    for _ in range(3):
        await stage.make_anew("new-again")
        assert stage.delete("new-again") == (ErrorCode.none, OFFSET)


async def test_both_ends_are_told_to_who_asks_once(stage: Stage) -> None:
    """As librdkafka's ``query_watermark_offsets``."""
    partition = TopicPartition("new-ends", 0)
    await stage.make(partition.topic)
    async with AIOKafkaConsumer(**stage.gateway.client_settings) as consumer:
        assert await consumer.beginning_offsets([partition]) == {partition: 0}
        await stage.make_anew(partition.topic)
        assert await consumer.beginning_offsets([partition]) == {partition: 0}
        assert await consumer.end_offsets([partition]) == {partition: RECORDS}
