"""Copying again what the store has lost, over real segments: at whatever point the process ends, nothing more is lost, and the
next round ends it (U12; rule 1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.clean_world import COMPACTED
from tests.support.recopy_requests import always_wanted, request_for
from tests.support.tier_shell import BROKER, TierShell
from tests.unit.tasks.test_copy_of_pins import delete_as_retention_does, pin_all
from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.decide.cleanup import Removal, decide_cleanup
from tiersidecar.decide.topics import PartitionRole, TieredPartition, read_cleaner_settings
from tiersidecar.decide.trash import TrashDelays, replaced
from tiersidecar.domain.errors import SegmentChangedError, SegmentNotReadyError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.offsets import LeaderEpoch, Lineage
from tiersidecar.domain.policy import ALL_TOPICS, Pause, PausedThing, PauseKind, TopicPolicy
from tiersidecar.domain.segments import LocalSegment, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.ports.log_dirs import LogDirsView
from tiersidecar.ports.state_records import RecopyRequest
from tiersidecar.reading.remote_objects import SegmentPresence, recorded_keys
from tiersidecar.tasks.segment_objects import LayoutSettings
from tiersidecar.tasks.segment_upload import StillWanted

NAME = "plain-0"
OTHER = BrokerId(2)


class KilledHere(BaseException):
    """The process ends."""


class Damaged:
    """A partition whose segments are all remote, one of which has lost an object, with the request to copy it again."""

    def __init__(self, shell: TierShell) -> None:
        self.shell, self.topic_id_partition = shell, shell.topic_id_partition(NAME)
        self.presence = SegmentPresence(shell.store, "")

    async def copy_all_and_lose(self, kind: str) -> None:
        await self.shell.copy.run(self.partition)
        self.victim = self.finished()[1]
        await self.shell.store.delete_objects([getattr(recorded_keys(self.victim), kind)])
        self.shell.failpoints.passed.clear()
        await self.shell.state.request_recopy(self.request)

    @property
    def partition(self) -> TieredPartition:
        return self.shell.tiered(self.topic_id_partition)

    @property
    def request(self) -> RecopyRequest:
        return request_for(self.victim)

    def finished(self) -> list[RemoteLogSegmentMetadata]:
        listed = self.shell.metadata.list_remote_log_segments(self.topic_id_partition)
        return [one for one in listed if one.state is State.COPY_SEGMENT_FINISHED]

    async def serve(self) -> None:
        await self.shell.look()
        if self.shell.recopy.has_work(self.partition):
            await self.shell.recopy.run(self.partition)

    async def has_lost_nothing_else(self) -> bool:
        """The damaged one stands as it was, or whole ones hold all of its offsets."""
        whole = [segment for segment in self.finished() if await self.presence.is_whole(segment)]
        offsets = {offset for one in whole for offset in range(one.start_offset, one.end_offset + 1)}
        stands = self.victim.remote_log_segment_id in {segment.remote_log_segment_id for segment in self.finished()}
        return stands or set(range(self.victim.start_offset, self.victim.end_offset + 1)) <= offsets

    async def is_mended(self) -> bool:
        ids = {segment.remote_log_segment_id for segment in self.finished()}
        keys = {stored.key async for stored in self.shell.store.list_objects()}
        return (
            self.victim.remote_log_segment_id not in ids
            and not keys & set(recorded_keys(self.victim).in_upload_order)
            and all([await self.presence.is_whole(segment) for segment in self.finished()])
            and await self.has_lost_nothing_else()
            and not self.shell.state.recopies(self.topic_id_partition)
        )


@pytest.fixture
async def damaged(tmp_path: Path) -> AsyncIterator[Damaged]:
    async with ThreadBlocking(max_threads=4) as blocking:
        shell = TierShell(tmp_path, blocking, LayoutSettings(), TopicPolicy(local_retention_bytes=0))
        await shell.look()
        shell.table.pins.unread = frozenset()
        yield Damaged(shell)


@pytest.mark.parametrize("kind", ["log", "indexes", "manifest"])
async def test_a_lost_object_is_made_good_under_a_new_segment_id(damaged: Damaged, kind: str) -> None:
    await damaged.copy_all_and_lose(kind)
    await damaged.serve()
    assert await damaged.is_mended()


PLACES = (
    "copy.checked",
    "copy.started.published",
    "copy.log.stored",
    "copy.indexes.stored",
    "copy.manifest.stored",
    "copy.proven",
    "copy.finish.begun",
    "copy.finished.published",
    "recopy.copied",
    "delete.begun",
    "delete.started.published",
    "delete.objects.deleted",
    "delete.finished.published",
    "recopy.retired",
)


async def test_these_are_all_the_places(damaged: Damaged) -> None:
    await damaged.copy_all_and_lose("log")
    await damaged.serve()
    assert set(PLACES) <= set(damaged.shell.failpoints.passed)
    assert {name for name in damaged.shell.failpoints.passed if "half" not in name} == set(PLACES)


@pytest.mark.parametrize("place", PLACES)
async def test_a_process_that_ends_anywhere_loses_nothing_and_the_next_one_ends_it(
    damaged: Damaged, place: str
) -> None:
    await damaged.copy_all_and_lose("log")

    async def die() -> None:
        raise KilledHere

    damaged.shell.failpoints.actions[place] = die
    with pytest.raises(KilledHere):
        await damaged.serve()
    assert await damaged.has_lost_nothing_else()
    damaged.shell.failpoints.actions.clear()
    await damaged.serve()
    assert await damaged.has_lost_nothing_else()
    await ended_by_the_retain_lane(damaged)
    assert await damaged.is_mended()


async def ended_by_the_retain_lane(damaged: Damaged) -> None:
    """What expiry does with leftovers of a process that is no more."""
    listed = list(damaged.shell.metadata.list_remote_log_segments(damaged.topic_id_partition))
    for removal in decide_cleanup(listed, damaged.shell.journal.begun, frozenset(), damaged.shell.clock.now_ms(), 0):
        await damaged.shell.remover.remove(removal)


async def test_what_is_on_no_disk_is_declined_with_its_offsets(damaged: Damaged) -> None:
    await damaged.copy_all_and_lose("log")
    for path in (damaged.shell.log_dir / NAME).glob(f"{damaged.victim.start_offset:020d}.*"):
        path.unlink()
    first = min((damaged.shell.log_dir / NAME).glob("*.log"))
    if int(first.stem) < damaged.victim.start_offset:
        first.unlink()
    await damaged.serve()
    (request,) = damaged.shell.state.recopies(damaged.topic_id_partition)
    assert f"offsets {damaged.victim.start_offset} to {damaged.victim.end_offset}" in request.declined[BROKER]
    assert damaged.victim in damaged.finished(), "what is left of it stays"
    assert not damaged.shell.recopy.has_work(damaged.partition), "it is not looked at again"


async def test_in_a_compacted_topic_nothing_is_copied_again_and_that_is_said(damaged: Damaged) -> None:
    """What the disk has by now is of another moment than the rest of the remote log."""
    await damaged.copy_all_and_lose("log")
    settings = read_cleaner_settings(COMPACTED)
    assert settings is not None
    await damaged.shell.look()
    damaged.shell.table.compacted_topics = {damaged.topic_id_partition.topic: settings}
    assert damaged.shell.recopy.has_work(damaged.partition)
    await damaged.shell.recopy.run(damaged.partition)
    (request,) = damaged.shell.state.recopies(damaged.topic_id_partition)
    assert "its topic is compacted" in request.declined[BROKER]
    assert damaged.victim in damaged.finished(), "what is left of it stays"
    assert not damaged.shell.recopy.has_work(damaged.partition), "it is not looked at again"


async def test_what_an_erasure_replaced_stands_for_nothing(damaged: Damaged) -> None:
    """Else the new segment, damaged, would be retired because of the old one, and erased records would be read again."""
    await damaged.copy_all_and_lose("log")
    shell, partition = damaged.shell, damaged.partition
    local = shell.table.local_partition(damaged.topic_id_partition)
    assert local is not None
    (same,) = [one for one in local.segments if one.base_offset == damaged.victim.start_offset]
    lineage = await shell.lineages.lineage(damaged.topic_id_partition)
    old = await shell.uploader.upload_again(partition, same, lineage, always_wanted)
    entry = replaced([old], LeaderEpoch(0), opened_ms=1, delays=TrashDelays(user_ms=9), now_ms=1, by="erase")
    await shell.state.put_into_trash(damaged.topic_id_partition, [entry])
    for path in (shell.log_dir / NAME).glob(f"{damaged.victim.start_offset:020d}.*"):
        path.unlink()
    first = min((shell.log_dir / NAME).glob("*.log"))
    if int(first.stem) < damaged.victim.start_offset:
        first.unlink()
    await damaged.serve()
    (request,) = shell.state.recopies(damaged.topic_id_partition)
    assert "are on none of this broker's disks" in request.declined[BROKER]
    assert damaged.victim in damaged.finished()


async def test_a_copy_that_is_damaged_here_too_is_declined_and_the_remote_one_stays(damaged: Damaged) -> None:
    await damaged.copy_all_and_lose("indexes")
    path = damaged.shell.log_dir / NAME / f"{damaged.victim.start_offset:020d}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    await damaged.serve()
    (request,) = damaged.shell.state.recopies(damaged.topic_id_partition)
    assert "damaged too" in request.declined[BROKER]
    assert damaged.victim in damaged.finished()


async def test_a_follower_waits_until_the_leader_has_declined(damaged: Damaged) -> None:
    await damaged.copy_all_and_lose("log")
    await damaged.shell.look()
    led = damaged.partition
    followed = replace(led, role=PartitionRole.FOLLOWER, view=replace(led.view, leader_id=OTHER))
    damaged.shell.table.assignment = {**damaged.shell.table.assignment, damaged.topic_id_partition: followed}
    assert not damaged.shell.recopy.has_work(followed)
    await damaged.shell.state.decline_recopy(damaged.request, OTHER, "it is on none of its disks")
    assert damaged.shell.recopy.has_work(followed)
    await damaged.shell.recopy.run(followed)
    assert await damaged.is_mended()


async def test_a_store_that_takes_copies_and_loses_them_is_not_filled_with_more(damaged: Damaged) -> None:
    await damaged.copy_all_and_lose("log")
    copies = 0

    async def lose_it() -> None:
        nonlocal copies
        copies += 1
        known = {key for one in damaged.finished() for key in recorded_keys(one).in_upload_order}
        keys = [stored.key async for stored in damaged.shell.store.list_objects()]
        newest = max(
            damaged.finished(),
            key=lambda segment: (segment.start_offset == damaged.victim.start_offset, segment != damaged.victim),
        )
        assert set(keys) <= known
        await damaged.shell.store.delete_objects([recorded_keys(newest).manifest])

    damaged.shell.failpoints.actions["recopy.copied"] = lose_it
    await damaged.serve()
    assert copies == 1
    (request,) = damaged.shell.state.recopies(damaged.topic_id_partition)
    assert "has not got the copy" in request.declined[BROKER]
    assert damaged.victim in damaged.finished()


async def test_a_partition_that_changes_hands_meanwhile_finishes_nothing(damaged: Damaged) -> None:
    await damaged.copy_all_and_lose("log")
    before = {segment.remote_log_segment_id for segment in damaged.finished()}
    await damaged.shell.look()

    async def depose() -> None:
        damaged.shell.depose(damaged.topic_id_partition)

    damaged.shell.failpoints.actions["copy.manifest.stored"] = depose
    with pytest.raises(Exception, match="changed hands"):
        await damaged.shell.recopy.run(damaged.partition)
    assert {segment.remote_log_segment_id for segment in damaged.finished()} == before


async def test_what_only_a_pin_has_any_more_is_copied_again_from_it(damaged: Damaged) -> None:
    """Of a sidecar that was away while another copied the segment: its broker has deleted the files since."""
    await pin_all(damaged.shell, damaged.topic_id_partition)
    await damaged.copy_all_and_lose("log")
    await delete_as_retention_does(damaged.shell, damaged.topic_id_partition, 3)
    local = damaged.shell.table.local.partitions[damaged.topic_id_partition]
    assert damaged.victim.end_offset < local.segments[0].base_offset
    await damaged.serve()
    assert await damaged.is_mended()


async def test_the_leader_that_follows_serves_what_the_one_before_had_no_time_for(
    damaged: Damaged, tmp_path: Path
) -> None:
    """Two sidecars, one store, one state topic: the request outlives the leader that it was made to, and is served once."""
    await damaged.copy_all_and_lose("log")
    before = damaged.shell
    after = TierShell(
        tmp_path / "other", before.blocking, LayoutSettings(), TopicPolicy(local_retention_bytes=0), store=before.store
    )
    await after.look()
    for event in before.metadata.events:
        await after.metadata.publish(event)
    after.state.requests = list(before.state.requests)
    after.table.pins.unread = frozenset()
    damaged.shell = after
    await damaged.serve()
    assert await damaged.is_mended()
    before.state.requests = after.state.requests
    assert not before.recopy.has_work(before.tiered(damaged.topic_id_partition))


async def pause_copies(shell: TierShell) -> None:
    thing = PausedThing(kind=PauseKind.COPIES, topic_id=None)
    await shell.state.publish_pause(Pause(thing=thing, topic=ALL_TOPICS, since_ms=0, by="ann", reason="a look"))


async def hand_over(shell: TierShell) -> None:
    shell.table.refused_topics[shell.topic_id_partition(NAME).topic] = "native tiered storage has it"


async def lose_the_directory(shell: TierShell) -> None:
    shell.table.local = LogDirsView(partitions={}, faults={})


async def read_no_pins(shell: TierShell) -> None:
    shell.table.pins.unread = None


async def forbid_deletes(shell: TierShell) -> None:
    shell.guard.reason_not_to_delete = "the topic lost data"


async def read_the_state_anew(shell: TierShell) -> None:
    shell.state.readiness_reason = "3 records are missing"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(pause_copies, id="copies are paused"),
        pytest.param(hand_over, id="the topic is not tiered any more"),
        pytest.param(lose_the_directory, id="it is on no disk here now: it would be declined for good"),
        pytest.param(read_no_pins, id="pins have not been read"),
        pytest.param(forbid_deletes, id="nothing may be deleted"),
        pytest.param(read_the_state_anew, id="what is paused is not known"),
    ],
)
async def test_a_lane_that_failed_does_not_run_where_it_has_to_wait(
    damaged: Damaged, change: Callable[[TierShell], Awaitable[None]]
) -> None:
    """The watch runs one that failed although it says that it has no work, if it may act."""
    await damaged.copy_all_and_lose("log")
    await damaged.shell.look()
    partition = damaged.partition
    assert damaged.shell.recopy.has_work(partition)
    assert damaged.shell.recopy.may_act(partition)
    await change(damaged.shell)
    assert not damaged.shell.recopy.has_work(partition)
    assert not damaged.shell.recopy.may_act(partition)


async def test_nothing_is_given_up_while_nothing_may_be_deleted(damaged: Damaged) -> None:
    """The switch, or a metadata topic that lost data, may come while the copy is under way."""
    await damaged.copy_all_and_lose("log")

    async def forbid() -> None:
        damaged.shell.guard.reason_not_to_delete = "the topic lost data"

    damaged.shell.failpoints.actions["recopy.copied"] = forbid
    await damaged.serve()
    assert damaged.victim.remote_log_segment_id in {segment.remote_log_segment_id for segment in damaged.finished()}
    assert damaged.shell.state.recopies(damaged.topic_id_partition)
    damaged.shell.failpoints.actions.clear()
    damaged.shell.guard.reason_not_to_delete = ""
    await damaged.serve()
    assert await damaged.is_mended()


async def test_a_hole_that_the_copy_lane_is_filling_is_not_filled_twice(damaged: Damaged) -> None:
    """The mirror of ``test_a_hole_that_two_lanes_fill_at_once_is_copied_once``: the recopy lane comes second, and waits."""
    shell, topic_id_partition = damaged.shell, damaged.topic_id_partition
    await shell.copy.run(damaged.partition)
    hole = damaged.finished()[1]
    await shell.remover.remove(Removal(metadata=hole, reason="a hole is wanted"))
    await shell.state.request_recopy(replace(request_for(hole), segment_uuid=None))
    begun, late = len(shell.metadata.events), list[asyncio.Task[None]]()

    async def recopy_lane_begins() -> None:
        shell.failpoints.actions.clear()
        late.append(asyncio.create_task(shell.recopy.run(damaged.partition)))
        await asyncio.sleep(0.1)

    shell.failpoints.actions["copy.checked"] = recopy_lane_begins
    sealed = shell.table.local.partitions[topic_id_partition].sealed_segments
    local = next(one for one in sealed if one.base_offset == hole.start_offset)
    await shell.uploader.upload(damaged.partition, local, await shell.lineages.lineage(topic_id_partition))
    with pytest.raises(SegmentChangedError, match="other live segments"):
        await late[0]
    started = [one for one in shell.metadata.events[begun:] if isinstance(one, RemoteLogSegmentMetadata)]
    assert [one.start_offset for one in started] == [hole.start_offset], "one copy was begun"
    await damaged.serve()
    assert not shell.state.recopies(topic_id_partition), "the next round finds that nothing is left to do"


async def test_a_segment_that_cannot_be_copied_keeps_no_other_request_waiting(
    damaged: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batches are of other epochs than the broker's file says, now and for good."""
    shell = damaged.shell
    await damaged.copy_all_and_lose("log")
    stuck, other = damaged.victim, damaged.finished()[2]
    await shell.store.delete_objects([recorded_keys(other).log])
    upload_again = shell.uploader.upload_again

    async def upload(
        partition: TieredPartition, segment: LocalSegment, lineage: Lineage, still_wanted: StillWanted
    ) -> RemoteLogSegmentMetadata:
        if segment.base_offset == stuck.start_offset:
            raise SegmentNotReadyError(path=segment.log_path, reason="its batches are of leader epoch 7")
        return await upload_again(partition, segment, lineage, still_wanted)

    monkeypatch.setattr(shell.uploader, "upload_again", upload)
    damaged.victim = other
    await shell.state.request_recopy(damaged.request)
    with pytest.raises(SegmentNotReadyError):
        await damaged.serve()
    (left,) = shell.state.recopies(damaged.topic_id_partition)
    assert left.segment_uuid == stuck.remote_log_segment_id.uuid
