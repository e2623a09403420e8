"""A disk below its reserve beside a real broker: the whole file system as reserve makes any
disk one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.test_daemon import (
    SEGMENT_BYTES,
    STRICT,
    active_base,
    assert_reads_back,
    finished,
    produce,
    started,
    wait_until_trimmed,
)
from tests.integration.test_other_log_dirs import put
from tests.support.command_line import answer_of
from tests.support.daemon import wait_for
from tests.support.kafka_admin import wait_until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_placement import move_replica
from tests.support.read_service import fetch_records, shape_of

pytestmark = pytest.mark.broker


def test_what_goes_below_the_reserve_is_what_the_user_said(kafka: KafkaCluster, tmp_path: Path) -> None:
    """First nothing, then what is remote, then what is not: the broker's log begins where the sidecar said, and goes on."""
    topic = "pressed"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produced = produce(kafka, topic, total_bytes=300_000)
    with started(tmp_path, kafka, topic, rule={}, **{"disk.reserve": "100%"}) as daemon:
        daemon.wait_until_ready()
        (told,) = wait_for(lambda: daemon.events("disk.pressure"), "the alarm", daemon)
        assert (told["state"], told["policy"]) == ("below_reserve", "keep")
        wait_for(lambda: len(finished(kafka, daemon)) >= 3, "it copies all the same", daemon)
        (warning,) = json.loads(daemon.status("/readyz")[1])["warnings"]
        assert "less than disk.reserve (100%)" in warning
        assert daemon.metric("tiersidecar_disk_state", state="below_reserve") == 1
        assert daemon.metric("tiersidecar_disk_free_bytes") > 0
        assert kafka.admin.earliest_offset(topic, 0) == 0, "nothing went"
        assert daemon.stop() == 0

        daemon.settings["disk.pressure.policy"] = "trim-copied"
        daemon.start()
        stop = wait_until_trimmed(kafka, daemon, topic)
        assert_reads_back(daemon, topic, produced, stop)
        assert daemon.stop() == 0

        daemon.settings["disk.pressure.policy"] = "drop-oldest"
        daemon.settings["topics"][0]["remote.log.copy.disable"] = True
        later = produce(kafka, topic, total_bytes=200_000, seed=1)
        assert active_base(kafka, topic) > stop
        daemon.start()
        end = wait_until_trimmed(kafka, daemon, topic)
        wait_for(
            lambda: [one for one in daemon.events("log.trimmed") if one["log_start_offset"] == end], "told", daemon
        )
        lost = [event for event in daemon.events("segment.dropped") if event["data_lost"]]
        assert (lost[0]["base_offset"], lost[-1]["next_base_offset"]) == (stop, end)
        assert daemon.metric("tiersidecar_dropped_bytes_total", topic=topic) == sum(event["bytes"] for event in lost)
        assert daemon.events("log_start.unexplained") == []
        assert daemon.stop() == 0

        del daemon.settings["topics"][0]["remote.log.copy.disable"]
        daemon.settings["disk.pressure.policy"] = "trim-copied"
        later += produce(kafka, topic, total_bytes=200_000, seed=2)
        daemon.start()
        wait_for(lambda: finished(kafka, daemon)[-1].start_offset >= end, "it copies what comes after the hole", daemon)
        wait_until_trimmed(kafka, daemon, topic)
        wait_for(lambda: daemon.metric("tiersidecar_expiry_stopped", topic=topic) == 0, "expiry goes on", daemon)
        assert_reads_back(daemon, topic, produced, stop)
        inside = [record for record in later if end <= record.offset < finished(kafka, daemon)[-1].next_offset]
        found = fetch_records(daemon.read_url, topic, 0, offset=end, stop=inside[-1].offset + 1)
        assert list(found) == [shape_of(record) for record in inside]
        assert daemon.stop() == 0


@pytest.mark.timeout(400)
def test_a_first_segment_that_begins_in_the_trash_goes_once_the_rest_of_it_is_proven(
    kafka_cluster: Callable[..., KafkaCluster], tmp_path: Path
) -> None:
    """What lies below a user's delete was never copied, and the broker has it until the delay is over.  After a move its
    segments begin elsewhere than the copies: they were counted as room, and nothing was trimmed, without a word."""
    kafka, topic = kafka_cluster(log_dirs=2), "straddles"
    kafka.create_topic(topic, segment_bytes=16_384, configs=STRICT)
    put(kafka, topic, 100, b"x")
    broker = kafka.brokers[0]

    def bases() -> list[int]:
        return sorted(int(path.stem) for path in broker.partition_dir(topic, 0).glob("*.log"))

    deleted_to = bases()[2] + 3
    daemon = started(
        tmp_path,
        kafka,
        topic,
        rule={"remote.log.copy.disable": True},
        **{"delete.delay": "24h", "user.delete.delay": "1h", "log.dirs": [str(log_dir) for log_dir in broker.log_dirs]},
    )
    with daemon:
        daemon.wait_until_ready()
        offset = ("--offset", str(deleted_to), "--yes")
        answer_of(daemon.config_path, "delete-records", topic, "-p", "0", *offset)
        assert daemon.stop() == 0
        del daemon.settings["topics"][0]["remote.log.copy.disable"]
        daemon.start()
        wait_for(
            lambda: [one.next_offset for one in finished(kafka, daemon)][-1:] == bases()[-1:], "all is copied", daemon
        )
        assert finished(kafka, daemon)[0].start_offset > 0
        assert daemon.stop() == 0

        kafka.admin.alter_topic(topic, {"internal.segment.bytes": str(3 * 16_384)})
        target = next(log_dir for log_dir in broker.log_dirs if log_dir != broker.partition_dir(topic, 0).parent)
        move_replica(broker.admin, topic, 0, target)
        wait_until(lambda: broker.partition_dir(topic, 0).parent == target, "the partition is in the other log dir")
        put(kafka, topic, 100, b"y")
        assert kafka.admin.earliest_offset(topic, 0) == 0 < deleted_to < bases()[1]
        daemon.settings |= {"disk.reserve": "100%", "disk.pressure.policy": "trim-copied"}
        daemon.start()
        stop = wait_until_trimmed(kafka, daemon, topic)
        assert stop == bases()[-1]
        wait_for(lambda: daemon.events("log.trimmed"), "it is told", daemon)  # after the broker has done it
        told = [(event["base_offset"], event["next_base_offset"]) for event in daemon.events("trash.dropped")]
        assert told == [(0, deleted_to)]
        assert daemon.events("segment.dropped") == []
