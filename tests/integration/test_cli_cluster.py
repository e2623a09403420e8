"""What the commands show of a cluster of three brokers, each with its sidecar
(issue 20; S-306, U33, U43).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT, produce
from tests.support.command_line import answer_of, program_environment, run_command
from tests.support.daemon import get
from tests.support.kafka_admin import wait_until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.patience import patient_s
from tests.support.produce import ProducedRecord
from tests.support.sidecars import Sidecars
from tiersidecar.formats.kafka.record_batches import iter_batch_headers

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SECRET, PASSWORD = "the secret of this cluster, 32 characters", "of the page alone"
TRIMMED, KEPT, TIMED = "orders", "audit", "timed"
"""All but the last segments of the one are remote alone; of the other all are on the brokers, too."""


@pytest.fixture(scope="module")
def produced() -> dict[str, list[ProducedRecord]]:
    """By topic, in the order of their offsets, which markers of transactions leave gaps in."""
    return {}


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, produced: dict[str, list[ProducedRecord]]
) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("cluster"), brokers=3) as started:
        for topic in (TRIMMED, KEPT):
            started.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
            produced[topic] = produce(started, topic, total_bytes=500_000)
        yield started


@pytest.fixture(scope="module")
def sidecars(cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecars]:
    topics: list[dict[str, Any]] = [
        {"name": TRIMMED, "local.retention.bytes": 1},
        {"name": KEPT, "local.retention.ms": "7d"},
    ]
    topics += [{"name": TIMED, "local.retention.ms": "25s"}]
    several = Sidecars(tmp_path_factory.mktemp("sidecars"), cluster, topics=topics)
    for daemon in several.by_node.values():
        daemon.settings["status"] |= {"cluster.secret": SECRET, "page.password": PASSWORD}
        daemon.credentials = f"operator:{PASSWORD}"
    with several as started:
        started.wait_until_ready()

        def is_settled() -> bool:
            rows = [started.status_of(node, topic).get(0) for node in started.by_node for topic in (TRIMMED, KEPT)]
            leaders = [row for row in rows if row is not None and row["role"] == "leader"]
            return len(leaders) == 2 and all(
                row["remote_segments"] > 3 and row["copy_lag_segments"] == 0 for row in leaders
            )

        started.wait_for(is_settled, "both topics are copied")
        trimmer = started[cluster.leader_of(TRIMMED, 0).node_id]
        started.wait_for(lambda: trimmer.events("log.trimmed"), "the one topic is trimmed")
        yield started


def config_of(sidecars: Sidecars, node_id: int = 1) -> Path:
    return sidecars[node_id].config_path


def test_the_status_has_each_broker_disk_and_topic(cluster: KafkaCluster, sidecars: Sidecars) -> None:
    def look() -> Any:
        """Once the brokers have deleted the files of what was trimmed, which they do in their own time."""
        found = answer_of(config_of(sidecars), "status")
        (trimmed,) = (row for row in found["topics"] if row["topic"] == TRIMMED)
        return found if trimmed["remote_bytes"] > trimmed["local_bytes"] else None

    found = wait_until(look, f"less of {TRIMMED} is local than remote", timeout_s=60)
    assert [(row["node_id"], row["state"], row["trouble"]) for row in found["brokers"]] == [
        (1, "ready", ""),
        (2, "ready", ""),
        (3, "ready", ""),
    ]
    assert found["cluster_id"] == cluster.cluster_id
    assert sum(row["leads"] for row in found["brokers"]) == 2
    assert {row["node_id"] for row in found["disks"]} == {1, 2, 3}
    assert all(0 < row["free_bytes"] < row["size_bytes"] for row in found["disks"])
    topics = {row["topic"]: row for row in found["topics"]}
    assert [(row["partitions"], row["unknown"], row["lag_segments"]) for row in topics.values()] == [(1, 0, 0)] * 2
    assert topics[TRIMMED]["remote_bytes"] > topics[TRIMMED]["local_bytes"] > 0
    assert topics[KEPT]["local_bytes"] >= topics[KEPT]["remote_bytes"] > 0


def test_the_status_for_people_and_the_topics(sidecars: Sidecars) -> None:
    shown = run_command(config_of(sidecars), "status")
    assert (shown.returncode, shown.stderr) == (0, "")
    for word in (TRIMMED, KEPT, "ready", "full in", "remote"):
        assert word in shown.stdout
    topics = run_command(config_of(sidecars, 2), "topics")
    assert [line.split()[0] for line in topics.stdout.splitlines()] == ["topic", KEPT, TRIMMED]
    assert topics.returncode == 0


def test_followers_show_no_lag(cluster: KafkaCluster, sidecars: Sidecars) -> None:
    leader = cluster.leader_of(KEPT, 0).node_id
    lags = {node: sidecars.status_of(node, KEPT)[0]["copy_lag_bytes"] for node in sidecars.by_node}
    assert lags == {node: 0 if node == leader else None for node in sidecars.by_node}


@pytest.mark.parametrize("stopped", [1, 3], ids=["the one that is asked first", "another one"])
def test_a_sidecar_that_stands_still_has_a_row_that_says_so(sidecars: Sidecars, stopped: int) -> None:
    sidecars[stopped].send_signal(signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        found = answer_of(config_of(sidecars), "status", code=3)
        took_s = time.monotonic() - began_s
    finally:
        sidecars[stopped].send_signal(signal.SIGCONT)
    rows = {row["node_id"]: row for row in found["brokers"]}
    assert {node for node, row in rows.items() if row["state"] == "no answer"} == {stopped}
    assert "did not answer" in rows[stopped]["trouble"]
    print(f"status with sidecar {stopped} stopped: {took_s:.2f} s")
    assert found["needs_somebody"]
    sidecars[stopped].wait_until_ready()


def test_any_sidecar_shows_the_page_of_all(sidecars: Sidecars) -> None:
    assert get(f"{sidecars[1].status_url}/")[0] == 401
    assert get(f"{sidecars[1].status_url}/overview")[0] == 401
    for node in sidecars.by_node:
        code, page = sidecars[node].status("/")
        assert (code, page.count(">ready</span>")) == (200, 3), page
        assert f'href="topic?name={TRIMMED}"' in page
    code, page = sidecars[1].status(f"/topic?name={TRIMMED}")
    assert (code, "its leader did not answer" in page) == (200, False)
    for node in sidecars.by_node:
        code, page = sidecars[node].status(f"/partition?topic={TRIMMED}&partition=0")
        assert (code, "did not answer" in page) == (200, False), page
        assert 'class="t-remote"' in page
        assert "Total retention keeps it" in page


def test_the_page_says_which_sidecar_stands_still(sidecars: Sidecars) -> None:
    sidecars[2].send_signal(signal.SIGSTOP)
    try:
        # What was asked before it stopped is shown for another second.
        page = wait_until(
            lambda: page if "does not answer" in (page := sidecars[1].status("/")[1]) else None,
            "it is missed",
            timeout_s=30,
        )
    finally:
        sidecars[2].send_signal(signal.SIGCONT)
    assert page.count(">ready</span>") == 2
    assert "The sidecar of broker 2 does not answer" in page
    assert "it did not answer within 1 s" in page
    sidecars[2].wait_until_ready()


def test_segments_are_listed_with_where_they_are(cluster: KafkaCluster, sidecars: Sidecars) -> None:
    for topic, states in ((TRIMMED, {"remote"}), (KEPT, {"both"})):
        (partition,) = answer_of(config_of(sidecars), "ls", topic)["partitions"]
        rows = partition["segments"]
        assert {row["state"] for row in rows[:3]} == states
        assert rows[-1]["state"] == "active"
        assert [row["start_offset"] for row in rows[1:]] == [row["end_offset"] + 1 for row in rows[:-1]]
        assert all(row["size_bytes"] > 0 for row in rows[:-1])
    leader = cluster.leader_of(TRIMMED, 0).node_id
    known = sidecars.segments_seen_by(leader, TRIMMED, 0)
    listed = answer_of(config_of(sidecars), "ls", f"{TRIMMED}/0")["partitions"][0]["segments"]
    assert [(row["segment_id"], row["start_offset"], row["end_offset"]) for row in listed if row["segment_id"]] == known
    shown = run_command(config_of(sidecars), "ls", f"{TRIMMED}/0").stdout
    assert shown.startswith(f"{TRIMMED}/0: {len(listed)} segments")


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        pytest.param(["ls", "nowhere"], 1, "has a tiered topic nowhere", id="no such topic"),
        pytest.param(["ls", f"{KEPT}/7"], 3, "not a tiered partition", id="no such partition"),
        pytest.param(["explain", KEPT], 2, "has no partition", id="which partition"),
        pytest.param(["ls", "a/b/c"], 2, "neither TOPIC nor TOPIC/PARTITION", id="no target"),
    ],
)
def test_a_wrong_target_is_told(sidecars: Sidecars, command: list[str], code: int, words: str) -> None:
    done = run_command(config_of(sidecars), *command)
    assert (done.returncode, words in " ".join(done.stderr.replace("│", " ").split())) == (code, True), done.stderr


def explained(sidecars: Sidecars, target: str, offset: int) -> dict[str, dict[str, Any]]:
    """State and findings of the segment with the offset, by what they are about."""
    (account,) = answer_of(config_of(sidecars), "explain", target, str(offset))["accounts"]
    findings = {one["about"]: one for one in account["findings"]}
    return {"segment": account["segment"], **findings}


def test_a_remote_segment_a_kept_one_and_the_active_one_are_explained(sidecars: Sidecars) -> None:
    remote = explained(sidecars, f"{TRIMMED}/0", 0)
    assert remote["segment"]["state"] == "remote"
    assert "retention.ms has no limit; retention.bytes has no limit" in remote["expiry"]["says"]
    kept = explained(sidecars, f"{KEPT}/0", 0)
    assert "local.retention.ms is 7d" in kept["trim"]["says"]
    last = answer_of(config_of(sidecars), "ls", f"{KEPT}/0")["partitions"][0]["segments"][-1]["start_offset"]
    active = explained(sidecars, f"{KEPT}/0", last)
    assert "once the broker has rolled it" in active["copy"]["says"]
    shown = run_command(config_of(sidecars), "explain", f"{TRIMMED}/0").stdout
    assert "such segments" in shown


def test_the_moment_that_is_told_is_the_moment_at_which_it_is_trimmed(
    cluster: KafkaCluster, sidecars: Sidecars
) -> None:
    cluster.create_topic(TIMED, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    asyncio.run(produce_now(cluster, TIMED))
    leader = sidecars[cluster.leader_of(TIMED, 0).node_id]

    def is_copied() -> bool:
        row = sidecars.status_of(cluster.leader_of(TIMED, 0).node_id, TIMED).get(0)
        return row is not None and row["remote_segments"] >= 2 and row["copy_lag_segments"] == 0

    sidecars.wait_for(is_copied, "the topic is copied")
    told = explained(sidecars, f"{TIMED}/0", 0)
    assert told["segment"]["state"] == "both"
    at_ms = told["trim"]["changes_ms"]
    assert at_ms is not None
    assert not [event for event in leader.events("log.trimmed") if event["topic"] == TIMED], (
        "it was trimmed before it was asked"
    )
    trimmed = sidecars.wait_for(
        lambda: [event for event in leader.events("log.trimmed") if event["topic"] == TIMED],
        "it is trimmed",
        timeout_s=60,
    )
    happened_ms = datetime.fromisoformat(trimmed[0]["timestamp"]).timestamp() * 1000
    assert 0 <= happened_ms - at_ms < 15_000
    assert explained(sidecars, f"{TIMED}/0", 0)["segment"]["state"] == "remote"


async def produce_now(cluster: KafkaCluster, topic: str) -> None:
    """Records whose time is now, three segments of them and a bit."""
    async with AIOKafkaProducer(**cluster.client_settings, max_batch_size=16_384, linger_ms=5) as producer:
        for _ in range(220):
            await producer.send_and_wait(topic, os.urandom(1024), partition=0)


def test_events_are_the_history_of_the_segments(cluster: KafkaCluster, sidecars: Sidecars) -> None:
    def events(*arguments: str) -> list[dict[str, Any]]:
        done = run_command(config_of(sidecars), "events", *arguments, "--json")
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    found = events(f"{KEPT}/0", "--last", "0")
    assert {(one["topic"], one["partition"]) for one in found} == {(KEPT, 0)}
    finished = [one for one in found if one["state"] == "COPY_SEGMENT_FINISHED"]
    begun = [one for one in found if one["state"] == "COPY_SEGMENT_STARTED"]
    assert [(one["segment_id"], one["start_offset"]) for one in finished] == [
        (one["segment_id"], one["start_offset"]) for one in begun
    ]
    assert events("--last", "3") == events("--last", "0")[-3:]
    shown = run_command(config_of(sidecars), "events", KEPT, "--last", "1").stdout
    assert f"{KEPT}/0  COPY_SEGMENT_FINISHED" in shown


@pytest.mark.parametrize(
    "command",
    [["events", "--last", "0"], ["ls", f"{KEPT}/0"], ["topics"], ["explain", f"{KEPT}/0"]],
    ids=" ".join,
)
def test_a_command_whose_output_nobody_reads_ends_quietly(sidecars: Sidecars, command: list[str]) -> None:
    """As ``events | head`` does: it is neither the broker that is away, nor a fault of ours."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end) as nobody:
        program = [sys.executable, "-m", "tiersidecar", *command, "--config", str(config_of(sidecars))]
        done = subprocess.run(
            program,
            env=program_environment(),
            stdout=nobody,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "")


def test_records_of_both_tiers_are_printed(
    cluster: KafkaCluster, sidecars: Sidecars, produced: dict[str, list[ProducedRecord]]
) -> None:
    node = cluster.leader_of(TRIMMED, 0).node_id
    rows = answer_of(config_of(sidecars), "ls", f"{TRIMMED}/0")["partitions"][0]["segments"]
    border = next(row["start_offset"] for row in rows if row["state"] != "remote")
    config = config_of(sidecars, node)
    below = [one.offset for one in produced[TRIMMED] if one.offset < border][-2:]
    beyond = [one.offset for one in produced[TRIMMED] if one.offset >= border][:2]
    around = run_command(config, "cat", f"{TRIMMED}/0", "--offset", str(below[0]), "--limit", "4")
    assert around.returncode == 0, around.stderr
    assert [json.loads(line)["offset"] for line in around.stdout.splitlines()] == [*below, *beyond]
    options = ["--raw", "--offset", "0", "--until", "5", "--config", str(config)]
    command = [sys.executable, "-m", "tiersidecar", "cat", f"{TRIMMED}/0", *options]
    raw = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    _, header = next(iter_batch_headers(raw, where="cat"))
    assert header.base_offset == 0
    late = run_command(config, "cat", f"{TRIMMED}/0", "--offset", str(10**9))
    assert (late.returncode, "416" in late.stderr) == (1, True), late.stderr


def test_records_are_found_by_time(cluster: KafkaCluster, sidecars: Sidecars) -> None:
    node = cluster.leader_of(TIMED, 0).node_id
    (first,) = run_command(
        config_of(sidecars, node), "cat", f"{TIMED}/0", "--offset", "5", "--limit", "1"
    ).stdout.splitlines()
    time_ms = json.loads(first)["timestamp_ms"]
    found = run_command(config_of(sidecars, node), "cat", f"{TIMED}/0", "--time", str(time_ms), "--limit", "1")
    assert json.loads(found.stdout)["timestamp_ms"] == time_ms
    late = run_command(config_of(sidecars, node), "cat", f"{TIMED}/0", "--time", "2100-01-01T00:00:00Z")
    assert (late.returncode, "no record has this time" in late.stderr) == (1, True), late.stderr


def verified(sidecars: Sidecars, target: str, *options: str, code: int = 0) -> list[dict[str, Any]]:
    done = run_command(config_of(sidecars), "verify", target, *options, "--json")
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_remote_segments_are_read_back_and_a_damaged_one_is_named(sidecars: Sidecars) -> None:
    rows = answer_of(config_of(sidecars), "ls", f"{TRIMMED}/0")["partitions"][0]["segments"]
    remote = [row["segment_id"] for row in rows if row["segment_id"]]
    found = verified(sidecars, TRIMMED)
    assert [(one["segment_id"], one["verdict"]) for one in found] == [(one, "sound") for one in remote]
    assert all(one["read_bytes"] > one["size_bytes"] for one in found)
    assert verified(sidecars, remote[1], "--rate", "100MiB") == [found[1]]
    (log,) = sidecars.store_root.rglob(f"*{remote[1]}.log")
    whole = log.read_bytes()
    try:
        log.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        damaged = [one for one in verified(sidecars, f"{TRIMMED}/0", code=3) if one["verdict"] != "sound"]
        shown = run_command(config_of(sidecars), "verify", remote[1])
    finally:
        log.write_bytes(whole)
    assert [one["segment_id"] for one in damaged] == [remote[1]]
    assert [(one["kind"], one["action"]) for one in damaged[0]["findings"]] == [("corrupt-content", "recopy")]
    assert (shown.returncode, "1 damaged" in shown.stderr) == (3, True), shown.stderr
    assert shown.stdout.startswith(f"damaged     {TRIMMED}/0 {remote[1]}")


@pytest.mark.parametrize("target", ["nowhere", "AAAAAAAAAAAAAAAAAAAAAQ", f"{TRIMMED}/9"])
def test_what_is_not_there_cannot_be_verified(sidecars: Sidecars, target: str) -> None:
    done = run_command(config_of(sidecars), "verify", target)
    assert (done.returncode, "UNKNOWN_TOPIC_OR_PARTITION" in done.stderr) == (1, True), done.stderr


@pytest.mark.timeout(480)
def test_a_pause_stops_copies_until_it_is_resumed_and_everybody_says_so(
    cluster: KafkaCluster, sidecars: Sidecars
) -> None:
    def paused() -> list[str]:
        return list(answer_of(config_of(sidecars), "status", code=0)["paused"])

    done = answer_of(config_of(sidecars), "pause", KEPT, "--copies", "--reason", "the store is moved", "--yes")
    assert (done["done"], done["notes"]) == (True, [])
    again = answer_of(config_of(sidecars, 2), "pause", KEPT, "--copies", "--reason", "another", "--yes")
    assert (again["done"], again["steps"], again["paused"][0]["reason"]) == (False, [], "the store is moved")
    leader = cluster.leader_of(KEPT, 0).node_id
    before = sidecars.segments_seen_by(leader, KEPT, 0)
    asyncio.run(produce_now(cluster, KEPT))

    def held_back() -> str:
        row = sidecars.status_of(leader, KEPT)[0]
        return (row["held_back_reason"] or "") if row["copy_lag_segments"] > 1 else ""

    reason = sidecars.wait_for(held_back, "the copy waits")
    assert "copying is paused for topic audit" in reason
    assert "the store is moved" in reason
    assert sidecars.segments_seen_by(leader, KEPT, 0) == before
    assert "copying is paused" in paused()[0]
    first = next(row["start_offset"] for row in segments_of(sidecars, KEPT) if row["state"] == "local")
    assert "copying is paused" in explained(sidecars, f"{KEPT}/0", first)["copy"]["says"]
    assert sidecars[leader].metric("tiersidecar_paused", kind="copies", topic=KEPT) == 1
    sidecars[leader].stop()
    sidecars[leader].start()
    sidecars.wait_until_ready()
    assert "the store is moved" in sidecars.wait_for(held_back, "it waits after a restart, too")
    ended = answer_of(config_of(sidecars), "resume", KEPT, "--yes")
    assert ended["steps"] == [f"{KEPT}: copying continues"]
    sidecars.wait_for(lambda: sidecars.status_of(leader, KEPT)[0]["copy_lag_segments"] == 0, "what waited is copied")
    assert len(sidecars.segments_seen_by(leader, KEPT, 0) or ()) > len(before or ())
    assert paused() == []
    assert answer_of(config_of(sidecars), "resume", KEPT, "--yes")["done"] is False


def segments_of(sidecars: Sidecars, topic: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = answer_of(config_of(sidecars), "ls", f"{topic}/0")["partitions"][0]["segments"]
    return rows


def connected(config: Path) -> tuple[list[dict[str, Any]], str]:
    """The findings of ``check-config --connect``, and all that is wrong in one text."""
    command = [sys.executable, "-m", "tiersidecar", "check-config", str(config), "--connect", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in {0, 3}, f"{done.stdout}\n{done.stderr}"
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    assert done.returncode == (3 if any(one["level"] != "ok" for one in found) else 0)
    return found, "\n".join(f"{one['check']}: {one['says']}" for one in found if one["level"] != "ok")


def test_a_configuration_is_held_against_the_cluster_that_it_names(
    cluster: KafkaCluster, sidecars: Sidecars, tmp_path: Path
) -> None:
    before = sorted(sidecars.store_root.rglob("*tiersidecar-probe*"))
    found, wrong = connected(config_of(sidecars))
    fits = {one["check"] for one in found if one["level"] == "ok"}
    assert fits >= {"log.dirs", "broker", "rights", "topics", "retention", "store", "clock", "user", "files"}, wrong
    assert "gateway" not in wrong
    assert sorted(sidecars.store_root.rglob("*tiersidecar-probe*")) == before == []
    settings = dict(sidecars[1].settings)
    settings["log.dirs"] = [str(log_dir) for log_dir in cluster.brokers[1].log_dirs]
    settings["remote.log.metadata.topic.num.partitions"] = 7
    settings["topics"] = [{"name": TRIMMED}, {"name": "misspelt"}]
    broker_port = int(cluster.brokers[1].bootstrap_server.rpartition(":")[2])
    settings["status"] = {"listen": f"127.0.0.1:{broker_port}"}
    settings["gateway"] = {
        "listeners": [{"listen": "127.0.0.1:19192", "advertised.nodes": {1: "gateway.invalid:9192"}}]
    }
    bad = tmp_path / "bad.yaml"
    bad.write_text(json.dumps(settings))
    cluster.admin.alter_topic(TRIMMED, {"retention.ms": "1000000000"})
    try:
        _, wrong = connected(bad)
    finally:
        cluster.admin.alter_topic(TRIMMED, {"retention.ms": "-1"})
    for words in (
        "lead to another broker than log.dirs",
        "has 5 partitions",
        "matches the rule misspelt",
        "retention.ms is 1000000000, must be -1",
        "maps no address to broker 2, 3: its clients get node-2.not-mapped.invalid",
        "gateway.invalid cannot be resolved",
        "status.listen and the broker's listener",
    ):
        assert words in wrong, wrong


async def read_some(cluster: KafkaCluster, topic: str, group: str) -> AIOKafkaConsumer:
    """A consumer of a group, which has committed that it has read 5 offsets, and is still there."""
    consumer = AIOKafkaConsumer(topic, group_id=group, enable_auto_commit=False, **cluster.client_settings)
    await consumer.start()
    partition = TopicPartition(topic, 0)
    async with asyncio.timeout(patient_s(60)):
        while partition not in consumer.assignment():
            await consumer.getmany(timeout_ms=100)
    await consumer.commit({partition: 5})
    return consumer


def test_enable_says_first_who_would_be_hurt(cluster: KafkaCluster, sidecars: Sidecars) -> None:
    topic = "fresh"
    cluster.create_topic(topic, segment_bytes=SEGMENT_BYTES)
    produce(cluster, topic, total_bytes=100_000)

    async def look() -> tuple[Any, str]:
        lives, gone = await read_some(cluster, topic, "lives"), await read_some(cluster, topic, "gone")
        await gone.stop()
        try:
            ask = ["enable", topic, "--local-retention-bytes", "20000", "--dry-run"]
            found = await asyncio.to_thread(answer_of, config_of(sidecars), *ask)
            return found, (await asyncio.to_thread(run_command, config_of(sidecars), *ask)).stderr
        finally:
            await lives.stop()

    found, shown = asyncio.run(look())
    groups = {one["group"]: one for one in found["readers"]["groups"]}
    assert {name: (group["hurt"], group["kind"]) for name, group in groups.items()} == {
        "lives": ("now", "consumer"),
        "gone": ("now", "consumer"),
    }
    assert groups["lives"]["records"] == groups["gone"]["records"] > 0
    assert [group["host"] for group in groups["lives"]["members"]] == ["127.0.0.1"]
    assert groups["gone"]["members"] == []
    assert "without a group" in found["readers"]["not_known"]
    assert "hurt now: consumer group lives" in shown
    assert "2 groups have read it, 2 of them would be hurt" in shown


def test_watching_prints_a_document_each_time(sidecars: Sidecars) -> None:
    command = [sys.executable, "-m", "tiersidecar", "status", "--watch", "--interval", "0.2", "--json"]
    with subprocess.Popen(
        [*command, "--config", str(config_of(sidecars))],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=_as_from_a_terminal,
    ) as run:
        assert run.stdout is not None
        seen: list[Any] = [json.loads(run.stdout.readline()) for _ in range(3)]
        run.send_signal(signal.SIGINT)
        run.stdout.read()
        assert run.wait(20) == 0
    assert [len(one["brokers"]) for one in seen] == [3, 3, 3]


def _as_from_a_terminal() -> None:
    """A test run in a shell's background inherits that SIGINT is ignored, and hands it on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_nobody_to_ask_is_told(tmp_path: Path) -> None:
    config = tmp_path / "tiersidecar.yaml"
    config.write_text(
        'log.dirs: [/no/such/dir]\nbroker: {bootstrap.servers: "127.0.0.1:1"}\n'
        "store: {type: filesystem, root: /srv/tier}\nstatus: {listen: 127.0.0.1:9}\n"
    )
    done = run_command(config, "status", "--sidecar", "127.0.0.1:9")
    assert done.returncode == 1
    assert "none of 127.0.0.1:9 answers" in done.stderr
