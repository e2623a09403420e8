"""A start that only a decision can move, on a real broker: what nobody gave up is copied, and stays readable (issue 16,
finding 1).

Twelve sealed segments of ten records: nine old, three young.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.integration.test_daemon import STRICT, finished, started, wait_until_trimmed
from tests.integration.test_daemon_expiry_safety import restart, wait_until_stopped
from tests.integration.test_pins import outage
from tests.support.aged_log import DAY_MS, aged_topic
from tests.support.clock_ahead import DaemonAhead
from tests.support.command_line import answer_of
from tests.support.daemon import Daemon, wait_for
from tests.support.gateway import GatewayDaemon
from tests.support.kafka_cluster import KafkaCluster
from tests.support.produce import ProducedRecord
from tests.support.read_service import fetch_records, shape_of

pytestmark = pytest.mark.broker

SEALED_STOP = 120
OLD = 9
GUARD = "deletes.max.share.per.round"


def ages(old_days: float, young_days: float = 0) -> dict[int, float]:
    return {number: old_days if number < OLD else young_days for number in range(SEALED_STOP // 10)}


def row_of(daemon: Daemon, topic: str) -> dict[str, Any]:
    code, page = daemon.status("/status")
    rows = json.loads(page)["partitions"] if code == 200 else []
    return next((row for row in rows if row["topic"] == topic), {})


def lost_offsets(cluster: KafkaCluster, daemon: Daemon, topic: str) -> list[int]:
    """Offsets that neither tier gives any more.  The broker is asked first: what it lets go must be remote before."""
    local_start = cluster.admin.earliest_offset(topic, 0)
    remote = [range(one.start_offset, one.next_offset) for one in finished(cluster, daemon)]
    start = row_of(daemon, topic).get("remote_log_start_offset") or 0
    return [
        offset
        for offset in range(SEALED_STOP)
        if offset < local_start and (offset < start or not any(offset in held for held in remote))
    ]


def wait_until_all_is_remote(cluster: KafkaCluster, daemon: Daemon, topic: str) -> None:
    """From offset 0 on, and at no moment before it is anything lost."""

    def all_is_remote() -> bool:
        lost = lost_offsets(cluster, daemon, topic)
        assert not lost, f"offsets {lost[0]} to {lost[-1]} are gone, and nobody gave them up"
        return are_all_remote(cluster, daemon)

    wait_for(all_is_remote, "all sealed segments are remote, from the first on", daemon)


def are_all_remote(cluster: KafkaCluster, daemon: Daemon) -> bool:
    held = [(one.start_offset, one.end_offset) for one in finished(cluster, daemon)]
    return held == [(base, base + 9) for base in range(0, SEALED_STOP, 10)]


def assert_all_reads_back(cluster: KafkaCluster, daemon: Daemon, topic: str, produced: list[ProducedRecord]) -> None:
    assert lost_offsets(cluster, daemon, topic) == []
    found = list(fetch_records(daemon.read_url, topic, 0, offset=0, stop=SEALED_STOP))
    assert found == [shape_of(record) for record in produced[:SEALED_STOP]]


def watch_rounds(cluster: KafkaCluster, daemon: Daemon, topic: str) -> None:
    """For as long as a dozen rounds of expiry take, nothing is lost and no stop is cleared."""
    ended, until_s = len(daemon.events("expire.stop.ended")), time.monotonic() + 4
    while time.monotonic() < until_s:
        assert lost_offsets(cluster, daemon, topic) == []
        assert len(daemon.events("expire.stop.ended")) == ended


def test_a_retention_typed_in_too_short_in_race_mode(kafka: KafkaCluster, tmp_path: Path) -> None:
    """The broker keeps everything: nothing of it is due, whatever our retention says."""
    topic = "start-typed-race"
    produced = aged_topic(kafka, topic, ages(10), STRICT)
    rule = {"mode": "race", "retention.ms": "7d", "local.retention.bytes": 1}
    with started(tmp_path, kafka, topic, rule=rule) as daemon:
        wait_until_all_is_remote(kafka, daemon, topic)
        watch_rounds(kafka, daemon, topic)
        assert daemon.events("expire.stopped") == []
        assert kafka.admin.earliest_offset(topic, 0) == 0
        assert_all_reads_back(kafka, daemon, topic, produced)


def test_a_retention_typed_in_too_short(kafka: KafkaCluster, tmp_path: Path) -> None:
    """The guard stops, everything is copied all the same, and no copy clears the stop: only the retention set right does."""
    topic = "start-typed"
    produced = aged_topic(kafka, topic, ages(10), STRICT)
    rule = {"retention.ms": "7d", "local.retention.bytes": 1}
    with started(tmp_path, kafka, topic, rule=rule) as daemon:
        wait_until_all_is_remote(kafka, daemon, topic)
        wait_until_stopped(daemon, topic, GUARD)
        watch_rounds(kafka, daemon, topic)
        restart(daemon)
        wait_until_stopped(daemon, topic, GUARD)
        restart(daemon, **{"retention.ms": "365d"})
        wait_for(lambda: daemon.events("expire.stop.ended"), "the stop ends with its cause", daemon)
        watch_rounds(kafka, daemon, topic)
        assert_all_reads_back(kafka, daemon, topic, produced)


def test_a_stop_is_confirmed_by_deleting_what_it_names(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = "start-confirmed"
    produced = aged_topic(kafka, topic, ages(10), STRICT)
    with started(tmp_path, kafka, topic, rule={"retention.ms": "7d", "local.retention.bytes": 1}) as daemon:
        wait_until_all_is_remote(kafka, daemon, topic)
        wait_until_stopped(daemon, topic, "delete-records up to offset 90")
        answer_of(daemon.config_path, "delete-records", topic, "-p", "0", "--offset", "90", "--yes")
        wait_for(lambda: daemon.metric("tiersidecar_expiry_stopped", topic=topic) == 0, "it goes on", daemon)
        wait_for(lambda: [one.start_offset for one in finished(kafka, daemon)] == [90, 100, 110], "all is gone", daemon)
        found = list(fetch_records(daemon.read_url, topic, 0, offset=90, stop=SEALED_STOP))
        assert found == [shape_of(record) for record in produced[90:SEALED_STOP]]


def test_a_retention_typed_in_too_short_while_deletes_were_disabled(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Corrected before any delete was allowed: nothing was ever given up."""
    topic = "start-disabled"
    produced = aged_topic(kafka, topic, ages(10), STRICT)
    rule = {"retention.ms": "7d", "local.retention.bytes": 1}
    with started(tmp_path, kafka, topic, rule=rule, **{"deletes.enabled": False}) as daemon:
        wait_for(
            lambda: (120 - 10, 119) in [(s.start_offset, s.end_offset) for s in finished(kafka, daemon)], "", daemon
        )
        daemon.settings["deletes.enabled"] = True
        restart(daemon, **{"retention.ms": "365d"})
        wait_until_all_is_remote(kafka, daemon, topic)
        wait_until_trimmed(kafka, daemon, topic)
        assert_all_reads_back(kafka, daemon, topic, produced)


def test_a_clock_ten_days_ahead_when_expiry_first_looks(kafka: KafkaCluster, tmp_path: Path) -> None:
    """The stop ends once the clock is right again."""
    topic = "start-clock"
    produced = aged_topic(kafka, topic, ages(6), STRICT)
    rule = {"retention.ms": "14d", "local.retention.bytes": 1}
    settings = started(tmp_path, kafka, topic, rule=rule).settings
    with DaemonAhead(tmp_path, {**settings, "topics": []}) as daemon:
        daemon.wait_until_ready()  # its topics are there
        assert daemon.stop() == 0
        # As where the broker's clock is ahead too: it is on the same machine.
        for name in ("remote.log.metadata.topic.name", "state.topic.name"):
            kafka.admin.alter_topic(settings[name], {"message.timestamp.after.max.ms": str(365 * DAY_MS)})
        daemon.set_clock_ahead(10 * DAY_MS)
        daemon.settings["topics"] = settings["topics"]
        daemon.start()
        wait_until_all_is_remote(kafka, daemon, topic)
        wait_until_stopped(daemon, topic, GUARD)
        watch_rounds(kafka, daemon, topic)
        daemon.set_clock_ahead(0)
        restart(daemon)
        wait_for(lambda: daemon.events("expire.stop.ended"), "the stop ends with its cause", daemon)
        watch_rounds(kafka, daemon, topic)
        assert_all_reads_back(kafka, daemon, topic, produced)


def test_pins_that_are_the_only_copy_are_copied_and_not_taken_for_expired(kafka_cluster: Any, tmp_path: Path) -> None:
    """Race mode: the broker has deleted by its own retention what only pins hold, and the total one was typed in too short."""
    cluster: KafkaCluster = kafka_cluster()
    topic = "start-pins"
    produced = aged_topic(cluster, topic, ages(30), {"retention.ms": "-1", "file.delete.delay.ms": "1000"})
    daemon = started(
        tmp_path, cluster, topic, rule={"mode": "race", "retention.ms": "365d", "local.retention.ms": "20d"}
    )
    bring_back = outage(daemon)
    with daemon:
        wait_for(lambda: daemon.metric("tiersidecar_pins_segments") >= 12, "all is pinned", daemon)
        cluster.admin.alter_topic(topic, {"retention.ms": str(20 * DAY_MS)})
        wait_for(lambda: cluster.admin.earliest_offset(topic, 0) == 90, "the broker has deleted", daemon)
        assert daemon.stop() == 0
        bring_back()
        daemon.settings["topics"][0] |= {"retention.ms": "7d", "local.retention.ms": "7d"}
        daemon.start()
        wait_for(lambda: are_all_remote(cluster, daemon), "all is remote, from the first pin on", daemon)
        assert_all_reads_back(cluster, daemon, topic, produced)


def test_what_a_user_deleted_before_the_first_copy_is_not_readable_again(kafka: KafkaCluster, tmp_path: Path) -> None:
    """DeleteRecords to the middle of a segment: the segment goes up whole, and nobody reads its front."""
    topic = "start-deleted"
    produced = aged_topic(kafka, topic, ages(1), STRICT)
    assert kafka.admin.delete_records(topic, 0, 36) == 36
    with started(tmp_path, kafka, topic) as daemon:
        wait_until_trimmed(kafka, daemon, topic)
        assert row_of(daemon, topic)["remote_log_start_offset"] == 36
        with pytest.raises(urllib.error.HTTPError) as refused:
            list(fetch_records(daemon.read_url, topic, 0, offset=30, stop=40))
        assert refused.value.code == 416
        found = list(fetch_records(daemon.read_url, topic, 0, offset=36, stop=SEALED_STOP))
        assert found == [shape_of(record) for record in produced[36:SEALED_STOP]]
        topics = {name: daemon.settings[name] for name in ("remote.log.metadata.topic.name", "state.topic.name")}
        settings = {**topics, "store": daemon.settings["store"], "topics": daemon.settings["topics"]}
        with GatewayDaemon(tmp_path / "gateway", kafka.brokers[0], **settings) as gateway:
            gateway.wait_until_ready()
            assert asyncio.run(first_record(gateway, topic)) == (36, 36)


async def first_record(gateway: GatewayDaemon, topic: str) -> tuple[int, int]:
    """What the gateway says is the first offset, and the offset of the first record that it gives."""
    partition = TopicPartition(topic, 0)
    async with AIOKafkaConsumer(**gateway.client_settings, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        beginning = (await consumer.beginning_offsets([partition]))[partition]
        await consumer.seek_to_beginning(partition)
        return beginning, (await asyncio.wait_for(consumer.getone(), 30)).offset
