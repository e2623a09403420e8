"""The daemon follows its broker without a restart: leading, following, losing replicas, topics that come back, log dirs
(S-012).
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.copy_story import CopyStory, copy_stories
from tests.support.daemon import Daemon
from tests.support.kafka_admin import KafkaAdminError, wait_until
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_placement import move_replica, place
from tests.support.keep_producing import KeepProducing
from tests.support.produce import IDEMPOTENT_STYLES, ProducedRecord, produce_mix
from tests.support.read_service import fetch_records, shape_of
from tests.support.remote_events import object_keys_in, read_events
from tests.support.sidecars import Sidecars
from tiersidecar.domain.ids import TopicIdPartition, format_uuid
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.ports.metrics.catalogue import LEADER_GAUGES
from tiersidecar.reading.remote_objects import recorded_keys

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]

METADATA_TOPIC = "__remote_log_metadata"
SEGMENT_BYTES = 64 * 1024
STRICT = {"retention.ms": "-1", "retention.bytes": "-1", "min.insync.replicas": "1"}


@pytest.fixture(scope="module")
def sidecars() -> Iterator[Sidecars]:
    """Three brokers of two log dirs each and their sidecars, for all tests of this module."""
    scratch = Path(tempfile.mkdtemp(prefix="tiersidecar-leadership-"))
    try:
        with KafkaCluster(scratch / "kafka", brokers=3, log_dirs=2) as cluster:
            settings = {
                "topics": [{"pattern": "tiered-.*", "local.retention.bytes": 1}],
                "deletes.topic.grace.ms": 5000,
            }
            with Sidecars(scratch / "sidecars", cluster, **settings) as sidecars:  # type: ignore[arg-type]
                sidecars.wait_until_ready()
                yield sidecars
    finally:
        shutil.rmtree(scratch)


@pytest.fixture(autouse=True)
def none_is_restarted(sidecars: Sidecars) -> Iterator[None]:
    """Every sidecar lives through the test, and no partition of its is parked."""
    pids = [daemon.pid for daemon in sidecars.by_node.values()]
    yield
    for daemon, pid in zip(sidecars.by_node.values(), pids, strict=True):
        assert daemon.is_running, daemon.log_tail()
        assert daemon.pid == pid
        assert daemon.events("lane.halted") == []


def created(sidecars: Sidecars, topic: str, nodes: list[int]) -> str:
    """A topic of one partition on these nodes, the first one leading."""
    sidecars.cluster.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    place(sidecars.cluster.admin, topic, 0, nodes)
    return topic


def produce(sidecars: Sidecars, topic: str, *, seed: int = 0, total_bytes: int = 500_000) -> list[ProducedRecord]:
    return asyncio.run(
        produce_mix(
            sidecars.cluster.client_settings,
            topic,
            total_bytes=total_bytes,
            batch_bytes=16_384,
            styles=IDEMPOTENT_STYLES,
            seed=seed,
        )
    )


def stories_of(sidecars: Sidecars, topic: str) -> dict[TopicIdPartition, CopyStory]:
    """By topic id, too: a name may have had several."""
    stories = copy_stories(read_events(sidecars.cluster.client_settings, METADATA_TOPIC))
    return {owner: story for owner, story in stories.items() if owner.topic == topic}


def story_of(sidecars: Sidecars, topic: str) -> CopyStory:
    """Of the topic's one partition."""
    return next(iter(stories_of(sidecars, topic).values()), CopyStory())


def wait_until_trimmed(sidecars: Sidecars, topic: str) -> int:
    """The local start, once it is the active segment's base."""

    def trimmed() -> int | None:
        try:
            leader = sidecars.cluster.leader_of(topic, 0)
            start = leader.admin.earliest_offset(topic, 0)
        except (KafkaAdminError, LookupError):
            return None
        base = max(int(log.stem) for log in leader.partition_dir(topic, 0).glob("*.log"))
        return start if 0 < start == base else None

    return sidecars.wait_for(trimmed, f"{topic} is trimmed to its active segment")


def assert_reads_back(daemon: Daemon, topic: str, produced: list[ProducedRecord], stop: int) -> None:
    found = list(fetch_records(daemon.read_url, topic, 0, stop=stop))
    assert found == [shape_of(record) for record in produced if record.offset < stop]


def wait_for_segments(sidecars: Sidecars, node_id: int, topic: str, story: CopyStory) -> None:
    """Until the sidecar lists those that the events tell of, and no others."""
    expected = sorted((format_uuid(one.remote_log_segment_id.uuid), one.start_offset) for one in story.finished)
    sidecars.wait_for(
        lambda: [row[:2] for row in sorted(sidecars.segments_seen_by(node_id, topic, 0) or [])] == expected,
        f"sidecar {node_id} lists the {len(expected)} segments of {topic}",
    )


def series_of(daemon: Daemon, topic: str) -> set[str]:
    """Names of a leader's gauges that the sidecar exports for the topic."""
    lines = daemon.status("/metrics?partitions=1")[1].splitlines()
    named = {line.partition("{")[0] for line in lines if f'topic="{topic}"' in line}
    return named & {metric.name for metric in LEADER_GAUGES}


def wait_for_roles(sidecars: Sidecars, topic: str, roles: dict[int, str]) -> None:
    """Until each sidecar says so; an empty role is none."""

    def roles_now() -> dict[int, str]:
        rows = {node_id: sidecars.status_of(node_id, topic).get(0) for node_id in roles}
        return {node_id: row["role"] if row else "" for node_id, row in rows.items()}

    sidecars.wait_for(lambda: roles_now() == roles, f"the roles of {topic} are {roles}")


def wait_for_lag(sidecars: Sidecars, node_id: int, topic: str) -> None:
    """Until the sidecar tells the lag of the topic."""
    sidecars.wait_for(
        lambda: "kafka_remote_copy_lag_bytes" in series_of(sidecars[node_id], topic), f"{node_id} tells the lag"
    )


def test_leading_goes_to_and_fro(sidecars: Sidecars) -> None:
    """S-180, S-181, S-182, T-30: each new leader carries on where the other stopped, and only the leader speaks of lag."""
    topic = created(sidecars, "tiered-to-and-fro", [1, 2, 3])
    produced: list[ProducedRecord] = []
    stop = 0
    for turn, nodes in enumerate([[1, 2, 3], [2, 1, 3], [1, 2, 3], [3, 1, 2]]):
        place(sidecars.cluster.admin, topic, 0, nodes)
        produced += produce(sidecars, topic, seed=turn)
        leader, *followers = nodes
        wait_for_roles(sidecars, topic, {leader: "leader", **dict.fromkeys(followers, "follower")})
        stop = wait_until_trimmed(sidecars, topic)
        wait_for_lag(sidecars, leader, topic)
        for node_id in followers:
            assert series_of(sidecars[node_id], topic) == set()
    story = story_of(sidecars, topic)
    assert story.copied_by == [1, 2, 1, 3]
    assert (story.late, story.redundant, story.refused) == (0, 0, 0)
    assert story.next_offset == stop
    for node_id, daemon in sidecars.by_node.items():
        wait_for_segments(sidecars, node_id, topic, story)
        assert_reads_back(daemon, topic, produced, stop)


def test_a_replica_leaves_and_comes_back(sidecars: Sidecars) -> None:
    """S-183: the leader's own replica goes: its sidecar lets the partition go, and takes it up again as a stranger would."""
    topic = created(sidecars, "tiered-leaves", [1, 2, 3])
    produced = produce(sidecars, topic)
    first_stop = wait_until_trimmed(sidecars, topic)

    place(sidecars.cluster.admin, topic, 0, [2, 3])
    wait_for_roles(sidecars, topic, {1: "", 2: "leader", 3: "follower"})
    assert series_of(sidecars[1], topic) == set()
    assert sidecars.segments_seen_by(1, topic, 0) is None
    produced += produce(sidecars, topic, seed=1)
    assert wait_until_trimmed(sidecars, topic) > first_stop

    place(sidecars.cluster.admin, topic, 0, [1, 3])
    wait_for_roles(sidecars, topic, {1: "leader", 2: "", 3: "follower"})
    produced += produce(sidecars, topic, seed=2)
    stop = wait_until_trimmed(sidecars, topic)
    story = story_of(sidecars, topic)
    assert (story.copied_by, story.next_offset) == ([1, 2, 1], stop)
    assert story.in_state(State.DELETE_SEGMENT_FINISHED) == [], "nothing went with the replica"
    assert_reads_back(sidecars[1], topic, produced, stop)


def test_a_topic_comes_back_under_its_name(sidecars: Sidecars) -> None:
    """S-190: of the old topic nothing shows in the new one, and what the one deletes the other keeps."""
    topic = created(sidecars, "tiered-again", [1, 2, 3])
    produce(sidecars, topic, total_bytes=800_000)
    old_stop = wait_until_trimmed(sidecars, topic)
    ((old, old_story),) = stories_of(sidecars, topic).items()
    old_keys = keys_of(old_story)
    assert old_keys <= object_keys_in(sidecars.store_root)

    sidecars.cluster.admin.delete_topic(topic)
    wait_until(lambda: _create_again(sidecars, topic), f"{topic} can be made again")
    place(sidecars.cluster.admin, topic, 0, [2, 3, 1])
    produced = produce(sidecars, topic, seed=1, total_bytes=400_000)
    stop = wait_until_trimmed(sidecars, topic)
    assert stop < old_stop

    stories = stories_of(sidecars, topic)
    ((new, new_story),) = ((owner, story) for owner, story in stories.items() if owner != old)
    assert new.topic_id != old.topic_id
    assert new_story.next_offset == stop
    for node_id, daemon in sidecars.by_node.items():
        wait_for_segments(sidecars, node_id, topic, new_story)
        assert_reads_back(daemon, topic, produced, stop)

    sidecars.wait_for(lambda: not old_keys & object_keys_in(sidecars.store_root), "the old topic's objects are gone")
    sidecars.wait_for(
        lambda: stories_of(sidecars, topic)[old].in_state(State.COPY_SEGMENT_FINISHED) == [], "events say so"
    )
    reasons = {event["reason"] for event in _deletions(sidecars, old_story)}
    assert reasons == {"its topic is deleted"}
    new_story = stories_of(sidecars, topic)[new]
    assert keys_of(new_story) <= object_keys_in(sidecars.store_root)
    assert new_story.in_state(State.DELETE_SEGMENT_FINISHED) == []
    assert_reads_back(sidecars[1], topic, produced, stop)


def test_a_replica_moves_between_log_dirs(sidecars: Sidecars) -> None:
    """A -future directory is nobody's; the leader's copying goes on in the other log dir."""
    topic = created(sidecars, "tiered-moves", [1, 2, 3])
    broker, daemon = sidecars.cluster[1], sidecars[1]
    with KeepProducing(sidecars.cluster.client_settings, topic, partitions=1, bytes_per_s=400_000) as producing:
        for _ in range(4):
            move_to_other_log_dir(broker, topic)
            wait_until_copied(sidecars, topic, producing.end_offset(0))
        producing.stop()
        produced = producing.acknowledged(0)
    stop = wait_until_trimmed(sidecars, topic)
    story = story_of(sidecars, topic)
    assert (story.copied_by, story.next_offset) == ([1], stop)
    assert story.straddling + story.late + story.redundant + story.refused == 0
    assert_reads_back(daemon, topic, produced, stop)
    assert json.loads(daemon.status("/status")[1])["log_dir_faults"] == {}
    assert [event for event in daemon.events("log_dir.fault") if topic in event["directory"]] == []


def move_to_other_log_dir(broker: KafkaBroker, topic: str) -> None:
    """The replica is there, and nowhere else, when this returns."""
    before = broker.partition_dir(topic, 0)
    target = next(path for path in broker.log_dirs if path != before.parent)
    move_replica(broker.admin, topic, 0, target)
    wait_until(lambda: broker_has(broker, target / before.name), f"the replica is in {target}", 60)


def wait_until_copied(sidecars: Sidecars, topic: str, stop: int) -> None:
    """Up to ``stop`` (exclusive) and beyond."""
    sidecars.wait_for(lambda: story_of(sidecars, topic).next_offset > stop, f"{topic} is copied past {stop}")


def broker_has(broker: KafkaBroker, directory: Path) -> bool:
    """Under its own name, and nowhere else."""
    found = [path for log_dir in broker.log_dirs for path in log_dir.glob(f"{directory.name}*")]
    return directory.is_dir() and [path for path in found if not path.name.endswith("-delete")] == [directory]


def keys_of(story: CopyStory) -> set[str]:
    finished = story.in_state(State.COPY_SEGMENT_FINISHED)
    return {key for segment in finished for key in recorded_keys(segment).in_upload_order}


def _create_again(sidecars: Sidecars, topic: str) -> bool:
    try:
        sidecars.cluster.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    except KafkaAdminError as error:
        if "topic_already_exists" not in str(error):
            raise
        return False
    return True


def _deletions(sidecars: Sidecars, story: CopyStory) -> list[dict[str, str]]:
    """What any sidecar logged of deleting the story's segments."""
    ids = {str(segment_id) for segment_id in story.segments}
    return [
        event
        for daemon in sidecars.by_node.values()
        for event in daemon.events("segment.deleted")
        if event["segment_id"] in ids
    ]
