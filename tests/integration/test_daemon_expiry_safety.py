"""What must never make expiry delete, on a real broker: it stops, says why, and nothing goes (U16)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT, produce, started, wait_until_trimmed
from tests.integration.test_daemon_expiry import UNGUARDED, assert_reads_from, finished
from tests.support.clock_ahead import DaemonAhead
from tests.support.daemon import Daemon, wait_for
from tests.support.kafka_admin import KafkaAdminError, wait_until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.produce import ProducedRecord
from tests.support.remote_events import object_keys_in

pytestmark = pytest.mark.broker

TEN_YEARS_MS = 10 * 365 * 24 * 3_600_000


@contextmanager
def nothing_goes(cluster: KafkaCluster, daemon: Daemon) -> Iterator[None]:
    """Of what is finished, and of what is stored."""
    segments, objects = finished(cluster, daemon), object_keys_in(daemon.store_root)
    assert len(segments) > 2
    yield
    assert [segment for segment in segments if segment not in finished(cluster, daemon)] == []
    assert objects <= object_keys_in(daemon.store_root)


def filled(kafka: KafkaCluster, topic: str) -> list[ProducedRecord]:
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    return produce(kafka, topic, total_bytes=400_000)


def wait_until_stopped(daemon: Daemon, topic: str, reason: str) -> None:
    """The log, the metric and the status page all say so."""

    def says(event: dict[str, Any]) -> bool:
        return reason in event["reason"]

    wait_for(lambda: any(map(says, daemon.events("expire.stopped"))), f"expiry stops: {reason}", daemon)
    wait_for(lambda: daemon.metric("tiersidecar_expiry_stopped", topic=topic) == 1, "the metric says so", daemon)
    assert reason in daemon.status("/status")[1]


def restart(daemon: Daemon, **rule: object) -> None:
    assert daemon.stop() == 0
    daemon.settings["topics"] = [{**daemon.settings["topics"][0], **rule}]
    daemon.start()


def wait_until_it_goes_on(daemon: Daemon, topic: str) -> None:
    """A round found nothing to doubt."""

    def goes_on() -> bool:
        seen = daemon.metric("kafka_remote_log_metadata_segments", topic=topic) > 0
        return seen and daemon.metric("tiersidecar_expiry_stopped", topic=topic) == 0

    wait_for(goes_on, "expiry goes on", daemon)


def test_a_clock_that_jumps_ten_years_ahead(kafka: KafkaCluster, tmp_path: Path) -> None:
    """While the daemon runs, and before it starts; the guard on shares is off, so it is the clock's own rule that holds."""
    topic = "safe-clock"
    produced = filled(kafka, topic)
    rule = {"local.retention.bytes": 1, "retention.ms": "1h"}
    with DaemonAhead(tmp_path, started(tmp_path, kafka, topic, rule=rule, **UNGUARDED).settings) as daemon:
        local_start = wait_until_trimmed(kafka, daemon, topic)
        # As where the brokers' clocks are ahead too: else they refuse every record of the sidecar's, and it rests for that.
        for name in ("remote.log.metadata.topic.name", "state.topic.name"):
            kafka.admin.alter_topic(daemon.settings[name], {"message.timestamp.after.max.ms": str(2 * TEN_YEARS_MS)})
        with nothing_goes(kafka, daemon):
            daemon.set_clock_ahead(TEN_YEARS_MS)
            wait_until_stopped(daemon, topic, "the wall clock jumped 3153")  # or a second less
            restart(daemon)
            wait_until_stopped(daemon, topic, "by this clock nothing happened to the partition for")
            daemon.set_clock_ahead(0)
            restart(daemon)
            wait_until_it_goes_on(daemon, topic)
            assert_reads_from(daemon, topic, produced, 0, local_start)


def test_a_retention_that_suddenly_reads_0(kafka: KafkaCluster, tmp_path: Path) -> None:
    """By time and by size: a configuration that lost its value."""
    topic = "safe-zero"
    produced = filled(kafka, topic)
    with started(tmp_path, kafka, topic) as daemon:
        local_start = wait_until_trimmed(kafka, daemon, topic)
        with nothing_goes(kafka, daemon):
            restart(daemon, **{"retention.ms": 0})
            wait_until_stopped(daemon, topic, "retention.ms reads 0")
            restart(daemon, **{"retention.ms": -1, "retention.bytes": 0, "local.retention.bytes": 0})
            wait_until_stopped(daemon, topic, "retention.bytes reads 0")
            assert_reads_from(daemon, topic, produced, 0, local_start)


def test_a_metadata_topic_that_comes_back_empty(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Made anew while the daemon was away, and its snapshot lost, too: only the state topic still knows what was trimmed."""
    topic = "safe-empty"
    filled(kafka, topic)
    with started(tmp_path, kafka, topic, **UNGUARDED) as daemon:
        wait_until_trimmed(kafka, daemon, topic)
        objects = object_keys_in(daemon.store_root)
        assert daemon.stop() == 0
        kafka.admin.delete_topic(daemon.settings["remote.log.metadata.topic.name"])
        shutil.rmtree(daemon.settings["state.dir"])
        daemon.settings["topics"] = [{"name": topic, "local.retention.bytes": 1, "retention.bytes": 1}]
        daemon.start()
        wait_for(lambda: daemon.events("lane.halted"), "both lanes say why they rest", daemon)
        assert all("the topic lost its events" in event["error"] for event in daemon.events("lane.halted"))
        assert object_keys_in(daemon.store_root) == objects


def test_a_lineage_that_only_the_state_topic_has(kafka_cluster: Any, tmp_path: Path) -> None:
    """The epoch blobs are garbage, and the broker has led anew and forgotten its first epoch: the state topic has the history.

    Without that nothing goes, and the partition is halted: tests/unit/reading/test_lineage.py.
    """
    cluster, topic = kafka_cluster(), "safe-lineage"
    filled(cluster, topic)
    cluster.brokers[0].restart()
    produced = produce(cluster, topic, total_bytes=400_000, seed=1)
    with started(tmp_path, cluster, topic, **UNGUARDED) as daemon:
        local_start = wait_until_trimmed(cluster, daemon, topic)
        first, last = (one.segment_leader_epochs for one in (finished(cluster, daemon)[at] for at in (0, -1)))
        assert {one.epoch for one in first}.isdisjoint(one.epoch for one in last)
        assert daemon.stop() == 0
        blobs = list(daemon.store_root.rglob("*.indexes"))
        assert blobs
        for path in blobs:
            path.write_bytes(bytes(path.stat().st_size))
        shutil.rmtree(daemon.settings["state.dir"])
        daemon.settings["topics"] = [{"name": topic, "local.retention.bytes": 1, "retention.bytes": 1}]
        daemon.start()
        wait_for(lambda: daemon.events("segment.deleted"), "retention goes on by the history that was said", daemon)
        assert daemon.events("lineage.blob.unreadable")
        assert daemon.events("lane.halted") == []
        assert daemon.metric("tiersidecar_halted_partitions", topic=topic) == 0
        wait_until_it_goes_on(daemon, topic)
        assert_reads_from(daemon, topic, produced, local_start, produced[-1].offset + 1)


def test_a_log_start_that_fell_back(kafka_cluster: Any, tmp_path: Path) -> None:
    """DeleteRecords to the middle of a segment, kill -9, and the broker's log begins earlier again: no evidence of anything."""
    cluster, topic = kafka_cluster(), "safe-start"
    produced = filled(cluster, topic)
    with started(tmp_path, cluster, topic, **UNGUARDED) as daemon:
        local_start = wait_until_trimmed(cluster, daemon, topic)
        with nothing_goes(cluster, daemon):
            assert daemon.stop() == 0
            assert cluster.admin.delete_records(topic, 0, local_start + 1) == local_start + 1
            cluster.brokers[0].kill9()
            cluster.brokers[0].start()
            # To the first segment that is still on the disk: the broker deletes what was trimmed in its own time.
            wait_until(lambda: fell_back(earliest(cluster, topic), local_start), "the log start fell back", 60)
            daemon.settings["topics"] = [{"name": topic, "local.retention.bytes": 1, "retention.ms": "1h"}]
            daemon.start()
            wait_until_it_goes_on(daemon, topic)
            assert_reads_from(daemon, topic, produced, 0, local_start)


def fell_back(log_start: int | None, local_start: int) -> bool:
    return log_start is not None and log_start <= local_start


def earliest(cluster: KafkaCluster, topic: str) -> int | None:
    try:
        return cluster.admin.earliest_offset(topic, 0)
    except (KafkaAdminError, LookupError, OSError):
        return None
