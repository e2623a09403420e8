"""The daemon and a real S3 server with a bad way between them: whatever it was, in the end everything is there once.

``make s3-faults`` runs all seeds, ``make test`` some.  A seed is the test's id: ``-k 'seed-17'``.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_daemon import STRICT, started
from tests.integration.test_daemon_crash import assert_finished_once, assert_without_hole
from tests.support.daemon import Daemon, wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.produce import ALL_STYLES, ProducedRecord, Style, produce_mix
from tests.support.read_service import fetch_records, shape_of
from tests.support.remote_events import fold, in_state, object_keys_in, read_events
from tests.support.s3_server import s3_store_section
from tests.support.s3_troubles import Trouble, Troubled, TroubledS3, draw_troubles, running_troubled_s3
from tiersidecar.domain.segments import MetadataEvent, RemoteLogSegmentMetadata, RemotePartitionDeleteMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.reading.remote_objects import recorded_keys

pytestmark = [pytest.mark.broker, pytest.mark.server, pytest.mark.timeout(240)]

SEEDS = range(40)
IN_EVERY_RUN = frozenset({10, 12, 14, 16})
MIB = 1024 * 1024
IMPATIENT_MS = {"upload.stall.timeout": 1_000, "request.timeout": 1_500, "s3.api.call.attempt.timeout": 1_000}
PARTITIONS = 2
FOR_EVER_MS = 1 << 62


def parameters() -> list[Any]:
    marks = {seed: [] if seed in IN_EVERY_RUN else [pytest.mark.exhaustive] for seed in SEEDS}
    return [pytest.param(seed, id=f"seed-{seed}", marks=marks[seed]) for seed in SEEDS]


@pytest.mark.parametrize("seed", parameters())
def test_a_bad_way_to_s3(kafka: KafkaCluster, tmp_path: Path, rsa_key_files: dict[str, str], seed: int) -> None:
    """Each run ends with every sealed segment finished once and readable, and no object that no event names."""
    draw, topic = random.Random(seed), f"s3-faults-{seed}"
    # Every fifth seed has segments of several parts.
    segment_bytes = 6 * MIB if seed % 5 == 0 else 64 * 1024
    kafka.create_topic(topic, partitions=PARTITIONS, segment_bytes=segment_bytes, configs=STRICT)
    troubles = draw_troubles(draw, count=4)
    print(f"seed {seed}: {'; '.join(trouble.name for trouble in troubles)}")
    with running_troubled_s3(tmp_path) as s3, beside(tmp_path, kafka, topic, s3, draw, rsa_key_files) as daemon:
        produced: list[ProducedRecord] = []
        wait_for(lambda: daemon.events("daemon.roles.started"), "the daemon works", daemon)
        for trouble in troubles:
            styles = draw.sample(ALL_STYLES, 2)
            produced += produce(kafka, topic, segment_bytes, seed=draw.randrange(1 << 30), styles=styles)
            suffer(s3, trouble, daemon)
        for partition in range(PARTITIONS):
            wait_until_trimmed(kafka, daemon, topic, partition)
        assert_all_is_there(kafka, daemon, topic, s3, daemon.store_root.name, lambda: object_keys_in(daemon.store_root))
        assert daemon.stop() == 0
        reader = reader_beside(daemon, {"s3.endpoint.url": s3.server.url})
        assert_all_reads_back(kafka, reader, topic, produced)


def beside(
    directory: Path,
    cluster: KafkaCluster,
    topic: str,
    s3: TroubledS3,
    draw: random.Random,
    rsa_key_files: dict[str, str],
) -> Daemon:
    """An impatient daemon; half of the seeds compress and encrypt."""
    bucket = s3.server.directory / "kafka-tier"
    bucket.mkdir()
    store: dict[str, Any] = {
        **s3_store_section(s3.url, bucket.name),
        **IMPATIENT_MS,
        "s3.max.attempts": draw.randint(1, 3),
        "s3.multipart.upload.part.size": 5 * MIB,
    }
    if draw.random() < 0.5:
        store |= {"compression.enabled": True, "encryption.enabled": True, "encryption.key.pair.id": "one"}
        store |= {"encryption.key.pairs": {"one": rsa_key_files}, "chunk.size": "16KiB"}
    daemon = started(directory, cluster, topic, store=store)
    daemon.store_root = bucket
    return daemon


def produce(
    cluster: KafkaCluster, topic: str, segment_bytes: int, *, seed: int = 0, styles: Sequence[Style] = ALL_STYLES
) -> list[ProducedRecord]:
    """A segment or two per partition."""
    value_bytes = max(1_000, segment_bytes // 100)
    return asyncio.run(
        produce_mix(
            cluster.client_settings,
            topic,
            partitions=PARTITIONS,
            total_bytes=3 * PARTITIONS * segment_bytes // 2,
            value_bytes=value_bytes,
            batch_bytes=16 * value_bytes,
            styles=styles,
            seed=seed,
        )
    )


def suffer(s3: Troubled[Any], trouble: Trouble, daemon: Daemon) -> None:
    """One trouble, while there is something to copy: until enough requests met it, or time is over."""
    until, deadline_s = s3.requests + trouble.requests, time.monotonic() + trouble.at_most_s
    with s3.troubled_by(trouble):
        while s3.requests < until and time.monotonic() < deadline_s:
            assert daemon.is_running, daemon.log_tail()
            time.sleep(0.02)


def wait_until_trimmed(cluster: KafkaCluster, daemon: Daemon, topic: str, partition: int) -> None:
    """Every sealed segment is remote, was read back, and is gone locally."""
    directory = cluster.leader_of(topic, partition).partition_dir(topic, partition)

    def trimmed() -> bool:
        active = max(int(log.stem) for log in directory.glob("*.log"))
        return active > 0 and cluster.admin.earliest_offset(topic, partition) == active

    wait_for(trimmed, f"{topic}-{partition} is trimmed to its active segment", daemon, timeout_s=90)


def wait_until_settled(cluster: KafkaCluster, daemon: Daemon) -> list[RemoteLogSegmentMetadata]:
    """The finished segments, once no copy or deletion is half done."""

    def settled() -> list[RemoteLogSegmentMetadata] | None:
        found = fold(read_events(cluster.client_settings, daemon.settings["remote.log.metadata.topic.name"]))
        finished, gone = in_state(found, State.COPY_SEGMENT_FINISHED), in_state(found, State.DELETE_SEGMENT_FINISHED)
        return finished if len(finished) + len(gone) == len(found) else None

    segments: list[RemoteLogSegmentMetadata] = wait_for(settled, "nothing is half done", daemon)
    return segments


def assert_all_is_there(
    cluster: KafkaCluster,
    daemon: Daemon,
    topic: str,
    s3: Troubled[Any] | None,
    bucket: str,
    stored: Callable[[], set[str]],
) -> None:
    """Each sealed segment finished once, without hole or overlap, and nothing else is stored, but for :func:`came_late`.
    ``s3`` is None for a store in which nothing comes late."""
    segments = wait_until_settled(cluster, daemon)
    events = read_events(cluster.client_settings, daemon.settings["remote.log.metadata.topic.name"])
    named = {key for segment in segments for key in recorded_keys(segment).in_upload_order}
    objects = stored()
    assert named <= objects
    assert objects - named - (set() if s3 is None else came_late(events, bucket, s3)) == set()
    for partition in range(PARTITIONS):
        stop = cluster.admin.earliest_offset(topic, partition)
        assert_finished_once([event for event in events if _partition_of(event) == partition])
        assert_without_hole([segment for segment in segments if _partition_of(segment) == partition], stop)


def came_late(events: list[MetadataEvent], bucket: str, s3: Troubled[Any]) -> set[str]:
    """Keys that the server wrote when their deletion had begun: a request that was under way when the daemon gave it up, and
    the way or the server was so slow that it came last.  No client can prevent that; the events name them."""
    deleted_ms = {
        event.remote_log_segment_id: event.event_timestamp_ms
        for event in events
        if not isinstance(event, RemotePartitionDeleteMetadata) and event.state is State.DELETE_SEGMENT_STARTED
    }
    return {
        key
        for segment in fold(events)
        for key in recorded_keys(segment).in_upload_order
        if s3.proxy.written_ms.get(f"/{bucket}/{key}", 0) >= deleted_ms.get(segment.remote_log_segment_id, FOR_EVER_MS)
    }


def reader_beside(daemon: Daemon, straight: dict[str, Any]) -> Daemon:
    """Of the same store, with all patience, by the straight way."""
    store = {key: value for key, value in daemon.settings["store"].items() if key not in IMPATIENT_MS}
    settings = {**daemon.settings, "store": {**store, **straight}}
    return Daemon(daemon.directory / "reader", settings, roles="read")


def assert_all_reads_back(cluster: KafkaCluster, reader: Daemon, topic: str, produced: list[ProducedRecord]) -> None:
    """What was trimmed is there record by record."""
    with reader:
        reader.wait_until_ready()
        for partition in range(PARTITIONS):
            stop = cluster.admin.earliest_offset(topic, partition)
            lost = [shape_of(record) for record in produced if record.partition == partition and record.offset < stop]
            assert lost
            assert list(fetch_records(reader.read_url, topic, partition, stop=stop)) == lost


def _partition_of(event: MetadataEvent | RemoteLogSegmentMetadata) -> int:
    assert not isinstance(event, RemotePartitionDeleteMetadata), "4.3.1 does not write these"
    return event.remote_log_segment_id.topic_id_partition.partition
