"""Two sidecars beside one broker, each with a state.dir of its own: one has the tier role, the other one stands by."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_daemon import (
    SEGMENT_BYTES,
    STRICT,
    assert_reads_back,
    finished,
    produce,
    started,
    wait_until_trimmed,
)
from tests.support.command_line import answer_of
from tests.support.daemon import Daemon, wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.remote_events import fold, in_state, object_keys_in, read_events
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.reading.remote_objects import recorded_keys

pytestmark = pytest.mark.broker

ACTS = ("segment.copy.finished", "segment.deleted", "log.trimmed")


def holds(daemon: Daemon) -> bool:
    return daemon.metric("tiersidecar_tier_lease_held") == 1


def standing_by(daemon: Daemon) -> str:
    code, body = daemon.status("/status")
    return str(json.loads(body)["standing_by"]) if code == 200 else ""


def acts(daemon: Daemon) -> list[dict[str, Any]]:
    return [event for event in daemon.events() if event.get("event") in ACTS]


def test_one_acts_and_after_a_pause_of_it_the_other_alone(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = "one-role"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    store = {"type": "filesystem", "root": str(tmp_path / "store")}
    (tmp_path / "store").mkdir()
    settings = {"store": store, "lease.duration.ms": 5_000}
    with started(tmp_path / "a", kafka, topic, **settings) as first:
        wait_for(lambda: holds(first), "the first one has the role", first)
        with started(tmp_path / "b", kafka, topic, **settings) as second:
            wait_for(lambda: "standing by" in standing_by(second), "the second one stands by and says so", second)
            second.wait_until_ready()
            produce(kafka, topic, total_bytes=600_000)
            wait_until_trimmed(kafka, first, topic)
            assert acts(first)
            assert acts(second) == []
            produce(kafka, topic, total_bytes=600_000, seed=1)
            first.send_signal(signal.SIGSTOP)
            wait_for(lambda: holds(second), "the second one takes the role", second)
            wait_until_trimmed(kafka, second, topic)
            first.send_signal(signal.SIGCONT)
            wait_for(lambda: "standing by" in standing_by(first), "the first one sees it", first)
            before = len(acts(first))  # with what it had sent before it stood still, and hears of now
            produce(kafka, topic, total_bytes=600_000, seed=2)
            wait_until_trimmed(kafka, second, topic)
            assert len(acts(first)) == before, acts(first)[before:]
            wait_for(lambda: has_no_more_objects_than_metadata(kafka, second), "nothing is left over", second)
            assert first.stop() == 0
            assert second.stop() == 0


def test_one_that_is_stopped_in_order_leaves_the_role_to_the_other_at_once(kafka: KafkaCluster, tmp_path: Path) -> None:
    """While it copies and trims; had it only vanished, the other one would wait for two minutes."""
    topic = "role-given-back"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    store = {"type": "filesystem", "root": str(tmp_path / "store")}
    (tmp_path / "store").mkdir()
    settings = {"store": store, "lease.duration.ms": 120_000}
    with started(tmp_path / "a", kafka, topic, **settings) as first:
        wait_for(lambda: holds(first), "the first one has the role", first)
        with started(tmp_path / "b", kafka, topic, **settings) as second:
            wait_for(lambda: "standing by" in standing_by(second), "the second one stands by and says so", second)
            second.wait_until_ready()
            produce(kafka, topic, total_bytes=2_000_000)
            wait_for(lambda: acts(first), "the first one acts", first)
            assert first.stop() == 0
            stopped_s = time.monotonic()
            told = [event["event"] for event in first.events()]
            assert told[-2:] == ["tier_lease.given_back", "daemon.stopped"], "the last that it does"
            wait_for(lambda: holds(second), "the second one takes the role", second)
            waited_s = time.monotonic() - stopped_s
            print(f"the role was taken {waited_s:.1f} s after the holder had ended")
            assert waited_s < 20
            wait_until_trimmed(kafka, second, topic)
            assert second.stop() == 0
    with started(tmp_path / "c", kafka, topic, **settings) as third:
        wait_for(lambda: holds(third), "a third one begins at once, too", third)
        third.kill9()


def test_what_the_other_pinned_meanwhile_is_copied_by_the_one_that_has_the_role_again(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    """The broker has deleted it by then: a copy that began with what is in its log would leave a hole for good."""
    topic = "role-there-and-back"
    kafka.create_topic(
        topic, segment_bytes=SEGMENT_BYTES, configs={"retention.ms": "5000", "file.delete.delay.ms": "1000"}
    )
    store = {"type": "filesystem", "root": str(tmp_path / "store")}
    (tmp_path / "store").mkdir()
    settings = {
        "store": store,
        "lease.duration.ms": 5_000,
        "remote.log.manager.task.interval.ms": 1_000,
        "rule": {"mode": "race", "local.retention.ms": 5_000},
    }

    def starts_and_stops(daemon: Daemon) -> list[tuple[int, int]]:
        return [(segment.start_offset, segment.next_offset) for segment in finished(kafka, daemon)]

    def whole_up_to(daemon: Daemon) -> int:
        """Where the remote log ends, that begins at 0 and has no hole."""
        end = 0
        for start, stop in starts_and_stops(daemon):
            if start != end:
                return end
            end = stop
        return end

    def has_expired() -> bool:
        """The broker has only an active segment, an empty one, and nothing with another name that could still be pinned."""
        if kafka.admin.earliest_offset(topic, 0) < kafka.admin.latest_offset(topic, 0):
            return False
        return not list(kafka.leader_of(topic, 0).partition_dir(topic, 0).glob("*.deleted"))

    def is_all_remote(daemon: Daemon) -> bool:
        """It may have a hole."""
        ends = [stop for _, stop in starts_and_stops(daemon)]
        return has_expired() and ends[-1:] == [kafka.admin.latest_offset(topic, 0)]

    with started(tmp_path / "a", kafka, topic, **settings) as first:
        wait_for(lambda: holds(first), "the first one has the role", first)
        produced = produce(kafka, topic, total_bytes=200_000)
        wait_for(lambda: is_all_remote(first), "all is copied, and the broker deletes it", first)
        copied = whole_up_to(first)
        with started(tmp_path / "b", kafka, topic, **settings) as second:
            second.wait_until_ready()
            first.send_signal(signal.SIGSTOP)
            wait_for(lambda: holds(second), "the second one takes the role", second)
            first.send_signal(signal.SIGCONT)
            wait_for(lambda: "standing by" in standing_by(first), "the first one sees it", first)
            answer_of(second.config_path, "pause", topic, "--copies", "--yes")
            produced += produce(kafka, topic, total_bytes=300_000, seed=1)
            wait_for(has_expired, "the broker deletes what is pinned alone", second)
            assert whole_up_to(second) == copied < kafka.admin.earliest_offset(topic, 0)
            assert second.stop() == 0
        wait_for(lambda: holds(first), "the first one has the role again", first)
        answer_of(first.config_path, "resume", topic, "--copies", "--yes")
        produced += produce(kafka, topic, total_bytes=200_000, seed=2)
        wait_for(lambda: is_all_remote(first), "what came last is copied, and the broker deletes it", first)
        end = kafka.admin.latest_offset(topic, 0)
        assert whole_up_to(first) == end, starts_and_stops(first)
        assert_reads_back(first, topic, produced, end)
        assert first.stop() == 0
        assert first.events("segment.gap") == []


def has_no_more_objects_than_metadata(cluster: KafkaCluster, daemon: Daemon) -> bool:
    """Each object is one of a segment that is not deleted; the finished ones have all of theirs, from offset 0 on."""
    segments = fold(read_events(cluster.client_settings, daemon.settings["remote.log.metadata.topic.name"]))
    kept = [segment for segment in segments if segment.state is not State.DELETE_SEGMENT_FINISHED]
    named = {key for one in kept for key in recorded_keys(one, "").in_upload_order}
    finished = in_state(segments, State.COPY_SEGMENT_FINISHED)
    whole = {key for one in finished for key in recorded_keys(one, "").in_upload_order}
    assert finished[0].start_offset == 0
    return whole <= object_keys_in(daemon.store_root) <= named
