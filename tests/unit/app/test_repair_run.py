"""Repair on a real directory and the real fold: looks again, marks, deletes later, and keeps what may be the only copy."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest

from tests.support.leaders_sidecar import lease_of
from tests.support.local_batches import local_batches
from tests.support.manual_clock import ManualClock
from tests.support.memory_metadata_log import LaggingMetadataLog
from tests.support.recopy_requests import request_for
from tests.support.remote_builder import RemoteBuilder, SegmentSource
from tests.support.scripted import MemoryStateLog, ScriptedBroker
from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.kafka.broker import KafkaBroker
from tiersidecar.app.commands.session import Session
from tiersidecar.app.held_lease import claimed_lease
from tiersidecar.app.repair_run import LEASE, PlannedStep, Repairer, RepairSettings
from tiersidecar.decide.reconcile_findings import Finding, FindingKind
from tiersidecar.decide.reconcile_repair import Repair
from tiersidecar.domain.errors import LeaseHeldError, MetadataNotReadyError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.seen_time import SeenTime
from tiersidecar.domain.segments import (
    LeaderView,
    MetadataEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import TrashEntry, TrashId, TrashKind
from tiersidecar.formats.aiven.keys import planned_keys
from tiersidecar.ports.state_log import PartitionState

K = FindingKind
GRACE_MS = 60_000
SETTINGS = RepairSettings(grace_ms=GRACE_MS, copy_grace_ms=GRACE_MS)


@dataclass(slots=True)
class World:
    """One partition, with segments 0-9 and 10-19 of whatever batches; all objects are an hour old."""

    builder: RemoteBuilder
    root: Path
    clock: ManualClock
    session: Session
    broker: ScriptedBroker

    def lead_in(self, leader_epoch: int) -> None:
        self.broker.views = (view_of(self.builder.partition, leader_epoch=leader_epoch),)

    async def add(
        self, start: int, *, state: State = State.COPY_SEGMENT_FINISHED, epochs: Mapping[int, int] | None = None
    ) -> RemoteLogSegmentMetadata:
        source = SegmentSource(
            batches=local_batches("epochs-0")[:2],
            start_offset=start,
            end_offset=start + 9,
            epochs=epochs or {0: 0},
            state=state,
        )
        metadata = await self.builder.add(source)
        await self.lay_out()
        return metadata

    async def lay_out(self) -> None:
        async for stored in self.builder.run.store.list_objects():
            self.write(stored.key, await self.builder.run.store.fetch_object(stored.key, max_bytes=2**30))

    def write(self, key: str, data: bytes) -> str:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        old_s = self.clock.now_ms() / 1000 - 3600
        os.utime(path, (old_s, old_s))
        return key

    def orphan_of(self, metadata: RemoteLogSegmentMetadata, *, with_manifest: bool) -> list[Finding]:
        """Objects of ``metadata`` again, under an id that no event names."""
        segment_id = replace(metadata.remote_log_segment_id, uuid=Uuid(b"nobody-knows-me-"))
        lost = replace(metadata, remote_log_segment_id=segment_id)
        names = zip(planned_keys(lost).in_upload_order, planned_keys(metadata).in_upload_order, strict=True)
        kept = list(names) if with_manifest else list(names)[:1]
        known, new_id = (format_uuid(one.remote_log_segment_id.uuid).encode() for one in (metadata, lost))
        return [
            self.finding(K.ORPHAN_OBJECT, lost, self.write(new, (self.root / old).read_bytes().replace(known, new_id)))
            for new, old in kept
        ]

    def finding(self, kind: FindingKind, metadata: RemoteLogSegmentMetadata, key: str = "") -> Finding:
        owner = metadata.topic_id_partition
        return Finding(
            kind=kind,
            topic=owner.topic,
            topic_id=format_uuid(owner.topic_id),
            partition=owner.partition,
            segment_id=format_uuid(metadata.remote_log_segment_id.uuid),
            key=key,
            start_offset=metadata.start_offset,
            end_offset=-1 if kind is K.ORPHAN_OBJECT else metadata.end_offset,
        )

    async def elsewhere(self, metadata: RemoteLogSegmentMetadata, *states: State) -> None:
        """Another process publishes; our own consumer has not read it yet."""
        log = self.builder.run.metadata
        assert isinstance(log, LaggingMetadataLog)
        for state in states:
            log.publish_elsewhere(
                RemoteLogSegmentMetadataUpdate(
                    remote_log_segment_id=metadata.remote_log_segment_id,
                    broker_id=metadata.broker_id,
                    event_timestamp_ms=self.clock.now_ms(),
                    state=state,
                )
            )

    async def repair(self, *findings: Finding) -> list[Repair]:
        repairer = Repairer(self.session, SETTINGS)
        planned: list[PlannedStep] = await repairer.plan(findings)
        await repairer.apply(planned)
        return [one.step.repair for one in planned]

    async def plan(self, *findings: Finding) -> list[Repair]:
        return [one.step.repair for one in await Repairer(self.session, SETTINGS).plan(findings)]

    def states(self) -> dict[str, State]:
        segments = self.builder.run.metadata.list_remote_log_segments(self.builder.partition)
        return {format_uuid(segment.remote_log_segment_id.uuid): segment.state for segment in segments}

    def in_trash(self) -> set[Uuid]:
        return {uuid for entry in self.session.state.trash(self.builder.partition) for uuid in entry.segments}

    def has(self, key: str) -> bool:
        return (self.root / key).exists()


def view_of(owner: TopicIdPartition, *, leader_epoch: int) -> LeaderView:
    leader = BrokerId(1)
    return LeaderView(
        topic_id_partition=owner,
        leader_id=leader,
        leader_epoch=LeaderEpoch(leader_epoch),
        replicas=(leader,),
        in_sync_replicas=(leader,),
    )


@pytest.fixture
def world(tmp_path: Path) -> World:
    builder, clock = RemoteBuilder(), ManualClock()
    builder.run = replace(builder.run, metadata=LaggingMetadataLog())
    broker = ScriptedBroker()
    broker.views = (view_of(builder.partition, leader_epoch=0),)
    (root := tmp_path / "store").mkdir()
    session = Session(
        config=load(tmp_path, LEAST.replace("/srv/tier", str(root))),
        broker=cast("KafkaBroker", broker),
        state=MemoryStateLog(),
        metadata=builder.run.metadata,
        clock=clock,
    )
    return World(builder=builder, root=root, clock=clock, session=session, broker=broker)


async def test_a_leftover_is_marked_and_goes_after_the_grace(world: World) -> None:
    (orphan,) = world.orphan_of(await world.add(0), with_manifest=False)
    assert await world.repair(orphan) == [Repair.MARK]
    assert await world.repair(orphan) == [Repair.LEAVE]
    await world.clock.advance(GRACE_MS / 1000)
    assert world.has(orphan.key)
    assert await world.repair(orphan) == [Repair.DELETE_OBJECT]
    assert not world.has(orphan.key)
    assert await world.repair(orphan) == [Repair.LEAVE]


async def test_a_leftover_that_changed_since_its_mark_is_marked_anew(world: World) -> None:
    (orphan,) = world.orphan_of(await world.add(0), with_manifest=False)
    assert await world.repair(orphan) == [Repair.MARK]
    await world.clock.advance(GRACE_MS / 1000)
    world.write(orphan.key, b"another upload")
    assert await world.repair(orphan) == [Repair.MARK]
    assert world.has(orphan.key)


async def test_a_whole_segment_that_no_event_names_is_kept_unless_live_ones_hold_its_offsets(world: World) -> None:
    metadata = await world.add(0)
    orphans = world.orphan_of(metadata, with_manifest=True)
    assert await world.repair(*orphans) == [Repair.MARK] * 3
    (world.root / planned_keys(metadata).log).unlink()  # now the orphan is the only whole copy
    await world.clock.advance(GRACE_MS / 1000)
    assert await world.repair(*orphans) == [Repair.LEAVE] * 3
    await world.lay_out()
    assert await world.repair(*orphans) == [Repair.DELETE_OBJECT] * 3
    assert not any(world.has(orphan.key) for orphan in orphans)
    assert all(world.has(key) for key in planned_keys(metadata).in_upload_order)


async def test_what_repair_decides_is_due_by_the_clocks_of_the_sidecars(world: World) -> None:
    """Its own machine's may be behind them."""
    _, twin = await world.add(0), await world.add(0)
    leader_ms = world.clock.now_ms() + 48 * 3_600_000
    await world.session.state.publish_lease(lease_of(1, seen=SeenTime(until_ms=leader_ms)))
    assert await world.repair(world.finding(K.OFFSET_OVERLAP, twin)) == [Repair.TRASH_SEGMENT]
    (entry,) = world.session.state.trash(world.builder.partition)
    assert entry.due_ms == leader_ms + world.session.config.delete_delay


async def test_stuck_copies_and_dangling_deletions_end(world: World) -> None:
    stuck = await world.add(0, state=State.COPY_SEGMENT_STARTED)
    going = await world.add(10)
    await world.builder.move(going, State.DELETE_SEGMENT_STARTED)
    found = [world.finding(K.STUCK_COPY, stuck), world.finding(K.DANGLING_DELETE, going)]
    assert await world.repair(*found) == [Repair.DELETE_SEGMENT] * 2
    assert world.states() == {}
    assert [path for path in world.root.rglob("*") if path.is_file()] == []
    assert await world.repair(*found) == [Repair.LEAVE] * 2


async def test_a_needless_copy_goes_only_while_the_other_one_is_whole(world: World) -> None:
    kept, twin = await world.add(0), await world.add(0)
    found = world.finding(K.OFFSET_OVERLAP, twin)
    (world.root / planned_keys(kept).indexes).unlink()
    assert await world.repair(found) == [Repair.LEAVE]
    await world.lay_out()
    assert await world.repair(found) == [Repair.TRASH_SEGMENT]
    assert world.in_trash() == {twin.remote_log_segment_id.uuid}
    assert list(world.states().values()) == [State.COPY_SEGMENT_FINISHED] * 2
    assert all(world.has(key) for one in (kept, twin) for key in planned_keys(one).in_upload_order)
    assert await world.repair(found) == [Repair.LEAVE]


async def test_what_an_erasure_wrote_is_not_needless_because_of_what_it_replaced(world: World) -> None:
    """Whatever a report says: without it, readers would have the erased records again."""
    old, new = await world.add(0), await world.add(0, state=State.COPY_SEGMENT_STARTED)
    await world.builder.run.metadata.publish(
        RemoteLogSegmentMetadataUpdate(
            remote_log_segment_id=new.remote_log_segment_id,
            broker_id=new.broker_id,
            event_timestamp_ms=old.event_timestamp_ms + 1,
            state=State.COPY_SEGMENT_FINISHED,
        )
    )
    assert await world.repair(world.finding(K.OFFSET_OVERLAP, new)) == [Repair.LEAVE]
    assert await world.repair(world.finding(K.OFFSET_OVERLAP, old)) == [Repair.TRASH_SEGMENT]


@pytest.mark.parametrize("by", ["a finding", "a request"])
async def test_a_copy_is_not_needless_because_of_one_that_is_damaged(world: World, by: str) -> None:
    """A deep check found wrong bytes of the right length: the twin is all that is left of these offsets."""
    damaged, twin = await world.add(0), await world.add(0)
    found = [world.finding(K.OFFSET_OVERLAP, twin)]
    if by == "a finding":
        assert await world.plan(world.finding(K.CORRUPT_CONTENT, damaged), *found) == [Repair.RECOPY, Repair.LEAVE]
        return
    await world.session.state.request_recopy(request_for(damaged))
    assert await world.plan(*found) == [Repair.LEAVE]


async def test_of_two_copies_that_stand_for_each_other_one_stays(world: World) -> None:
    """When the report was made there was a third, because of which both were needless."""
    twins = await world.add(0), await world.add(0)
    assert await world.repair(*(world.finding(K.OFFSET_OVERLAP, twin) for twin in twins)) == [
        Repair.TRASH_SEGMENT,
        Repair.LEAVE,
    ]
    assert world.in_trash() == {twins[0].remote_log_segment_id.uuid}


async def test_a_copy_is_not_needless_because_of_one_of_another_history(world: World) -> None:
    """An unclean election left it: it holds the same offsets, and other records."""
    await world.add(0)
    await world.add(10, epochs={0: 0, 1: 10})
    ours = await world.add(10, epochs={0: 0, 2: 10})
    world.lead_in(2)
    assert await world.plan(world.finding(K.OFFSET_OVERLAP, ours)) == [Repair.LEAVE]


async def test_segments_of_several_partitions_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata are kept of the partitions that were asked for last, and events of others refused."""
    metadata = world.builder.run.metadata
    assign, publish = metadata.assign, metadata.publish
    kept: set[TopicIdPartition] = set()

    async def assign_only(partitions: Iterable[TopicIdPartition]) -> None:
        kept.clear()
        kept.update(partitions)
        await assign(kept)

    async def publish_if_kept(event: MetadataEvent, *, until_s: float | None = None) -> None:
        assert not isinstance(event, RemotePartitionDeleteMetadata)
        owner = event.remote_log_segment_id.topic_id_partition
        if owner not in kept:
            raise MetadataNotReadyError(subject=str(owner))
        await publish(event, until_s=until_s)

    monkeypatch.setattr(metadata, "assign", assign_only)
    monkeypatch.setattr(metadata, "publish", publish_if_kept)
    found = []
    for number in (0, 1):
        world.builder.partition = replace(world.builder.partition, partition=number)
        found.append(world.finding(K.STUCK_COPY, await world.add(0, state=State.COPY_SEGMENT_STARTED)))
    assert await world.repair(*found) == [Repair.DELETE_SEGMENT] * 2
    assert [path for path in world.root.rglob("*") if path.is_file()] == []


async def test_a_needless_copy_stays_once_what_covered_it_is_retired(world: World) -> None:
    """Coverage that held when the plan was made proves nothing when it is carried out (S-075)."""
    kept, twin = await world.add(0), await world.add(0)
    repairer = Repairer(world.session, SETTINGS)
    planned = await repairer.plan([world.finding(K.OFFSET_OVERLAP, twin)])
    assert [one.step.repair for one in planned] == [Repair.TRASH_SEGMENT]
    await world.elsewhere(kept, State.DELETE_SEGMENT_STARTED)
    await repairer.apply(planned)
    assert world.in_trash() == set()
    assert world.states()[format_uuid(twin.remote_log_segment_id.uuid)] is State.COPY_SEGMENT_FINISHED
    assert all(world.has(key) for key in planned_keys(twin).in_upload_order)


async def test_a_needless_copy_stays_once_what_covered_it_has_lost_an_object(world: World) -> None:
    kept, twin = await world.add(0), await world.add(0)
    repairer = Repairer(world.session, SETTINGS)
    planned = await repairer.plan([world.finding(K.OFFSET_OVERLAP, twin)])
    (world.root / planned_keys(kept).indexes).unlink()
    await repairer.apply(planned)
    assert world.in_trash() == set()
    assert world.states()[format_uuid(twin.remote_log_segment_id.uuid)] is State.COPY_SEGMENT_FINISHED


async def test_of_two_repairs_at_once_only_one_deletes_its_twin(world: World) -> None:
    """Each was planned because of the other one's twin, by another report."""
    twins = await world.add(0), await world.add(0)
    repairers = [Repairer(world.session, SETTINGS) for _ in twins]
    plans = [
        await repairer.plan([world.finding(K.OFFSET_OVERLAP, twin)])
        for repairer, twin in zip(repairers, twins, strict=True)
    ]
    assert [plan[0].step.repair for plan in plans] == [Repair.TRASH_SEGMENT] * 2
    for repairer, plan in zip(repairers, plans, strict=True):
        await repairer.apply(plan)
    assert world.in_trash() == {twins[0].remote_log_segment_id.uuid}


async def test_a_stuck_copy_that_finishes_before_its_deletion_begins_stays(world: World) -> None:
    stuck = await world.add(0, state=State.COPY_SEGMENT_STARTED)
    repairer = Repairer(world.session, SETTINGS)
    planned = await repairer.plan([world.finding(K.STUCK_COPY, stuck)])
    assert [one.step.repair for one in planned] == [Repair.DELETE_SEGMENT]
    await world.elsewhere(stuck, State.COPY_SEGMENT_FINISHED)
    await repairer.apply(planned)
    assert list(world.states().values()) == [State.COPY_SEGMENT_FINISHED]
    assert all(world.has(key) for key in planned_keys(stuck).in_upload_order)


async def test_an_orphan_stays_once_what_covered_it_is_retired(world: World) -> None:
    metadata = await world.add(0)
    orphans = world.orphan_of(metadata, with_manifest=True)
    assert await world.repair(*orphans) == [Repair.MARK] * 3
    await world.clock.advance(GRACE_MS / 1000)
    repairer = Repairer(world.session, SETTINGS)
    planned = await repairer.plan(orphans)
    assert [one.step.repair for one in planned] == [Repair.DELETE_OBJECT] * 3
    await world.elsewhere(metadata, State.DELETE_SEGMENT_STARTED)
    await repairer.apply(planned)
    assert all(world.has(orphan.key) for orphan in orphans)


@pytest.mark.parametrize("damage", ["half of it", "empty", "another segment's", "another offset's"])
async def test_an_orphan_whose_manifest_is_not_its_own_is_left_and_named(world: World, damage: str) -> None:
    """It may be all that is left of data whose events were lost: nobody can tell what it holds."""
    await world.add(10)
    metadata = await world.add(0)
    orphans = world.orphan_of(metadata, with_manifest=True)
    manifest = orphans[-1].key
    own = (world.root / manifest).read_bytes()
    world.write(
        manifest,
        {
            "half of it": own[: len(own) // 2],
            "empty": b"",
            "another segment's": (world.root / planned_keys(metadata).manifest).read_bytes(),
            "another offset's": own.replace(b'"startOffset":0', b'"startOffset":1'),
        }[damage],
    )
    planned = await Repairer(world.session, SETTINGS).plan(orphans)
    assert [one.step.repair for one in planned] == [Repair.LEAVE] * 3
    assert all(manifest in one.step.reason for one in planned)


async def test_an_orphan_of_another_history_is_not_covered_by_ours(world: World) -> None:
    """Live segments hold the same offsets, and other records."""
    world.lead_in(1)
    metadata = await world.add(0, epochs={1: 0})
    orphans = world.orphan_of(metadata, with_manifest=True)
    manifest = (world.root / orphans[-1].key).read_bytes()
    other = manifest.replace(b'"segmentLeaderEpochs":{"1":0}', b'"segmentLeaderEpochs":{"0":0}')
    assert other != manifest
    world.write(orphans[-1].key, other)
    assert await world.plan(*orphans) == [Repair.LEAVE] * 3


async def test_a_copy_is_not_needless_while_a_later_leader_may_have_cut_what_covers_it(world: World) -> None:
    """An unclean election, and nothing of its epoch is remote yet: the other copy may go as one of another history."""
    _, again = await world.add(0), await world.add(0)
    found = world.finding(K.OFFSET_OVERLAP, again)
    world.lead_in(1)
    assert await world.plan(found) == [Repair.LEAVE]
    world.lead_in(0)
    assert await world.plan(found) == [Repair.TRASH_SEGMENT]


@pytest.mark.parametrize("kind", [K.STUCK_COPY, K.DANGLING_DELETE, K.OFFSET_OVERLAP])
async def test_what_the_broker_tiers_itself_by_now_is_its_own(world: World, kind: FindingKind) -> None:
    """Native copies in flight look like stuck ones: same broker id, same topic."""
    state = {
        K.STUCK_COPY: State.COPY_SEGMENT_STARTED,
        K.DANGLING_DELETE: State.DELETE_SEGMENT_STARTED,
        K.OFFSET_OVERLAP: State.COPY_SEGMENT_FINISHED,
    }[kind]
    await world.add(0)
    found = world.finding(kind, await world.add(0, state=state))
    repairer = Repairer(world.session, SETTINGS)
    planned = await repairer.plan([found])
    assert [one.step.repair for one in planned] == [
        Repair.TRASH_SEGMENT if kind is K.OFFSET_OVERLAP else Repair.DELETE_SEGMENT
    ]
    world.broker.settings["built"] = {"remote.storage.enable": "true"}
    before = world.states()
    await repairer.apply(planned)
    assert (world.states(), world.in_trash()) == (before, set())


async def test_a_copy_is_not_needless_because_of_one_that_expires(world: World) -> None:
    kept, twin = await world.add(0), await world.add(0)
    start = PartitionState(remote_log_start_offset=Offset(10), remote_log_start_epoch=LeaderEpoch(0))
    await world.session.state.publish_partition_state(kept.topic_id_partition, start)
    assert await world.plan(world.finding(K.OFFSET_OVERLAP, twin)) == [Repair.LEAVE]


async def test_a_copy_is_not_needless_because_of_one_in_the_trash(world: World) -> None:
    kept, twin = await world.add(0), await world.add(0)
    entry = TrashEntry(
        id=TrashId(generation=0, leader_epoch=LeaderEpoch(0), kind=TrashKind.REPAIR, opened_ms=0),
        decided_ms=0,
        due_ms=2**60,
        segments=frozenset({kept.remote_log_segment_id.uuid}),
    )
    await world.session.state.put_into_trash(kept.topic_id_partition, [entry])
    assert await world.plan(world.finding(K.OFFSET_OVERLAP, twin)) == [Repair.LEAVE]


async def test_a_gap_that_the_front_of_a_cut_segment_fills_is_none(world: World) -> None:
    await world.add(0)
    await world.add(10)
    await world.add(15, epochs={0: 0, 1: 15})
    gap = world.finding(K.OFFSET_GAP, await world.add(40, state=State.COPY_SEGMENT_STARTED))
    assert await world.plan(replace(gap, segment_id="", start_offset=10, end_offset=14)) == [Repair.LEAVE]
    assert await world.plan(replace(gap, segment_id="", start_offset=10, end_offset=25)) == [Repair.RECOPY]


async def test_a_repair_waits_for_no_other_and_takes_over_from_one_that_ended(world: World) -> None:
    """One at a time: a lease that is renewed is another's; one that is not, for its whole duration, is nobody's."""
    (orphan,) = world.orphan_of(await world.add(0), with_manifest=False)
    async with claimed_lease(world.session, SystemIds(), LEASE) as held:
        planned = await Repairer(world.session, SETTINGS).plan([orphan])
        second = asyncio.create_task(Repairer(world.session, SETTINGS).apply(planned))
        while not second.done():
            await world.clock.advance(0.05)  # threads of the store are at work meanwhile
            await held.renew()
        with pytest.raises(LeaseHeldError):
            await second
        assert await world.plan(orphan) == [Repair.MARK], "nothing was marked"

        third = asyncio.create_task(Repairer(world.session, SETTINGS).apply(planned))
        while not third.done():
            await world.clock.advance(0.05)  # threads of the store are at work meanwhile
        await third
        with pytest.raises(LeaseHeldError):
            held.require()
        with pytest.raises(LeaseHeldError):
            await held.renew()
    assert await world.plan(orphan) == [Repair.LEAVE], "it is marked"
    lease = world.session.state.lease(LEASE)
    assert lease is not None
    assert lease.released
    assert lease.term == 2


@pytest.mark.parametrize("log", ["metadata", "state"])
async def test_nothing_goes_while_a_topic_is_not_to_be_trusted(world: World, log: str) -> None:
    """It has lost data, or may lose some."""
    twin = [await world.add(0), await world.add(0)][1]
    repairer = Repairer(world.session, SETTINGS)
    planned = await repairer.plan([world.finding(K.OFFSET_OVERLAP, twin)])
    world.builder.run.metadata.halted_reason = "it lost data" if log == "metadata" else None
    cast("MemoryStateLog", world.session.state).halted_reason = "it lost data" if log == "state" else None
    with pytest.raises(MetadataNotReadyError, match="it lost data"):
        await repairer.apply(planned)
    assert len(world.states()) == 2


@pytest.mark.parametrize(
    ("owner", "repair"),
    [
        pytest.param(None, Repair.TRASH_SEGMENT, id="the store does not say, and the topic is here"),
        pytest.param('{"cluster_id": "scripted"}', Repair.TRASH_SEGMENT, id="this cluster's"),
        pytest.param('{"cluster_id": "another"}', Repair.LEAVE, id="another cluster's"),
        pytest.param("{", Repair.LEAVE, id="an owner that cannot be read"),
    ],
)
async def test_what_the_store_calls_another_clusters_is_left(world: World, owner: str | None, repair: Repair) -> None:
    """A bucket mounted by another cluster with mirrored topics (finding 3)."""
    twin = [await world.add(0), await world.add(0)][1]
    if owner is not None:
        world.write(f".tiersidecar/owners/{format_uuid(twin.topic_id_partition.topic_id)}.json", owner.encode())
    assert await world.repair(world.finding(K.OFFSET_OVERLAP, twin)) == [repair]
    assert len(world.in_trash()) == (1 if repair is Repair.TRASH_SEGMENT else 0)


async def test_in_a_store_that_is_not_the_one_it_was_all_is_left(world: World) -> None:
    twin = [await world.add(0), await world.add(0)][1]
    seen = PartitionState(owner_seen_ms=7)
    await world.session.state.publish_partition_state(twin.topic_id_partition, seen)
    assert await world.repair(world.finding(K.OFFSET_OVERLAP, twin)) == [Repair.LEAVE]


@pytest.mark.parametrize("owner", [None, b'{"cluster_id": "scripted", "place": "far"}'], ids=["none", "another's"])
async def test_in_a_place_that_is_not_the_one_it_was_all_is_left(
    world: World, tmp_path: Path, owner: bytes | None
) -> None:
    """S-293."""
    twin = [await world.add(0), await world.add(0)][1]
    topic_id = format_uuid(twin.topic_id_partition.topic_id)
    world.write(f".tiersidecar/owners/{topic_id}.json", b'{"cluster_id": "scripted"}')
    (owners := tmp_path / "cold" / ".tiersidecar" / "owners").mkdir(parents=True)
    if owner is not None:
        (owners / f"{topic_id}.json").write_bytes(owner)
    cold = world.session.config.store.model_copy(update={"root": str(tmp_path / "cold")})
    config = world.session.config.model_copy(update={"places": {"cold": cold}})
    world.session = replace(world.session, config=config)
    await world.session.state.publish_partition_state(twin.topic_id_partition, PartitionState(places_seen=("cold",)))
    assert await world.repair(world.finding(K.OFFSET_OVERLAP, twin)) == [Repair.LEAVE]


async def test_what_is_of_a_topic_that_is_not_here_is_left(world: World) -> None:
    twin = [await world.add(0), await world.add(0)][1]
    (orphan,) = world.orphan_of(twin, with_manifest=False)
    world.broker.views = ()
    assert await world.repair(world.finding(K.OFFSET_OVERLAP, twin), orphan) == [Repair.LEAVE] * 2


async def test_a_segment_of_another_plugins_custom_metadata_ends_no_repair(world: World) -> None:
    """Nothing tells where its objects are: it is left, it covers nothing, and the others are repaired."""
    strange, other = await world.add(0), await world.add(0)
    update = RemoteLogSegmentMetadataUpdate(
        remote_log_segment_id=strange.remote_log_segment_id,
        broker_id=strange.broker_id,
        event_timestamp_ms=0,
        state=State.COPY_SEGMENT_FINISHED,
        custom_metadata=b"\xffanother's",
    )
    await world.builder.run.metadata.publish(update)
    stuck = await world.add(10, state=State.COPY_SEGMENT_STARTED)
    found = [
        world.finding(K.OFFSET_OVERLAP, strange),
        world.finding(K.OFFSET_OVERLAP, other),
        world.finding(K.STUCK_COPY, stuck),
    ]
    assert await world.repair(*found) == [Repair.LEAVE, Repair.LEAVE, Repair.DELETE_SEGMENT]
    assert len(world.states()) == 2


async def test_a_finding_of_a_partition_beyond_all_bounds_ends_no_repair(world: World) -> None:
    stuck = await world.add(10, state=State.COPY_SEGMENT_STARTED)
    found = world.finding(K.STUCK_COPY, stuck)
    assert await world.repair(found, replace(found, partition=2**31)) == [Repair.DELETE_SEGMENT, Repair.LEAVE]
