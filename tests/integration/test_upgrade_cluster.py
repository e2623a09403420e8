"""Three brokers under load go from the former release to this one, sidecar by sidecar: nothing is lost, nothing is deleted
early, and what the former release said still holds (docs/operations/install.md, "Upgrade, restart, remove")."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT
from tests.integration.test_daemon_expiry import BY_SIZE, UNGUARDED
from tests.support.command_line import answer_of
from tests.support.daemon import Daemon
from tests.support.former_release import FormerDaemon, unpack_former_release
from tests.support.kafka_cluster import KafkaCluster
from tests.support.keep_producing import KeepProducing
from tests.support.read_service import fetch_records, shape_of
from tests.support.remote_events import fold, in_state, object_keys_in, read_events
from tests.support.sidecars import Sidecars
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.reading.remote_objects import recorded_keys

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

TOPIC, PARTITIONS = "upgraded", 3
METADATA_TOPIC = "__remote_log_metadata"
DELAY_S = 12
DELETED_BY_USER = 25


class Upgrade:
    """The cluster, both releases' sidecars on the same directories, and a producer that never stops."""

    def __init__(self, cluster: KafkaCluster, directory: Path) -> None:
        self.cluster = cluster
        cluster.create_topic(
            TOPIC, partitions=PARTITIONS, segment_bytes=SEGMENT_BYTES, configs={**STRICT, "min.insync.replicas": "2"}
        )
        self.new = Sidecars(
            directory,
            cluster,
            topics=[{"name": TOPIC, **BY_SIZE}],
            **{
                **UNGUARDED,
                "delete.delay": f"{DELAY_S}s",
                "user.delete.delay": f"{DELAY_S}s",
                "deletes.brokers.without.sidecar": [],
            },
        )
        release = unpack_former_release(directory / "former")
        self.former = {node: FormerDaemon(daemon, release) for node, daemon in self.new.by_node.items()}
        self.load = KeepProducing(cluster.client_settings, TOPIC, partitions=PARTITIONS, bytes_per_s=120_000)

    def segments(self) -> list[RemoteLogSegmentMetadata]:
        return fold(read_events(self.cluster.client_settings, METADATA_TOPIC))

    def finished(self, partition: int) -> list[RemoteLogSegmentMetadata]:
        held = in_state(self.segments(), State.COPY_SEGMENT_FINISHED)
        return [one for one in held if one.topic_id_partition.partition == partition]

    def leader(self, partition: int) -> Daemon:
        """The new release's sidecar beside the partition's leader."""
        return self.new[self.cluster.leader_of(TOPIC, partition).node_id]

    def start_of(self, partition: int) -> int:
        """The remote log start that the leader's sidecar tells; -1 while it tells none."""
        node = self.cluster.leader_of(TOPIC, partition).node_id
        row = self.new.status_of(node, TOPIC).get(partition, {})
        return -1 if (start := row.get("remote_log_start_offset")) is None else int(start)

    def trash(self) -> list[dict[str, Any]]:
        return list(answer_of(self.new[1].config_path, "trash", "ls")["entries"])

    def upgrade(self, node: int) -> None:
        """Stop the former release's sidecar beside that broker and start this release's."""
        assert self.former[node].stop() == 0, self.former[node].log_tail()
        self.new[node].start()
        self.new[node].wait_until_ready()


@pytest.fixture
def upgrade(kafka_cluster: Any, tmp_path: Path) -> Iterator[Upgrade]:
    made = Upgrade(kafka_cluster(brokers=3), tmp_path)
    with made.load:
        try:
            for former in made.former.values():
                former.start()
            yield made
        finally:
            for daemon in (*made.former.values(), *made.new.by_node.values()):
                daemon.kill9()


def deleted_anew(*daemons: Daemon) -> list[dict[str, Any]]:
    """What these have deleted, but for what a former sidecar was deleting when it was stopped: that is done at once."""
    events = [event for daemon in daemons for event in daemon.events("segment.deleted")]
    return [event for event in events if event["reason"] != "its deletion was started and not finished"]


def test_a_rolling_upgrade_under_load(upgrade: Upgrade) -> None:
    wait = upgrade.new.wait_for
    wait(lambda: any(one.events("segment.deleted") for one in upgrade.former.values()), "the former release deletes")
    answer_of(
        upgrade.former[1].config_path, "delete-records", TOPIC, "-p", "0", "--offset", str(DELETED_BY_USER), "--yes"
    )
    wait(lambda: all(upgrade.finished(partition) for partition in range(PARTITIONS)), "each partition is remote")
    starts = {partition: upgrade.finished(partition)[0].start_offset for partition in range(PARTITIONS)}

    for node in (1, 2):
        upgrade.upgrade(node)
        time.sleep(3)  # the mixed cluster works on under load; there is nothing to wait for but what must not happen
        assert deleted_anew(upgrade.new[node]) == [], "deleted while a former sidecar may lead"
        assert upgrade.trash() == [], "decided while a former sidecar may lead"
    upgrade.upgrade(3)
    whole_s = time.monotonic()

    wait(lambda: {one["partition"] for one in upgrade.trash()} == set(range(PARTITIONS)), "retention decides anew")
    deleted = deleted_anew(*upgrade.new.by_node.values())
    assert deleted == [] or time.monotonic() > whole_s + DELAY_S
    wait(
        lambda: deleted_anew(*upgrade.new.by_node.values()),
        "what retention took is deleted",
    )
    assert time.monotonic() >= whole_s + DELAY_S, "deleted before the delay was over"
    for partition, start in starts.items():
        assert upgrade.start_of(partition) >= start
    assert upgrade.start_of(0) >= DELETED_BY_USER
    upgrade.load.stop()
    assert_nothing_is_lost(upgrade)


def assert_nothing_is_lost(upgrade: Upgrade) -> None:
    """From each partition's start to its end every acknowledged record is read; each object is one of a known segment."""
    for partition in range(PARTITIONS):
        held = upgrade.finished(partition)
        assert all(later.start_offset <= earlier.end_offset + 1 for earlier, later in pairwise(held))
        start, records = upgrade.start_of(partition), upgrade.load.acknowledged(partition)
        read = fetch_records(upgrade.leader(partition).read_url, TOPIC, partition, offset=start, stop=len(records))
        assert list(read) == [shape_of(record) for record in records[start:]]
        remote_bytes = sum(one.segment_size_in_bytes for one in held if one.end_offset >= start)
        assert remote_bytes >= BY_SIZE["retention.bytes"] - 2 * SEGMENT_BYTES, "deleted inside retention"
    live = [segment for segment in upgrade.segments() if segment.state is not State.DELETE_SEGMENT_FINISHED]
    named = {key for one in live for key in recorded_keys(one, "").in_upload_order}
    assert object_keys_in(upgrade.new.store_root) <= named
