"""Repair on a real directory and the real fold: looks again, marks, deletes later, and keeps what may be the only copy."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest

from tests.support.local_batches import local_batches
from tests.support.manual_clock import ManualClock
from tests.support.recopy_requests import request_for
from tests.support.remote_builder import RemoteBuilder, SegmentSource
from tests.support.scripted import MemoryStateLog
from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.adapters.kafka.broker import KafkaBroker
from tiersidecar.app.commands.session import Session
from tiersidecar.app.repair_run import PlannedStep, Repairer, RepairSettings
from tiersidecar.decide.reconcile_findings import Finding, FindingKind
from tiersidecar.decide.reconcile_repair import Repair
from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.segments import MetadataEvent, RemoteLogSegmentMetadata, RemotePartitionDeleteMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.aiven.keys import planned_keys

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
            self.write(stored.key, await self.builder.run.store.fetch_object(stored.key))

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
        return [
            self.finding(K.ORPHAN_OBJECT, lost, self.write(new, (self.root / old).read_bytes())) for new, old in kept
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

    async def repair(self, *findings: Finding) -> list[Repair]:
        repairer = Repairer(self.session, SETTINGS)
        planned: list[PlannedStep] = await repairer.plan(findings)
        await repairer.apply(planned)
        return [one.step.repair for one in planned]

    async def plan(self, *findings: Finding) -> list[Repair]:
        return [one.step.repair for one in await Repairer(self.session, SETTINGS).plan(findings)]

    def states(self) -> dict[str, State]:
        segments = self.builder.run.metadata.list_remote_log_segments(self.builder.partition)
        return {format_uuid(one.remote_log_segment_id.uuid): one.state for one in segments}

    def has(self, key: str) -> bool:
        return (self.root / key).exists()


@pytest.fixture
def world(tmp_path: Path) -> World:
    builder, clock = RemoteBuilder(), ManualClock()
    (root := tmp_path / "store").mkdir()
    session = Session(
        config=load(tmp_path, LEAST.replace("/srv/tier", str(root))),
        broker=cast("KafkaBroker", None),  # nothing is asked of it
        state=MemoryStateLog(),
        metadata=builder.run.metadata,
        clock=clock,
    )
    return World(builder=builder, root=root, clock=clock, session=session)


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
    assert await world.repair(found) == [Repair.DELETE_SEGMENT]
    assert world.states() == {format_uuid(kept.remote_log_segment_id.uuid): State.COPY_SEGMENT_FINISHED}
    assert all(world.has(key) for key in planned_keys(kept).in_upload_order)


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
        Repair.DELETE_SEGMENT,
        Repair.LEAVE,
    ]
    assert list(world.states().values()) == [State.COPY_SEGMENT_FINISHED]


async def test_a_copy_is_not_needless_because_of_one_of_another_history(world: World) -> None:
    """An unclean election left it: it holds the same offsets, and other records."""
    await world.add(0)
    await world.add(10, epochs={0: 0, 1: 10})
    ours = await world.add(10, epochs={0: 0, 2: 10})
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

    async def publish_if_kept(event: MetadataEvent) -> None:
        assert not isinstance(event, RemotePartitionDeleteMetadata)
        owner = event.remote_log_segment_id.topic_id_partition
        if owner not in kept:
            raise MetadataNotReadyError(subject=str(owner))
        await publish(event)

    monkeypatch.setattr(metadata, "assign", assign_only)
    monkeypatch.setattr(metadata, "publish", publish_if_kept)
    found = []
    for number in (0, 1):
        world.builder.partition = replace(world.builder.partition, partition=number)
        found.append(world.finding(K.STUCK_COPY, await world.add(0, state=State.COPY_SEGMENT_STARTED)))
    assert await world.repair(*found) == [Repair.DELETE_SEGMENT] * 2
    assert [path for path in world.root.rglob("*") if path.is_file()] == []
