"""Retention, deletes and deleted topics on real brokers: what is outside goes whole, what is inside stays.

Shown here: S-056, S-058, S-059, S-063, S-066, S-067, S-074, S-075.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT, produce, started, wait_until_trimmed
from tests.support.command_line import answer_of
from tests.support.daemon import Daemon, wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.produce import ProducedRecord
from tests.support.read_service import fetch_records, shape_of
from tests.support.remote_events import fold, in_state, object_keys_in, read_events
from tiersidecar.adapters.kafka.broker import open_broker
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.reading.remote_objects import recorded_keys

pytestmark = pytest.mark.broker

KEPT_BYTES = 3 * SEGMENT_BYTES
UNGUARDED = {"deletes.max.share.per.round": 1, "deletes.topic.grace.ms": 1000}
BY_SIZE = {"local.retention.bytes": 1, "retention.bytes": KEPT_BYTES}


def segments(cluster: KafkaCluster, daemon: Daemon) -> list[RemoteLogSegmentMetadata]:
    return fold(read_events(cluster.client_settings, daemon.settings["remote.log.metadata.topic.name"]))


def finished(cluster: KafkaCluster, daemon: Daemon) -> list[RemoteLogSegmentMetadata]:
    return in_state(segments(cluster, daemon), State.COPY_SEGMENT_FINISHED)


def is_settled(found: list[RemoteLogSegmentMetadata]) -> bool:
    return all(segment.state in (State.COPY_SEGMENT_FINISHED, State.DELETE_SEGMENT_FINISHED) for segment in found)


def assert_objects_are_named(cluster: KafkaCluster, daemon: Daemon) -> None:
    """No object without metadata, no finished segment without its objects."""
    named = {key for one in finished(cluster, daemon) for key in recorded_keys(one).in_upload_order}
    assert object_keys_in(daemon.store_root) == named


def wait_until_expired_by_size(cluster: KafkaCluster, daemon: Daemon, topic: str) -> int:
    """The remote log start, once all is copied and what is too much has gone whole."""
    wait_until_trimmed(cluster, daemon, topic)

    def fits() -> int | None:
        found = segments(cluster, daemon)
        kept = in_state(found, State.COPY_SEGMENT_FINISHED)
        total = sum(one.segment_size_in_bytes for one in kept)
        return kept[0].start_offset if is_settled(found) and total <= KEPT_BYTES else None

    return int(wait_for(fits, f"{topic} fits in its retention", daemon))


def assert_reads_from(daemon: Daemon, topic: str, produced: list[ProducedRecord], start: int, stop: int) -> None:
    inside = [shape_of(record) for record in produced if start <= record.offset < stop]
    assert inside
    assert list(fetch_records(daemon.read_url, topic, 0, offset=start, stop=stop)) == inside


def expiring(directory: Path, cluster: KafkaCluster, topic: str, **settings: Any) -> Daemon:
    return started(directory, cluster, topic, **{"rule": BY_SIZE, **UNGUARDED, **settings})


def copy_all(daemon: Daemon, cluster: KafkaCluster, topic: str) -> None:
    """Run the daemon without any limit until all sealed segments are remote; then its own settings count again."""
    rules, failpoints = daemon.settings["topics"], daemon.failpoints
    daemon.settings["topics"], daemon.failpoints = [{"name": topic, "local.retention.bytes": 1}], ""
    with daemon:
        wait_until_trimmed(cluster, daemon, topic)
        assert daemon.stop() == 0
    daemon.settings["topics"], daemon.failpoints = rules, failpoints


def test_the_oldest_go_by_size_and_the_rest_reads_back(kafka: KafkaCluster, tmp_path: Path) -> None:
    """S-059, S-066, T-42; metrics by Kafka's names."""
    topic = "expire-size"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produced = produce(kafka, topic)
    daemon = expiring(tmp_path, kafka, topic)
    copy_all(daemon, kafka, topic)
    with daemon:
        daemon.wait_until_ready()
        start = wait_until_expired_by_size(kafka, daemon, topic)
        assert start > 0
        assert_objects_are_named(kafka, daemon)
        assert_reads_from(daemon, topic, produced, start, kafka.admin.earliest_offset(topic, 0))
        gone = in_state(segments(kafka, daemon), State.DELETE_SEGMENT_FINISHED)
        assert daemon.metric("kafka_remote_delete_requests_total", topic=topic) == len(gone) > 0
        assert daemon.metric("kafka_remote_delete_errors_total", topic=topic) == 0
        wait_for(lambda: daemon.metric("kafka_remote_delete_lag_segments", topic=topic) == 0, "no delete lag", daemon)
        (row,) = json.loads(daemon.status("/status")[1])["partitions"]
        assert row["remote_log_start_offset"] == start


def test_everything_goes_by_time(kafka: KafkaCluster, tmp_path: Path) -> None:
    """S-058: the active segment stays."""
    topic = "expire-time"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produce(kafka, topic, total_bytes=400_000)
    daemon = expiring(tmp_path, kafka, topic, rule={"retention.ms": "1s", "local.retention.ms": "1s"})
    copy_all(daemon, kafka, topic)  # without a limit: what is past its retention would not even be copied (U8)
    with daemon:
        daemon.wait_until_ready()

        def all_gone() -> bool:
            found = segments(kafka, daemon)
            return bool(found) and {segment.state for segment in found} == {State.DELETE_SEGMENT_FINISHED}

        wait_for(all_gone, "all segments expired", daemon)
        assert object_keys_in(daemon.store_root) == set()


def test_data_that_were_never_copied_go_with_the_total_retention(kafka: KafkaCluster, tmp_path: Path) -> None:
    """S-052, U8: copying is switched off."""
    topic = "expire-local"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produce(kafka, topic, total_bytes=400_000)
    with expiring(tmp_path, kafka, topic, rule={"retention.ms": "3s", "remote.log.copy.disable": True}) as daemon:
        wait_until_trimmed(kafka, daemon, topic)
        assert object_keys_in(daemon.store_root) == set()


PLACES = [
    "expire.start.published=kill",
    *[f"delete.begun=kill@{nth}" for nth in (1, 2, 3, 4)],
    *[f"delete.started.published=kill@{nth}" for nth in (1, 2, 3, 4, 5)],
    *[f"delete.objects.deleted=kill@{nth}" for nth in (1, 2, 3, 4, 5)],
    *[f"delete.finished.published=kill@{nth}" for nth in (1, 2, 3, 4, 5)],
]


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", PLACES)
def test_killed_at_twenty_points_of_a_delete(kafka: KafkaCluster, tmp_path: Path, failpoint: str) -> None:
    """S-063, S-075, T-36: restarted, it finishes; no object is left without metadata or the other way round."""
    topic = "expire-" + "".join(c if c.isalnum() else "-" for c in failpoint)
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produced = produce(kafka, topic, total_bytes=700_000)
    daemon = expiring(tmp_path, kafka, topic)
    daemon.failpoints = failpoint
    copy_all(daemon, kafka, topic)
    with daemon:
        assert daemon.wait_for_exit() == -9, daemon.log_tail()
        daemon.failpoints = ""
        daemon.start()
        daemon.wait_until_ready()
        start = wait_until_expired_by_size(kafka, daemon, topic)
        assert_objects_are_named(kafka, daemon)
        assert_reads_from(daemon, topic, produced, start, kafka.admin.earliest_offset(topic, 0))


def test_data_past_the_total_retention_are_not_even_copied(kafka: KafkaCluster, tmp_path: Path) -> None:
    """U8: a store that was away for longer than the retention, or a topic that is new here."""
    topic = "expire-late"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produced = produce(kafka, topic)
    with expiring(tmp_path, kafka, topic) as daemon:
        daemon.wait_until_ready()
        start = wait_until_expired_by_size(kafka, daemon, topic)
        assert_objects_are_named(kafka, daemon)
        assert_reads_from(daemon, topic, produced, start, kafka.admin.earliest_offset(topic, 0))


def test_the_guard_stops_a_round_that_would_delete_most_of_a_partition(kafka: KafkaCluster, tmp_path: Path) -> None:
    """A retention that was changed by mistake: nothing goes, the reason is told; delete-records confirms it."""
    topic = "expire-guard"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produce(kafka, topic)
    with started(tmp_path, kafka, topic) as daemon:
        wait_until_trimmed(kafka, daemon, topic)
        assert daemon.stop() == 0
        before = finished(kafka, daemon)
        daemon.settings["topics"] = [{"name": topic, **BY_SIZE}]
        daemon.start()
        stopped = wait_for(lambda: daemon.events("expire.stopped"), "expiry stops", daemon)[0]
        assert "deletes.max.share.per.round" in stopped["reason"]
        assert daemon.metric("tiersidecar_expiry_stopped", topic=topic) == 1
        assert "deletes.max.share.per.round" in daemon.status("/status")[1]
        assert finished(kafka, daemon) == before
        offset = before[-3].start_offset
        answer_of(daemon.config_path, "delete-records", topic, "-p", "0", "--offset", str(offset), "--yes")
        wait_until_expired_by_size(kafka, daemon, topic)
        wait_for(lambda: daemon.metric("tiersidecar_expiry_stopped", topic=topic) == 0, "it goes on", daemon)
        assert_objects_are_named(kafka, daemon)


def test_records_deleted_at_the_broker_itself_raise_an_alarm_and_nothing_remote_goes(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    """The broker's log start is never evidence of a user's delete."""
    topic = "expire-straight"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produced = produce(kafka, topic, total_bytes=400_000)
    with started(tmp_path, kafka, topic) as daemon:
        daemon.wait_until_ready()
        local_start = wait_until_trimmed(kafka, daemon, topic)
        before = finished(kafka, daemon)

        async def delete_straight() -> None:
            async with open_broker(kafka.bootstrap_servers) as broker:
                (view,) = await broker.describe_partitions([topic])
                await broker.delete_records({view.topic_id_partition: Offset(local_start + 1)})

        asyncio.run(delete_straight())
        (alarm,) = wait_for(lambda: daemon.events("log_start.unexplained"), "the alarm", daemon)
        assert (alarm["log_start_offset"], alarm["lost_offsets"]) == (local_start + 1, 1)
        assert daemon.metric("tiersidecar_log_start_unexplained", topic=topic) == 1
        assert finished(kafka, daemon) == before
        assert_reads_from(daemon, topic, produced, 0, local_start)


@pytest.mark.slow
def test_a_retention_put_back_by_tooling_raises_an_alarm_and_nothing_remote_goes(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = "expire-tooling"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produced = produce(kafka, topic, total_bytes=400_000)
    with started(tmp_path, kafka, topic) as daemon:
        daemon.wait_until_ready()
        local_start = wait_until_trimmed(kafka, daemon, topic)
        kafka.admin.alter_topic(topic, {"retention.ms": "1"})
        refused = wait_for(lambda: daemon.events("topic.trim_refused"), "the settings' alarm", daemon)[0]
        assert "retention.ms is 1, must be -1" in refused["reason"]
        assert daemon.metric("tiersidecar_unsafe_topics", topic=topic) == 1
        wait_for(lambda: daemon.events("log_start.unexplained"), "the log start's alarm", daemon)
        assert_reads_from(daemon, topic, produced, 0, local_start)
        kafka.admin.alter_topic(topic, {"retention.ms": "-1"})
        wait_for(lambda: daemon.events("topic.trim_refused.cleared"), "all is well again", daemon)


@pytest.mark.parametrize("daemon_sees_it", [True, False], ids=["while the daemon runs", "while the daemon is away"])
def test_a_deleted_topic_takes_its_remote_data_along(kafka: KafkaCluster, tmp_path: Path, daemon_sees_it: bool) -> None:
    """S-183, S-190, T-47: every segment by its events; made anew under the name, the topic keeps what it has."""
    topic = f"gone-{daemon_sees_it}".lower()
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produce(kafka, topic, total_bytes=400_000)
    with expiring(tmp_path, kafka, topic, rule={"local.retention.bytes": 1}) as daemon:
        daemon.wait_until_ready()
        wait_until_trimmed(kafka, daemon, topic)
        (old_id,) = {segment.topic_id_partition.topic_id for segment in finished(kafka, daemon)}
        wait_for(
            lambda: json.loads(daemon.status("/status")[1])["partitions"][0]["remote_log_start_offset"] == 0,
            "said",
            daemon,
        )
        if not daemon_sees_it:
            assert daemon.stop() == 0
        kafka.admin.delete_topic(topic)
        kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
        produced = produce(kafka, topic, total_bytes=300_000, seed=1)
        if not daemon_sees_it:
            daemon.start()
        wait_for(lambda: daemon.events("topic.delete.finished"), "the old topic's data went", daemon)
        stop = wait_until_trimmed(kafka, daemon, topic)
        found = segments(kafka, daemon)
        old = [segment for segment in found if segment.topic_id_partition.topic_id == old_id]
        assert {one.state for one in old} == {State.DELETE_SEGMENT_FINISHED}
        new = [segment for segment in found if segment.topic_id_partition.topic_id != old_id]
        assert {one.state for one in new} == {State.COPY_SEGMENT_FINISHED}
        assert_objects_are_named(kafka, daemon)
        assert_reads_from(daemon, topic, produced, 0, stop)


def test_a_log_that_began_anew_stops_expiry_until_an_operator_accepts_the_loss(
    kafka_cluster: Any, tmp_path: Path
) -> None:
    """All replicas lost: what is remote is all that there is, and would expire by size at once."""
    cluster, topic = kafka_cluster(), "lost"
    cluster.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produce(cluster, topic, total_bytes=400_000)
    rule = {"local.retention.bytes": 1, "retention.ms": "30s"}
    with expiring(tmp_path, cluster, topic, rule=rule) as daemon:
        daemon.wait_until_ready()
        wait_until_trimmed(cluster, daemon, topic)
        before = finished(cluster, daemon)
        broker = cluster.brokers[0]
        directory = broker.partition_dir(topic, 0)
        broker.stop()
        shutil.rmtree(directory)
        broker.start()
        produce(cluster, topic, total_bytes=200_000, seed=1)

        def began_anew() -> bool:
            return any("began anew" in event["reason"] for event in daemon.events("expire.stopped"))

        wait_for(began_anew, "expiry stops", daemon)
        assert set(before) <= set(finished(cluster, daemon))
        answer_of(daemon.config_path, "accept-log-loss", topic, "-p", "0", "--yes")
        wait_for(
            lambda: not set(before) & set(finished(cluster, daemon)), "the old segments expire", daemon, timeout_s=90
        )
        assert_objects_are_named(cluster, daemon)
