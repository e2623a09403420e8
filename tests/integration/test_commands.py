"""enable, disable, delete-records and accept-log-loss against a real broker, with and without a daemon (U10; issue text)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.test_daemon import SEGMENT_BYTES, active_base, base_offsets, produce, started, wait_until_trimmed
from tests.support.command_line import answer_of, run_command
from tests.support.daemon import Daemon, wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.remote_events import fold, in_state, object_keys_in, read_events
from tiersidecar.adapters.kafka.broker import open_broker
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State

pytestmark = pytest.mark.broker

WEEK_MS = 7 * 24 * 3_600_000


@pytest.fixture
def topic(kafka: KafkaCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"cmd-{abs(hash(request.node.name)) % 10**8}"
    kafka.create_topic(name, segment_bytes=SEGMENT_BYTES, configs={"retention.ms": str(WEEK_MS)})
    yield name
    kafka.admin.delete_topic(name)


def daemon_of(kafka: KafkaCluster, directory: Path, topic: str, **settings: object) -> Daemon:
    """No rule of the configuration names the topic: what tiers it is the state topic."""
    daemon = started(directory, kafka, topic, **settings)
    daemon.settings["topics"] = []
    return daemon


def overrides(kafka: KafkaCluster, topic: str) -> dict[str, str | None]:
    async def ask() -> dict[str, str | None]:
        async with open_broker(kafka.bootstrap_servers) as broker:
            return await broker.describe_topic_overrides(topic)

    return {name: value for name, value in asyncio.run(ask()).items() if name.startswith("retention")}


def modes(daemon: Daemon) -> set[str]:
    return {row["mode"] for row in json.loads(daemon.status("/status")[1])["partitions"]}


def segments(kafka: KafkaCluster, daemon: Daemon) -> list[RemoteLogSegmentMetadata]:
    return fold(read_events(kafka.client_settings, daemon.settings["remote.log.metadata.topic.name"]))


def finished(kafka: KafkaCluster, daemon: Daemon) -> list[RemoteLogSegmentMetadata]:
    return in_state(segments(kafka, daemon), State.COPY_SEGMENT_FINISHED)


def test_a_topic_is_enabled_tiered_disabled_and_enabled_again(kafka: KafkaCluster, tmp_path: Path, topic: str) -> None:
    """The whole way there and back: settings taken over and restored, remote data kept, copying taken up again."""
    produce(kafka, topic, total_bytes=400_000)
    with daemon_of(kafka, tmp_path, topic) as daemon:
        daemon.wait_until_ready()
        config = daemon.config_path
        shown = answer_of(config, "enable", topic, "--local-retention-bytes", "1", "--dry-run")
        assert (shown["done"], shown["retention_ms"], len(shown["steps"])) == (False, WEEK_MS, 2)
        assert overrides(kafka, topic) == {"retention.ms": str(WEEK_MS)}
        done = answer_of(config, "enable", topic, "--local-retention-bytes", "1", "--yes")
        assert (done["done"], done["former_settings"]) == (
            True,
            {"retention.ms": str(WEEK_MS), "retention.bytes": None},
        )
        assert overrides(kafka, topic) == {"retention.ms": "-1"}
        local_start = wait_until_trimmed(kafka, daemon, topic)
        again = answer_of(config, "enable", topic, "--local-retention-bytes", "1", "--yes")
        assert (again["done"], again["steps"], again["former_settings"]) == (False, [], done["former_settings"])

        off = answer_of(config, "disable", topic, "--yes")
        assert off["done"]
        assert overrides(kafka, topic) == {"retention.ms": str(WEEK_MS)}
        before = finished(kafka, daemon)
        assert before[-1].next_offset == local_start
        wait_for(lambda: modes(daemon) == {"race"}, "the daemon lets go of the topic", daemon)
        produce(kafka, topic, total_bytes=300_000, seed=1)
        assert finished(kafka, daemon) == before
        answer_of(config, "enable", topic, "--local-retention-bytes", "1", "--yes")
        wait_until_trimmed(kafka, daemon, topic)
        after = finished(kafka, daemon)
        assert after[: len(before)] == before, "nothing was copied twice, nothing was lost"
        assert len(after) > len(before)


def test_disable_is_refused_while_the_restored_retention_would_delete_what_is_not_remote(
    kafka: KafkaCluster, tmp_path: Path, topic: str
) -> None:
    """No daemon runs, so nothing is remote; and the retention that would come back is a second."""
    kafka.admin.alter_topic(topic, {"retention.ms": "86400000", "retention.bytes": "70000"})
    with daemon_of(kafka, tmp_path, topic) as daemon:
        daemon.wait_until_ready()
    answer_of(daemon.config_path, "enable", topic, "--yes")
    produce(kafka, topic, total_bytes=400_000)
    refused = answer_of(daemon.config_path, "disable", topic, "--yes", code=1)
    assert "retention.bytes of 70000 would delete more" in refused["refusal"]
    assert overrides(kafka, topic) == {"retention.ms": "-1", "retention.bytes": "-1"}


def test_disable_is_right_while_trimmed_files_are_still_on_the_disk(
    kafka_cluster: Callable[..., KafkaCluster], tmp_path: Path
) -> None:
    """The broker finds nothing by time then, though all that is local is younger than the retention that comes back."""
    kafka, topic = kafka_cluster(properties={"log.retention.check.interval.ms": "3600000"}), "trimmed"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs={"retention.ms": str(WEEK_MS)})
    produce(kafka, topic, total_bytes=400_000)
    with daemon_of(kafka, tmp_path, topic) as daemon:
        daemon.wait_until_ready()
        answer_of(daemon.config_path, "enable", topic, "--local-retention-bytes", "1", "--yes")
        wait_for(lambda: kafka.admin.earliest_offset(topic, 0) == active_base(kafka, topic), "it is trimmed", daemon)
        assert len(base_offsets(kafka, topic)) > 1
        done = run_command(daemon.config_path, "disable", topic, "--dry-run", "--json")
    refusal = json.loads(done.stdout)["refusal"]
    # Records of the millisecond in which the last trimmed segment ends are nobody's to tell.
    assert not refusal or refusal.endswith("try again after its log.retention.check.interval.ms")


def test_disable_with_deletion_leaves_nothing_remote(kafka: KafkaCluster, tmp_path: Path, topic: str) -> None:
    """KIP-950's other way: every segment goes with its events, and its objects."""
    produce(kafka, topic, total_bytes=400_000)
    with daemon_of(kafka, tmp_path, topic) as daemon:
        daemon.wait_until_ready()
        answer_of(daemon.config_path, "enable", topic, "--local-retention-bytes", "1", "--yes")
        wait_until_trimmed(kafka, daemon, topic)
        answer_of(daemon.config_path, "disable", topic, "--delete-remote", "--yes")
        wait_for(lambda: object_keys_in(daemon.store_root) == set(), "all objects are gone", daemon)
        wait_for(
            lambda: {segment.state for segment in segments(kafka, daemon)} == {State.DELETE_SEGMENT_FINISHED},
            "all deletions are finished",
            daemon,
        )
        assert overrides(kafka, topic) == {"retention.ms": str(WEEK_MS)}


def test_records_are_deleted_in_the_middle_of_a_remote_segment(kafka: KafkaCluster, tmp_path: Path, topic: str) -> None:
    """The start stays exact over a restart of broker log and daemon; whole segments below it go, the one around it stays."""
    produce(kafka, topic, total_bytes=400_000)
    with daemon_of(kafka, tmp_path, topic) as daemon:
        daemon.wait_until_ready()
        answer_of(daemon.config_path, "enable", topic, "--local-retention-bytes", "1", "--yes")
        wait_until_trimmed(kafka, daemon, topic)
        second = finished(kafka, daemon)[1]
        offset = (second.start_offset + second.end_offset) // 2
        shown = answer_of(daemon.config_path, "delete-records", topic, "-p", "0", "--offset", str(offset), "--dry-run")
        assert "1 remote segments" in shown["steps"][0]
        answer_of(daemon.config_path, "delete-records", topic, "-p", "0", "--offset", str(offset), "--yes")
        wait_for(lambda: finished(kafka, daemon)[0] == second, "the first segment is gone", daemon)
        assert daemon.stop() == 0
        daemon.start()
        daemon.wait_until_ready()
        after = answer_of(daemon.config_path, "delete-records", topic, "-p", "0", "--offset", str(offset), "--dry-run")
        assert (after["remote_log_start_offset"], after["steps"]) == (offset, [])
        assert finished(kafka, daemon)[0] == second


def test_local_records_go_as_well(kafka: KafkaCluster, tmp_path: Path, topic: str) -> None:
    produce(kafka, topic, total_bytes=100_000)
    with daemon_of(kafka, tmp_path, topic) as daemon:
        daemon.wait_until_ready()
        answer_of(daemon.config_path, "enable", topic, "--yes")
        done = answer_of(daemon.config_path, "delete-records", topic, "-p", "0", "--offset", "-1", "--yes")
        assert kafka.admin.earliest_offset(topic, 0) == done["high_watermark"] > 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        pytest.param(
            ["delete-records", "TOPIC", "-p", "0", "--offset", "1", "--yes"], 1, "not tiered", id="not tiered"
        ),
        pytest.param(
            ["delete-records", "TOPIC", "-p", "7", "--offset", "1", "--yes"], 1, "UNKNOWN", id="no such partition"
        ),
        pytest.param(["disable", "TOPIC", "--yes"], 1, "not tiered", id="disabled without having been enabled"),
        pytest.param(["enable", "no-such-topic", "--yes"], 1, "UNKNOWN_TOPIC", id="no such topic"),
        pytest.param(["enable", "__consumer_offsets", "--yes"], 1, "", id="an internal topic"),
        pytest.param(["enable", "TOPIC", "--json"], 2, "--yes or --dry-run", id="JSON asks nothing"),
        pytest.param(["enable", "TOPIC", "--retention-ms", "7 parsecs", "--yes"], 2, "parsecs", id="no such unit"),
        pytest.param(["enable", "TOPIC"], 1, "", id="the operator says no"),
    ],
)
def test_what_is_refused(
    kafka: KafkaCluster, tmp_path: Path, topic: str, arguments: list[str], code: int, words: str
) -> None:
    daemon = daemon_of(kafka, tmp_path, topic)
    with daemon:
        daemon.wait_until_ready()
    done = run_command(
        daemon.config_path, *[topic if argument == "TOPIC" else argument for argument in arguments], stdin="n\n"
    )
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert overrides(kafka, topic) == {"retention.ms": str(WEEK_MS)}
