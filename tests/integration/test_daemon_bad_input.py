"""Bad input gets an error that names the thing, and stops no more than it must; exit code 2 is for configuration."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT, produce, started
from tests.support.daemon import Daemon, daemon_settings, wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.loopback_ports import free_port
from tests.support.produce import produce_mix
from tests.support.remote_events import object_keys_in

pytestmark = pytest.mark.broker


def assert_ends(daemon: Daemon, code: int, *words: str) -> None:
    with daemon:
        assert daemon.wait_for_exit(30) == code, daemon.log_tail()
    said = daemon.log_path.read_text()
    assert "Traceback" not in said
    for word in words:
        assert word in said


def settings_of(directory: Path, **others: Any) -> dict[str, Any]:
    return daemon_settings(
        directory, bootstrap_servers="127.0.0.1:1", log_dirs=[directory / "logs"], topics=[], **others
    )


def test_a_wrong_type_ends_with_2(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, **{"remote.log.manager.task.interval.ms": "often"})
    assert_ends(Daemon(tmp_path, settings), 2, "remote.log.manager.task.interval.ms", "often")


def test_a_missing_log_dir_ends_with_2(tmp_path: Path) -> None:
    assert_ends(Daemon(tmp_path, settings_of(tmp_path)), 2, str(tmp_path / "logs"), "log.dirs")


def test_a_log_dir_that_no_broker_has_formatted_is_waited_for(tmp_path: Path) -> None:
    """A sidecar may start before its broker has ever run, or before the volume is mounted; after a 2 systemd leaves it down."""
    (tmp_path / "logs").mkdir()
    with Daemon(tmp_path, settings_of(tmp_path)) as daemon:
        wait_for(lambda: daemon.events("log_dirs.awaited"), "the wait is told", daemon)
        code, body = daemon.status("/readyz")
        assert code == 503
        assert f"meta.properties in {tmp_path / 'logs'}" in body
        (tmp_path / "logs" / "meta.properties").write_text("version=1\ncluster.id=dGllcnNpZGVjYXItdGVzdA\nnode.id=1\n")
        wait_for(lambda: daemon.events("broker.awaited"), "then the broker is waited for", daemon)
        assert daemon.stop() == 0
    assert "Traceback" not in daemon.log_path.read_text()


def test_an_unreadable_configuration_ends_with_2(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, settings_of(tmp_path))
    daemon.config_path.write_text("log.dirs: [")
    ended = subprocess.run(daemon.command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert str(daemon.config_path) in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_broker_that_is_not_there_is_waited_for(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = "no-broker"
    port = free_port()
    with started(tmp_path, kafka, topic, broker={"bootstrap.servers": f"127.0.0.1:{port}"}) as daemon:
        wait_for(lambda: daemon.events("broker.awaited"), "the wait is told", daemon)
        code, body = daemon.status("/readyz")
        assert code == 503
        assert str(port) in body
        assert daemon.status("/healthz")[0] == 200
        assert daemon.stop() == 0
    assert "Traceback" not in daemon.log_path.read_text()


def test_another_cluster_ends_the_process(kafka: KafkaCluster, kafka_39: KafkaCluster, tmp_path: Path) -> None:
    daemon = started(tmp_path, kafka, "wrong-cluster", broker={"bootstrap.servers": kafka_39.bootstrap_servers})
    assert_ends(daemon, 1, "wrong cluster", kafka.cluster_id, kafka_39.cluster_id)


def test_another_broker_of_the_cluster_ends_the_process(kafka_cluster: Any, tmp_path: Path) -> None:
    """The log dirs of one, the bootstrap.servers of another: no sidecar acts for a broker that it is not beside."""
    cluster = kafka_cluster(brokers=3)
    settings = daemon_settings(
        tmp_path,
        bootstrap_servers=cluster.brokers[0].bootstrap_server,
        log_dirs=list(cluster.brokers[1].log_dirs),
        topics=[],
    )
    assert_ends(Daemon(tmp_path, settings), 1, "another broker than log.dirs", "is broker 1", "of node 2")


def test_a_store_that_cannot_be_written_is_named_and_waited_for(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = "no-store"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produce(kafka, topic, total_bytes=300_000)
    with started(tmp_path, kafka, topic) as daemon:
        daemon.store_root.rmdir()
        wait_for(lambda: daemon.events("store.not_writable"), "the store is named", daemon)
        wait_for(lambda: str(daemon.store_root) in daemon.status("/readyz")[1], "so does /readyz", daemon)
        assert "Traceback" not in daemon.log_path.read_text()
        daemon.store_root.mkdir()
        wait_for(lambda: object_keys_in(daemon.store_root), "copying goes on by itself", daemon)


def damaged_cluster(kafka_cluster: Any, topic: str) -> tuple[KafkaCluster, Path]:
    """A topic of two partitions, and the first segment of the first one, to be damaged."""
    cluster: KafkaCluster = kafka_cluster()
    cluster.create_topic(topic, partitions=2, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    asyncio.run(produce_mix(cluster.client_settings, topic, partitions=2, total_bytes=1_000_000, batch_bytes=16_384))
    return cluster, cluster.brokers[0].partition_dir(topic, 0) / f"{0:020d}.log"


def test_a_bad_segment_stops_its_own_partition(kafka_cluster: Any, tmp_path: Path) -> None:
    topic = "damaged"
    cluster, first = damaged_cluster(kafka_cluster, topic)
    data = bytearray(first.read_bytes())
    data[300] ^= 1
    first.write_bytes(data)
    with started(tmp_path, cluster, topic, rule={"local.retention.bytes": -2}) as daemon:
        halted = wait_for(lambda: daemon.events("lane.halted"), "the partition is halted", daemon)[0]
        assert (halted["topic"], halted["partition"]) == (topic, 0)
        assert first.stem in halted["error"]
        wait_for(lambda: object_keys_in(daemon.store_root), "the other partition goes on", daemon)
        assert all(f"{topic}-" in key and "/1/" in key for key in object_keys_in(daemon.store_root))
        assert daemon.metric("tiersidecar_halted_partitions", topic=topic) == 1
        wait_for(lambda: daemon.status("/readyz")[0] == 200, "the process is ready all the same", daemon)
    assert "Traceback" not in daemon.log_path.read_text()


def test_a_truncated_index_is_made_anew_and_told(kafka_cluster: Any, tmp_path: Path) -> None:
    """Issue: an index that fails its checks is rebuilt from the log in memory."""
    topic = "truncated"
    cluster, first = damaged_cluster(kafka_cluster, topic)
    index = first.with_suffix(".timeindex")
    damaged = index.read_bytes()[:-5]
    index.write_bytes(damaged)
    with started(tmp_path, cluster, topic, rule={"local.retention.bytes": -2}) as daemon:
        told = wait_for(lambda: daemon.events("segment.artefacts.rebuilt"), "the index is made anew", daemon)[0]
        assert (told["topic"], told["partition"], told["artefacts"]) == (topic, 0, ["time index"])
        assert str(index) in told["reasons"][0]
        assert daemon.metric("tiersidecar_rebuilt_artefacts_total", topic=topic, artefact="time index") == 1
        assert not daemon.events("lane.halted")
        assert index.read_bytes() == damaged, "the broker's own file is left alone"
    assert "Traceback" not in daemon.log_path.read_text()
