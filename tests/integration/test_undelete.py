"""What comes back of the trash on a real broker, and what never does: users' deletes that are carried out (issue 16; U31)."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT, produce, started, wait_until_trimmed
from tests.integration.test_daemon_expiry import UNGUARDED, assert_reads_from, finished
from tests.integration.test_daemon_first_start import row_of
from tests.integration.test_pins import outage
from tests.integration.test_trash import in_trash, status_of, wait_for_rounds, wait_until_start_is
from tests.support.aged_log import DAY_MS, aged_topic
from tests.support.command_line import answer_of
from tests.support.daemon import Daemon, wait_for
from tests.support.gateway import GatewayDaemon
from tests.support.kafka_admin import KafkaAdmin
from tests.support.kafka_cluster import KafkaCluster
from tests.support.read_service import fetch_records

pytestmark = pytest.mark.broker

AN_HOUR: dict[str, Any] = {**UNGUARDED, "delete.delay": "1h", "user.delete.delay": "1h"}
TWELVE = dict.fromkeys(range(12), 1)


def delete(daemon: Daemon, topic: str, offset: int) -> dict[str, Any]:
    return dict(answer_of(daemon.config_path, "delete-records", topic, "-p", "0", "--offset", str(offset), "--yes"))


def kinds(daemon: Daemon, topic: str) -> list[str]:
    return [one["kind"] for one in in_trash(daemon) if one["topic"] == topic]


def assert_nobody_reads(daemon: Daemon, topic: str, offset: int) -> None:
    with pytest.raises(HTTPError):
        list(fetch_records(daemon.read_url, topic, 0, offset=offset, stop=offset + 1))


def test_what_users_deleted_for_good_outlives_the_undoing_of_retention(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Carried out before retention's mistake, and below what that took: a segment that holds more is still there each time."""
    topic = "undelete-floor"
    produced = aged_topic(kafka, topic, TWELVE, STRICT)
    settings = {**AN_HOUR, "user.delete.delay": "1s"}
    with started(tmp_path, kafka, topic, rule={"local.retention.bytes": 1}, **settings) as daemon:
        local_start = wait_until_trimmed(kafka, daemon, topic)
        delete(daemon, topic, 16)
        wait_for(lambda: finished(kafka, daemon)[0].start_offset == 10, "the first is carried out", daemon)
        wait_for(lambda: "user" not in kinds(daemon, topic), "its entry is gone", daemon)
        sizes = ("--local-retention-bytes", "1", "--retention-bytes", str(4 * SEGMENT_BYTES))
        answer_of(daemon.config_path, "enable", topic, *sizes, "--yes")
        start = wait_until_start_is(daemon, lambda found: found > 36, "retention moves the start")
        assert delete(daemon, topic, 36)["done"], "where retention has been already it is said all the same"
        wait_for(lambda: finished(kafka, daemon)[0].start_offset == 30, "the second is carried out", daemon)
        wait_for(lambda: "user" not in kinds(daemon, topic), "its entry is gone", daemon)

        done = answer_of(daemon.config_path, "undelete", topic, "--apply")
        assert done["came_back"] == [{"partition": 0, "from_offset": 36, "missing": [], "confirmed": True}]
        assert wait_until_start_is(daemon, lambda found: found < start, "the start is back") == 36
        assert_nobody_reads(daemon, topic, 35)
        assert_reads_from(daemon, topic, produced, 36, local_start)
        refused = answer_of(daemon.config_path, "undelete", f"{topic}/0", "--to-offset", "32", code=1)
        assert "users have deleted what is below offset 36" in refused["refusal"]


def test_what_users_deleted_before_the_first_copy_stays_away(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = "undelete-first"
    produced = aged_topic(kafka, topic, TWELVE, STRICT)
    assert kafka.admin.delete_records(topic, 0, 36) == 36
    with started(tmp_path, kafka, topic, **AN_HOUR) as daemon:
        local_start = wait_until_trimmed(kafka, daemon, topic)
        assert row_of(daemon, topic)["remote_log_start_offset"] == 36
        assert answer_of(daemon.config_path, "undelete", topic, "--apply")["steps"] == []
        delete(daemon, topic, 58)
        wait_until_start_is(daemon, lambda found: found == 58, "the delete is said")
        answer_of(daemon.config_path, "undelete", topic, "--apply")
        wait_until_start_is(daemon, lambda found: found == 36, "only that comes back")
        assert_nobody_reads(daemon, topic, 35)
        assert_reads_from(daemon, topic, produced, 36, local_start)


def test_what_is_deleted_through_the_gateway_comes_back_as_far_as_it_was_remote(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    """The broker deletes its own part at once; the command says which offsets that were."""
    topic = "undelete-gateway"
    produced = aged_topic(kafka, topic, TWELVE, STRICT)
    broker = kafka.leader_of(topic, 0)
    rule: dict[str, Any] = {"name": topic, "local.retention.bytes": 1}
    tier = started(tmp_path / "tier", kafka, topic, rule=rule, **AN_HOUR)
    shared: dict[str, Any] = {
        key: tier.settings[key] for key in ("store", "remote.log.metadata.topic.name", "state.topic.name")
    }
    front = GatewayDaemon(tmp_path / "gateway", broker, topics=[rule], **AN_HOUR, **shared)
    with tier as daemon, front as gateway:
        daemon.wait_until_ready()
        gateway.wait_until_ready()
        wait_until_trimmed(kafka, daemon, topic)
        remote_end, end = finished(kafka, daemon)[-1].end_offset, kafka.admin.latest_offset(topic, 0)
        through = KafkaAdmin(port=int(gateway.bootstrap_server.rpartition(":")[2]))
        assert through.delete_records(topic, 0, 45) == 45
        wait_until_start_is(daemon, lambda found: found == 45, "the delete is said")
        assert_nobody_reads(daemon, topic, 44)
        done = answer_of(daemon.config_path, "undelete", topic, "--apply")
        assert done["came_back"] == [{"partition": 0, "from_offset": 0, "missing": [], "confirmed": True}]
        wait_until_start_is(daemon, lambda found: found == 0, "the start is back")
        wait_for_rounds(daemon)
        assert_reads_from(daemon, topic, produced, 0, end)

        assert through.delete_records(topic, 0, end - 1) == end - 1
        assert kafka.admin.earliest_offset(topic, 0) == end - 1
        shown = answer_of(daemon.config_path, "undelete", topic)
        assert f"offsets {remote_end + 1} to {end - 2} are in neither tier any more" in shown["notes"][0]
        done = answer_of(daemon.config_path, "undelete", topic, "--apply")
        assert done["came_back"][0]["missing"] == [[remote_end + 1, end - 1]]
        wait_until_start_is(daemon, lambda found: found == 0, "the start is back")
        assert_reads_from(daemon, topic, produced, 0, remote_end + 1)


def test_undone_while_the_leader_stands_before_its_delete_records(kafka: KafkaCluster, tmp_path: Path) -> None:
    """It reads the state topic anew before it sends what cannot be undone; meanwhile the command says that nobody answered."""
    topic = "undelete-race"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produced = produce(kafka, topic)
    settings = {**AN_HOUR, "user.delete.delay": "1s", "lease.duration.ms": 60_000}
    daemon = started(tmp_path, kafka, topic, rule={"local.retention.bytes": -1}, **settings)
    daemon.failpoints = "expire.trim.published=freeze"
    with daemon:
        daemon.wait_until_ready()
        wait_for(lambda: len(finished(kafka, daemon)) > 10, "all is remote", daemon)
        end = kafka.admin.latest_offset(topic, 0)
        delete(daemon, topic, end)
        wait_for(lambda: daemon.is_frozen, "it stands before DeleteRecords", daemon)
        done = answer_of(daemon.config_path, "undelete", f"{topic}/0", "--apply")
        assert [one["confirmed"] for one in done["came_back"]] == [False]
        daemon.send_signal(signal.SIGCONT)
        wait_until_start_is(daemon, lambda found: found == 0, "it knows")
        wait_for_rounds(daemon)
        assert kafka.admin.earliest_offset(topic, 0) == 0
        assert_reads_from(daemon, topic, produced, 0, end)


def test_what_only_pins_hold_comes_back_and_is_copied(kafka_cluster: Any, tmp_path: Path) -> None:
    """Race mode, the store away: the broker has deleted what pins keep, and a user's delete of it is undone."""
    cluster: KafkaCluster = kafka_cluster()
    topic = "undelete-pins"
    ages = {number: 30 if number < 9 else 0 for number in range(12)}
    produced = aged_topic(cluster, topic, ages, {"retention.ms": "-1", "file.delete.delay.ms": "1000"})
    rule = {"mode": "race", "retention.ms": "365d", "local.retention.ms": "20d"}
    daemon = started(tmp_path, cluster, topic, rule=rule, **{"delete.delay": "24h", "user.delete.delay": "1h"})
    bring_back = outage(daemon)

    def copied() -> list[int]:
        return [one.start_offset for one in finished(cluster, daemon)]

    with daemon:
        wait_for(lambda: daemon.metric("tiersidecar_pins_segments") >= 12, "all is pinned", daemon)
        cluster.admin.alter_topic(topic, {"retention.ms": str(20 * DAY_MS)})
        wait_for(lambda: cluster.admin.earliest_offset(topic, 0) == 90, "the broker has deleted", daemon)
        delete(daemon, topic, 60)
        wait_until_start_is(daemon, lambda found: found == 60, "the delete is said")
        bring_back()
        wait_for(lambda: copied() == list(range(60, 120, 10)), "the rest is copied", daemon)
        done = answer_of(daemon.config_path, "undelete", topic, "--apply")
        assert done["came_back"] == [{"partition": 0, "from_offset": 0, "missing": [], "confirmed": True}]
        wait_for(lambda: copied() == list(range(0, 120, 10)), "what came back is copied", daemon)
        assert status_of(daemon)["remote_log_start_offset"] == 0
        assert_reads_from(daemon, topic, produced, 0, 120)
