"""What was decided to be deleted comes back within the delay, record for record, and is gone after it (issue 16: trash)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT, produce, started
from tests.integration.test_daemon_expiry import (
    BY_SIZE,
    UNGUARDED,
    assert_objects_are_named,
    assert_reads_from,
    copy_all,
    finished,
    segments,
)
from tests.support.command_line import answer_of, run_command
from tests.support.daemon import Daemon, wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.produce import ProducedRecord
from tests.support.read_service import fetch_records, shape_of, shape_of_line
from tests.support.remote_events import object_keys_in
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.kafka.record_batches import iter_batch_headers

pytestmark = pytest.mark.broker

DELAYS = {"delete.delay": "1h", "user.delete.delay": "30min"}


def tiered(kafka: KafkaCluster, directory: Path, topic: str, **settings: Any) -> tuple[Daemon, list[ProducedRecord]]:
    """A topic whose sealed segments are all remote, and a daemon for it that does not run."""
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produced = produce(kafka, topic)
    daemon = started(directory, kafka, topic, **{**UNGUARDED, **DELAYS, **settings})
    copy_all(daemon, kafka, topic)
    return daemon, produced


def status_of(daemon: Daemon) -> dict[str, Any]:
    code, body = daemon.status("/status")
    rows = json.loads(body)["partitions"] if code == 200 else []
    return dict(rows[0]) if rows else {}


def wait_until_start_is(daemon: Daemon, is_right: Callable[[int], bool], what: str) -> int:
    def start() -> int | None:
        found = status_of(daemon).get("remote_log_start_offset", -1)
        return found + 1 if is_right(found) else None

    return int(wait_for(start, what, daemon)) - 1


def wait_for_rounds(daemon: Daemon) -> None:
    """A few rounds of retention, of 300 ms each: a command takes longer than that."""
    in_trash(daemon)


def in_trash(daemon: Daemon) -> list[dict[str, Any]]:
    return list(answer_of(daemon.config_path, "trash", "ls")["entries"])


def assert_all_reads_back(kafka: KafkaCluster, daemon: Daemon, topic: str, produced: list[ProducedRecord]) -> None:
    assert_reads_from(daemon, topic, produced, 0, kafka.admin.latest_offset(topic, 0))


def test_what_expiry_took_comes_back_and_stays_until_it_is_released(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = "trash-expiry"
    daemon, produced = tiered(kafka, tmp_path, topic, rule=BY_SIZE)
    with daemon:
        daemon.wait_until_ready()
        before = finished(kafka, daemon)
        start = wait_until_start_is(daemon, lambda found: found > 0, "expiry has moved the start")
        wait_for_rounds(daemon)
        assert finished(kafka, daemon) == before, "nothing is removed before it is due"
        assert all(segment.state is State.COPY_SEGMENT_FINISHED for segment in segments(kafka, daemon))
        with pytest.raises(HTTPError):  # nobody reads it
            list(fetch_records(daemon.read_url, topic, 0, offset=start - 1, stop=start))
        (entry,) = in_trash(daemon)
        assert (entry["kind"], entry["up_to"], entry["state"]) == ("retention", start, "waiting")
        assert entry["segments"] == len([one for one in before if one.end_offset < start])
        assert daemon.metric("tiersidecar_trash_segments", topic=topic) == entry["segments"]
        assert daemon.metric("tiersidecar_trash_bytes", topic=topic) == entry["bytes"]

        shown = answer_of(daemon.config_path, "undelete", topic)
        assert (shown["done"], len(shown["steps"])) == (False, 1)
        assert answer_of(daemon.config_path, "undelete", topic, "--apply")["done"]
        wait_until_start_is(daemon, lambda found: found == 0, "the start is back")
        wait_for_rounds(daemon)
        assert status_of(daemon)["remote_log_start_offset"] == 0, "it is not taken again at once"
        assert "release" in status_of(daemon)["held_back_reason"]
        assert_all_reads_back(kafka, daemon, topic, produced)
        assert in_trash(daemon) == []

        assert answer_of(daemon.config_path, "release", topic, "--yes")["done"]
        assert wait_until_start_is(daemon, lambda found: found > 0, "retention goes on") == start
        assert answer_of(daemon.config_path, "trash", "purge", topic, "--yes")["done"]
        wait_for(lambda: len(finished(kafka, daemon)) < len(before), "what was purged is deleted", daemon)
        wait_for(lambda: in_trash(daemon) == [], "the entry is gone", daemon)
        assert_objects_are_named(kafka, daemon)
        assert_reads_from(daemon, topic, produced, start, kafka.admin.latest_offset(topic, 0))


def test_what_delete_records_took_comes_back_the_brokers_part_too(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = "trash-delete-records"
    daemon, produced = tiered(kafka, tmp_path, topic)
    with daemon:
        daemon.wait_until_ready()
        before, local_start = finished(kafka, daemon), kafka.admin.earliest_offset(topic, 0)
        end = kafka.admin.latest_offset(topic, 0)
        answer_of(daemon.config_path, "delete-records", topic, "-p", "0", "--offset", str(end - 1), "--yes")
        wait_until_start_is(daemon, lambda found: found == end - 1, "the delete is said")
        wait_for_rounds(daemon)
        assert kafka.admin.earliest_offset(topic, 0) == local_start
        assert finished(kafka, daemon) == before
        assert [one["kind"] for one in in_trash(daemon)] == ["user"]
        assert answer_of(daemon.config_path, "undelete", f"{topic}/0", "--apply")["done"]
        wait_until_start_is(daemon, lambda found: found == 0, "the start is back")
        wait_for_rounds(daemon)
        assert_all_reads_back(kafka, daemon, topic, produced)
        middle = before[1].start_offset + 1
        answer_of(daemon.config_path, "delete-records", topic, "-p", "0", "--offset", str(middle), "--yes")
        wait_until_start_is(daemon, lambda found: found == middle, "users' deletes go on below a hold")


def test_what_disable_with_deletion_took_comes_back_detached(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = "trash-disable"
    daemon, produced = tiered(kafka, tmp_path, topic)
    with daemon:
        daemon.wait_until_ready()
        answer_of(daemon.config_path, "enable", topic, "--local-retention-bytes", "1", "--yes")
        before, local_start = finished(kafka, daemon), kafka.admin.earliest_offset(topic, 0)
        answer_of(daemon.config_path, "disable", topic, "--delete-remote", "--yes")
        wait_for(lambda: [one["kind"] for one in in_trash(daemon)] == ["disable"], "it is decided", daemon)
        wait_until_start_is(daemon, lambda found: found >= local_start, "readers begin at the local start")
        assert finished(kafka, daemon) == before
        shown = answer_of(daemon.config_path, "undelete", topic, "--apply")
        assert "detached" in shown["steps"][0]
        wait_until_start_is(daemon, lambda found: found == 0, "the start is back")
        wait_for_rounds(daemon)
        assert finished(kafka, daemon) == before
        assert_all_reads_back(kafka, daemon, topic, produced)


def test_once_tiering_is_switched_off_the_broker_keeps_what_it_keeps(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Total retention went on counting what only the broker holds, and had it deleted there, though its own retention is
    unlimited again (issue 16).  A twin that stays tiered shows that expiry has looked."""
    off, twin = "off-kept", "off-twin"
    unlimited = {"retention.ms": "-1", "retention.bytes": "-1"}
    for topic in (off, twin):
        kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=unlimited)
        produce(kafka, topic, total_bytes=400_000)
    made = started(tmp_path, kafka, off, **UNGUARDED)
    made.settings["topics"] = []
    with made as daemon:
        daemon.wait_until_ready()
        for topic in (off, twin):
            answer_of(daemon.config_path, "enable", topic, "--retention-bytes", str(20 * SEGMENT_BYTES), "--yes")
        wait_for(lambda: len(finished(kafka, daemon)) >= 8, "both are copied", daemon)
        answer_of(daemon.config_path, "disable", off, "--yes")
        for topic in (off, twin):
            produce(kafka, topic, total_bytes=2_500_000, seed=1)
        wait_for(lambda: twin in moved_starts(daemon), "retention has given up what is too much of the twin", daemon)
        wait_for_rounds(daemon)
        assert kafka.admin.earliest_offset(off, 0) == 0
        assert off not in moved_starts(daemon)


def moved_starts(daemon: Daemon) -> set[str]:
    """Topics whose remote log start is above 0 by now."""
    return {event["topic"] for event in daemon.events("remote_log_start.moved") if event["remote_log_start_offset"] > 0}


def test_after_the_delay_nothing_is_left(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = "trash-delay"
    daemon, produced = tiered(kafka, tmp_path, topic, rule=BY_SIZE, **{"delete.delay": "4s"})
    with daemon:
        daemon.wait_until_ready()
        before = finished(kafka, daemon)
        start = wait_until_start_is(daemon, lambda found: found > 0, "expiry has moved the start")
        assert finished(kafka, daemon) == before
        wait_for(lambda: all(one.end_offset >= start for one in finished(kafka, daemon)), "it is deleted", daemon)
        wait_for(lambda: in_trash(daemon) == [], "the entry is gone", daemon)
        assert_objects_are_named(kafka, daemon)
        assert_reads_from(daemon, topic, produced, start, kafka.admin.latest_offset(topic, 0))
        assert "there any more" in run_command(daemon.config_path, "undelete", f"{topic}/0", "--to-offset", "0").stderr


PLACES = [
    "expire.trash.published",
    "expire.start.published",
    "delete.begun",
    "delete.started.published",
    "delete.objects.deleted",
]


@pytest.mark.parametrize("place", PLACES)
def test_killed_anywhere_between_decision_and_deletion(kafka: KafkaCluster, tmp_path: Path, place: str) -> None:
    """Nothing goes before it is due, everything after it."""
    topic = f"trash-{place.replace('.', '-')}"
    daemon, produced = tiered(kafka, tmp_path, topic, rule=BY_SIZE, **{"delete.delay": "3s"})
    before = finished(kafka, daemon)
    daemon.failpoints = f"{place}=kill"
    with daemon:
        assert daemon.wait_for_exit() == -9, daemon.log_tail()
        daemon.failpoints = ""
        if place.startswith("expire."):
            assert finished(kafka, daemon) == before
        daemon.start()
        daemon.wait_until_ready()
        start = wait_until_start_is(daemon, lambda found: found > 0, "expiry has moved the start")
        wait_for(lambda: all(one.end_offset >= start for one in finished(kafka, daemon)), "it is deleted", daemon)
        wait_for(lambda: in_trash(daemon) == [], "the entry is gone", daemon)
        assert_objects_are_named(kafka, daemon)
        assert_reads_from(daemon, topic, produced, start, kafka.admin.latest_offset(topic, 0))


def test_a_deleted_topic_comes_back_as_files_and_is_gone_after_a_purge(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = "trash-topic"
    daemon, produced = tiered(kafka, tmp_path, topic)
    stop = max(one.end_offset for one in finished(kafka, daemon)) + 1
    with daemon:
        daemon.wait_until_ready()
        wait_until_start_is(daemon, lambda found: found == 0, "the start is said")
        kafka.admin.delete_topic(topic)
        wait_for(lambda: [one["kind"] for one in in_trash(daemon)] == ["topic"], "it is decided", daemon)
        (entry,) = in_trash(daemon)
        assert (entry["topic"], entry["segments"] > 1) == (topic, True)
        out = tmp_path / "out"
        for form in ("raw", "ndjson"):
            done = run_command(
                daemon.config_path,
                *("trash", "export", "--topic-id", entry["topic_id"], "--to", str(out), "--format", form),
            )
            assert done.returncode == 0, done.stderr
        raw = b"".join(path.read_bytes() for path in sorted((out / f"{topic}-0").glob("*.log")))
        headers = [header for _, header in iter_batch_headers(memoryview(raw))]
        assert (headers[0].base_offset, headers[-1].last_offset) == (0, stop - 1)
        lines = [
            shape_of_line(line)
            for path in sorted((out / f"{topic}-0").glob("*.ndjson"))
            for line in path.read_text().splitlines()
        ]
        assert lines == [shape_of(record) for record in produced if record.offset < stop]
        answer_of(daemon.config_path, "trash", "purge", topic, "--yes")
        wait_for(lambda: object_keys_in(daemon.store_root) == set(), "everything of it is deleted", daemon)
        wait_for(lambda: in_trash(daemon) == [], "the entry is gone", daemon)
