"""The leader's broker dies in the middle of a copy, again and again: nothing is lost, nothing is served twice.

``make failover`` runs 20 rounds (``TIERSIDECAR_FAILOVER_ROUNDS``), ``make test`` three, one of each common kind.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.copy_story import CopyStories, CopyStory, copy_stories
from tests.support.daemon import Daemon
from tests.support.kafka_admin import KafkaAdminError
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_cluster import KafkaCluster
from tests.support.keep_producing import KeepProducing
from tests.support.metadata_tail import MetadataTail
from tests.support.read_service import fetch_records, shape_of
from tests.support.remote_events import object_keys_in, read_events
from tests.support.sidecars import METADATA_PARTITIONS, Sidecars
from tiersidecar.adapters.metadata_topic.snapshot import load_snapshot
from tiersidecar.domain.ids import TopicIdPartition, format_uuid
from tiersidecar.domain.offsets import EpochEntry
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.reading.remote_objects import recorded_keys

ROUNDS = int(os.environ.get("TIERSIDECAR_FAILOVER_ROUNDS", "3"))

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(240 + 90 * ROUNDS)]

TOPIC, METADATA_TOPIC, PARTITIONS = "orders", "__remote_log_metadata", 3
SEGMENT_BYTES = 256 * 1024
PRODUCED_BYTES_PER_S = 600_000
UPLOAD_BYTES_PER_S = 1024 * 1024
"""Slow enough that a copy takes some hundred milliseconds, in which something can happen to it."""
LEASE_MS = 60_000
"""The default.  Who stands still for longer than its lease lasts is rightly kept from finishing late."""


class Kind(StrEnum):
    """What dies, beside the leader's broker."""

    BROKER = "its sidecar lives on, and may finish late"
    ZOMBIE = "its sidecar stands still before FINISHED until another has copied past it, then it goes on"
    BOTH = "its sidecar, too"
    PLACE = "its sidecar, at a named place of a copy"


KINDS = (Kind.ZOMBIE, Kind.BOTH, Kind.BROKER, Kind.PLACE)
PLACES = ("copy.manifest.stored", "copy.finished.published", "copy.log.half", "copy.started.published")


class Failover:
    """The cluster, its sidecars, what is produced, and what must hold at any time."""

    def __init__(self, cluster: KafkaCluster, sidecars: Sidecars, producing: KeepProducing, tail: MetadataTail) -> None:
        self.cluster, self.sidecars, self.producing, self.tail = cluster, sidecars, producing, tail
        self._told, self._events_told = CopyStories(), 0
        self._read_to = [0] * PARTITIONS

    # -- one round

    def run(self, number: int) -> None:
        """Kill who leads partition ``number`` modulo their count, see the others carry on, and bring everything back."""
        kind, partition = KINDS[number % len(KINDS)], number % PARTITIONS
        laps = [time.monotonic()]
        leader = self._leader(partition)
        doomed = self._kill(kind, leader, PLACES[number // len(KINDS) % len(PLACES)])
        laps.append(time.monotonic())
        successor = self._wait_until_others_copy(leader, partition, doomed)
        laps.append(time.monotonic())
        if kind is Kind.ZOMBIE:
            self._thaw(leader, doomed)
        leader.start()
        if not self.sidecars[leader.node_id].is_running:
            self.sidecars[leader.node_id].start()
        self._wait_until_in_sync()
        laps.append(time.monotonic())
        self.check(reader=successor.node_id)
        laps.append(time.monotonic())
        took = ", ".join(
            f"{what} {after_s - before_s:.1f} s"
            for what, (before_s, after_s) in zip(
                ("to kill", "to copy on", "back", "checked"), pairwise(laps), strict=True
            )
        )
        print(f"round {number + 1}: broker {leader.node_id} died, {kind}: {took}; {len(doomed)} copies cut")

    def _kill(self, kind: Kind, leader: KafkaBroker, place: str) -> list[RemoteLogSegmentMetadata]:
        """Kill the broker in the middle of a copy; gives the copies that its sidecar had begun and not finished."""
        sidecar = self.sidecars[leader.node_id]
        match kind:
            case Kind.PLACE:
                self._start_with(sidecar, f"{place}=kill@2")
                sidecar.wait_for_exit()
            case Kind.ZOMBIE:
                self._start_with(sidecar, "copy.finish.begun=freeze@2")
                self.sidecars.wait_for(lambda: sidecar.is_frozen, f"sidecar {leader.node_id} stands still")
            case Kind.BROKER | Kind.BOTH:
                self.sidecars.wait_for(lambda: self._copies_in_flight(leader), f"sidecar {leader.node_id} copies")
        if kind is Kind.BOTH:
            sidecar.kill9()
        leader.kill9()
        return self._copies_in_flight(leader)

    def _start_with(self, sidecar: Daemon, failpoints: str) -> None:
        sidecar.kill9()
        sidecar.failpoints = failpoints
        sidecar.start()
        sidecar.failpoints = ""

    def _copies_in_flight(self, leader: KafkaBroker) -> list[RemoteLogSegmentMetadata]:
        """Of this leadership: copies that an earlier one left unfinished end below what is remote by now."""
        return [
            segment
            for story in self._stories().values()
            for segment in story.in_state(State.COPY_SEGMENT_STARTED)
            if segment.broker_id == leader.node_id and segment.end_offset >= story.next_offset
        ]

    def _thaw(self, leader: KafkaBroker, doomed: list[RemoteLogSegmentMetadata]) -> None:
        """The deposed leader's sidecar finishes late what it was about to finish, for all it knows."""
        late = sum(story.late for story in self._stories().values())
        self.sidecars[leader.node_id].send_signal(signal.SIGCONT)
        self.sidecars.wait_for(
            lambda: sum(story.late for story in self._stories().values()) > late,
            f"sidecar {leader.node_id} finishes one of {[str(segment.remote_log_segment_id) for segment in doomed]} late",
        )

    # -- waiting

    def _leader(self, partition: int) -> KafkaBroker:
        """That is alive: a dead one leads on paper until its session is over."""

        def leader() -> KafkaBroker | None:
            try:
                found = self.cluster.leader_of(TOPIC, partition)
            except (LookupError, OSError, KafkaAdminError):
                return None
            return found if found.is_running else None

        return self.sidecars.wait_for(leader, f"{TOPIC}-{partition} has a leader")

    def _wait_until_others_copy(
        self, former: KafkaBroker, partition: int, doomed: list[RemoteLogSegmentMetadata]
    ) -> KafkaBroker:
        """Past the end of every copy that was cut; gives the new leader of ``partition``."""
        beyond = {partition: self._stories()[partition].next_offset}
        for segment in doomed:
            beyond[segment.topic_id_partition.partition] = segment.end_offset
        for index, end in beyond.items():
            self.sidecars.wait_for(partial(self._is_led_by_another, index, former), f"another leads {TOPIC}-{index}")
            self._wait_until_copied(index, end + 1)
        return self._leader(partition)

    def _is_led_by_another(self, partition: int, former: KafkaBroker) -> bool:
        return self._leader(partition) is not former

    def _wait_until_copied(self, partition: int, stop: int) -> None:
        self.sidecars.wait_for(
            lambda: self._stories()[partition].next_offset >= stop, f"{TOPIC}-{partition} is copied up to {stop}"
        )

    def _wait_until_in_sync(self) -> None:
        """Every replica of every topic: the next one to die must not be the last that has the data."""

        def in_sync() -> bool:
            try:
                topics = [self.cluster.admin.describe_topic(topic) for topic in (TOPIC, METADATA_TOPIC)]
            except (OSError, KafkaAdminError):
                return False
            return all(len(row.isr_nodes) == 3 and row.leader_id > 0 for topic in topics for row in topic.partitions)

        self.sidecars.wait_for(in_sync, "all replicas are in sync")
        self.sidecars.wait_until_ready()

    # -- what must hold

    def check(self, *, reader: int) -> None:
        """While everything goes on: no gap, no overlap unexplained, the same history everywhere, each offset once."""
        self.producing.raise_failure()
        stories = self._stories()
        for partition, story in sorted(stories.items()):
            _assert_one_history(story)
            self._assert_agreement(partition, story.next_offset)
            self._assert_served(reader, partition, self._read_to[partition], story.next_offset)
            self._read_to[partition] = story.next_offset

    def _stories(self) -> dict[int, CopyStory]:
        for event in self.tail.events(self._events_told):
            self._told.apply(event)
            self._events_told += 1
        found = {owner.partition: story for owner, story in self._told.by_partition.items()}
        return {index: found.get(index) or CopyStory() for index in range(PARTITIONS)}

    def _assert_agreement(self, partition: int, stop: int) -> None:
        """Every sidecar comes to list the finished segments that end below ``stop``, by its own lineage."""
        for node_id in self.sidecars.by_node:
            try:
                self.sidecars.wait_for(
                    partial(self._agrees, node_id, partition, stop),
                    f"sidecar {node_id} knows the segments of {TOPIC}-{partition} below {stop}",
                )
            except AssertionError as error:
                error.add_note(f"seen or told of, not both: {self._disagreement(node_id, partition, stop)}")
                raise

    def _agrees(self, node_id: int, partition: int, stop: int) -> bool:
        return not self._disagreement(node_id, partition, stop)

    def _disagreement(self, node_id: int, partition: int, stop: int) -> set[tuple[str, int, int]]:
        listed = self.sidecars.segments_seen_by(node_id, TOPIC, partition) or []
        expected = {
            (format_uuid(one.remote_log_segment_id.uuid), one.start_offset, one.end_offset)
            for one in self._stories()[partition].finished
            if one.end_offset < stop
        }
        return {row for row in listed if row[2] < stop} ^ expected

    def _assert_served(self, reader: int, partition: int, start: int, stop: int) -> None:
        """Each offset once, with the bytes that were acknowledged."""
        found = list(fetch_records(self.sidecars[reader].read_url, TOPIC, partition, offset=start, stop=stop))
        assert [record[0] for record in found] == list(range(start, stop))
        assert found == [shape_of(record) for record in self.producing.acknowledged(partition)[start:stop]]

    # -- the end

    def finish(self) -> dict[int, CopyStory]:
        """Stop producing, wait until nothing is left to do, and look at everything once more."""
        self.producing.stop()
        for partition in range(PARTITIONS):
            self._wait_until_copied(partition, self._active_base(partition))
            self.sidecars.wait_for(
                partial(self._is_tidy, partition, self._leader(partition).node_id),
                f"the leader of {TOPIC}-{partition} removes its own unfinished copies",
            )
        for node_id, daemon in self.sidecars.by_node.items():
            self.sidecars.wait_for(
                partial(_has_no_pins, daemon), f"sidecar {node_id} drops its pins, for everything sealed is remote"
            )
        for partition, story in sorted(self._stories().items()):
            self._assert_agreement(partition, story.next_offset)
            self._assert_served(partition + 1, partition, 0, story.next_offset)
            assert self._leader(partition).admin.earliest_offset(TOPIC, partition) > 0, "nothing was trimmed"
        return self._assert_whole_at_rest()

    def _assert_whole_at_rest(self) -> dict[int, CopyStory]:
        """The sidecars stopped: objects, events and each one's snapshot fit together."""
        for daemon in self.sidecars.by_node.values():
            assert daemon.stop() == 0, daemon.log_tail()
        stories = copy_stories(read_events(self.cluster.client_settings, METADATA_TOPIC))
        assert sorted(owner.partition for owner in stories) == list(range(PARTITIONS))
        segments = [segment for story in stories.values() for segment in story.segments.values()]
        named = _keys(one for one in segments if one.state is not State.DELETE_SEGMENT_FINISHED)
        objects = object_keys_in(self.sidecars.store_root)
        assert objects <= named, "an object that no event names"
        assert _keys(one for one in segments if one.state is State.COPY_SEGMENT_FINISHED) <= objects
        for node_id, daemon in self.sidecars.by_node.items():
            path = Path(daemon.settings["state.dir"]) / "remote-log-metadata.read-tier.sqlite"
            assert _held(path) == _folded(stories), f"the snapshot of sidecar {node_id}"
        return {owner.partition: story for owner, story in stories.items()}

    def _is_tidy(self, partition: int, leader_id: int) -> bool:
        story = self._stories()[partition]
        own = [one for one in story.in_state(State.COPY_SEGMENT_STARTED) if one.broker_id == leader_id]
        return not own and not story.in_state(State.DELETE_SEGMENT_STARTED)

    def _active_base(self, partition: int) -> int:
        directory = self._leader(partition).partition_dir(TOPIC, partition)
        return max(int(log.stem) for log in directory.glob("*.log"))


def _assert_one_history(story: CopyStory) -> None:
    """All finished segments tell the same start of each leader epoch, but for the first of each, which is cut."""
    starts: dict[int, int] = {}
    for segment in story.finished:
        for entry in segment.segment_leader_epochs[1:]:
            assert starts.setdefault(entry.epoch, entry.start_offset) == entry.start_offset
    for segment in story.finished:
        first: EpochEntry = segment.segment_leader_epochs[0]
        assert first.start_offset >= starts.get(first.epoch, 0)


def _has_no_pins(daemon: Daemon) -> bool:
    return daemon.status("/readyz")[0] == 200 and daemon.metric("tiersidecar_pins_segments") == 0


def _keys(segments: Any) -> set[str]:
    return {key for segment in segments for key in recorded_keys(segment).in_upload_order}


def _held(snapshot: Path) -> dict[TopicIdPartition, list[RemoteLogSegmentMetadata]]:
    restored = load_snapshot(snapshot, topic=METADATA_TOPIC, partition_count=METADATA_PARTITIONS)
    assert restored is not None
    return {
        held.topic_id_partition: _sorted(list(held.cache.list_remote_log_segments())) for held in restored.partitions
    }


def _folded(stories: dict[TopicIdPartition, CopyStory]) -> dict[TopicIdPartition, list[RemoteLogSegmentMetadata]]:
    return {
        owner: _sorted(
            [segment for segment in story.segments.values() if segment.state is not State.DELETE_SEGMENT_FINISHED]
        )
        for owner, story in stories.items()
    }


def _sorted(segments: list[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
    return sorted(segments, key=lambda segment: (segment.start_offset, segment.remote_log_segment_id.uuid))


def test_leaders_die_in_the_middle_of_copying(
    kafka_cluster: Callable[..., KafkaCluster], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Issue 4 (S-192)."""
    cluster = kafka_cluster(brokers=3, properties={"min.insync.replicas": "2"})
    configs = {"retention.ms": "-1", "retention.bytes": "-1", "min.insync.replicas": "2"}
    cluster.create_topic(TOPIC, partitions=PARTITIONS, segment_bytes=SEGMENT_BYTES, configs=configs)
    sidecars = Sidecars(
        tmp_path / "sidecars",
        cluster,
        topics=[{"name": TOPIC, "local.retention.bytes": 2 * SEGMENT_BYTES}],
        store={"upload.rate.limit.bytes.per.second": UPLOAD_BYTES_PER_S},
        **{"lease.duration.ms": LEASE_MS},
    )
    with sidecars:
        sidecars.wait_until_ready()
        producing = KeepProducing(
            cluster.client_settings, TOPIC, partitions=PARTITIONS, bytes_per_s=PRODUCED_BYTES_PER_S
        )
        with MetadataTail(cluster.client_settings, METADATA_TOPIC, partitions=METADATA_PARTITIONS) as tail, producing:
            failover = Failover(cluster, sidecars, producing, tail)
            for number in range(ROUNDS):
                with capsys.disabled():
                    failover.run(number)
            stories = failover.finish()
    counted: Counter[str] = Counter()
    for story in stories.values():
        assert len(story.copied_by) > 1, "only one broker ever copied"
        for name in ("straddling", "late", "redundant", "interrupted", "refused"):
            counted[name] += getattr(story, name)
        counted["finished"] += len(story.finished)
    with capsys.disabled():
        print(f"{ROUNDS} rounds: {dict(counted)}")
    assert counted["late"] > 0
    assert counted["interrupted"] > 0
