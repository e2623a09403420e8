"""Recover on a real directory and the real fold: both topics are empty, and made anew by what lies there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

from tests.support.directory_store import DirectoryStore
from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.metadata_events import DELETING, FINISHED, STARTED, added
from tests.support.scripted import MemoryStateLog, ScriptedBroker
from tests.unit.app.config.config_files import LEAST, load
from tests.unit.app.test_repair_run import view_of
from tests.unit.reconcile.test_bucket_walk import manifest_of
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.kafka.broker import KafkaBroker
from tiersidecar.adapters.snapshots.shelf import StoreShelf
from tiersidecar.app.commands.recover import look_at_store
from tiersidecar.app.commands.session import Session
from tiersidecar.app.held_lease import claimed_lease
from tiersidecar.app.recover_look import FormerCluster
from tiersidecar.app.recover_report import RecoverReport
from tiersidecar.app.recover_run import Recoverer
from tiersidecar.app.repair_run import LEASE
from tiersidecar.decide.recover import Left, events_of
from tiersidecar.domain.errors import BrokerUnreachableError, LeaseHeldError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.lease import Lease
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.policy import Pause, PausedThing, PauseKind
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, SegmentEvent
from tiersidecar.domain.trash import TrashEntry, TrashId, TrashKind
from tiersidecar.formats.aiven.keys import CustomMetadata, planned_keys, write_custom_metadata
from tiersidecar.ports.partition_snapshots import PartitionSnapshot, SnapshotVersion
from tiersidecar.ports.state_log import Hold, PartitionState, TopicState
from tiersidecar.reading.remote_objects import recorded_keys
from tiersidecar.tasks.topic_owners import TopicOwner, owner_key

CLUSTER = "scripted"
"""As :class:`ScriptedBroker` calls itself."""
ORDERS = TopicIdPartition(topic_id=Uuid(b"orders-topic-id!"), topic="orders", partition=0)
LATER = replace(ORDERS, partition=10)
ENTRY = TrashEntry(
    id=TrashId(generation=0, leader_epoch=LeaderEpoch(0), kind=TrashKind.USER, opened_ms=5),
    decided_ms=6,
    due_ms=7,
    up_to=Offset(10),
)
STATE = PartitionState().with_delete(Offset(10), LeaderEpoch(0), 5)
PAUSE = Pause(
    thing=PausedThing(kind=PauseKind.DELETES, topic_id=ORDERS.topic_id), topic="orders", since_ms=1, by="alice"
)


def live(number: int, start: int, owner: TopicIdPartition = ORDERS, at_ms: int = 10) -> RemoteLogSegmentMetadata:
    one = added(number, start, start + 9, owner=owner)
    return replace(one, state=FINISHED, event_timestamp_ms=at_ms)


@dataclass(slots=True)
class World:
    root: Path
    session: Session
    metadata: MemoryMetadataLog
    state: MemoryStateLog
    broker: ScriptedBroker
    told: list[str] = field(default_factory=list)

    def store_objects(self, *segments: RemoteLogSegmentMetadata, kinds: tuple[str, ...] = (".log", ".indexes")) -> None:
        for segment in segments:
            keys = recorded_keys(segment)
            for key in (keys.log, keys.indexes, keys.manifest):
                if key.endswith((*kinds, ".rsm-manifest")):
                    path = self.root / key
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(manifest_of(segment) if key.endswith("manifest") else b"x")

    async def put_snapshot(self, *segments: RemoteLogSegmentMetadata, **changes: object) -> None:
        owner = segments[0].topic_id_partition
        snapshot = PartitionSnapshot(
            cluster_id=CLUSTER,
            topic_id_partition=owner,
            version=SnapshotVersion(leader_epoch=LeaderEpoch(0), serial=1),
            written_ms=100,
            broker_id=1,
            incarnation="",
            segments=segments,
            highest_offsets={0: max(segment.end_offset for segment in segments)},
            state=STATE,
            topic_state=TopicState(topic="orders", mode="strict"),
            trash=(ENTRY,),
            pauses=(PAUSE,),
        )
        async with DirectoryStore(str(self.root))() as store:
            await StoreShelf(store, "", InlineBlocking()).put(replace(snapshot, **changes))  # type: ignore[arg-type]

    def claim(self, cluster_id: str) -> None:
        owner = TopicOwner(cluster_id=cluster_id, topic="orders", claimed_ms=0, broker_id=1, incarnation="")
        path = self.root / owner_key("", ORDERS.topic_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(owner.write(ORDERS.topic_id))

    def recoverer(self, *topics: str) -> Recoverer:
        return Recoverer(self.session, topics, self.told.append)

    async def recover(self) -> RecoverReport:
        return await self.recoverer().apply()

    def segments(self, owner: TopicIdPartition = ORDERS) -> list[RemoteLogSegmentMetadata]:
        return list(self.metadata.list_remote_log_segments(owner))

    async def publish(self, *segments: RemoteLogSegmentMetadata) -> None:
        await self.metadata.assign([ORDERS, LATER])
        for segment in segments:
            for event in events_of(segment):
                await self.metadata.publish(event)
        self.metadata.events.clear()


@pytest.fixture
def world(tmp_path: Path) -> World:
    (root := tmp_path / "store").mkdir()
    broker, metadata, state = ScriptedBroker(), MemoryMetadataLog(), MemoryStateLog()
    broker.views = (view_of(ORDERS, leader_epoch=0), view_of(LATER, leader_epoch=0))
    session = Session(
        config=load(tmp_path, LEAST.replace("/srv/tier", str(root))),
        broker=cast("KafkaBroker", broker),
        state=state,
        metadata=metadata,
        clock=ManualClock(),
    )
    return World(root=root, session=session, metadata=metadata, state=state, broker=broker)


async def test_all_of_a_snapshot_comes_back_and_the_state_before_the_events(world: World) -> None:
    known = replace(live(1, 0), custom_metadata=b"\x00")
    deleting = replace(live(2, 10), state=DELETING)
    world.store_objects(known, deleting)
    await world.put_snapshot(known, deleting)
    shown = await world.recoverer().plan()
    assert (world.metadata.events, world.state.partition_states) == ([], {}), "a plan changes nothing"
    done = await world.recover()
    assert done.facts() == shown.facts()
    assert world.segments() == [known, deleting]
    assert [getattr(event, "state", None) for event in world.metadata.events].count(STARTED) == 2
    assert (world.state.partition_state(ORDERS), list(world.state.trash(ORDERS))) == (STATE, [ENTRY])
    assert list(world.state.pauses()) == [PAUSE]
    assert world.state.topic_state(ORDERS.topic_id) == TopicState(topic="orders", mode="strict")
    again = await world.recoverer().plan()
    assert (list(again.steps()), again.equal) == ([], 2)


async def test_what_came_after_the_snapshot_comes_by_its_manifest_and_what_was_before_does_not(world: World) -> None:
    listed, later, orphan = live(1, 20), live(2, 30, at_ms=101), live(3, 0)
    world.store_objects(listed, later, orphan)
    await world.put_snapshot(listed)
    report = await world.recover()
    assert world.segments() == [listed, later]
    assert report.left == {Left.OLDER: 1}


async def test_a_former_prefix_is_looked_under(world: World) -> None:
    moved = replace(live(1, 0), custom_metadata=write_custom_metadata(CustomMetadata(object_prefix="former/")))
    stem = planned_keys(moved, "former/")
    for key in stem.in_upload_order:
        path = world.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    gone = replace(live(2, 10), custom_metadata=moved.custom_metadata)
    await world.put_snapshot(moved, gone)
    report = await world.recover()
    assert (world.segments(), report.gone) == ([moved], 1)


async def test_without_snapshots_each_partition_comes_by_its_manifests(world: World) -> None:
    segments = [live(n, 10 * n) for n in range(300)] + [live(n, 10 * n, LATER) for n in range(300, 310)]
    world.store_objects(*segments)
    report = await world.recover()
    assert world.segments() + world.segments(LATER) == segments
    assert report.facts()["segments_from_manifests"] == 310
    assert sorted(map(str, report.without_snapshot)) == ["orders-0", "orders-10"]
    assert "accept-topic-loss" in " ".join(report.notes())
    assert world.state.partition_states == {}, "nothing is made up"
    assert any(one.startswith("listing the store:") for one in world.told)


async def test_topics_that_the_cluster_does_not_have_are_named_and_left(world: World) -> None:
    world.store_objects(live(1, 0, replace(ORDERS, topic_id=Uuid(b"another-topic-id"))))
    report = await world.recover()
    assert world.metadata.events == []
    assert any("the cluster has no topic of this id" in note for note in report.notes())


async def test_another_clusters_data_are_left(world: World) -> None:
    world.store_objects(live(1, 0))
    world.claim("theirs")
    report = await world.recover()
    assert world.metadata.events == []
    assert any("cluster theirs" in note for note in report.notes())


async def test_a_snapshot_of_another_cluster_counts_for_nothing(world: World) -> None:
    world.store_objects(live(1, 0))
    world.claim(CLUSTER)
    await world.put_snapshot(live(1, 0), cluster_id="theirs")
    report = await world.recover()
    assert (world.segments(), world.state.partition_states) == ([live(1, 0)], {})
    assert any("is of cluster theirs" in note for note in report.notes())


async def test_what_nobody_claims_is_its_that_wrote_the_snapshot(world: World) -> None:
    world.store_objects(live(1, 0))
    await world.put_snapshot(live(1, 0), cluster_id="theirs")
    report = await world.recover()
    assert (world.metadata.events, world.state.partition_states) == ([], {})
    assert any("is of cluster theirs" in note for note in report.notes())


async def test_a_record_of_the_state_topic_is_newer_than_any_snapshot(world: World) -> None:
    world.store_objects(live(1, 0))
    await world.put_snapshot(live(1, 0))
    known = STATE.merged_with(PartitionState().with_delete(Offset(20), LeaderEpoch(0), 8))
    await world.state.publish_partition_state(ORDERS, known)
    report = await world.recover()
    assert (world.state.partition_state(ORDERS), list(world.state.trash(ORDERS))) == (known, [])
    assert not report.has_contradictions


@pytest.mark.parametrize(
    "lost", [PartitionState(hold=Hold(serial=1, is_held=True, until=Offset(50))), PartitionState(start_generation=1)]
)
async def test_a_record_that_forgot_an_undelete_is_a_contradiction(world: World, lost: PartitionState) -> None:
    world.store_objects(live(1, 0))
    await world.put_snapshot(live(1, 0), state=lost, trash=(), pauses=())
    await world.state.publish_partition_state(ORDERS, PartitionState(owner_seen_ms=1))
    assert (await world.recoverer().plan()).has_contradictions
    await world.recover()
    assert world.state.partition_state(ORDERS) == replace(lost, owner_seen_ms=1)
    assert not (await world.recoverer().plan()).has_contradictions


async def test_a_delete_that_was_undone_since_the_snapshot_stays_undone(world: World) -> None:
    world.store_objects(live(1, 0))
    await world.put_snapshot(live(1, 0))
    twice = PartitionState(remote_log_start_offset=Offset(0), remote_log_start_epoch=LeaderEpoch(0), start_generation=2)
    await world.state.publish_partition_state(ORDERS, twice)
    report = await world.recover()
    assert not report.has_contradictions
    assert world.state.partition_state(ORDERS) == twice


async def test_a_later_leaders_record_that_forgot_a_delete_is_a_contradiction(world: World) -> None:
    deleted, fine = live(1, 0), live(2, 10)
    world.store_objects(deleted, fine)
    await world.put_snapshot(fine)
    await world.state.publish_partition_state(ORDERS, PartitionState().with_start(Offset(0), LeaderEpoch(6)))
    assert (await world.recoverer().plan()).has_contradictions
    await world.recover()
    assert world.state.partition_state(ORDERS).start_for(0) == 10, "the delete of epoch 0 counts"
    assert world.segments() == [fine]
    again = await world.recoverer().plan()
    assert (again.has_contradictions, list(again.steps())) == (False, [])


async def test_contradictions_are_refused_unless_told(world: World) -> None:
    elsewhere, fine = live(7, 50), live(1, 0)
    await world.publish(elsewhere)
    world.store_objects(fine)
    await world.put_snapshot(fine)
    await world.state.publish_partition_state(ORDERS, PartitionState(owner_seen_ms=1))
    intent = await look_at_store(world.session, (), world.told.append, despite=False)
    assert "contradict" in intent.refusal
    assert len(intent.details["contradictions"]) == 2, "a segment that the store has not, a state that forgot a delete"
    told = await look_at_store(world.session, (), world.told.append, despite=True)
    assert (told.refusal, len(told.steps)) == ("", 1)
    assert told.apply is not None
    await told.apply()
    assert world.segments() == [fine, elsewhere]
    assert world.state.partition_state(ORDERS).user_deletes == STATE.user_deletes


async def test_snapshots_that_cannot_be_read_are_not_passed_over_in_silence(world: World) -> None:
    world.store_objects(live(1, 0))
    await world.put_snapshot(live(1, 0))
    (path,) = world.root.rglob("*.snapshot")
    path.write_bytes(path.read_bytes()[:-1])
    intent = await look_at_store(world.session, (), world.told.append, despite=False)
    assert "may come back" in intent.refusal
    assert any("checksum" in note for note in intent.notes)
    assert intent.details["faults"]
    assert (await look_at_store(world.session, (), world.told.append, despite=True)).refusal == ""


class EndsHalfway(MemoryMetadataLog):
    """One whose broker goes away ``after`` so many events of a publish; ``untils_s`` are those that publishes had."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after, self.untils_s = after, list[float | None]()

    async def publish_all(self, events: Sequence[SegmentEvent], *, until_s: float | None = None) -> None:
        self.untils_s.append(until_s)
        await super().publish_all(events[: self.after])
        if self.after < len(events):
            raise BrokerUnreachableError(address="broker:1", reason="it went away")


async def test_what_a_broken_run_published_is_left_by_the_next(world: World) -> None:
    several = [live(number, 10 * number) for number in range(1, 5)]
    world.store_objects(*several)
    await world.put_snapshot(*several)
    metadata = EndsHalfway(after=5)
    world.metadata, world.session = metadata, replace(world.session, metadata=metadata)
    with pytest.raises(BrokerUnreachableError):
        await world.recover()
    assert [one.state for one in world.segments()] == [FINISHED, FINISHED, STARTED]
    metadata.after = 100
    await world.recover()
    assert world.segments() == several
    assert len(metadata.events) == 8, "each event once"


async def test_nothing_is_published_for_longer_than_the_lease_is_held(world: World) -> None:
    world.store_objects(live(1, 0))
    await world.put_snapshot(live(1, 0))
    metadata = EndsHalfway(after=100)
    world.metadata, world.session = metadata, replace(world.session, metadata=metadata)
    await world.recover()
    assert metadata.untils_s == [world.session.clock.monotonic_s() + 55.0], "its duration, but for a margin"


async def test_it_does_not_act_beside_sidecars(world: World) -> None:
    world.store_objects(live(1, 0))
    await world.put_snapshot(live(1, 0))
    now_ms = world.session.clock.now_ms()
    held = Lease(
        name="1", cluster_id=CLUSTER, broker_id=1, incarnation="a", term=1, host="h", pid=1, version="", renewed_ms=now_ms,
        duration_ms=60_000,
    )  # fmt: skip
    await world.state.publish_lease(held)
    refused = await look_at_store(world.session, (), world.told.append, despite=False, acts=True)
    assert "beside brokers 1: stop them first" in refused.refusal
    assert (await look_at_store(world.session, (), world.told.append, despite=False)).refusal == ""
    await world.state.publish_lease(replace(held, released=True, renewal=True))
    freed = await look_at_store(world.session, (), world.told.append, despite=False, acts=True)
    assert (freed.refusal, len(freed.steps)) == ("", 1)


async def test_one_acts_at_a_time(world: World) -> None:
    world.store_objects(live(1, 0))
    clock = cast(ManualClock, world.session.clock)
    async with claimed_lease(world.session, SystemIds(), LEASE, world.told.append) as held:
        second = asyncio.create_task(world.recover())
        while not second.done():
            await clock.advance(0.05)  # threads of the store are at work meanwhile
            await held.renew()
        with pytest.raises(LeaseHeldError):
            await second
    assert [text for text in world.told if text.startswith("waiting up to 60 s, since process ")], (
        "before it is refused"
    )
    assert world.metadata.events == []
    await world.recover()
    assert world.segments() == [live(1, 0)]


async def test_what_was_the_former_clusters_counts_as_this_ones_up_to_where_its_logs_go_on(world: World) -> None:
    """Issue 21: `mount publish`."""
    known, later = live(1, 0), live(2, 10, at_ms=101)
    world.store_objects(known, later)
    await world.put_snapshot(known, cluster_id="former")
    world.claim("former")
    report = await world.recover()
    assert world.segments() == [], "without a mount it is another cluster's"
    former = FormerCluster(cluster_id="former", ends={(ORDERS.topic_id, ORDERS.partition): 10})
    report = await Recoverer(world.session, (), world.told.append, former).apply()
    assert world.segments() == [known]
    assert report.left == {Left.BEYOND_END: 1}
    assert world.state.partition_state(ORDERS) == STATE


IN_COLD = write_custom_metadata(CustomMetadata(place="cold"))


def with_cold(world: World) -> Path:
    """Give the configuration a place; return its directory."""
    (cold := world.root.parent / "cold").mkdir()
    text = LEAST.replace("/srv/tier", str(world.root)) + f"places: {{cold: {{root: {cold}}}}}\n"
    world.session = replace(world.session, config=load(world.root.parent, text))
    return cold


def move(source: Path, target: Path) -> None:
    """Move what was stored below one directory to another."""
    for path in [one for one in source.rglob("*") if one.is_file()]:
        to = target / path.relative_to(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        path.rename(to)


async def test_what_lies_in_a_place_comes_back_and_names_it(world: World) -> None:
    """S-293: by manifests alone, from several places in one pass, partition by partition."""
    here, later, other = live(1, 0), live(3, 20), live(4, 0, LATER)
    there = [replace(one, custom_metadata=IN_COLD) for one in (live(2, 10), live(5, 10, LATER))]
    cold = with_cold(world)
    world.store_objects(here, later, other, *there)
    move(world.root / "@cold", cold)
    report = await world.recover()
    assert world.segments() + world.segments(LATER) == [here, there[0], later, other, there[1]]
    started = [one for one in world.metadata.events if isinstance(one, RemoteLogSegmentMetadata)]
    assert [one.custom_metadata for one in sorted(started, key=lambda one: one.remote_log_segment_id.uuid)] == [
        None, IN_COLD, None, None, IN_COLD
    ], "a broken run leaves nothing that is looked for elsewhere"  # fmt: skip
    assert (report.facts()["segments_from_manifests"], report.is_complete) == (5, True)
    assert list((await world.recoverer().plan()).steps()) == []


async def test_a_snapshots_segments_are_looked_for_in_their_places(world: World) -> None:
    """Also where another place has a copy of their objects."""
    cold = with_cold(world)
    there, begun = (
        replace(live(1, 0), custom_metadata=IN_COLD),
        replace(added(2, 10, 19, owner=ORDERS), custom_metadata=IN_COLD),
    )
    gone = replace(live(3, 20), custom_metadata=IN_COLD)
    world.store_objects(there, begun, kinds=(".log",))
    move(world.root / "@cold", cold)
    world.store_objects(replace(there, custom_metadata=None), replace(gone, custom_metadata=None))
    (cold / recorded_keys(there).indexes.removeprefix("@cold/")).write_bytes(b"x")
    (cold / recorded_keys(begun).manifest.removeprefix("@cold/")).unlink()
    await world.put_snapshot(there, begun, gone)
    report = await world.recover()
    assert world.segments() == [there, begun]
    assert report.gone == 1


async def test_another_clusters_objects_in_a_shared_place_are_left(world: World) -> None:
    cold = with_cold(world)
    world.store_objects(replace(live(1, 0), custom_metadata=IN_COLD))
    world.claim("theirs")
    move(world.root / "@cold", cold)
    move(world.root, cold)
    report = await world.recover()
    assert world.metadata.events == []
    assert any("place cold says that its data are cluster theirs" in note for note in report.notes())


async def test_stores_that_were_exchanged_in_the_configuration_are_not_recovered_from(world: World) -> None:
    cold = with_cold(world)
    world.store_objects(replace(live(1, 0), custom_metadata=IN_COLD))
    move(world.root / "@cold", cold)
    owner = TopicOwner(
        cluster_id=CLUSTER, topic="orders", claimed_ms=0, broker_id=1, incarnation="", place="far"
    ).write(ORDERS.topic_id)
    (cold / owner_key("", ORDERS.topic_id)).parent.mkdir(parents=True)
    (cold / owner_key("", ORDERS.topic_id)).write_bytes(owner)
    report = await world.recover()
    assert world.metadata.events == []
    assert any("the store of place cold is that of place far" in note for note in report.notes())


@pytest.mark.parametrize("by_snapshot", [True, False], ids=["a snapshot names it", "the state topic names it"])
async def test_a_place_that_the_configuration_does_not_have_is_named_and_nothing_is_taken_for_lost(
    world: World, by_snapshot: bool
) -> None:
    """S-293: whoever takes the place out of the configuration has a hole otherwise, and `repair` deletes the only copy."""
    here, there = live(1, 0), replace(live(2, 10), custom_metadata=IN_COLD)
    world.store_objects(here)
    if by_snapshot:
        await world.put_snapshot(here, there)
    else:
        await world.state.publish_partition_state(ORDERS, PartitionState(places_seen=("cold",)))
    intent = await look_at_store(world.session, (), world.told.append, despite=False)
    assert "that the configuration does not name: cold. Put these back under places" in intent.refusal
    assert any("had segments of 1 partitions (orders-0)" in note for note in intent.notes)
    assert (intent.details["unknown_places"], intent.complete) == (["cold"], False)
    assert intent.facts["left"] == by_snapshot
    told = await look_at_store(world.session, (), world.told.append, despite=True)
    assert told.apply is not None
    assert (told.refusal, (await told.apply() or {})["complete"]) == ("", False)
    assert world.segments() == [here]
    again = await look_at_store(world.session, (), world.told.append, despite=True)
    assert (again.facts["gone"], again.complete) == (0, False)


async def test_offsets_that_no_segment_has_are_named(world: World) -> None:
    world.store_objects(live(1, 0), live(2, 10), live(4, 30), live(5, 0, LATER))
    intent = await look_at_store(world.session, (), world.told.append, despite=False)
    (hole,) = intent.details["holes_between"]
    assert (hole["topic"], hole["partition"], hole["start_offset"], hole["end_offset"]) == ("orders", 0, 20, 29)
    assert any("(such as orders-0 [20, 29])" in note for note in intent.notes)
    assert intent.apply is not None
    assert (intent.refusal, intent.complete, (await intent.apply() or {})["complete"]) == ("", False, False)
