"""Three brokers, a sidecar beside each: what one begins, another finishes (T-36, T-47, S-183)."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT, produce
from tests.integration.test_daemon_expiry import (
    BY_SIZE,
    KEPT_BYTES,
    UNGUARDED,
    assert_objects_are_named,
    finished,
    is_settled,
    segments,
)
from tests.support.daemon import Daemon, daemon_settings, wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_placement import move_replica, place
from tests.support.remote_events import in_state, object_keys_in, read_events
from tiersidecar.domain.segments import RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState as State

pytestmark = [pytest.mark.broker, pytest.mark.slow]

TOPIC = "shared"
GRACE_MS = 5000
REPLICATED = {
    "remote.log.metadata.topic.name": "__remote_log_metadata",
    "remote.log.metadata.topic.replication.factor": 3,
    "remote.log.metadata.topic.min.isr": 2,
    "deletes.topic.grace.ms": GRACE_MS,
}


@pytest.fixture
def cluster(kafka_cluster: Any) -> KafkaCluster:
    made: KafkaCluster = kafka_cluster(brokers=3, log_dirs=2)
    made.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES, configs={**STRICT, "min.insync.replicas": "2"})
    produce(made, TOPIC, total_bytes=700_000)
    return made


@pytest.fixture
def daemons(cluster: KafkaCluster, tmp_path: Path) -> Iterator[dict[int, Daemon]]:
    """By node id, on one store, having copied all."""
    store = tmp_path / "store"
    store.mkdir()
    made = {}
    with ExitStack() as stack:
        for broker in cluster.brokers:
            directory = tmp_path / f"sidecar-{broker.node_id}"
            settings = daemon_settings(
                directory,
                bootstrap_servers=f"{broker.bootstrap_server},{cluster.bootstrap_servers}",
                log_dirs=list(broker.log_dirs),
                topics=[{"name": TOPIC, "local.retention.bytes": 1}],
                **{**UNGUARDED, **REPLICATED},
            )
            settings["store"] = {"type": "filesystem", "root": str(store)}
            made[broker.node_id] = stack.enter_context(Daemon(directory, settings))
        leader = made[cluster.leader_of(TOPIC, 0).node_id]
        wait_for(lambda: leader.events("log.trimmed"), "the topic is trimmed", leader)
        wait_for(lambda: leader.metric("kafka_remote_copy_lag_segments", topic=TOPIC) == 0, "all is copied", leader)
        wait_for(lambda: leader.events("remote_log_start.first"), "the leader has said the start", leader)
        yield made


def restart(daemon: Daemon, rule: Mapping[str, object], failpoints: str = "") -> None:
    assert daemon.stop() == 0
    daemon.settings["topics"], daemon.failpoints = [{"name": TOPIC, **rule}], failpoints
    daemon.start()


@pytest.mark.parametrize("place", ["expire.start.published", "delete.started.published", "delete.objects.deleted"])
def test_the_new_leader_finishes_what_the_old_one_began(
    cluster: KafkaCluster, daemons: dict[int, Daemon], place: str
) -> None:
    """Broker and sidecar die together in the middle of a deletion."""
    broker = cluster.leader_of(TOPIC, 0)
    dying = daemons.pop(broker.node_id)
    for daemon in daemons.values():
        restart(daemon, BY_SIZE)
    restart(dying, BY_SIZE, f"{place}=kill@1")
    assert dying.wait_for_exit() == -9, dying.log_tail()
    broker.kill9()
    heir = daemons[wait_for(lambda: leader_but(cluster, broker.node_id), "another leads", next(iter(daemons.values())))]
    wait_for(lambda: fits(cluster, heir), "the new leader has finished the expiry", heir, timeout_s=90)
    assert finished(cluster, heir)
    assert_objects_are_named(cluster, heir)


@pytest.mark.parametrize("action", [pytest.param("stall", marks=pytest.mark.exhaustive), "freeze"])
def test_reassigned_and_moved_in_the_middle_of_a_delete(
    cluster: KafkaCluster, daemons: dict[int, Daemon], action: str
) -> None:
    """The leader's replica moves to another log dir and then leaves, its sidecar alive: the lane is cancelled where it stands
    (stall), or a zombie wakes up in the middle of its deletion (freeze).  The new leader finishes; nothing else goes."""
    leader = cluster.leader_of(TOPIC, 0)
    stopping, others = daemons[leader.node_id], [node for node in daemons if node != leader.node_id]
    restart(stopping, BY_SIZE, f"delete.started.published={action}@2")
    wait_for(lambda: has_begun_to_delete(cluster, stopping), "a deletion is under way", daemons[others[0]])
    target = next(path for path in leader.log_dirs if path != leader.partition_dir(TOPIC, 0).parent)
    move_replica(leader.admin, TOPIC, 0, target)
    wait_for(lambda: (target / f"{TOPIC}-0").is_dir(), "the replica is in the other log dir", daemons[others[0]])
    place(cluster.admin, TOPIC, 0, others)
    for node in others:
        restart(daemons[node], BY_SIZE)
    heir = daemons[others[0]]
    wait_for(lambda: fits(cluster, heir), "the new leader has finished the expiry", heir, timeout_s=90)
    kept = finished(cluster, heir)
    if action == "freeze":
        os.kill(stopping.pid, signal.SIGCONT)
        stopping.wait_until_ready()
    place(cluster.admin, TOPIC, 0, [leader.node_id, *others])
    wait_for(lambda: leads(stopping), "its sidecar leads again", stopping)
    assert finished(cluster, heir) == kept, "nothing else went"
    assert_objects_are_named(cluster, heir)
    for daemon in daemons.values():
        assert daemon.is_running
        assert daemon.events("lane.halted") == []


def has_begun_to_delete(cluster: KafkaCluster, daemon: Daemon) -> bool:
    return bool(in_state(segments(cluster, daemon), State.DELETE_SEGMENT_STARTED))


def fits(cluster: KafkaCluster, daemon: Daemon) -> bool:
    found = segments(cluster, daemon)
    total = sum(one.segment_size_in_bytes for one in in_state(found, State.COPY_SEGMENT_FINISHED))
    return is_settled(found) and total <= KEPT_BYTES


def leads(daemon: Daemon) -> bool:
    rows = json.loads(daemon.status("/status")[1])["partitions"]
    return [row["role"] for row in rows] == ["leader"]


def test_a_topic_deleted_while_its_leaders_sidecar_is_away_is_removed_by_another(
    cluster: KafkaCluster, daemons: dict[int, Daemon]
) -> None:
    away = daemons.pop(cluster.leader_of(TOPIC, 0).node_id)
    away.kill9()
    one, other = daemons.values()
    cluster.admin.delete_topic(TOPIC)
    wait_for(lambda: object_keys_in(one.store_root) == set(), "all objects are gone", one, timeout_s=90)
    wait_for(
        lambda: {found.state for found in segments(cluster, one)} == {State.DELETE_SEGMENT_FINISHED},
        "all deletions are finished",
        one,
    )
    wait_for(lambda: one.events("topic.delete.finished") + other.events("topic.delete.finished"), "it is told", one)
    deletes = deletes_in_order(cluster, one)
    if len({event.broker_id for event in deletes}) > 1:
        pauses_ms = [later.event_timestamp_ms - event.event_timestamp_ms for event, later in pairwise(deletes)]
        assert max(pauses_ms) >= GRACE_MS / 2, "by one sidecar; by another only when that one stood still on the way"


def deletes_in_order(cluster: KafkaCluster, daemon: Daemon) -> list[RemoteLogSegmentMetadataUpdate]:
    """The topic has one partition, so its events lie in one partition of the metadata topic."""
    events = read_events(cluster.client_settings, daemon.settings["remote.log.metadata.topic.name"])
    deleting = (State.DELETE_SEGMENT_STARTED, State.DELETE_SEGMENT_FINISHED)
    return [event for event in events if isinstance(event, RemoteLogSegmentMetadataUpdate) and event.state in deleting]


def leader_but(cluster: KafkaCluster, dead: int) -> int | None:
    leader = cluster.admin.describe_topic(TOPIC).partitions[0].leader_id
    return leader if leader not in (-1, dead) else None
