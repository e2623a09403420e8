"""A gateway that starts while its source's topics are empty or filled in part, because they were lost and are being recovered,
takes no log for empty of which the store shows something (issue 21)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import settle
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.remote_runs import load_run
from tests.unit.app.test_mounted_source import SOURCE, AwayStore, Known, started_at
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.snapshots.shelf import StoreShelf
from tiersidecar.app import mounted_remains
from tiersidecar.app.repair_run import LEASE
from tiersidecar.decide.recover import events_of
from tiersidecar.domain.errors import StoreError
from tiersidecar.domain.lease import Lease
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.aiven.keys import planned_keys
from tiersidecar.ports.partition_snapshots import PartitionSnapshot, SnapshotVersion
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.ports.store import BytesBody, StoredObject

BEING_RECOVERED = "the source has lost them, or is being recovered"
NOT_SAID_YET = "the store has not said yet"


class ListedStore(AwayStore):
    """Counts how often it is asked for a list, which fails while it ``is_away``."""

    listed = 0

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        self.listed += 1
        if self.is_away:
            raise StoreError(verb="list", key=prefix, reason="away")
        async for stored in super().list_objects(prefix, start_after=start_after):
            yield stored


class Lost:
    """A source that had copied all ``segments``, and whose topics were made anew."""

    def __init__(self, known: Known, segments: list[RemoteLogSegmentMetadata]) -> None:
        self.known, self.segments = known, segments
        self.store = ListedStore(clock=known.clock, ids=SystemIds())

    @property
    def told(self) -> str:
        return self.known.fault or self.known.source.unknown(self.known.partition)

    async def start_gateway(self) -> None:
        again = Known(
            self.known.partition, self.known.metadata, self.store, state=self.known.state, clock=self.known.clock
        )
        self.known = again
        await again.claim(SOURCE)
        await again.source.look_first()

    async def snapshot(self, *segments: RemoteLogSegmentMetadata, key_prefix: str = "p/") -> None:
        await StoreShelf(self.store, key_prefix, InlineBlocking()).put(
            PartitionSnapshot(
                cluster_id=SOURCE,
                topic_id_partition=self.known.partition,
                version=SnapshotVersion(leader_epoch=LeaderEpoch(0), serial=1),
                written_ms=1,
                broker_id=1,
                incarnation="i",
                segments=segments,
                highest_offsets={},
                state=started_at(0),
            )
        )

    async def put_objects(self) -> None:
        for segment in self.segments:
            for key in planned_keys(segment, "p/").in_upload_order:
                await self.store.put_object(key, BytesBody(b"x"))

    async def recover(self, *segments: RemoteLogSegmentMetadata) -> None:
        for segment in segments:
            for event in events_of(segment):
                await self.known.metadata.publish(event)

    def lease(self, *, term: int = 1, released: bool = False) -> None:
        self.known.state.leases[LEASE] = Lease(
            name=LEASE,
            cluster_id=SOURCE,
            broker_id=-1,
            incarnation=f"of term {term}",
            term=term,
            host="h",
            pid=1,
            version="1",
            renewed_ms=0,
            duration_ms=60_000,
            released=released,
        )


@pytest.fixture
async def lost() -> Lost:
    run = await load_run("plain")
    partition, metadata = run.partition("plain-0"), MemoryMetadataLog()
    await metadata.assign([partition])
    segments = [
        one
        for one in run.metadata.list_remote_log_segments(partition)
        if one.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    ]
    assert len(segments) > 1
    return Lost(Known(partition, metadata), segments)


async def test_an_empty_topic_is_not_believed_where_the_store_has_a_snapshot(lost: Lost) -> None:
    await lost.snapshot(*lost.segments)
    await lost.start_gateway()
    assert BEING_RECOVERED in lost.told
    assert "have no event of it, though the snapshot p/.tiersidecar/snapshots/" in lost.told
    lost.lease()
    await lost.recover(*lost.segments[:-1])
    assert "have not all events of it" in lost.told
    await lost.recover(lost.segments[-1])
    assert lost.told == ""


async def test_it_is_not_believed_either_where_the_store_has_segments_alone(lost: Lost) -> None:
    await lost.put_objects()
    await lost.start_gateway()
    assert "though the store has segments of it" in lost.told
    await lost.recover(*lost.segments)
    assert lost.told == ""


async def test_of_a_topic_with_many_objects_each_partition_is_asked_for(
    lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounted_remains, "_MOST_LISTED", 2)
    first = replace(lost.known.partition, partition=0)
    lost.known.partition = replace(first, partition=9)
    moved = [
        replace(one, remote_log_segment_id=replace(one.remote_log_segment_id, topic_id_partition=lost.known.partition))
        for one in lost.segments
    ]
    await lost.put_objects()
    lost.segments = moved
    await lost.put_objects()
    await lost.known.metadata.assign([first, lost.known.partition, replace(first, partition=4)])
    await lost.start_gateway()
    assert "though the store has segments of it" in lost.told
    assert lost.known.source.fault(first) != ""
    empty = replace(first, partition=4)
    assert (lost.known.source.fault(empty), lost.known.source.unknown(empty)) == ("", "")


@pytest.mark.parametrize("has_snapshot", [False, True], ids=["no snapshot", "a snapshot without segments"])
async def test_what_was_never_copied_is_empty_and_asked_for_once(lost: Lost, *, has_snapshot: bool) -> None:
    if has_snapshot:
        await lost.snapshot()
    assert NOT_SAID_YET in lost.told
    lost.store.listed = 0
    await lost.start_gateway()
    watching = asyncio.create_task(lost.known.source.watch(5.0))
    for _ in range(20):
        assert lost.told == ""
        await lost.known.clock.advance(5)
    assert lost.store.listed == 2, "snapshots, and objects"
    watching.cancel()


async def test_what_has_expired_altogether_is_empty(lost: Lost) -> None:
    await lost.snapshot(*lost.segments)
    await lost.start_gateway()
    end = lost.segments[-1].end_offset + 1
    await lost.known.state.publish_partition_state(lost.known.partition, started_at(end - 1))
    assert BEING_RECOVERED in lost.told
    await lost.known.state.publish_partition_state(lost.known.partition, started_at(end))
    assert lost.told == ""


async def test_the_state_alone_shows_that_something_was_remote(lost: Lost) -> None:
    await lost.start_gateway()
    assert lost.told == ""
    seen = PartitionState(held_offset=lost.segments[0].end_offset, held_epoch=LeaderEpoch(0), owner_seen_ms=1)
    await lost.known.state.publish_partition_state(lost.known.partition, seen)
    assert "its state says that it was remote up to offset" in lost.told


async def test_topics_that_recover_is_filling_are_not_believed_until_they_have_what_the_store_shows(lost: Lost) -> None:
    await lost.snapshot(*lost.segments)
    await lost.recover(lost.segments[0])
    lost.lease()
    await lost.start_gateway()
    assert "have not all events of it" in lost.told
    lost.lease(released=True)
    assert lost.told == "", "what it has left, it has named"


async def test_a_recover_that_died_half_way_is_not_believed(lost: Lost) -> None:
    await lost.snapshot(*lost.segments)
    await lost.recover(lost.segments[0])
    lost.lease()
    await lost.start_gateway()
    await lost.known.clock.advance(1_000)
    assert "have not all events of it" in lost.told
    lost.lease(term=2)
    assert "have not all events of it" in lost.told
    lost.lease(term=2, released=True)
    assert lost.told == ""


async def test_a_repair_at_a_sound_source_keeps_nobody_from_reading(lost: Lost) -> None:
    await lost.snapshot(*lost.segments[:-1])
    await lost.recover(*lost.segments)
    lost.lease()
    await lost.start_gateway()
    assert lost.told == ""


async def test_a_sound_source_s_store_is_not_even_asked(lost: Lost) -> None:
    await lost.recover(*lost.segments)
    await lost.snapshot(*lost.segments)
    lost.lease(released=True)
    lost.store.listed = 0
    await lost.start_gateway()
    assert (lost.told, lost.store.listed) == ("", 0)


async def test_a_repair_before_the_loss_is_no_recovery_after_it(lost: Lost) -> None:
    await lost.snapshot(*lost.segments)
    lost.lease(released=True)
    await lost.start_gateway()
    await lost.recover(lost.segments[0])
    assert "have not all events of it" in lost.told


async def test_nothing_is_served_before_the_store_has_answered(lost: Lost) -> None:
    lost.store.is_away = True
    await lost.start_gateway()
    assert NOT_SAID_YET in lost.told
    watching = asyncio.create_task(lost.known.source.watch(5.0))
    for _ in range(100):
        await lost.known.clock.advance(5)
    assert NOT_SAID_YET in lost.told
    assert lost.store.listed < 12
    lost.store.is_away = False
    await lost.known.clock.advance(300)
    await settle()
    assert lost.told == ""
    watching.cancel()
