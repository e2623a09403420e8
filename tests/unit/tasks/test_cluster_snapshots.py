"""Where groups stand is in the store, some minutes old at most, written by one sidecar of the cluster (issue 21)."""

from __future__ import annotations

import json
import struct
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
import zstandard
from crc32c import crc32c
from structlog.testing import capture_logs

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.scripted import MemoryStateLog, ScriptedBroker, ScriptedGroups
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.snapshots.cluster_codec import (
    MOST_BYTES,
    MOST_LINE_BYTES,
    read_cluster_snapshot,
    write_cluster_snapshot,
)
from tiersidecar.adapters.snapshots.cluster_shelf import StoreClusterShelf, cluster_directory
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.domain.cluster_topics import ClusterTopic, Commit, TopicPartition
from tiersidecar.domain.errors import BrokerRefusedError, CorruptDataError, StoreError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.cluster_snapshots import ClusterSnapshot, GroupCommits
from tiersidecar.ports.metrics.process import CLUSTER_SNAPSHOT_AGE, CLUSTER_SNAPSHOTS
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.ports.store import BytesBody, StoredObject
from tiersidecar.tasks.cluster_snapshots import ClusterLook, ClusterSnapshotLane

TOPIC_ID, FORMER_ID = Uuid(b"orders-topic-id!"), Uuid(b"orders-before-it")
METADATA, INTERVAL_S, CLUSTER = "__remote_log_metadata", 60.0, "a-cluster_of/ours"
ORDERS = [TopicIdPartition(topic_id=TOPIC_ID, topic="orders", partition=number) for number in range(2)]


class Groups(ScriptedGroups):
    """Every group commits in leader epoch 4, with metadata."""

    async def commits(self, groups: Collection[str]) -> dict[str, GroupCommits]:
        self.asked.append("commits")
        return {
            group: GroupCommits(
                commits={place: committed(offset) for place, offset in self.consumers.get(group, {}).items()},
                error=self.errors.get(group, ""),
            )
            for group in groups
        }


class Broker(ScriptedBroker):
    """Broker 1 leads everything; ``metadata_leader`` leads the metadata topic."""

    def __init__(self) -> None:
        super().__init__()
        self.metadata_leader, self.overrides = 1, {"retention.ms": "-1", "local": None}
        self.away = False

    async def describe_partitions(self, topics: Collection[str] | None = None) -> tuple[LeaderView, ...]:
        if self.away:
            raise BrokerRefusedError(api="Metadata", subject="the cluster", error="NONE")
        metadata = TopicIdPartition(topic_id=Uuid(bytes(16)), topic=METADATA, partition=0)
        views = [view(metadata, self.metadata_leader), *(view(one, 1) for one in reversed(ORDERS))]
        return tuple(one for one in views if one.topic_id_partition.topic in (topics or ()))

    async def describe_topic_overrides(self, topic: str) -> dict[str, str | None]:
        return dict(self.overrides)


def view(owner: TopicIdPartition, leader: int) -> LeaderView:
    return LeaderView(
        topic_id_partition=owner,
        leader_id=BrokerId(leader),
        leader_epoch=LeaderEpoch(4 + owner.partition),
        replicas=(BrokerId(1), BrokerId(2)),
        in_sync_replicas=(BrokerId(1),),
    )


def committed(offset: int) -> Commit:
    return Commit(offset=offset, leader_epoch=4, metadata="m")


class World:
    def __init__(self) -> None:
        self.broker, self.groups, self.state = Broker(), Groups(), MemoryStateLog()
        self.clock, self.telemetry, self.resting, self.turns = ManualClock(), RecordedTelemetry(), "", 0
        for one in ORDERS:
            self.state.partition_states[one] = PartitionState()
        self.store = MemoryStore(clock=self.clock, ids=SystemIds())
        self.shelf = StoreClusterShelf(self.store, "p/", InlineBlocking())
        self.lane = ClusterSnapshotLane(
            taker=ClusterLook(
                broker=self.broker,
                groups=self.groups,
                state=self.state,
                clock=self.clock,
                cluster_id=CLUSTER,
                broker_id=BrokerId(1),
            ),
            shelf=self.shelf,
            telemetry=self.telemetry,
            rests=lambda: self.resting,
            metadata_topic=METADATA,
            interval_s=INTERVAL_S,
            turns=lambda: self.turns,
        )

    async def look(self) -> None:
        await self.clock.advance(INTERVAL_S)
        await self.lane.look()

    async def kept(self) -> ClusterSnapshot | None:
        return await self.shelf.latest(CLUSTER)

    async def objects(self) -> list[StoredObject]:
        return [stored async for stored in self.store.list_objects("")]

    def commit(self, group: str, **offsets: int) -> None:
        self.groups.consumers[group] = {(topic, 0): offset for topic, offset in offsets.items()}


async def test_topics_and_commits_on_them_are_put() -> None:
    world = World()
    world.commit("billing", orders=7, untiered=9)
    world.commit("elsewhere", untiered=9)
    world.groups.shares["shared"] = {}
    await world.look()
    kept = await world.kept()
    assert kept is not None
    assert kept.topics == {
        "orders": ClusterTopic(
            topic_id=TOPIC_ID, replication_factor=2, leader_epochs=(4, 5), configs={"retention.ms": "-1"}
        )
    }
    assert kept.groups == {"billing": {("orders", 0): committed(7)}}, "not of topics that are not tiered"
    assert (kept.cluster_id, kept.written_ms, kept.broker_id) == (CLUSTER, world.clock.now_ms(), 1)
    assert world.telemetry.value(CLUSTER_SNAPSHOTS, outcome="written") == 1


async def test_what_has_not_changed_is_not_put_again_and_old_ones_go() -> None:
    world = World()
    await world.look()
    await world.look()
    assert len(await world.objects()) == 1
    for offset in range(5):
        world.commit("billing", orders=offset)
        await world.look()
    assert len(await world.objects()) == 4, "the last three, should one be damaged, and the first of the hour"
    kept = await world.kept()
    assert kept is not None
    assert kept.groups["billing"]["orders", 0].offset == 4


async def test_only_the_sidecar_beside_the_leader_of_the_metadata_topic_writes() -> None:
    world = World()
    world.broker.metadata_leader = 2
    await world.look()
    assert await world.objects() == []
    world.broker.metadata_leader, world.resting = 1, "another process has the role"
    await world.look()
    assert await world.objects() == []
    world.resting = ""
    await world.look()
    assert len(await world.objects()) == 1


async def test_what_another_process_has_put_between_two_looks_is_no_news_twice() -> None:
    """It had the role for less than the interval: what counts is what it has put."""
    world = World()
    world.commit("billing", orders=1)
    await world.look()
    first = await world.kept()
    assert first is not None
    await world.clock.advance(1)
    world.commit("billing", orders=2)
    await world.shelf.put(await world.lane.taker.take(first))
    world.turns += 1
    await world.look()
    assert len(await world.objects()) == 2
    world.commit("billing", orders=1)  # set back, to what this process had put
    await world.look()
    kept = await world.kept()
    assert kept is not None
    assert kept.groups["billing"]["orders", 0].offset == 1


async def test_a_topic_that_was_deleted_is_left_out_and_one_made_anew_is_another() -> None:
    world = World()
    gone = TopicIdPartition(topic_id=Uuid(b"gone-topic-id!!!"), topic="gone", partition=0)
    before = TopicIdPartition(topic_id=FORMER_ID, topic="orders", partition=0)
    world.state.partition_states |= {gone: PartitionState(), before: PartitionState()}
    await world.look()
    kept = await world.kept()
    assert kept is not None
    assert {name: topic.topic_id for name, topic in kept.topics.items()} == {"orders": TOPIC_ID}


async def test_a_group_whose_coordinator_does_not_answer_stays_as_it_was_and_is_named() -> None:
    world = World()
    world.commit("billing", orders=7)
    world.commit("audit", orders=1)
    await world.look()
    world.commit("audit", orders=2)
    world.groups.errors["billing"] = "NOT_COORDINATOR"
    with capture_logs() as logs:
        await world.look()
    kept = await world.kept()
    assert kept is not None
    assert {group: commits["orders", 0].offset for group, commits in kept.groups.items()} == {"billing": 7, "audit": 2}
    assert kept.groups_problem == "billing: NOT_COORDINATOR"
    assert [log["event"] for log in logs if log["log_level"] == "warning"] == ["cluster_snapshot.groups.unknown"]
    assert world.telemetry.value(CLUSTER_SNAPSHOT_AGE) == INTERVAL_S


async def test_without_the_right_to_list_groups_the_last_known_ones_stay() -> None:
    """Also after a restart, by what is in the store."""
    world = World()
    world.commit("billing", orders=7)
    await world.look()
    later = World()
    later.store, later.shelf = world.store, world.shelf
    later.lane.shelf = world.shelf
    later.groups.error, later.broker.overrides = "CLUSTER_AUTHORIZATION_FAILED", {"retention.ms": "5"}
    await later.clock.advance(INTERVAL_S)
    await later.look()
    kept = await world.kept()
    assert kept is not None
    assert (kept.groups["billing"]["orders", 0].offset, kept.topics["orders"].configs) == (7, {"retention.ms": "5"})
    assert "CLUSTER_AUTHORIZATION_FAILED" in kept.groups_problem


async def test_a_failure_is_counted_and_the_lag_grows_until_it_is_over() -> None:
    world = World()
    await world.look()
    assert world.telemetry.value(CLUSTER_SNAPSHOT_AGE) == 0
    world.broker.away = True
    for _ in range(3):
        await world.look()
    assert world.telemetry.value(CLUSTER_SNAPSHOTS, outcome="failed") == 3
    assert world.telemetry.value(CLUSTER_SNAPSHOT_AGE) == 3 * INTERVAL_S
    world.broker.away = False
    await world.look()
    assert world.telemetry.value(CLUSTER_SNAPSHOT_AGE) == 0


async def test_a_damaged_one_has_a_predecessor() -> None:
    world = World()
    world.commit("billing", orders=7)
    await world.look()
    key = f"{cluster_directory('p/', CLUSTER)}{2**47:019d}-2.snapshot"
    await world.store.put_object(key, BytesBody(b"{}\n" + bytes(20)))
    kept = await world.kept()
    assert kept is not None
    assert kept.groups["billing"]["orders", 0].offset == 7


FULL = ClusterSnapshot(
    cluster_id=CLUSTER,
    written_ms=5,
    broker_id=1,
    topics={"orders": ClusterTopic(topic_id=TOPIC_ID, replication_factor=3, leader_epochs=(1,), configs={"a": "é"})},
    groups={"grüppe": {("orders", 0): Commit(offset=2**62, leader_epoch=-1, metadata="\n")}},
    groups_problem="x: y",
)


def test_an_object_is_read_as_it_was_written() -> None:
    assert read_cluster_snapshot(write_cluster_snapshot(FULL), "k") == FULL
    place: TopicPartition = "orders", 0
    assert place in FULL.groups["grüppe"]


@pytest.mark.parametrize("cut", [0, 3, 40, -1])
def test_one_that_is_cut_or_changed_is_refused(cut: int) -> None:
    data = write_cluster_snapshot(FULL)
    with pytest.raises(CorruptDataError):
        read_cluster_snapshot(data[:cut], "k")
    changed = bytearray(data)
    changed[cut] ^= 1
    with pytest.raises(CorruptDataError):
        read_cluster_snapshot(bytes(changed), "k")


async def put_at(world: World, *times_ms: int, broker_id: int = 2) -> None:
    """By the shelf, whatever the clock says."""
    for at_ms in times_ms:
        await world.shelf.put(replace(FULL, written_ms=at_ms, broker_id=broker_id))


async def test_after_a_clock_that_ran_ahead_the_last_one_put_is_still_the_latest() -> None:
    """NTP has set it back: three snapshots are from the future, and what is put now is not deleted as an old one."""
    world = World()
    ahead_ms = world.clock.now_ms() + 86_400_000
    await put_at(world, ahead_ms, ahead_ms + 1, ahead_ms + 2)
    world.commit("billing", orders=7)
    with capture_logs() as logs:
        await world.look()
    kept = await world.kept()
    assert kept is not None
    assert (kept.broker_id, kept.written_ms, set(kept.groups)) == (1, ahead_ms + 3, {"billing"})
    assert [log["event"] for log in logs] == ["cluster_snapshot.clock.behind", "cluster_snapshot.written"]


async def test_a_name_beyond_all_times_is_no_snapshot() -> None:
    world = World()
    stray = f"{cluster_directory('p/', CLUSTER)}{10**19 - 1}-1.snapshot"
    await world.store.put_object(stray, BytesBody(write_cluster_snapshot(FULL)))
    await world.look()
    kept = await world.kept()
    assert kept is not None
    assert kept.written_ms == world.clock.now_ms()


HEAD = b'{"cluster_id":"c","written_ms":5,"broker_id":1,"groups_problem":""}\n'
GROUP = b'{"group":"g","commits":[["orders",0,%s,0,""]]}\n'


def forged(lines: bytes, size: int | None = None) -> bytes:
    """What anybody who may write to the bucket can put there."""
    head = {"format": "tiersidecar-cluster", "version": 1, "bytes": len(lines) if size is None else size}
    body = json.dumps(head).encode() + b"\n" + zstandard.ZstdCompressor(level=1).compress(lines)
    return body + struct.pack(">I", crc32c(body))


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        pytest.param(b"", "cluster_id", id="nothing"),
        pytest.param(HEAD + GROUP % b"1e999", "out of range", id="an offset that is no number of Kafka's"),
        pytest.param(HEAD + GROUP % b"9223372036854775808", "out of range", id="an offset beyond int64"),
        pytest.param(HEAD + GROUP % b"20.5", "out of range", id="half an offset"),
        pytest.param(HEAD + GROUP % b"true", "out of range", id="a truth"),
        pytest.param(HEAD.replace(b"5", b"1e999"), "out of range", id="a time that is none"),
        pytest.param(HEAD + b"[" * 100_000 + b"\n", "RecursionError|ValueError", id="lists in lists"),
        pytest.param(HEAD + b"[" + b"[]," * (MOST_LINE_BYTES // 3) + b"[]]", "a line has more", id="a line too long"),
        pytest.param(HEAD + b'{"group":"g","commits":[]}\n' * 100, "entries", id="more lines than are written"),
        pytest.param(bytes(MOST_BYTES + 1), "out of range", id="more bytes than are written"),
    ],
)
def test_a_forged_one_is_refused_before_it_costs_much(lines: bytes, reason: str) -> None:
    """A sidecar reads it beside what it copies."""
    with pytest.raises(CorruptDataError, match=reason):
        read_cluster_snapshot(forged(lines), "k", most_entries=100)


def test_one_that_says_less_than_it_has_is_refused() -> None:
    with pytest.raises(CorruptDataError, match="its head says"):
        read_cluster_snapshot(forged(bytes(MOST_BYTES + 1), size=5), "k")


def test_what_readers_would_refuse_is_not_written() -> None:
    commits = {("orders", number): Commit(offset=number) for number in range(100)}
    with pytest.raises(StoreError, match="more than 100 commits"):
        write_cluster_snapshot(replace(FULL, groups={"g": commits}), "k", most_entries=100)


def test_a_group_of_many_partitions_is_read_as_it_was_written() -> None:
    commits = {("orders", number): Commit(offset=number, metadata="\x01" * 4096) for number in range(101)}
    written = replace(FULL, groups={"g": commits})
    assert read_cluster_snapshot(write_cluster_snapshot(written), "k") == written


@pytest.mark.parametrize("changed", [{"cluster_id": "another"}, {"written_ms": 6}])
async def test_one_under_a_key_that_is_not_its_own_is_passed_over(changed: dict[str, Any]) -> None:
    world = World()
    await put_at(world, 4)
    stray = f"{cluster_directory('p/', CLUSTER)}{5:019d}-1.snapshot"
    await world.store.put_object(stray, BytesBody(write_cluster_snapshot(replace(FULL, **changed))))
    kept = await world.kept()
    assert kept is not None
    assert kept.written_ms == 4


async def test_a_forged_one_does_not_keep_the_next_from_being_written() -> None:
    world = World()
    stray = f"{cluster_directory('p/', CLUSTER)}{world.clock.now_ms():019d}-1.snapshot"
    await world.store.put_object(stray, BytesBody(forged(HEAD + GROUP % b"1e999")))
    await world.look()
    assert world.telemetry.value(CLUSTER_SNAPSHOTS, outcome="written") == 1


async def test_a_cluster_rebuilt_on_empty_disks_under_its_id_wipes_nothing() -> None:
    world = World()
    world.commit("billing", orders=7)
    await world.look()
    world.state.partition_states.clear()
    world.groups.consumers.clear()
    with capture_logs() as logs:
        for _ in range(5):
            await world.look()
    kept = await world.kept()
    assert kept is not None
    assert (set(kept.topics), set(kept.groups)) == ({"orders"}, {"billing"})
    assert [log["event"] for log in logs] == ["cluster_snapshot.topics.gone"], "said once"
    assert world.telemetry.value(CLUSTER_SNAPSHOT_AGE) == 0, "it was looked"


async def test_what_was_an_hour_ago_stays() -> None:
    world = World()
    for minute in range(100):
        world.commit("billing", orders=minute)
        await world.look()
    times = [int(stored.key.rpartition("/")[2].partition("-")[0]) for stored in await world.objects()]
    assert len(times) <= 7
    assert world.clock.now_ms() - sorted(times)[0] >= 3_600_000
