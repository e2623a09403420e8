"""The snapshot lane: when it writes, what, and who may."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from tests.support.lane_parts import edges_of, sources_of
from tests.support.manual_clock import ManualClock
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.scripted import MemoryStateLog
from tests.support.segments import TOPIC_ID_PARTITION, remote_segment
from tiersidecar.decide.recover import events_of
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.errors import ObjectExistsError, StoreError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.policy import Pause, PausedThing, PauseKind, TopicPolicy
from tiersidecar.domain.segments import (
    LeaderView,
    LocalPartition,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
)
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.domain.trash import TrashEntry, TrashId, TrashKind
from tiersidecar.ports.log_dirs import LogDirsView
from tiersidecar.ports.metrics.process import SNAPSHOT_AGE, SNAPSHOTS
from tiersidecar.ports.partition_snapshots import PartitionSnapshot, SnapshotVersion
from tiersidecar.ports.state_log import PartitionState, TopicState
from tiersidecar.reading.remote_objects import SegmentPresence
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.snapshots import LOOK_INTERVAL_S, SnapshotLane, SnapshotSettings
from tiersidecar.tasks.topic_owners import Claimant, ClaimLook

INTERVAL_S = 300.0
ENTRY = TrashEntry(
    id=TrashId(generation=0, leader_epoch=LeaderEpoch(4), kind=TrashKind.RETENTION, opened_ms=5),
    decided_ms=6,
    due_ms=7,
    up_to=Offset(10),
)


class Shelf:
    """Keeps what is put; ``fails`` raises instead."""

    def __init__(self) -> None:
        self.put_ones: list[PartitionSnapshot] = []
        self.version: SnapshotVersion | None = None
        self.last: PartitionSnapshot | None = None
        self.fails: Exception | None = None

    async def latest(self, owner: TopicIdPartition) -> tuple[SnapshotVersion | None, PartitionSnapshot | None]:
        return self.version, self.last

    async def put(self, snapshot: PartitionSnapshot) -> None:
        if self.fails is not None:
            raise self.fails
        self.put_ones.append(snapshot)


class Claims:
    def __init__(self) -> None:
        self.has = True

    async def has_claimed(self, topic_id: object) -> bool:
        return self.has


class Presence:
    """Has the segments in ``whole``."""

    def __init__(self) -> None:
        self.whole: list[RemoteLogSegmentMetadata] = []

    async def is_whole(self, metadata: RemoteLogSegmentMetadata) -> bool:
        return metadata in self.whole


class Stage:
    """Broker 1 leads the partition in epoch 4; one segment is remote."""

    def __init__(self) -> None:
        self.clock, self.table, self.telemetry = ManualClock(), PartitionTable(), RecordedTelemetry()
        self.metadata, self.state, self.shelf, self.claims = MemoryMetadataLog(), MemoryStateLog(), Shelf(), Claims()
        self.has_role, self.presence = True, Presence()
        self.lane = SnapshotLane(
            sources=sources_of(table=self.table, metadata=self.metadata, state=self.state),
            edges=edges_of(self.clock, telemetry=self.telemetry),
            claimant=Claimant(cluster_id="ours", broker_id=BrokerId(1), incarnation="a/b"),
            settings=SnapshotSettings(interval_s=INTERVAL_S, recorded={"key.prefix": ""}),
            shelf=self.shelf,
            claims=cast(ClaimLook, self.claims),
            presence=cast(SegmentPresence, self.presence),
            is_ours=lambda: self.has_role,
        )

    def lead(self, epoch: int = 4, role: PartitionRole = PartitionRole.LEADER) -> None:
        view = LeaderView(
            topic_id_partition=TOPIC_ID_PARTITION,
            leader_id=BrokerId(1),
            leader_epoch=LeaderEpoch(epoch),
            replicas=(BrokerId(1),),
            in_sync_replicas=(BrokerId(1),),
        )
        self.table.assignment = {TOPIC_ID_PARTITION: TieredPartition(view=view, policy=TopicPolicy(), role=role)}
        local = LocalPartition(
            topic_id_partition=TOPIC_ID_PARTITION,
            log_dir="/logs",
            directory="/logs/orders-3",
            segments=(),
            leader_epochs=(EpochEntry(LeaderEpoch(epoch), Offset(0)),),
        )
        self.table.local = LogDirsView(partitions={TOPIC_ID_PARTITION: local}, faults={})

    async def copied(self, start: int, end: int) -> RemoteLogSegmentMetadata:
        segment = remote_segment(start, end, epochs=((4, 0),))
        await self.metadata.assign([TOPIC_ID_PARTITION])
        for event in events_of(segment):
            await self.metadata.publish(event)
        return segment

    async def turn(self) -> None:
        """The next turn of the partition, whatever its place in the interval."""
        await self.clock.advance(INTERVAL_S)
        await self.lane.look()

    async def soon(self) -> None:
        await self.clock.advance(LOOK_INTERVAL_S)
        await self.lane.look()

    @property
    def serials(self) -> list[int]:
        return [snapshot.version.serial for snapshot in self.shelf.put_ones]


@pytest.fixture
async def stage() -> Stage:
    made = Stage()
    made.lead()
    await made.lane.look()  # it has its place in the interval now
    return made


async def test_it_has_all_that_both_topics_say(stage: Stage) -> None:
    segment = await stage.copied(0, 9)
    said = PartitionState(remote_log_start_offset=Offset(3), remote_log_start_epoch=LeaderEpoch(4))
    await stage.state.publish_partition_state(TOPIC_ID_PARTITION, said)
    await stage.state.publish_topic_state(TOPIC_ID_PARTITION.topic_id, TopicState(topic="orders", mode="strict"))
    await stage.state.put_into_trash(TOPIC_ID_PARTITION, [ENTRY])
    for topic_id in (TOPIC_ID_PARTITION.topic_id, None):
        thing = PausedThing(kind=PauseKind.DELETES, topic_id=topic_id)
        await stage.state.publish_pause(Pause(thing=thing, topic="orders", since_ms=1, by="alice"))
    await stage.turn()
    (found,) = stage.shelf.put_ones
    assert found.segments == (segment,)
    assert (found.state, found.trash, len(found.pauses)) == (said, (ENTRY,), 2)
    assert found.topic_state == TopicState(topic="orders", mode="strict")
    assert (found.highest_offsets, found.version) == ({4: 9}, SnapshotVersion(leader_epoch=LeaderEpoch(4), serial=1))
    assert (found.written_ms, found.cluster_id, found.broker_id) == (stage.clock.now_ms(), "ours", 1)


async def test_nothing_is_written_before_there_is_anything(stage: Stage) -> None:
    await stage.metadata.assign([TOPIC_ID_PARTITION])
    await stage.turn()
    assert stage.shelf.put_ones == []


async def test_it_writes_again_when_something_has_changed_and_the_interval_is_over(stage: Stage) -> None:
    await stage.copied(0, 9)
    await stage.turn()
    await stage.turn()
    assert stage.serials == [1]
    await stage.copied(10, 19)
    await stage.soon()
    assert stage.serials == [1], "segments wait for their turn"
    await stage.turn()
    assert stage.serials == [1, 2]


@pytest.mark.parametrize("change", ["trash", "user delete", "pause"])
async def test_what_decides_about_deletes_does_not_wait(stage: Stage, change: str) -> None:
    await stage.copied(0, 9)
    await stage.turn()
    if change == "trash":
        await stage.state.put_into_trash(TOPIC_ID_PARTITION, [ENTRY])
    elif change == "user delete":
        await stage.state.publish_partition_state(
            TOPIC_ID_PARTITION, PartitionState().with_delete(Offset(5), LeaderEpoch(4))
        )
    else:
        thing = PausedThing(kind=PauseKind.DELETES, topic_id=TOPIC_ID_PARTITION.topic_id)
        await stage.state.publish_pause(Pause(thing=thing, topic="orders", since_ms=1, by="alice"))
    await stage.soon()
    assert stage.serials == [1, 2]


async def test_what_decides_about_deletes_does_not_wait_for_a_new_leaders_first_turn(stage: Stage) -> None:
    await stage.copied(0, 9)
    stage.lead(epoch=6)
    await stage.lane.look()
    await stage.soon()
    assert stage.serials == []
    await stage.state.publish_partition_state(
        TOPIC_ID_PARTITION, PartitionState().with_delete(Offset(5), LeaderEpoch(6))
    )
    await stage.soon()
    assert stage.serials == [1]


async def test_a_look_at_thousands_reads_the_pauses_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    (tiered,) = stage.table.assignment.values()
    (local,) = stage.table.local.partitions.values()
    topic_id_partitions = [replace(TOPIC_ID_PARTITION, partition=number) for number in range(1000)]
    stage.table.assignment = dict.fromkeys(topic_id_partitions, tiered)
    stage.table.local = LogDirsView(partitions=dict.fromkeys(topic_id_partitions, local), faults={})
    await stage.lane.look()
    asked, pauses = list[int](), stage.state.pauses

    def asked_pauses() -> Sequence[Pause]:
        asked.append(1)
        return pauses()

    monkeypatch.setattr(stage.state, "pauses", asked_pauses)
    await stage.lane.look()
    assert len(asked) < 50, "but for those that have their turn"


async def test_segments_that_are_being_copied_or_deleted_are_in_it(stage: Stage) -> None:
    deleting = replace(await stage.copied(0, 9), state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
    await stage.metadata.publish(list(events_of(deleting))[-1])
    begun = replace(remote_segment(10, 19, epochs=((4, 0),)), state=RemoteLogSegmentState.COPY_SEGMENT_STARTED)
    await stage.metadata.publish(begun)
    await stage.turn()
    assert stage.shelf.put_ones[0].segments == (deleting, begun)


@pytest.mark.parametrize("case", ["follower", "no role", "claimed by another", "a later leader wrote"])
async def test_only_the_leader_of_the_cluster_that_owns_it_writes(stage: Stage, case: str) -> None:
    await stage.copied(0, 9)
    if case == "follower":
        stage.lead(role=PartitionRole.FOLLOWER)
    elif case == "no role":
        stage.has_role = False
    elif case == "claimed by another":
        stage.claims.has = False
    else:
        stage.shelf.version = SnapshotVersion(leader_epoch=LeaderEpoch(5), serial=1)
    await stage.turn()
    await stage.turn()
    assert stage.shelf.put_ones == []
    waits_s = INTERVAL_S if case == "a later leader wrote" else 0
    assert stage.telemetry.value(SNAPSHOT_AGE) == waits_s, "epochs that began anew must not end snapshots in silence"


async def test_what_is_copied_while_the_store_is_asked_is_in_it_or_not_counted(stage: Stage) -> None:
    await stage.copied(0, 9)
    asked = stage.shelf.latest

    async def latest(owner: TopicIdPartition) -> tuple[SnapshotVersion | None, PartitionSnapshot | None]:
        await stage.copied(10, 19)
        return await asked(owner)

    stage.shelf.latest = latest  # type: ignore[method-assign]
    await stage.turn()
    (found,) = stage.shelf.put_ones
    assert ([segment.end_offset for segment in found.segments], found.highest_offsets) == ([9, 19], {4: 19})
    await stage.turn()
    assert stage.serials == [1], "it is what was written"


async def test_a_later_leader_that_never_read_a_delete_does_not_take_it_with_it(stage: Stage) -> None:
    await stage.copied(0, 9)
    await stage.state.publish_partition_state(
        TOPIC_ID_PARTITION, PartitionState().with_delete(Offset(5), LeaderEpoch(4))
    )
    await stage.turn()
    stage.shelf.version, stage.shelf.last = stage.shelf.put_ones[0].version, stage.shelf.put_ones[0]
    stage.state.partition_states.clear()
    await stage.state.publish_partition_state(
        TOPIC_ID_PARTITION, PartitionState().with_start(Offset(0), LeaderEpoch(6))
    )
    stage.lead(epoch=6)
    await stage.lane.look()
    await stage.turn()
    assert stage.serials == [1], "it stays until recover has put the delete back"
    last, known = stage.shelf.put_ones[0].state, stage.state.partition_state(TOPIC_ID_PARTITION)
    await stage.state.publish_partition_state(TOPIC_ID_PARTITION, last.merged_with(known))  # as recover does
    await stage.turn()
    assert len(stage.shelf.put_ones) == 2


async def test_a_fault_of_a_look_does_not_end_the_process(stage: Stage) -> None:
    await stage.copied(0, 9)
    running = asyncio.create_task(stage.lane.run())
    before, stage.table.assignment = stage.table.assignment, cast(dict[TopicIdPartition, TieredPartition], None)
    await stage.clock.advance(LOOK_INTERVAL_S)
    stage.table.assignment = before
    for _ in range(100):
        await stage.clock.advance(LOOK_INTERVAL_S)
    assert stage.serials == [1]
    assert not running.done()
    running.cancel()


async def test_how_long_changes_wait_is_told_while_a_look_goes_on(stage: Stage) -> None:
    await stage.copied(0, 9)
    told: list[float] = []

    async def put(snapshot: PartitionSnapshot) -> None:
        await stage.clock.advance(60)
        raise StoreError(verb="put", key="x", reason="no answer")

    stage.shelf.put = put  # type: ignore[method-assign]
    stage.telemetry.gauge = lambda name, value, **labels: told.append(value)  # type: ignore[method-assign]
    await stage.turn()
    assert told == [60, 60], "once by the write that was given up, once by the look"


async def test_a_new_leader_goes_on_above_what_the_former_wrote(stage: Stage) -> None:
    await stage.copied(0, 9)
    stage.shelf.version = SnapshotVersion(leader_epoch=LeaderEpoch(4), serial=7)
    await stage.turn()
    stage.lead(epoch=6)
    await stage.lane.look()
    await stage.turn()
    assert [(snapshot.version.leader_epoch, snapshot.version.serial) for snapshot in stage.shelf.put_ones] == [
        (4, 8),
        (6, 1),
    ]


async def test_another_process_that_wrote_meanwhile_is_looked_for(stage: Stage) -> None:
    await stage.copied(0, 9)
    stage.shelf.fails = ObjectExistsError(verb="put", key="x", reason="it is there")
    await stage.turn()
    stage.shelf.fails, stage.shelf.version = None, SnapshotVersion(leader_epoch=LeaderEpoch(4), serial=1)
    await stage.turn()
    assert stage.serials == [2]


async def test_a_store_that_is_away_is_tried_again_and_tells_since_when(stage: Stage) -> None:
    await stage.copied(0, 9)
    stage.shelf.fails = StoreError(verb="put", key="x", reason="away")
    await stage.turn()
    await stage.soon()
    assert stage.telemetry.value(SNAPSHOTS, outcome="failed") == 1
    assert stage.telemetry.value(SNAPSHOT_AGE) == LOOK_INTERVAL_S
    stage.shelf.fails = None
    await stage.clock.advance(30)
    await stage.lane.look()
    assert (stage.serials, stage.telemetry.value(SNAPSHOT_AGE)) == ([1], 0)
    assert stage.telemetry.value(SNAPSHOTS, outcome="written") == 1


async def test_a_fault_of_one_partition_ends_nothing(stage: Stage) -> None:
    await stage.copied(0, 9)
    stage.shelf.fails = ValueError("a fault of ours")
    await stage.turn()
    stage.shelf.fails = None
    await stage.turn()
    assert stage.serials == [1]


async def test_a_topic_that_lost_segments_does_not_take_the_snapshot_with_it(stage: Stage) -> None:
    former = await stage.copied(0, 9)
    await stage.turn()
    (last,) = stage.shelf.put_ones
    fresh = Stage()  # a sidecar that starts on a topic made anew, and copies
    fresh.lead()
    await fresh.lane.look()
    fresh.shelf.version, fresh.shelf.last = last.version, last
    fresh.presence.whole = [former]
    await fresh.copied(10, 19)
    await fresh.turn()
    await fresh.turn()
    assert fresh.shelf.put_ones == []
    assert fresh.telemetry.value(SNAPSHOT_AGE) == INTERVAL_S, "the alert tells it"
    for event in events_of(former):  # as recover does
        await fresh.metadata.publish(event)
    await fresh.turn()
    assert [len(snapshot.segments) for snapshot in fresh.shelf.put_ones] == [2]


async def test_what_was_deleted_since_the_last_snapshot_is_not_missed(stage: Stage) -> None:
    await stage.copied(0, 9)
    await stage.turn()
    stage.shelf.version, stage.shelf.last = stage.shelf.put_ones[0].version, stage.shelf.put_ones[0]
    fresh = stage.shelf.put_ones[0]
    stage.lead(epoch=5)
    await stage.lane.look()
    gone = replace(fresh.segments[0], state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
    *_, deleting = events_of(gone)
    assert isinstance(deleting, RemoteLogSegmentMetadataUpdate)
    await stage.metadata.publish(deleting)
    await stage.metadata.publish(replace(deleting, state=RemoteLogSegmentState.DELETE_SEGMENT_FINISHED))
    await stage.state.publish_partition_state(TOPIC_ID_PARTITION, PartitionState(owner_seen_ms=1))
    await stage.turn()
    assert [len(snapshot.segments) for snapshot in stage.shelf.put_ones] == [1, 0]


async def test_a_state_topic_that_forgot_deletes_does_not_take_them_with_it(stage: Stage) -> None:
    await stage.copied(0, 9)
    await stage.state.publish_partition_state(
        TOPIC_ID_PARTITION, PartitionState().with_delete(Offset(5), LeaderEpoch(4))
    )
    await stage.turn()
    stage.shelf.version, stage.shelf.last = stage.shelf.put_ones[0].version, stage.shelf.put_ones[0]
    stage.state.partition_states.clear()
    stage.state.halted_reason = "it has lost records"
    await stage.turn()
    assert stage.serials == [1]
    await stage.state.publish_partition_state(
        TOPIC_ID_PARTITION, PartitionState().with_delete(Offset(7), LeaderEpoch(4))
    )
    await stage.turn()
    assert stage.serials == [1, 2]


async def test_a_change_that_may_not_be_written_yet_does_not_wait_for_the_next_one(stage: Stage) -> None:
    await stage.copied(0, 9)
    await stage.turn()
    stage.claims.has = False
    stage.shelf.version = None
    await stage.state.put_into_trash(TOPIC_ID_PARTITION, [ENTRY])
    await stage.soon()
    assert stage.serials == [1]
    stage.claims.has = True
    await stage.soon()
    assert stage.serials == [1, 2]


async def test_a_partition_of_which_nothing_was_said_is_not_asked_for(stage: Stage) -> None:
    """Issue 20: of thousands, every few seconds."""
    await stage.copied(0, 9)
    await stage.turn()
    await stage.soon()
    asked: list[TopicIdPartition] = []
    stage.state.partition_state = asked.append  # type: ignore[method-assign, assignment]
    await stage.soon()
    assert asked == []


async def test_whether_it_is_led_is_asked_when_a_partition_has_its_turn(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Likewise."""
    await stage.copied(0, 9)
    await stage.turn()
    await stage.soon()
    asked, leads = list[TopicIdPartition](), PartitionTable.leads

    def asked_leads(table: PartitionTable, one: TopicIdPartition, leader_epoch: LeaderEpoch) -> bool:
        asked.append(one)
        return leads(table, one, leader_epoch)

    monkeypatch.setattr(PartitionTable, "leads", asked_leads)
    await stage.soon()
    assert asked == []
    await stage.turn()
    assert asked[0] == TOPIC_ID_PARTITION


async def test_the_last_snapshot_is_learnt_anew_when_another_process_had_the_role_between_two_looks(
    stage: Stage,
) -> None:
    """It would put one below what the other has written, and take it for the last."""
    await stage.copied(0, 9)
    await stage.turn()
    stage.shelf.version = SnapshotVersion(leader_epoch=LeaderEpoch(4), serial=7)
    stage.table.turns += 1
    await stage.copied(10, 19)
    await stage.turn()
    await stage.turn()
    assert stage.serials == [1, 8]
