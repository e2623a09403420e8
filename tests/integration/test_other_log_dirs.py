"""The log dirs that the sidecar reads are not always those that the broker writes, nor does a file know all epochs."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_daemon import STRICT, assert_every_sealed_segment_once, finished, wait_until_trimmed
from tests.support.batches import batch_bytes, record_bytes
from tests.support.daemon import Daemon, daemon_settings, wait_for
from tests.support.kafka_admin import KafkaAdminError, wait_until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_placement import move_replica
from tests.support.raw_log import send_batch
from tests.support.read_service import fetch_records

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

SEGMENT_BYTES = 16 * 1024
LONG_S = 300.0
"""A misplaced partition is told after a minute; a busy machine is given four more."""


def daemon_of(directory: Path, kafka: KafkaCluster, *log_dirs: Path, **rule: Any) -> Daemon:
    settings = daemon_settings(
        directory,
        bootstrap_servers=kafka.bootstrap_servers,
        log_dirs=list(log_dirs),
        topics=[{"pattern": "tiered-.*", **rule}],
        **{"pins.enabled": False, "remote.log.metadata.topic.name": "__rlm"},
    )
    return Daemon(directory, settings)


def put(kafka: KafkaCluster, topic: str, count: int, value: bytes) -> None:
    """Batches of one record of about 1,000 bytes."""
    with kafka.admin_of_leader(topic, 0).connected() as connection:
        for _ in range(count):
            records = record_bytes(0, b"k", value * 1000)
            send_batch(connection, topic, batch_bytes(0, records, base_timestamp=int(time.time() * 1000)))


def offset_is(ask: Callable[[str, int], int], topic: str, offset: int) -> Callable[[], bool]:
    """Of a broker that may just have started, and not lead yet."""

    def says() -> bool:
        try:
            return ask(topic, 0) == offset
        except (KafkaAdminError, LookupError):
            return False

    return says


def misplaced(daemon: Daemon, event: str = "partition.misplaced") -> set[str]:
    return {f"{one['topic']}-{one['partition']}" for one in daemon.events(event)}


def test_of_a_log_that_is_not_the_brokers_nothing_is_copied_or_trimmed(tmp_path: Path) -> None:
    """The broker's disk was replaced and its log begins anew; the sidecar still has the old disk, where everything is remote
    and may be trimmed.  Of what the broker has since there is no directory at all."""
    with KafkaCluster(tmp_path / "kafka") as kafka:
        broker = kafka.brokers[0]
        (log_dir,) = broker.log_dirs
        kafka.create_topic("tiered-stale", segment_bytes=SEGMENT_BYTES, configs=STRICT)
        put(kafka, "tiered-stale", 60, b"o")
        with daemon_of(tmp_path / "sidecar", kafka, log_dir) as daemon:
            daemon.wait_until_ready(LONG_S)
            wait_for(lambda: len(finished(kafka, daemon)) >= 3, "the old log is copied", daemon, timeout_s=LONG_S)
            assert daemon.stop() == 0
        broker.stop()
        left = tmp_path / "left"
        shutil.copytree(log_dir, left)
        shutil.rmtree(log_dir / "tiered-stale-0")
        broker.start()
        wait_until(offset_is(kafka.admin.latest_offset, "tiered-stale", 0), "the log began anew", timeout_s=LONG_S)
        kafka.create_topic("tiered-unseen", segment_bytes=SEGMENT_BYTES, configs=STRICT)
        for topic in ("tiered-stale", "tiered-unseen"):
            put(kafka, topic, 80, b"N")
        both = {"tiered-stale-0", "tiered-unseen-0"}
        with daemon_of(tmp_path / "sidecar", kafka, left, **{"local.retention.bytes": 1}) as daemon:
            daemon.wait_until_ready(LONG_S)
            before = finished(kafka, daemon)

            def is_told() -> bool:
                assert [kafka.admin.earliest_offset(topic, 0) for topic in ("tiered-stale", "tiered-unseen")] == [0, 0]
                return misplaced(daemon) == both

            wait_for(is_told, "both partitions are told", daemon, timeout_s=LONG_S)
            assert finished(kafka, daemon) == before
            code, readiness = daemon.status("/readyz")
            assert code == 200
            (warning,) = json.loads(readiness)["warnings"]
            assert warning.startswith("tiered-stale-0 and 1 others: ")
            rows = json.loads(daemon.status("/status")[1])["partitions"]
            assert {(f"{row['topic']}-{row['partition']}", row["role"]) for row in rows} == {
                (one, "leader") for one in both
            }
            assert all("Compare log.dirs and mounts" in row["held_back_reason"] for row in rows)
            metrics = daemon.status("/metrics")[1]
            assert all(f'tiersidecar_misplaced_partitions{{topic="{one[:-2]}"}} 1.0' in metrics for one in both)
            assert daemon.stop() == 0
        with daemon_of(tmp_path / "sidecar", kafka, log_dir, **{"local.retention.bytes": 1}) as daemon:
            daemon.wait_until_ready(LONG_S)
            for topic in ("tiered-stale", "tiered-unseen"):
                stop = wait_until_trimmed(kafka, daemon, topic, LONG_S)
                read = list(fetch_records(daemon.read_url, topic, 0, stop=stop))
                assert {(record[3] or b"")[:1] for record in read} == {b"N"}, "nothing of the log that is lost"
                assert [record[0] for record in read] == list(range(stop))
            assert daemon.stop() == 0


def test_a_log_start_that_falls_back_with_a_broker_killed_is_copied(tmp_path: Path) -> None:
    """The broker wrote the leader epochs of the new start at once, and would have written the start itself later."""
    later = {"log.flush.start.offset.checkpoint.interval.ms": "86400000"}
    with KafkaCluster(tmp_path / "kafka", properties=later) as kafka:
        broker = kafka.brokers[0]
        (log_dir,) = broker.log_dirs
        broker.wait_for_first_checkpoints()
        topic = "tiered-fallback"
        kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
        put(kafka, topic, 60, b"x")
        kafka.admin.delete_records(topic, 0, 8)
        checkpoint = broker.partition_dir(topic, 0) / "leader-epoch-checkpoint"
        wait_until(lambda: checkpoint.read_text().splitlines()[2:] == ["0 8"], "epoch 0 begins at 8", timeout_s=LONG_S)
        broker.kill9()
        broker.start()
        wait_until(offset_is(kafka.admin.earliest_offset, topic, 0), "the log start fell back", timeout_s=LONG_S)
        assert checkpoint.read_text().splitlines()[2] == "0 8"
        with daemon_of(tmp_path / "sidecar", kafka, log_dir, **{"local.retention.bytes": 1}) as daemon:
            daemon.wait_until_ready(LONG_S)
            stop = wait_until_trimmed(kafka, daemon, topic, LONG_S)
            assert stop > 8
            assert_every_sealed_segment_once(kafka, daemon, topic)
            assert [record[0] for record in fetch_records(daemon.read_url, topic, 0, stop=stop)] == list(range(stop))
            assert daemon.events("lane.halted") == []
            (told,) = daemon.events("leader_epochs.from_batches")
            assert (told["leader_epochs"], told["start_offset"], told["known_from"]) == ([0], 0, 8)
            assert daemon.stop() == 0


def test_a_log_moved_before_the_first_record_of_its_epoch_is_the_brokers(tmp_path: Path) -> None:
    """A restart begins a leader epoch, and a move to another log dir forgets it again until somebody writes."""
    topic = "tiered-moved"
    with KafkaCluster(tmp_path / "kafka", log_dirs=2) as kafka:
        broker = kafka.brokers[0]
        kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
        put(kafka, topic, 60, b"x")
        broker.stop()
        broker.start()
        wait_until(offset_is(kafka.admin.latest_offset, topic, 60), "the broker leads again", timeout_s=LONG_S)
        before = broker.partition_dir(topic, 0)
        assert len(epochs_in(before)) == 2
        (other,) = (log_dir for log_dir in broker.log_dirs if log_dir != before.parent)
        move_replica(broker.admin, topic, 0, other)
        wait_until(lambda: (other / before.name).is_dir() and not before.is_dir(), "it is moved", timeout_s=LONG_S)
        assert epochs_in(other / before.name) == ["0 0"]
        with daemon_of(tmp_path / "sidecar", kafka, *broker.log_dirs, **{"local.retention.bytes": 1}) as daemon:
            daemon.wait_until_ready(LONG_S)
            stop = wait_until_trimmed(kafka, daemon, topic, LONG_S)
            assert_every_sealed_segment_once(kafka, daemon, topic)
            copied = len(finished(kafka, daemon))
            put(kafka, topic, 60, b"y")
            wait_for(lambda: len(finished(kafka, daemon)) > copied, "and goes on", daemon, timeout_s=LONG_S)
            read = list(fetch_records(daemon.read_url, topic, 0, stop=stop))
            assert [record[0] for record in read] == list(range(stop))
            assert misplaced(daemon) == set()
            assert daemon.stop() == 0


def epochs_in(directory: Path) -> list[str]:
    return (directory / "leader-epoch-checkpoint").read_text().splitlines()[2:]
