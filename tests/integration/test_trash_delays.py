"""Nothing in the trash goes before its own delay is over, by the time that was seen, and all of it after (issue 16: trash)."""

from __future__ import annotations

import shutil
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_daemon import STRICT, started, wait_until_trimmed
from tests.integration.test_daemon_expiry import BY_SIZE, UNGUARDED, assert_reads_from, finished
from tests.integration.test_daemon_first_start import row_of
from tests.integration.test_pins import outage
from tests.integration.test_trash import in_trash, tiered, wait_for_rounds, wait_until_start_is
from tests.support.aged_log import DAY_MS, SEGMENT_BYTES, aged_topic
from tests.support.clock_ahead import DaemonAhead
from tests.support.command_line import answer_of
from tests.support.daemon import wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.remote_events import object_keys_in

pytestmark = pytest.mark.broker

AN_HOUR = {"delete.delay": "1h", "user.delete.delay": "1h"}


def test_what_retention_decides_after_disable_and_enable_waits_its_own_delay(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    """What `disable --delete-remote` decided does not hold any more once the topic is tiered again."""
    topic = "trash-disable-enable"
    daemon, _ = tiered(kafka, tmp_path, topic, rule={}, **{"delete.delay": "30s"})
    with daemon:
        daemon.wait_until_ready()
        answer_of(daemon.config_path, "enable", topic, "--yes")
        before = finished(kafka, daemon)
        answer_of(daemon.config_path, "disable", topic, "--delete-remote", "--yes")
        wait_for(lambda: [one["kind"] for one in in_trash(daemon)] == ["disable"], "it is decided", daemon)
        answer_of(daemon.config_path, "enable", topic, "--retention-bytes", str(BY_SIZE["retention.bytes"]), "--yes")
        wait_until_start_is(daemon, lambda found: found > 0, "retention moves the start")
        wait_for(lambda: "retention" in [one["kind"] for one in in_trash(daemon)], "it is decided anew", daemon)
        (entry,) = in_trash(daemon)
        wait_for(lambda: finished(kafka, daemon) != before, "it is carried out", daemon)
        assert time.time() >= datetime.fromisoformat(entry["due"]).timestamp()


def test_a_deleted_topic_waits_and_is_listed_so_though_it_was_undeleted_before(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = "trash-topic-again"
    daemon, _ = tiered(kafka, tmp_path, topic)
    with daemon:
        daemon.wait_until_ready()
        wait_until_start_is(daemon, lambda found: found == 0, "the start is said")
        middle = finished(kafka, daemon)[1].start_offset
        answer_of(daemon.config_path, "delete-records", topic, "-p", "0", "--offset", str(middle), "--yes")
        wait_until_start_is(daemon, lambda found: found == middle, "deleted")
        assert answer_of(daemon.config_path, "undelete", topic, "--apply")["done"]
        wait_until_start_is(daemon, lambda found: found == 0, "the start is back")
        kafka.admin.delete_topic(topic)
        wait_for(lambda: any(one["kind"] == "topic" for one in in_trash(daemon)), "it is decided", daemon)
        assert [one["state"] for one in in_trash(daemon) if one["kind"] == "topic"] == ["waiting"]
        answer_of(daemon.config_path, "trash", "purge", topic, "--yes")
        wait_for(lambda: object_keys_in(daemon.store_root) == set(), "everything of it is deleted", daemon)


def test_a_users_delete_is_carried_out_where_nothing_happened_for_long(kafka: KafkaCluster, tmp_path: Path) -> None:
    """retention.md names it as what ends that stop.  A group that has read nothing keeps the old files on the disk: they tell
    of the silence, and what was copied just now does not."""
    topic = "trash-silence"
    aged_topic(kafka, topic, {number: 40 if number < 9 else 0 for number in range(12)}, STRICT)
    delays = {"delete.delay": "2s", "user.delete.delay": "2s"}
    rule = {"retention.ms": "7d", "trim.consumer.groups": ["reads-nothing"]}
    with started(tmp_path, kafka, topic, rule=rule, **delays) as daemon:
        daemon.wait_until_ready()
        wait_for(lambda: len(finished(kafka, daemon)) == 12, "all is remote", daemon)
        wait_for_rounds(daemon)
        wait_for(lambda: "nothing happened" in row_of(daemon, topic).get("held_back_reason", ""), "it stops", daemon)
        answer_of(daemon.config_path, "delete-records", topic, "-p", "0", "--offset", "90", "--yes")
        wait_for(lambda: [one.start_offset for one in finished(kafka, daemon)] == [90, 100, 110], "it is done", daemon)


def test_a_delay_is_not_over_because_the_clock_went_on_while_no_sidecar_was_there(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    """A machine that boots with a wrong clock."""
    topic = "trash-clock-restart"
    aged_topic(kafka, topic, dict.fromkeys(range(12), 1), STRICT)
    settings = started(
        tmp_path, kafka, topic, **UNGUARDED, **{"delete.delay": "30min", "user.delete.delay": "30min"}
    ).settings
    daemon = DaemonAhead(tmp_path, settings)
    daemon.set_clock_ahead(0)
    with daemon:
        wait_until_trimmed(kafka, daemon, topic)
        answer_of(daemon.config_path, "delete-records", topic, "-p", "0", "--offset", "60", "--yes")
        before = finished(kafka, daemon)
        for minutes in (
            45,
            55,
        ):  # a broker refuses records of an hour ahead; the second start finds what the first one wrote
            daemon.stop()
            daemon.set_clock_ahead(minutes * 60_000)
            daemon.start()
            daemon.wait_until_ready()
            wait_for(lambda: len(daemon.events("clock.unseen")) > 0, "it is told", daemon)
            wait_for_rounds(daemon)
        wait_for_rounds(daemon)
        assert finished(kafka, daemon) == before
        answer_of(daemon.config_path, "trash", "purge", topic, "--yes")
        wait_for(lambda: finished(kafka, daemon)[0].start_offset == 60, "what was purged waits for no clock", daemon)


def test_a_delay_goes_on_where_a_state_dir_is_lost_at_each_start(kafka: KafkaCluster, tmp_path: Path) -> None:
    """A pod with an ``emptyDir``: what was seen stands in the lease, too.  A pause of less than 5 min counts."""
    topic = "trash-empty-dir"
    aged_topic(kafka, topic, dict.fromkeys(range(12), 1), STRICT)
    settings = started(
        tmp_path, kafka, topic, **UNGUARDED, **{"delete.delay": "5min", "user.delete.delay": "5min"}
    ).settings
    daemon = DaemonAhead(tmp_path, settings)
    daemon.set_clock_ahead(0)
    with daemon:
        wait_until_trimmed(kafka, daemon, topic)
        answer_of(daemon.config_path, "delete-records", topic, "-p", "0", "--offset", "60", "--yes")
        for lives, minutes in enumerate((4, 8), 1):
            wait_for_rounds(daemon)
            assert finished(kafka, daemon)[0].start_offset == 0
            daemon.stop()
            shutil.rmtree(settings["state.dir"])
            daemon.set_clock_ahead(minutes * 60_000)
            daemon.start()
            daemon.wait_until_ready()
            wait_for(lambda seen=lives: len(daemon.events("clock.continued")) == seen, "the lease tells", daemon)
        wait_for(lambda: finished(kafka, daemon)[0].start_offset == 60, "its delay is over", daemon)
        assert len(daemon.events("clock.begun")) == 1, "only the first one knew of no time before it"


def test_what_is_given_up_and_only_here_holds_trims_back_and_is_told(kafka: KafkaCluster, tmp_path: Path) -> None:
    """A trim is of a prefix: past it, an undelete would find nothing.  Once it is purged the trim goes on."""
    topic = "trash-before-a-trim"
    produced = aged_topic(kafka, topic, dict.fromkeys(range(12), 1), STRICT)
    rule = {"local.retention.bytes": 1, "retention.bytes": 4 * SEGMENT_BYTES}
    with started(tmp_path, kafka, topic, rule=rule, **UNGUARDED, **AN_HOUR) as daemon:
        start = wait_until_start_is(daemon, lambda found: (found or 0) > 0, "retention moves the start")
        wait_for(lambda: "in the trash" in (row_of(daemon, topic).get("held_back_reason") or ""), "it is told", daemon)
        assert kafka.admin.earliest_offset(topic, 0) == 0
        assert finished(kafka, daemon)[0].start_offset == start
        assert answer_of(daemon.config_path, "undelete", topic, "--apply")["done"]
        wait_until_start_is(daemon, lambda found: found == 0, "the start is back")
        assert_reads_from(daemon, topic, produced, 0, kafka.admin.latest_offset(topic, 0))
        wait_until_trimmed(kafka, daemon, topic)
        assert finished(kafka, daemon)[0].start_offset == 0, "what came back is copied, and then trimmed"


def test_pins_in_the_trash_stay_by_a_clock_that_jumped(kafka_cluster: Any, tmp_path: Path) -> None:
    """Store away, race mode: they are the only copy of what was given up."""
    cluster: KafkaCluster = kafka_cluster()
    topic = "trash-pins-clock"
    unlimited = {"retention.ms": "-1", "file.delete.delay.ms": "1000"}
    aged_topic(cluster, topic, {number: 30 if number < 9 else 0 for number in range(12)}, unlimited)
    rule = {"mode": "race", "retention.ms": "365d", "local.retention.ms": "20d"}
    daemon = DaemonAhead(tmp_path, started(tmp_path, cluster, topic, rule=rule, **AN_HOUR).settings)
    daemon.set_clock_ahead(0)
    outage(daemon)
    with daemon:
        wait_for(lambda: daemon.metric("tiersidecar_pins_segments") >= 12, "all is pinned", daemon)
        cluster.admin.alter_topic(topic, {"retention.ms": str(20 * DAY_MS)})
        wait_for(lambda: cluster.admin.earliest_offset(topic, 0) == 90, "the broker has deleted", daemon)
        answer_of(daemon.config_path, "delete-records", topic, "-p", "0", "--offset", "60", "--yes")
        daemon.set_clock_ahead(2 * 3_600_000)
        looked_s = time.monotonic()
        wait_for(lambda: time.monotonic() > looked_s + 11, "the keeper of pins has looked twice", daemon)
        assert daemon.metric("tiersidecar_pins_segments") >= 12
        assert [event["reason"] for event in daemon.events("pin.dropped")] == []
