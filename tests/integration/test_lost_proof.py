"""A store that is not the one it was, and topics of the sidecar's own that are lost while it is down: what is left proves it,
and nothing is copied, trimmed or deleted until it is back, or an operator accepts the loss."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT, produce, started, wait_until_trimmed
from tests.integration.test_daemon_expiry import UNGUARDED, finished
from tests.integration.test_trash import wait_until_start_is
from tests.support.command_line import answer_of
from tests.support.daemon import Daemon, get, wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.remote_events import object_keys_in

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

PATIENCE_S = 180.0


def tiered(kafka: KafkaCluster, directory: Path, topic: str, **settings: Any) -> tuple[Daemon, int]:
    """A daemon that runs, and has copied and trimmed; where the local log starts."""
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produce(kafka, topic, total_bytes=600_000)
    daemon = started(directory, kafka, topic, **{**UNGUARDED, **settings})
    daemon.start()
    daemon.wait_until_ready(PATIENCE_S)
    return daemon, wait_until_trimmed(kafka, daemon, topic)


def patiently(daemon: Daemon, condition: Any, what: str) -> None:
    wait_for(condition, what, daemon, timeout_s=PATIENCE_S)


def readiness(daemon: Daemon) -> dict[str, Any]:
    code, body = daemon.status("/readyz")
    found: dict[str, Any] = json.loads(body) if code else {"reasons": [], "warnings": []}
    return found


def halted(daemon: Daemon) -> str:
    code, body = daemon.status("/status")
    rows = json.loads(body)["partitions"] if code == 200 else []
    return "".join(row["halted_reason"] or "" for row in rows)


def wait_until_halted(daemon: Daemon, topic: str, reason: str) -> None:
    """Told everywhere."""
    patiently(daemon, lambda: reason in halted(daemon), "the halt")
    patiently(daemon, lambda: reason in "".join(readiness(daemon)["warnings"]), "the warning")
    assert daemon.metric("tiersidecar_halted_partitions", topic=topic) == 1
    assert any(reason in event["error"] for event in daemon.events("lane.halted"))


def losses_told(daemon: Daemon) -> list[str]:
    """Of the state topic, in all runs."""
    return [event["reason"] for event in daemon.events("state.topic.halted") if "is gone" in event["reason"]]


def copies(daemon: Daemon) -> int:
    return len(daemon.events("segment.copy.finished"))


def topics_of(kafka: KafkaCluster) -> str:
    tool = "org.apache.kafka.tools.TopicCommand"
    return kafka.run_tool(tool, "--bootstrap-server", kafka.bootstrap_servers, "--list").stdout


def test_a_store_that_is_not_mounted_is_not_taken_for_the_store(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = "lost-store"
    daemon, first = tiered(kafka, tmp_path, topic)
    root, dedicated_connections = daemon.store_root, tmp_path / "aside"
    try:
        assert daemon.stop() == 0
        root.rename(dedicated_connections)
        root.mkdir()  # the mount point of a volume that is not mounted
        copied = copies(daemon)
        daemon.start()
        produce(kafka, topic, total_bytes=300_000, seed=1)
        wait_until_halted(daemon, topic, "it is not the same store as before")
        assert daemon.events("topic.owner.missing")
        assert (copies(daemon), object_keys_in(root)) == (copied, set())
        assert kafka.admin.earliest_offset(topic, 0) == first

        root.rename(tmp_path / "hidden")
        dedicated_connections.rename(root)
        patiently(daemon, lambda: kafka.admin.earliest_offset(topic, 0) > first, "it goes on by itself")
        patiently(daemon, lambda: not readiness(daemon)["warnings"], "the warning is over")

        root.rename(dedicated_connections)  # while it runs
        root.mkdir()
        produce(kafka, topic, total_bytes=300_000, seed=2)
        wait_until_halted(daemon, topic, "it is not the same store as before")
        adopted = json.loads(daemon.status("/status")[1])["partitions"][0]["topic_id"]
        assert answer_of(daemon.config_path, "adopt", adopted, "--yes")["done"]
        patiently(
            daemon, lambda: not halted(daemon) and not readiness(daemon)["warnings"], "it goes on with another store"
        )
        copied = copies(daemon)
        produce(kafka, topic, total_bytes=300_000, seed=3)
        patiently(daemon, lambda: copies(daemon) > copied, "it is copied to")
    finally:
        daemon.kill9()


def test_a_state_topic_that_is_lost_while_the_sidecar_is_down(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = "lost-state"
    daemon, first = tiered(kafka, tmp_path, topic, **{"delete.delay": "24h", "user.delete.delay": "1h"})
    try:
        cut = finished(kafka, daemon)[5].start_offset + 1
        deleted = ("delete-records", topic, "-p", "0", "--offset", str(cut), "--yes")
        answer_of(daemon.config_path, *deleted)
        wait_until_start_is(daemon, lambda found: found == cut, "said")
        assert daemon.stop() == 0
        kafka.admin.delete_topic(f"__state_{topic}")
        copied = copies(daemon)
        for times in (1, 2):  # a restart by systemd accepts nothing
            daemon.start()
            patiently(daemon, lambda times=times: len(losses_told(daemon)) == times, "the loss is told")
            assert readiness(daemon)["reasons"]
            assert get(f"{daemon.read_url}/topics/{topic}/partitions/0/records?offset=0")[0] != 200
            daemon.kill9()
        assert f"__state_{topic}" not in topics_of(kafka).split()
        daemon.start()
        produce(kafka, topic, total_bytes=300_000, seed=1)
        assert (copies(daemon), kafka.admin.earliest_offset(topic, 0)) == (copied, first)

        assert answer_of(daemon.config_path, "accept-topic-loss", "--yes")["done"]
        patiently(daemon, lambda: kafka.admin.earliest_offset(topic, 0) > first, "it goes on with what is left")
        second = kafka.admin.earliest_offset(topic, 0)

        assert daemon.stop() == 0
        kafka.admin.delete_topic(f"__state_{topic}")
        shutil.rmtree(tmp_path / "state")
        daemon.start()
        wait_until_halted(daemon, topic, "the state topic has no record of it")
        assert "no record of it" in answer_of(daemon.config_path, *deleted, code=1)["refusal"]
        assert kafka.admin.earliest_offset(topic, 0) >= second
        assert answer_of(daemon.config_path, "accept-topic-loss", "--yes")["done"]
        patiently(daemon, lambda: not halted(daemon), "accepted")
    finally:
        daemon.kill9()


def test_a_metadata_topic_that_is_lost_with_the_state_dir(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = "lost-metadata"
    daemon, first = tiered(kafka, tmp_path, topic)
    try:
        assert daemon.stop() == 0
        kafka.admin.delete_topic(f"__rlm_{topic}")
        shutil.rmtree(tmp_path / "state")
        copied = copies(daemon)
        daemon.start()
        produce(kafka, topic, total_bytes=300_000, seed=1)
        wait_until_halted(daemon, topic, "the topic lost its events")
        assert (copies(daemon), kafka.admin.earliest_offset(topic, 0)) == (copied, first)
        assert answer_of(daemon.config_path, "accept-topic-loss", "--yes")["done"]
        patiently(daemon, lambda: kafka.admin.earliest_offset(topic, 0) > first, "it goes on with what is left")
    finally:
        daemon.kill9()


def test_what_native_tiering_left_is_taken_over(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Segments in the metadata topic, and neither a record in the state topic nor a claim in the store: no sidecar was here
    before, so nothing of ours is lost."""
    topic = "lost-nothing"
    daemon, _ = tiered(kafka, tmp_path, topic)
    try:
        assert daemon.stop() == 0
        kafka.admin.delete_topic(f"__state_{topic}")
        shutil.rmtree(tmp_path / "state")
        shutil.rmtree(daemon.store_root / ".tiersidecar" / "owners")
        copied = copies(daemon)
        daemon.start()
        produce(kafka, topic, total_bytes=300_000, seed=1)
        patiently(daemon, lambda: copies(daemon) > copied, "it goes on")
        assert halted(daemon) == ""
        assert get(f"{daemon.read_url}/topics/{topic}/partitions/0/records?offset=0")[0] == 200
    finally:
        daemon.kill9()
