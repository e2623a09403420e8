"""``kill -9`` of the daemon at every step of a copy, a pin, a trim and an expiry, the broker restarted over what that left,
and the daemon after it (S-187, S-230, S-231, S-232).

``make test`` takes the points that are marked ``often``, ``make crash`` all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_daemon import STRICT, started, wait_until_trimmed
from tests.support.crash_points import CRASH_POINTS, CrashPoint, Job, StoreKind
from tests.support.daemon import Daemon, wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.produce import ProducedRecord, produce_mix
from tests.support.read_service import fetch_records, shape_of
from tests.support.remote_events import fold, in_state, read_events
from tests.support.s3_server import running_s3_server, s3_store_section
from tiersidecar.domain.own_objects import OWNERS
from tiersidecar.domain.segments import MetadataEvent, RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.reading.remote_objects import recorded_keys

pytestmark = [pytest.mark.broker, pytest.mark.server, pytest.mark.timeout(300)]

KIB, MIB = 1024, 1024 * 1024
SEGMENT_BYTES = {StoreKind.FILESYSTEM: 64 * KIB, StoreKind.S3: 64 * KIB, StoreKind.S3_PARTS: 12 * MIB}
HALF_WRITTEN = (".sgwtmp/", ".tiersidecar-tmp/")
"""Where versitygw and the filesystem store write before anything is an object; both are swept by age."""
SEGMENTS = {StoreKind.FILESYSTEM: 10, StoreKind.S3: 10, StoreKind.S3_PARTS: 3}
KEPT_BYTES = 3 * 64 * KIB


@pytest.fixture(scope="module")
def broker_to_hurt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("crash")) as cluster:
        yield cluster


def parameters() -> list[Any]:
    return [
        pytest.param(
            number,
            point,
            id=f"{point.job}, {point.store}: {point.sentence}",
            marks=[] if point.often else [pytest.mark.exhaustive],
        )
        for number, point in enumerate(CRASH_POINTS)
    ]


@pytest.mark.parametrize(("number", "point"), parameters())
def test_killed_and_restarted(broker_to_hurt: KafkaCluster, tmp_path: Path, number: int, point: CrashPoint) -> None:
    """Every sealed segment has exactly one COPY_SEGMENT_FINISHED and reads back whole, or has expired whole; no object,
    file or pin is left that nothing names; and the broker starts over all that the crash left, killed itself or stopped."""
    cluster, topic = broker_to_hurt, f"crash-{number}"
    cluster.create_topic(topic, segment_bytes=SEGMENT_BYTES[point.store], configs=STRICT)
    produced = produce(cluster, topic, SEGMENTS[point.store] * SEGMENT_BYTES[point.store])
    with ExitStack() as stack:
        daemon = beside(stack, tmp_path, cluster, topic, point.store)
        if point.job is not Job.TIER:
            copy_all(cluster, daemon, topic)
        if point.job is Job.EXPIRE_AFTER_STOP:
            daemon.settings["deletes.max.share.per.round"] = 0.1
        for place, hit in point.places:
            start_anew(daemon, f"{place}=kill@{hit}")
            assert daemon.wait_for_exit() == -9, daemon.log_tail()
        restart_broker(cluster, is_killed=number % 2 == 0)
        daemon.settings["deletes.max.share.per.round"] = 1
        start_anew(daemon)
        daemon.wait_until_ready()
        stop = wait_until_trimmed(cluster, daemon, topic)
        segments = wait_until_settled(cluster, daemon, point.job)
        assert_finished_once(read_all(cluster, daemon))
        assert_without_hole(segments, stop)
        assert_nothing_unnamed(daemon, segments, half_written=len(point.places))
        assert_reads_back(daemon, topic, produced, segments[0].start_offset, stop)
        wait_for(lambda: pins_beside(cluster) == [], "no pin is left", daemon)


def produce(cluster: KafkaCluster, topic: str, total_bytes: int) -> list[ProducedRecord]:
    value_bytes = max(1000, total_bytes // 1000)
    return asyncio.run(
        produce_mix(
            cluster.client_settings,
            topic,
            total_bytes=total_bytes,
            value_bytes=value_bytes,
            batch_bytes=16 * value_bytes,
        )
    )


def beside(stack: ExitStack, directory: Path, cluster: KafkaCluster, topic: str, kind: StoreKind) -> Daemon:
    """A daemon, not started, that ends with ``stack``, and so does its S3 server."""
    settings: dict[str, Any] = {"deletes.max.share.per.round": 1}
    if kind is StoreKind.FILESYSTEM:
        daemon = started(directory, cluster, topic, **settings)
    else:
        server = stack.enter_context(running_s3_server(directory / "s3"))
        bucket = server.directory / "kafka-tier"
        bucket.mkdir()
        daemon = started(directory, cluster, topic, store=s3_store_section(server.url, bucket.name), **settings)
        daemon.settings["store"]["s3.multipart.upload.part.size"] = 5 * MIB
        daemon.store_root = bucket
    # So that a segment has several chunks, and half of them is neither none nor all.
    daemon.settings["store"]["chunk.size"] = SEGMENT_BYTES[kind] // 8
    stack.callback(daemon.kill9)
    return daemon


def start_anew(daemon: Daemon, failpoints: str = "") -> None:
    daemon.failpoints = failpoints
    daemon.start()


def copy_all(cluster: KafkaCluster, daemon: Daemon, topic: str) -> None:
    """Until all sealed segments are remote alone; what starts next finds a total retention that most of them exceed."""
    start_anew(daemon)
    wait_until_trimmed(cluster, daemon, topic)
    assert daemon.stop() == 0
    daemon.settings["topics"][0]["retention.bytes"] = KEPT_BYTES


def restart_broker(cluster: KafkaCluster, *, is_killed: bool) -> None:
    (broker,) = cluster.brokers
    if is_killed:
        broker.kill9()
        broker.start()
    else:
        broker.restart()
    told = broker.log_path.read_text().replace("__tiersidecar_proposals", "")  # a topic as any other
    assert "tiersidecar" not in told, "the broker takes notice of us"


def read_all(cluster: KafkaCluster, daemon: Daemon) -> list[MetadataEvent]:
    return read_events(cluster.client_settings, daemon.settings["remote.log.metadata.topic.name"])


def wait_until_settled(cluster: KafkaCluster, daemon: Daemon, job: Job) -> list[RemoteLogSegmentMetadata]:
    """The finished segments, once nothing is half done and what is too much has gone."""

    def settled() -> list[RemoteLogSegmentMetadata] | None:
        found = fold(read_all(cluster, daemon))
        finished, gone = in_state(found, State.COPY_SEGMENT_FINISHED), in_state(found, State.DELETE_SEGMENT_FINISHED)
        # Kafka lets a segment go only if what stays is not less than the retention.
        rest_bytes = sum(segment.segment_size_in_bytes for segment in finished[1:])
        is_kept = job is Job.TIER or (bool(gone) and rest_bytes <= KEPT_BYTES)
        return finished if is_kept and len(finished) + len(gone) == len(found) else None

    segments: list[RemoteLogSegmentMetadata] = wait_for(settled, "nothing is half done", daemon)
    return segments


def assert_finished_once(events: list[MetadataEvent]) -> None:
    """No segment was copied to the end twice, or twice said to be; also none that is gone by now."""
    finished = {
        event.remote_log_segment_id: event
        for event in events
        if isinstance(event, RemoteLogSegmentMetadataUpdate) and event.state is State.COPY_SEGMENT_FINISHED
    }
    starts = [
        event.start_offset
        for event in events
        if isinstance(event, RemoteLogSegmentMetadata) and event.remote_log_segment_id in finished
    ]
    assert max(Counter(starts).values()) == 1
    assert len(finished) == sum(
        isinstance(event, RemoteLogSegmentMetadataUpdate) and event.state is State.COPY_SEGMENT_FINISHED
        for event in events
    )
    assert min(starts) == 0


def assert_without_hole(segments: list[RemoteLogSegmentMetadata], stop: int) -> None:
    for before, after in pairwise(segments):
        assert after.start_offset == before.next_offset, "a hole, or an overlap"
    assert segments[-1].next_offset == stop


def assert_nothing_unnamed(daemon: Daemon, segments: list[RemoteLogSegmentMetadata], *, half_written: int) -> None:
    """The files below the store's root are the objects of finished segments, and at most so many that never became one."""
    named = {key for segment in segments for key in recorded_keys(segment).in_upload_order}
    root = daemon.store_root
    found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    objects = {key for key in found if not key.startswith((*HALF_WRITTEN, OWNERS))}
    assert objects == named
    assert len({key for key in found - objects if key.startswith(".tiersidecar-tmp/")}) <= half_written


def assert_reads_back(daemon: Daemon, topic: str, produced: list[ProducedRecord], start: int, stop: int) -> None:
    inside = [record for record in produced if start <= record.offset < stop]
    assert inside
    for isolation in ("read_uncommitted", "read_committed"):
        found = list(fetch_records(daemon.read_url, topic, 0, offset=start, stop=stop, isolation=isolation))
        is_shown = [record for record in inside if isolation == "read_uncommitted" or not record.aborted]
        assert found == [shape_of(record) for record in is_shown]


def pins_beside(cluster: KafkaCluster) -> list[Path]:
    return [path for log_dir in cluster.brokers[0].log_dirs for path in Path(f"{log_dir}.tiersidecar-pins").iterdir()]
