"""An erasure on a real directory and the real fold: what is rewritten, proven, published, and what a kill leaves.

Shown here: S-261, S-265, S-277.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

from tests.support.batches import batch_bytes, record_bytes
from tests.support.compacted_logs import CODECS
from tests.support.local_batches import LocalBatch
from tests.support.manual_clock import ManualClock
from tests.support.memory_metadata_log import LaggingMetadataLog
from tests.support.recopy_requests import rewrite_of
from tests.support.remote_builder import RemoteBuilder, SegmentSource
from tests.support.scripted import MemoryStateLog, ScriptedBroker, ScriptedFailpoints
from tests.unit.app.config.config_files import LEAST, load
from tests.unit.app.test_repair_run import view_of
from tiersidecar.adapters.clock import SystemIds, ThreadBlocking
from tiersidecar.adapters.kafka.broker import KafkaBroker
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.builders.store import open_store
from tiersidecar.app.commands.session import Session
from tiersidecar.app.erase_partition import PartitionErasure
from tiersidecar.app.erase_run import Eraser, ErasureResult
from tiersidecar.app.held_lease import claimed_lease
from tiersidecar.app.repair_run import LEASE
from tiersidecar.decide.erasure import Erasing
from tiersidecar.domain.errors import (
    CorruptDataError,
    ErasureError,
    LeaseHeldError,
    MetadataNotReadyError,
    NotOwnedError,
    StoreError,
    TiersidecarError,
)
from tiersidecar.domain.ids import BrokerId, Uuid
from tiersidecar.domain.policy import Pause, PausedThing, PauseKind
from tiersidecar.domain.segments import MetadataEvent, RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.aiven.keys import place_in, planned_keys
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import Record, read_records
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.reading.remote_objects import SegmentPresence
from tiersidecar.reading.segment_stream import SegmentStream
from tiersidecar.tasks.topic_owners import TopicOwner, owner_key, read_owning_cluster

KEY, VALUE = b"K" * 32, b"V" * 32
"""Planted: in no byte of the store once the old objects are gone."""
OTHER = b"another key"
PLACES = ("rewritten", "started", "uploaded", "proven", "finished", "trashed")


class KilledError(Exception):
    """Stands for SIGKILL: nothing of ours catches it."""


def batches(start: int, *, codec: int = 0) -> list[LocalBatch]:
    """Two of five records: every third has the key and the value, the others another one or none."""
    made = []
    for base in (start, start + 5):
        records = [_record(base, delta) for delta in range(5)]
        payload = CODECS[codec](b"".join(records))
        data = batch_bytes(
            base, payload, count=5, attributes=codec, producer_id=7, producer_epoch=1, base_sequence=base
        )
        ((_, header),) = iter_batch_headers(data)
        made.append(LocalBatch(header, data))
    return made


def _record(base: int, delta: int) -> bytes:
    offset = base + delta
    key = (KEY, OTHER, None)[offset % 3]
    value = VALUE if key == KEY else b"kept %d" % offset
    return record_bytes(delta, key, value, timestamp_delta=delta, headers=[(b"h", b"%d" % offset)])


@dataclass(slots=True)
class World:
    """One partition whose brokers start at offset 100; segments are of ten offsets."""

    builder: RemoteBuilder
    root: Path
    scratch: Path
    clock: ManualClock
    session: Session
    broker: ScriptedBroker
    keys: frozenset[bytes] = field(default=frozenset({KEY}))

    async def add(self, start: int, *, codec: int = 0, tens: int = 1) -> RemoteLogSegmentMetadata:
        found = [batch for ten in range(tens) for batch in batches(start + 10 * ten, codec=codec)]
        source = SegmentSource(batches=found, start_offset=start, end_offset=start + 10 * tens - 1)
        metadata = await self.builder.add(source)
        async for stored in self.builder.run.store.list_objects():
            path = self.root / stored.key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(await self.builder.run.store.fetch_object(stored.key, max_bytes=2**30))
        return metadata

    def eraser(self, actions: dict[str, Callable[[], Awaitable[None]]] | None = None) -> Eraser:
        return Eraser(self.session, self.keys, self.scratch, failpoints=ScriptedFailpoints(actions))

    async def look(self) -> PartitionErasure:
        (found,) = await self.eraser().look(self.builder.partition.topic)
        return found

    async def erase(self, actions: dict[str, Callable[[], Awaitable[None]]] | None = None) -> ErasureResult:
        eraser = self.eraser(actions)
        return await eraser.apply(await eraser.look(self.builder.partition.topic))

    def segments(self, *states: State) -> list[RemoteLogSegmentMetadata]:
        known = self.builder.run.metadata.list_remote_log_segments(self.builder.partition)
        return [one for one in known if one.state in states]

    def in_trash(self) -> set[Uuid]:
        return {uuid for entry in self.session.state.trash(self.builder.partition) for uuid in entry.segments}

    def found_at(self, offset: int) -> RemoteLogSegmentMetadata | None:
        return self.builder.run.metadata.remote_log_segment_metadata(self.builder.partition, 0, offset)

    def read_at(self, offset: int) -> RemoteLogSegmentMetadata:
        found = self.found_at(offset)
        assert found is not None
        return found

    async def log_of(self, metadata: RemoteLogSegmentMetadata) -> bytes:
        parts: list[bytes] = []
        clock = self.clock
        pace = UploadPace(None, clock)
        async with (
            ThreadBlocking(max_threads=1) as blocking,
            open_store(self.session.config, pace=pace, clock=clock, ids=SystemIds(), telemetry=NoTelemetry()) as store,
        ):
            stream = SegmentStream(store=store, blocking=blocking)
            async for _ in stream.feed_log(metadata, lambda part: parts.append(bytes(part)), pace):
                pass
            assert await SegmentPresence(store, "").is_whole(metadata)
        return b"".join(parts)

    async def records_at(self, offset: int) -> list[Record]:
        return records_of(await self.log_of(self.read_at(offset)))

    def marked_objects(self) -> list[Path]:
        """Objects that have a mark in their bytes: nothing here is compressed."""
        files = [path for path in self.root.rglob("*") if path.is_file()]
        return [path for path in files if KEY in path.read_bytes() or VALUE in path.read_bytes()]

    def delete_objects_of(self, uuids: Iterable[Uuid]) -> None:
        for metadata in self.segments(State.COPY_SEGMENT_FINISHED):
            if metadata.remote_log_segment_id.uuid in uuids:
                for key in planned_keys(metadata).in_upload_order:
                    (self.root / key).unlink()


def records_of(log: bytes) -> list[Record]:
    return [
        record
        for position, header in iter_batch_headers(log)
        for record in read_records(log[position : position + header.size_bytes])
    ]


def without_key(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if record.key != KEY]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return made_world(tmp_path)


def made_world(tmp_path: Path) -> World:
    """Nothing is in it yet."""
    builder, clock = RemoteBuilder(), ManualClock()
    builder.run = replace(builder.run, metadata=LaggingMetadataLog())
    broker = ScriptedBroker()
    broker.views, broker.replica_starts = (view_of(builder.partition, leader_epoch=0),), {1: 100, 2: 100}
    (root := tmp_path / "store").mkdir()
    (scratch := tmp_path / "scratch").mkdir()
    session = Session(
        config=load(tmp_path, LEAST.replace("/srv/tier", str(root))),
        broker=cast("KafkaBroker", broker),
        state=MemoryStateLog(),
        metadata=builder.run.metadata,
        clock=clock,
    )
    return World(builder=builder, root=root, scratch=scratch, clock=clock, session=session, broker=broker)


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
async def test_the_new_segment_has_all_but_these_records_and_is_the_one_that_is_read(world: World, codec: int) -> None:
    old = await world.add(0, codec=codec)
    before = await world.log_of(old)
    result = await world.erase()
    (one,) = result.erased
    assert one.new is not None
    assert one.rewritten is not None
    assert (one.records, one.rewritten.tally.records_kept) == (4, 6)
    assert world.read_at(0).remote_log_segment_id == one.new.remote_log_segment_id
    assert await world.records_at(0) == without_key(records_of(before))
    after = await world.log_of(one.new)
    spans = [
        [(one.base_offset, one.last_offset, one.producer_id, one.base_sequence) for _, one in iter_batch_headers(log)]
        for log in (before, after)
    ]
    assert spans[0] == spans[1]
    assert one.new == replace(
        old,
        remote_log_segment_id=one.new.remote_log_segment_id,
        event_timestamp_ms=one.new.event_timestamp_ms,
        max_timestamp_ms=max(header.max_timestamp for _, header in iter_batch_headers(after)),
        segment_size_in_bytes=len(after),
        custom_metadata=one.new.custom_metadata,
        state=State.COPY_SEGMENT_FINISHED,
    )
    assert world.in_trash() == {old.remote_log_segment_id.uuid}
    assert list(world.scratch.iterdir()) == []


async def test_no_mark_is_in_the_store_once_the_old_objects_are_gone(world: World) -> None:
    for start in (0, 10, 20):
        await world.add(start)
    assert len(world.marked_objects()) == 3
    await world.erase()
    assert len(world.marked_objects()) == 3, "what is in the trash is still there"
    world.delete_objects_of(world.in_trash())
    assert world.marked_objects() == []
    assert (await world.look()).of(Erasing.REWRITE) == []


async def test_what_is_in_the_trash_is_due_after_the_delay_of_users_deletes(world: World) -> None:
    await world.add(0)
    await world.erase()
    (entry,) = world.session.state.trash(world.builder.partition)
    assert entry.due_ms - entry.decided_ms == world.session.config.user_delete_delay
    assert not entry.is_undone(generation=5)


async def test_a_dry_look_changes_nothing(world: World) -> None:
    await world.add(0)
    before = sorted(world.root.rglob("*"))
    found = await world.look()
    assert [step.erasing for step in found.steps] == [Erasing.REWRITE]
    assert (sorted(world.root.rglob("*")), world.in_trash()) == (before, set())
    assert len(world.segments(*State)) == 1


async def test_done_again_it_finds_nothing_and_of_another_key_what_is_left(world: World) -> None:
    await world.add(0)
    await world.erase()
    assert [step.erasing for step in (await world.look()).steps] == [Erasing.IN_TRASH]
    world.keys = frozenset({OTHER})
    result = await world.erase()
    assert [(one.step.erasing, one.records) for one in result.erased] == [(Erasing.REWRITE, 3)]
    assert {record.key for record in await world.records_at(0)} == {None}
    assert len(world.in_trash()) == 2


@pytest.mark.parametrize("place", PLACES)
async def test_killed_anywhere_it_goes_on_from_what_is_published_and_loses_nothing(world: World, place: str) -> None:
    old = [await world.add(start) for start in (0, 10)]
    expected = [without_key(records_of(await world.log_of(one))) for one in old]

    async def kill() -> None:
        raise KilledError

    with pytest.raises(KilledError):
        await world.erase({f"erase.{place}": kill})
    for one in old:  # whatever is read, it has all other records
        assert without_key(await world.records_at(one.start_offset)) == expected[old.index(one)]
    await world.erase()
    assert [await world.records_at(one.start_offset) for one in old] == expected
    assert world.in_trash() == {one.remote_log_segment_id.uuid for one in old}
    leftovers = world.segments(State.COPY_SEGMENT_STARTED)
    assert len(leftovers) == (place in {"started", "uploaded", "proven"})
    assert len(world.segments(State.COPY_SEGMENT_FINISHED)) == 4, "one more for each, and no second one"
    found = await world.look()
    assert [step.erasing for step in found.steps] == [Erasing.IN_TRASH] * 2
    assert [reason for _, reason in found.unread] == ["its copy is not finished"] * len(leftovers)


async def test_what_is_still_local_is_left_and_done_once_it_is_trimmed(world: World) -> None:
    for start in (0, 10, 20):
        await world.add(start)
    world.broker.replica_starts = {1: 100, 2: 15}
    result = await world.erase()
    assert [one.step.segment.start_offset for one in result.erased] == [0]
    assert [step.segment.start_offset for step in (await world.look()).of(Erasing.LEAVE)] == [10, 20]
    world.broker.replica_starts = {1: 100, 2: "NOT_ENOUGH_TIME"}
    assert (await world.erase()).erased == []
    world.broker.replica_starts = {1: 100, 2: 100}
    assert [one.step.segment.start_offset for one in (await world.erase()).erased] == [10, 20]


async def test_a_replica_that_is_new_since_the_look_is_asked_too(world: World) -> None:
    await world.add(0)
    eraser = world.eraser()
    found = await eraser.look(world.builder.partition.topic)
    world.broker.replica_starts = {1: 100, 2: 100, 3: 0}
    result = await eraser.apply(found)
    assert result.erased == []
    assert [reason for _, reason in result.left] == [
        "still local: offsets 0 to 9 are in the logs of brokers 3 until they are trimmed"
    ]
    assert len(world.segments(*State)) == 1


async def test_a_replica_that_comes_while_it_is_uploaded_keeps_it_from_being_finished(world: World) -> None:
    old = await world.add(0)

    async def comes() -> None:
        world.broker.replica_starts = {1: 100, 2: 5}

    result = await world.erase({"erase.uploaded": comes})
    assert (result.erased, len(result.left)) == ([], 1)
    assert world.read_at(0).remote_log_segment_id == old.remote_log_segment_id
    assert world.in_trash() == set()


async def test_what_expires_while_it_is_rewritten_is_not_published_anew(world: World) -> None:
    old = await world.add(0)

    async def expires() -> None:
        log = world.builder.run.metadata
        assert isinstance(log, LaggingMetadataLog)
        log.publish_elsewhere(
            RemoteLogSegmentMetadataUpdate(
                remote_log_segment_id=old.remote_log_segment_id,
                broker_id=old.broker_id,
                event_timestamp_ms=world.clock.now_ms(),
                state=State.DELETE_SEGMENT_STARTED,
            )
        )

    result = await world.erase({"erase.proven": expires})
    assert [reason for _, reason in result.left] == ["it was deleted meanwhile"]
    assert world.segments(State.COPY_SEGMENT_FINISHED) == []


async def test_a_new_segment_that_was_taken_for_dead_leaves_the_old_one(world: World) -> None:
    """Its upload took longer than the copy grace, and the leader's sidecar has begun to delete it."""
    old = await world.add(0)

    async def grace_is_over() -> None:
        (started,) = world.segments(State.COPY_SEGMENT_STARTED)
        await world.builder.move(started, State.DELETE_SEGMENT_STARTED)

    result = await world.erase({"erase.proven": grace_is_over})
    assert [reason[:46] for _, reason in result.left] == ["its new segment was taken for dead meanwhile: "]
    assert world.read_at(0).remote_log_segment_id == old.remote_log_segment_id
    assert world.in_trash() == set()


@pytest.mark.parametrize("kind", ["log", "indexes"])
async def test_a_store_that_lies_about_what_it_took_keeps_the_old_segment(world: World, kind: str) -> None:
    old = await world.add(0)

    async def damage() -> None:
        (started,) = world.segments(State.COPY_SEGMENT_STARTED)
        path = world.root / getattr(planned_keys(started), kind)
        data = bytearray(path.read_bytes())
        data[0] ^= 1
        path.write_bytes(data)

    with pytest.raises((CorruptDataError, StoreError)):
        await world.erase({"erase.uploaded": damage})
    assert world.read_at(0).remote_log_segment_id == old.remote_log_segment_id
    assert world.in_trash() == set()


async def test_what_cannot_be_read_is_named_and_the_rest_is_done(world: World) -> None:
    damaged, _ = await world.add(0), await world.add(10)
    path = world.root / planned_keys(damaged).log
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    found = await world.look()
    assert [one for one, _ in found.unread] == [world.read_at(0)]
    assert [one.step.segment.start_offset for one in (await world.erase()).erased] == [10]


async def test_one_erasure_or_repair_acts_at_a_time(world: World) -> None:
    await world.add(0)
    async with claimed_lease(world.session, SystemIds(), LEASE) as other:
        erasing = asyncio.ensure_future(world.erase())
        while not erasing.done():
            # The store works in threads: a clock that went on meanwhile would have its calls take minutes.
            if not world.clock.wakes_within(1.0):
                await asyncio.sleep(0.001)
                continue
            await world.clock.advance(1.0)
            await other.renew()
        with pytest.raises(LeaseHeldError):
            await erasing
    assert world.in_trash() == set()


async def test_a_pause_of_deletes_ends_it_before_the_next_event(world: World) -> None:
    await world.add(0)

    async def paused() -> None:
        thing = PausedThing(kind=PauseKind.DELETES)
        await world.session.state.publish_pause(Pause(thing=thing, topic="(all)", since_ms=0, by="an operator"))

    with pytest.raises(MetadataNotReadyError, match="paused"):
        await world.erase({"erase.uploaded": paused})
    assert len(world.segments(State.COPY_SEGMENT_FINISHED)) == 1


async def test_what_is_read_is_rewritten_although_clean_ones_hold_its_offsets_too(world: World) -> None:
    """A deposed leader's copy of 5 to 14 that was finished late is read in place of the two."""
    for start in (0, 10):
        await world.add(start)
    await world.erase()
    late = await world.add(5)
    assert world.read_at(7).remote_log_segment_id == late.remote_log_segment_id
    result = await world.erase()
    assert [one.step.erasing for one in result.erased] == [Erasing.REWRITE]
    for offset in range(20):
        assert KEY not in {record.key for record in await world.records_at(offset)}


async def test_what_is_in_the_trash_is_rewritten_again_once_its_new_segment_is_lost(world: World) -> None:
    old = await world.add(0)
    (first,) = (await world.erase()).erased
    assert first.new is not None
    expected = await world.records_at(0)
    (world.root / planned_keys(first.new).log).unlink()
    (second,) = (await world.erase()).erased
    assert second.new is not None
    assert (second.step.segment.remote_log_segment_id, second.step.erasing) == (
        old.remote_log_segment_id,
        Erasing.REWRITE,
    )
    assert world.read_at(0).remote_log_segment_id == second.new.remote_log_segment_id
    assert await world.records_at(0) == expected
    assert second.new.event_timestamp_ms > first.new.event_timestamp_ms, "also by its manifest alone it is the latest"
    found = await world.look()
    assert [step.erasing for step in found.steps] == [Erasing.IN_TRASH]
    assert [one.remote_log_segment_id for one, _ in found.unread] == [first.new.remote_log_segment_id]


async def test_what_repair_asked_to_copy_again_is_left_until_that_is_answered(world: World) -> None:
    """Its copy would hold the records, and be finished after the new segment."""
    old = await world.add(0)
    eraser = world.eraser()
    found = await eraser.look(world.builder.partition.topic)
    request = rewrite_of(old)
    await world.session.state.request_recopy(request)
    result = await eraser.apply(found)
    assert result.erased == []
    assert [reason for _, reason in result.left] == [
        "repair has asked for another copy of some of its offsets, which is not answered yet"
    ]
    await world.session.state.decline_recopy(request, BrokerId(1), "it has nothing of it")
    assert len((await world.erase()).erased) == 1


async def test_the_lease_is_renewed_right_before_the_new_segment_is_finished(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.add(0)
    log, publish = world.builder.run.metadata, world.builder.run.metadata.publish
    seen: list[tuple[int, bool]] = []

    async def noting(event: MetadataEvent, *, until_s: float | None = None) -> None:
        lease = world.session.state.lease(LEASE)
        assert lease is not None
        if isinstance(event, RemoteLogSegmentMetadataUpdate):
            seen.append(
                (
                    world.clock.now_ms() - lease.renewed_ms,
                    until_s is not None and until_s <= world.clock.monotonic_s() + 20,
                )
            )
        await publish(event, until_s=until_s)

    async def takes_long() -> None:
        await world.clock.advance(15.0)

    monkeypatch.setattr(log, "publish", noting)
    await world.erase({"erase.proven": takes_long})
    assert seen == [(0, True)]


async def test_it_waits_until_the_starts_that_it_saw_are_on_the_brokers_disks(world: World) -> None:
    """Within that time a broker was killed, and came back with the start before."""
    await world.add(0)
    eraser = Eraser(world.session, world.keys, world.scratch, settle_s=75.0)
    found = await eraser.look(world.builder.partition.topic)
    erasing = asyncio.ensure_future(eraser.apply(found))
    await world.clock.advance(74.0)
    assert not erasing.done()
    world.broker.replica_starts = {1: 100, 2: 0}
    await world.clock.advance(2.0)
    result = await erasing
    assert result.erased == []
    assert "still local: offsets 0 to 9 are in the logs of brokers 2" in result.left[0][1]


async def test_a_topic_of_another_id_by_the_same_name_is_not_touched(world: World) -> None:
    await world.add(0)
    eraser = world.eraser()
    found = await eraser.look(world.builder.partition.topic)
    another = replace(world.builder.partition, topic_id=Uuid(b"created-again-00"))
    world.broker.views = (view_of(another, leader_epoch=0),)
    with pytest.raises(ErasureError, match="created again"):
        await eraser.apply(found)
    assert len(world.segments(*State)) == 1


@pytest.mark.parametrize(
    ("error", "starts"),
    [
        pytest.param(CorruptDataError(where="it", position=0, reason="damaged"), [0, 20], id="of one segment"),
        pytest.param(StoreError(verb="read", key="it", reason="away"), [0], id="of the store: nothing else is tried"),
    ],
)
async def test_an_error_midway_does_not_lose_the_report_of_what_was_done(
    world: World, error: TiersidecarError, starts: list[int]
) -> None:
    for start in (0, 10, 20):
        await world.add(start)
    passed = 0

    async def fail_second() -> None:
        nonlocal passed
        passed += 1
        if passed == 2:
            raise error

    result = await world.erase({"erase.started": fail_second})
    assert [one.step.segment.start_offset for one in result.erased] == starts
    assert sorted({*starts, *(step.segment.start_offset for step, _ in result.left)}) == [0, 10, 20]
    assert all(str(error) in reason for _, reason in result.left)
    assert [one.step.segment.start_offset for one in (await world.erase()).erased] == [
        start for start in (0, 10, 20) if start not in starts
    ]


def with_place(world: World) -> Path:
    """New segments go to place cold; return its directory."""
    (cold := world.root.parent / "cold").mkdir()
    topic = world.builder.partition.topic
    text = (
        LEAST.replace("/srv/tier", str(world.root))
        + f"places: {{cold: {{root: {cold}}}}}\ntopics: [{{name: {topic}, place: cold}}]\n"
    )
    world.session = replace(world.session, config=load(world.root.parent, text))
    return cold


async def test_the_topic_is_claimed_in_the_place_where_its_new_segment_goes(world: World) -> None:
    """S-293: a segment there without an owner object halts the topic, for an emptied bucket looks the same."""
    await world.add(0)
    cold = with_place(world)
    owner = cold / owner_key("", world.builder.partition.topic_id)

    async def is_claimed() -> None:
        assert read_owning_cluster(owner.read_bytes()) == "scripted"

    result = await world.erase({"erase.started": is_claimed})
    assert len(result.erased) == 1
    assert place_in(world.read_at(0).custom_metadata or b"") == "cold"


async def test_into_a_place_where_another_cluster_owns_the_topic_nothing_is_erased(world: World) -> None:
    await world.add(0)
    topic_id = world.builder.partition.topic_id
    for root, cluster_id in ((with_place(world), "theirs"), (world.root, "scripted")):
        said = TopicOwner(cluster_id=cluster_id, topic="t", claimed_ms=0, broker_id=1, incarnation="x")
        (root / owner_key("", topic_id)).parent.mkdir(parents=True)
        (root / owner_key("", topic_id)).write_bytes(said.write(topic_id))
    with pytest.raises(NotOwnedError, match=r"@cold/.*says cluster theirs"):
        await world.erase()
    assert len(world.segments(*State)) == 1
