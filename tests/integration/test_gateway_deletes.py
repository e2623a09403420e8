"""DeleteRecords of everything (offset -1) through a gateway in a process of its own: what cannot be deleted remotely is not
deleted by the broker either, so that a client's next try is of no more records than it asked for (issue 17)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from tests.support.daemon import Daemon, daemon_settings
from tests.support.gateway import GatewayDaemon
from tests.support.gateway_attacker import DELETE_RECORDS, Attacker, read_answer, request_frame
from tests.support.kafka_admin import KafkaAdmin, wait_until
from tests.support.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.broker, pytest.mark.slow]

RULES = [{"pattern": "tiered-.*"}]
KEPT = {"retention.ms": "-1", "retention.bytes": "-1"}
ALL = -1
Row = tuple[ErrorCode, int]
AGAIN: Row = (ErrorCode.request_timed_out, -1)


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

    @property
    def gateway_port(self) -> int:
        return int(self.gateway.bootstrap_server.rpartition(":")[2])

    def delete(self, offsets: Mapping[str, int]) -> dict[str, Row]:
        """Of one request, which nobody repeats."""
        schema: Any = load_request_schema(DELETE_RECORDS, 2)
        topic_type = schema.__dataclass_fields__["topics"].type.__args__[0]
        row_type = topic_type.__dataclass_fields__["partitions"].type.__args__[0]
        topics = tuple(
            topic_type(name=topic, partitions=(row_type(partition_index=0, offset=offset),))
            for topic, offset in offsets.items()
        )
        with Attacker(self.gateway_port) as client:
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
    rows = stage.delete(asked)
    # On a busy machine the broker's answer may take too long for what is new; a client asks for that again, alone.
    rows |= stage.delete({"tiered-new": ALL}) if rows["tiered-new"] == AGAIN else {}
    assert rows == {topic: (ErrorCode.none, end) for topic, end in ends.items()}
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
        assert stage.delete({"tiered-away": offset}) == {"tiered-away": AGAIN}
        await stage.send("tiered-away", 1)
    assert stage.log_start("tiered-away") == 1
    stage.tier.start()
    stage.tier.wait_until_ready()
    row = wait_until(lambda: _done(stage.delete({"tiered-away": ALL})), "its sidecar is back")
    assert row == (ErrorCode.none, 8)
    assert stage.log_start("tiered-away") == 8


@pytest.mark.parametrize("stopped", ["tier", "gateway"])
async def test_what_is_stopped_in_order_leaves_no_delete_half_done(stage: Stage, stopped: str) -> None:
    """The broker's part was done and nobody heard of the rest, so a client's next try was of more records."""
    topics = [f"tiered-stop-{stopped}-{number}" for number in range(4)]
    stage.make(*topics)
    for topic in topics:
        await stage.send(topic, 50)
    wait_until(lambda: all(_done(stage.delete({topic: 1})) for topic in topics), "all are known")
    process, over = getattr(stage, stopped), threading.Event()

    def delete_more_and_more(topic: str) -> list[str]:
        faults = list[str]()
        for offset in count(2):
            if over.is_set() or offset > 50:
                return faults
            try:
                row = stage.delete({topic: offset})[topic]
            except (ConnectionError, AssertionError):
                continue  # the gateway is away
            if row == AGAIN and stage.log_start(topic) >= offset:
                faults.append(f"{topic} was deleted up to {offset}, and told {row}")
            over.wait(0.05)
        return faults

    with ThreadPoolExecutor(len(topics)) as threads:
        deleting = [threads.submit(delete_more_and_more, topic) for topic in topics]
        await asyncio.sleep(0.5)
        process.stop()
        over.set()
        faults = [fault for one in deleting for fault in one.result()]
    process.start()
    process.wait_until_ready()
    assert faults == []
    through = KafkaAdmin(port=stage.gateway_port)
    for topic in topics:
        start = stage.log_start(topic)
        assert start > 1, "something was under way"
        wait_until(partial(_is_earliest, through, topic, start), f"both tiers of {topic} agree")


def _is_earliest(admin: KafkaAdmin, topic: str, offset: int) -> bool:
    return admin.earliest_offset(topic, 0) == offset


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
