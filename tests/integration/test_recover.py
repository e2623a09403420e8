"""The metadata topic and the state topic are deleted, and made anew from the bucket; then every record reads back (U35)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from tests.integration.test_daemon_expiry import assert_objects_are_named, assert_reads_from, finished, segments
from tests.integration.test_trash import in_trash, tiered, wait_until_start_is
from tests.support.command_line import answer_of
from tests.support.daemon import Daemon, wait_for
from tests.support.kafka_admin import KafkaAdminError
from tests.support.kafka_cluster import KafkaCluster
from tests.support.read_service import fetch_records
from tests.support.remote_events import object_keys_in
from tiersidecar.adapters.snapshots.codec import read_partition_snapshot
from tiersidecar.domain.own_objects import SNAPSHOTS
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.ports.partition_snapshots import PartitionSnapshot

pytestmark = pytest.mark.broker


def snapshot_of(daemon: Daemon) -> PartitionSnapshot | None:
    """The latest in the store, of the one partition that there is."""
    keys = sorted((daemon.store_root / SNAPSHOTS).glob("*/*/*.snapshot"))
    if not keys:
        return None
    with suppress(FileNotFoundError):  # the next one is there, and this one has gone
        return read_partition_snapshot(keys[-1].read_bytes(), where=keys[-1].name)
    return None


def exists(kafka: KafkaCluster, topic: str) -> bool:
    try:
        kafka.admin.describe_topic(topic)
    except KafkaAdminError:
        return False
    return True


def forget_topics(daemon: Daemon) -> None:
    """What an operator does whose topics were made anew: what the sidecar knows of the former metadata topic goes."""
    for path in Path(daemon.settings["state.dir"]).glob("remote-log-metadata.*.sqlite"):
        path.unlink()


def without_times(found: list[Any]) -> list[Any]:
    return [replace(one, event_timestamp_ms=0) for one in found]


def test_both_topics_come_back_from_snapshots_and_nothing_deleted_with_them(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = "recover-both"
    daemon, produced = tiered(kafka, tmp_path, topic, **{"snapshots.interval.ms": 300})
    names = daemon.settings["remote.log.metadata.topic.name"], daemon.settings["state.topic.name"]
    with daemon:
        daemon.wait_until_ready()
        before = finished(kafka, daemon)
        purged, thrown = before[1].end_offset + 1, before[3].end_offset + 1
        answer_of(daemon.config_path, "delete-records", topic, "-p", "0", "--offset", str(purged), "--yes")
        answer_of(daemon.config_path, "trash", "purge", topic, "--yes")
        wait_for(lambda: len(finished(kafka, daemon)) == len(before) - 2, "what was purged is deleted", daemon)
        wait_for(lambda: in_trash(daemon) == [], "the entry is gone", daemon)
        answer_of(daemon.config_path, "delete-records", topic, "-p", "0", "--offset", str(thrown), "--yes")
        wait_until_start_is(daemon, lambda found: found == thrown, "the second delete is said")
        answer_of(daemon.config_path, "pause", topic, "--deletes", "--yes")
        live, end = finished(kafka, daemon), kafka.admin.latest_offset(topic, 0)

        def is_complete(found: PartitionSnapshot | None) -> bool:
            return found is not None and len(found.trash) == 1 and len(found.pauses) == 1 and len(found.segments) > 0

        snapshot = wait_for(
            lambda: found if is_complete(found := snapshot_of(daemon)) else None, "all is in a snapshot", daemon
        )
        assert list(snapshot.segments) == live
    for name in names:
        kafka.admin.delete_topic(name)

    shown = answer_of(daemon.config_path, "recover")
    assert (shown["done"], shown["segments_from_snapshots"], shown["left"]) == (False, len(live), 0)
    assert [exists(kafka, name) for name in names] == [False, False], "a dry run makes no topic"
    done = answer_of(daemon.config_path, "recover", "--carry-out")
    assert (done["done"], done["published"]["partition_states"]) == (True, 1)
    assert segments(kafka, daemon) == live, "every field, and nothing else"
    again = answer_of(daemon.config_path, "recover")
    assert (again["steps"], again["there_already"]) == ([], len(live))

    forget_topics(daemon)
    answer_of(daemon.config_path, "accept-topic-loss", "--yes")
    with daemon:
        daemon.wait_until_ready()
        assert answer_of(daemon.config_path, "resume", topic, "--deletes", "--yes")["done"], "the pause was back"
        wait_until_start_is(daemon, lambda found: found == thrown, "the start is where users' deletes left it")
        assert_reads_from(daemon, topic, produced, thrown, end)
        with pytest.raises(HTTPError):
            list(fetch_records(daemon.read_url, topic, 0, offset=thrown - 1, stop=thrown))
        (entry,) = in_trash(daemon)
        assert (entry["kind"], entry["up_to"]) == ("user", thrown)
        assert finished(kafka, daemon) == live
        assert_objects_are_named(kafka, daemon)
        answer_of(daemon.config_path, "trash", "purge", topic, "--yes")
        wait_for(lambda: len(finished(kafka, daemon)) == len(live) - 2, "the trash goes its way", daemon)


def test_without_snapshots_manifests_tell_what_they_hold(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = "recover-manifests"
    settings = {"snapshots.interval.ms": 0, "lease.duration.ms": 120_000}
    daemon, produced = tiered(kafka, tmp_path, topic, **settings)
    name = daemon.settings["remote.log.metadata.topic.name"]
    with daemon:
        daemon.wait_until_ready()
        beside = answer_of(daemon.config_path, "recover", "--carry-out", code=1)
        assert "sidecars run beside brokers 1: stop them first" in beside["refusal"]
        assert daemon.stop() == 0
    live, end = finished(kafka, daemon), kafka.admin.latest_offset(topic, 0)
    assert snapshot_of(daemon) is None
    spoiled = sorted(daemon.store_root.rglob("*.rsm-manifest"))[-1]
    whole = spoiled.read_bytes()
    spoiled.write_bytes(whole[:-100])
    kafka.admin.delete_topic(name)

    shown = answer_of(daemon.config_path, "recover", "--topic", topic)
    assert (shown["segments_from_manifests"], shown["left_by_reason"]) == (len(live) - 1, {"unreadable-manifest": 1})
    assert [one["start_offset"] for one in shown["left_segments"]] == [live[-1].start_offset]
    spoiled.write_bytes(whole)
    # The sidecar was stopped in order, and has given its lease back: nobody has to wait.
    answer_of(daemon.config_path, "recover", "--carry-out")
    rebuilt = segments(kafka, daemon)
    assert without_times(rebuilt) == without_times(live)
    assert all(one.state is State.COPY_SEGMENT_FINISHED for one in rebuilt)

    forget_topics(daemon)
    with daemon:
        daemon.wait_until_ready()
        assert_reads_from(daemon, topic, produced, 0, end)
        assert len(object_keys_in(daemon.store_root)) == 3 * len(live), "nothing is copied again"
