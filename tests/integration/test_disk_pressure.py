"""A disk below its reserve beside a real broker (DESIGN.md section 5, disk full): the whole file system as reserve makes any
disk one."""

from __future__ import annotations

import json
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
from tests.support.daemon import wait_for
from tests.support.kafka_cluster import KafkaCluster
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
