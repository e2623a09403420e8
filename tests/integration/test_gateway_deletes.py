"""DeleteRecords of everything (offset -1) through a gateway in a process of its own: what cannot be deleted remotely is not
deleted by the broker either, so that a client's next try is of no more records than it asked for (issue 17)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from tests.support.daemon import Daemon, daemon_settings
from tests.support.gateway import GatewayDaemon
from tests.support.gateway_attacker import DELETE_RECORDS, Attacker, read_answer, request_frame
from tests.support.kafka_admin import wait_until
from tests.support.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.broker, pytest.mark.slow]

RULES = [{"pattern": "tiered-.*"}]
KEPT = {"retention.ms": "-1", "retention.bytes": "-1"}
ALL = -1
Row = tuple[ErrorCode, int]


@dataclass(frozen=True, slots=True)
class Stage:
    cluster: KafkaCluster
    tier: Daemon
    gateway: GatewayDaemon

    def make(self, *topics: str) -> None:
        for topic in topics:
            self.cluster.create_topic(topic, configs=KEPT)

    async def send(self, topic: str, number_of: int) -> None:
        async with AIOKafkaProducer(**self.cluster.client_settings) as producer:
            for number in range(number_of):
                await producer.send_and_wait(topic, b"%d" % number, partition=0)

    def log_start(self, topic: str) -> int:
        """The broker's own."""
        return self.cluster.admin.earliest_offset(topic, 0)

    def delete(self, offsets: Mapping[str, int]) -> dict[str, Row]:
        """Of one request, which nobody repeats."""
        schema: Any = load_request_schema(DELETE_RECORDS, 2)
        topic_type = schema.__dataclass_fields__["topics"].type.__args__[0]
        row_type = topic_type.__dataclass_fields__["partitions"].type.__args__[0]
        topics = tuple(
            topic_type(name=topic, partitions=(row_type(partition_index=0, offset=offset),))
            for topic, offset in offsets.items()
        )
        with Attacker(int(self.gateway.bootstrap_server.rpartition(":")[2])) as client:
            client.send(request_frame(DELETE_RECORDS, 2, topics=topics, timeout=timedelta(seconds=10)))
            answer = client.frame()
        assert answer is not None
        rows = read_answer(DELETE_RECORDS, 2, answer).topics
        return {topic.name: (topic.partitions[0].error_code, topic.partitions[0].low_watermark) for topic in rows}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory: Path = tmp_path_factory.mktemp("gateway-deletes")
    with KafkaCluster(directory / "kafka") as cluster:
        broker = cluster[1]
        settings = daemon_settings(
            directory / "tier", bootstrap_servers=broker.bootstrap_server, log_dirs=list(broker.log_dirs), topics=RULES
        )
        with (
            Daemon(directory / "tier", settings, roles="tier") as tier,
            GatewayDaemon(directory / "gateway", broker, topics=RULES, store=settings["store"]) as gateway,
        ):
            tier.wait_until_ready()
            gateway.wait_until_ready()
            wait_until(lambda: tier.events("tier_lease.held"), "the tier role is the sidecar's")
            yield Stage(cluster, tier, gateway)


async def test_all_of_several_topics_goes_at_the_first_try(stage: Stage) -> None:
    """One that is known, one that was made a moment ago, and one that is not tiered, which waits for nobody."""
    stage.make("tiered-known", "other")
    await stage.send("tiered-known", 5)
    await stage.send("other", 4)
    assert stage.delete({"tiered-known": 2}) == {"tiered-known": (ErrorCode.none, 2)}
    stage.make("tiered-new")
    await stage.send("tiered-new", 3)
    asked = {"tiered-known": ALL, "tiered-new": ALL, "other": ALL}
    ends = {"tiered-known": 5, "tiered-new": 3, "other": 4}
    assert stage.delete(asked) == {topic: (ErrorCode.none, end) for topic, end in ends.items()}
    assert {topic: stage.log_start(topic) for topic in ends} == ends
    events = stage.gateway.events("gateway.audit.delete")
    audited = {(one["topic"], one["offset"], one["outcome"]) for one in events}
    assert {("tiered-known", 5, "none"), ("tiered-new", 3, "none"), ("other", ALL, "none")} <= audited


async def test_while_the_leaders_sidecar_is_away_nothing_is_deleted(stage: Stage) -> None:
    """Each try of a client moved the broker's start, for as long as it went on."""
    stage.make("tiered-away")
    await stage.send("tiered-away", 5)
    assert stage.delete({"tiered-away": 1}) == {"tiered-away": (ErrorCode.none, 1)}
    stage.tier.stop()
    for offset in (ALL, 3, ALL):
        assert stage.delete({"tiered-away": offset}) == {"tiered-away": (ErrorCode.request_timed_out, -1)}
        await stage.send("tiered-away", 1)
    assert stage.log_start("tiered-away") == 1
    stage.tier.start()
    stage.tier.wait_until_ready()
    row = wait_until(lambda: _done(stage.delete({"tiered-away": ALL})), "its sidecar is back")
    assert row == (ErrorCode.none, 8)
    assert stage.log_start("tiered-away") == 8


def _done(rows: Mapping[str, Row]) -> Row | None:
    (row,) = rows.values()
    return row if row[0] is ErrorCode.none else None


async def test_a_gateway_that_was_just_started_deletes_nothing_before_it_knows(stage: Stage) -> None:
    stage.make("tiered-early")
    await stage.send("tiered-early", 5)
    stage.gateway.stop()
    stage.gateway.start()
    sent, tries = 5, list[Row]()
    while not tries or tries[-1][0] is not ErrorCode.none:
        try:
            tries += stage.delete({"tiered-early": ALL}).values()
        except ConnectionError:
            continue  # it does not listen yet
        assert stage.log_start("tiered-early") == (sent if tries[-1][0] is ErrorCode.none else 0)
        await stage.send("tiered-early", 1)
        sent += 1
    stage.gateway.wait_until_ready()
