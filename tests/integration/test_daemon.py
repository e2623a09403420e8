"""The main job on a real broker: sealed segments go to a store and come back, and the broker is never harmed (S-006)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from stat import S_IMODE
from typing import Any

import pytest

from tests.support.daemon import Daemon, daemon_settings, wait_for
from tests.support.kafka_admin import KafkaAdminError
from tests.support.kafka_cluster import KafkaCluster
from tests.support.produce import ProducedRecord, produce_mix
from tests.support.read_service import fetch_records, shape_of
from tests.support.remote_events import fold, in_state, object_keys_in, read_events
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.reading.remote_objects import recorded_keys

pytestmark = pytest.mark.broker

SEGMENT_BYTES = 64 * 1024
STRICT = {"retention.ms": "-1", "retention.bytes": "-1"}


def started(directory: Path, cluster: KafkaCluster, topic: str, **settings: Any) -> Daemon:
    """A daemon for one topic with a metadata and a state topic of its own; ``rule`` adds to the topic's rule."""
    rule = {"name": topic, **settings.pop("rule", {"local.retention.bytes": 1})}
    return Daemon(
        directory,
        daemon_settings(
            directory,
            bootstrap_servers=cluster.bootstrap_servers,
            log_dirs=list(cluster.brokers[0].log_dirs),
            topics=[rule],
            **{
                "remote.log.metadata.topic.name": f"__rlm_{topic}",
                "state.topic.name": f"__state_{topic}",
                **settings,
            },
        ),
    )


def produce(cluster: KafkaCluster, topic: str, *, total_bytes: int = 1_500_000, seed: int = 0) -> list[ProducedRecord]:
    return asyncio.run(
        produce_mix(cluster.client_settings, topic, total_bytes=total_bytes, batch_bytes=16_384, seed=seed)
    )


def finished(cluster: KafkaCluster, daemon: Daemon) -> list[RemoteLogSegmentMetadata]:
    events = read_events(cluster.client_settings, daemon.settings["remote.log.metadata.topic.name"])
    return in_state(fold(events), State.COPY_SEGMENT_FINISHED)


def base_offsets(cluster: KafkaCluster, topic: str) -> list[int]:
    """Of the segments on the leader's disk, the active one's last."""
    return sorted(int(log.stem) for log in cluster.leader_of(topic, 0).partition_dir(topic, 0).glob("*.log"))


def active_base(cluster: KafkaCluster, topic: str) -> int:
    """Base offset of the active segment."""
    return base_offsets(cluster, topic)[-1]


def wait_until_trimmed(cluster: KafkaCluster, daemon: Daemon, topic: str, timeout_s: float = 60.0) -> int:
    """The local start, once it is the active segment's base, and no other is on the disk."""

    def trimmed() -> int | None:
        try:
            start, bases = cluster.admin.earliest_offset(topic, 0), base_offsets(cluster, topic)
        except (KafkaAdminError, LookupError):  # a broker that has just started does not lead yet
            return None
        return start if start > 0 and bases == [start] else None

    return int(wait_for(trimmed, f"{topic} is trimmed to its active segment", daemon, timeout_s))


def assert_every_sealed_segment_once(
    cluster: KafkaCluster, daemon: Daemon, topic: str, stored: Callable[[], set[str]] | None = None
) -> None:
    """From offset 0 to the active segment without hole or overlap, and objects of finished segments only.

    ``stored`` gives the keys of all segments' objects where the store is not a directory.
    """
    segments = finished(cluster, daemon)
    next_offset = 0
    for segment in segments:
        assert segment.start_offset == next_offset, "a hole, or an overlap"
        next_offset = segment.next_offset
    assert next_offset == active_base(cluster, topic)
    named = {key for segment in segments for key in recorded_keys(segment).in_upload_order}
    assert (object_keys_in(daemon.store_root) if stored is None else stored()) == named


def assert_reads_back(daemon: Daemon, topic: str, produced: list[ProducedRecord], stop: int) -> None:
    lost = [record for record in produced if record.offset < stop]
    assert lost
    found = list(fetch_records(daemon.read_url, topic, 0, stop=stop))
    assert found == [shape_of(record) for record in lost]
    committed = list(fetch_records(daemon.read_url, topic, 0, stop=stop, isolation="read_committed"))
    assert committed == [shape_of(record) for record in lost if not record.aborted]


def the_main_job(cluster: KafkaCluster, directory: Path, topic: str, **settings: Any) -> None:
    cluster.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produced = produce(cluster, topic)
    objects, stored = settings.pop("objects", None), settings.pop("stored", None)
    when_trimmed = settings.pop("when_trimmed", None)
    with started(directory, cluster, topic, **settings) as daemon:
        daemon.store_root = objects or daemon.store_root
        daemon.wait_until_ready()
        stop = wait_until_trimmed(cluster, daemon, topic)
        if when_trimmed is not None:
            when_trimmed(daemon)
        assert_every_sealed_segment_once(cluster, daemon, topic, stored)
        assert_reads_back(daemon, topic, produced, stop)
        assert daemon.stop() == 0
    assert_private(directory / "state", file=0o600, directory=0o700)
    if objects is None and stored is None:  # what a store's server keeps on its disk is its own affair
        assert_private(daemon.store_root, file=0o640, directory=0o750)


def assert_private(root: Path, *, file: int, directory: int) -> None:
    """Whatever the umask was (issue 17); the root of the store is the operator's."""
    found = {path: S_IMODE(path.stat().st_mode) for path in root.rglob("*") if path.name != ".tiersidecar-tmp"}
    assert found
    wrong = {str(path): oct(mode) for path, mode in found.items() if mode != (directory if path.is_dir() else file)}
    assert wrong == {}


def test_segments_go_to_the_store_and_come_back(kafka: KafkaCluster, tmp_path: Path) -> None:
    the_main_job(kafka, tmp_path, "main-job")


def test_beside_kafka_3_9(kafka_39: KafkaCluster, tmp_path: Path) -> None:
    the_main_job(kafka_39, tmp_path, "main-job-39")


def test_compressed_and_encrypted_objects(kafka: KafkaCluster, tmp_path: Path, rsa_key_files: dict[str, str]) -> None:
    store = {
        "type": "filesystem",
        "root": str(tmp_path / "store"),
        "compression.enabled": True,
        "encryption.enabled": True,
        "encryption.key.pair.id": "one",
        "encryption.key.pairs": {"one": rsa_key_files},
        "chunk.size": "16KiB",
    }
    the_main_job(kafka, tmp_path, "sealed-job", store=store)


def test_observe_decides_and_writes_nothing(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = "observed"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produce(kafka, topic)
    with started(tmp_path, kafka, topic, mode="observe") as daemon:
        wait_for(lambda: daemon.events("segment.copy.observed"), "a copy was observed", daemon)
        daemon.wait_until_ready()
        looks = daemon.metric("process_cpu_seconds_total")
        wait_for(lambda: daemon.metric("process_cpu_seconds_total") > looks + 0.2, "it has looked again", daemon)
        assert len(daemon.events("segment.copy.observed")) == 1
        assert object_keys_in(daemon.store_root) == set()
        assert kafka.admin.earliest_offset(topic, 0) == 0
    listed = kafka.run_tool(
        "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", kafka.bootstrap_servers, "--list"
    ).stdout
    assert "__rlm_observed" not in listed


def test_the_broker_restarts_with_everything_of_ours_in_place(kafka_cluster: Any, tmp_path: Path) -> None:
    """None of our files may keep a broker from starting."""
    cluster, topic = kafka_cluster(), "restarted"
    cluster.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    first = produce(cluster, topic)
    with started(tmp_path, cluster, topic) as daemon:
        wait_until_trimmed(cluster, daemon, topic)
        cluster.brokers[0].kill9()
        cluster.brokers[0].start()
        second = produce(cluster, topic, seed=1)
        cluster.brokers[0].restart()
        stop = wait_until_trimmed(cluster, daemon, topic)
        wait_for(lambda: daemon.status("/readyz")[0] == 200, "ready again", daemon)
        assert_every_sealed_segment_once(cluster, daemon, topic)
        assert_reads_back(daemon, topic, first + second, stop)


def test_a_failed_log_dir_takes_only_its_own_partitions_down(kafka_cluster: Any, tmp_path: Path) -> None:
    cluster, topic = kafka_cluster(log_dirs=2), "two-dirs"
    cluster.create_topic(topic, partitions=4, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    broker = cluster.brokers[0]
    by_dir = {path: [p for p in range(4) if broker.partition_dir(topic, p).parent == path] for path in broker.log_dirs}
    failed, healthy = (broker.log_dirs if by_dir[broker.log_dirs[0]] else tuple(reversed(broker.log_dirs)))[:2]
    with started(tmp_path, cluster, topic) as daemon:
        daemon.wait_until_ready()
        unreadable = broker.partition_dir(topic, by_dir[failed][0])
        # As root a directory cannot be made unreadable; a file where the directory was fails in the same way.
        moved = unreadable.parent.rename(unreadable.parent.with_name("gone"))
        try:
            unreadable.parent.write_bytes(b"")
            wait_for(lambda: daemon.events("log_dir.fault"), "the fault is told", daemon)
            wait_for(lambda: str(unreadable.parent) in daemon.status("/status")[1], "the status names it", daemon)
            assert str(unreadable.parent) in json.loads(daemon.status("/status")[1])["log_dir_faults"]

            def shown() -> set[int]:
                return {row["partition"] for row in json.loads(daemon.status("/status")[1])["partitions"]}

            # A look that the broker does not answer finds the fault, and leaves the partitions to the next one.
            wait_for(lambda: shown() == set(by_dir[healthy]), "only the others are there", daemon)
        finally:
            unreadable.parent.unlink()
            moved.rename(unreadable.parent)
        wait_for(lambda: daemon.events("log_dir.fault.cleared"), "the fault is cleared", daemon)
