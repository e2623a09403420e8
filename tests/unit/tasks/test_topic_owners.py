"""Whose remote data a topic id's are: claimed once, by a put that finds nothing, and never taken from another cluster."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.scripted import MemoryStateLog
from tests.support.segments import TOPIC_ID_PARTITION, remote_segment
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.adapters.stores.placed import Place, PlacedStore
from tiersidecar.domain.errors import NotOwnedError, ObjectTooLargeError, OwnerMissingError, StoreError, WrongPlaceError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, format_uuid
from tiersidecar.domain.own_objects import MOST_OWNER_BYTES
from tiersidecar.domain.segments import RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.aiven.keys import CustomMetadata, write_custom_metadata
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.ports.store import BytesBody
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.topic_owners import (
    Claimant,
    ClaimLook,
    TopicOwner,
    TopicOwners,
    owner_key,
    read_owning_cluster,
    read_topic_owner,
)

KEY = owner_key("prefix/", TOPIC_ID_PARTITION.topic_id)
TOPIC_ID = format_uuid(TOPIC_ID_PARTITION.topic_id)


class Stage:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock, ids=SystemIds())
        self.cold = MemoryStore(clock=self.clock, ids=SystemIds())
        self.places = PlacedStore(self.store, {"cold": Place(store=self.cold, key_prefix="c/")})
        self.state, self.metadata, self.table = MemoryStateLog(), MemoryMetadataLog(), PartitionTable()

    def moved(self) -> TopicOwners:
        """Of a sidecar whose rules let the topic go to the default place (again)."""
        return self.owners("ours", "", has_places=True)

    async def objects_in_cold(self) -> list[str]:
        return [stored.key async for stored in self.cold.list_objects()]

    def owners(self, cluster_id: str, place: str = "", *, has_places: bool = False) -> TopicOwners:
        return TopicOwners(
            store=self.places if place or has_places else self.store,
            state=self.state,
            metadata=self.metadata,
            table=self.table,
            key_prefix="prefix/",
            clock=self.clock,
            claimant=Claimant(cluster_id=cluster_id, broker_id=BrokerId(1), incarnation="x"),
            place_of_topic=lambda topic: place,
        )

    async def copied(
        self, topic_id_partition: TopicIdPartition = TOPIC_ID_PARTITION, *, place: str = "", at: int = 0
    ) -> None:
        """A segment of the partition is remote."""
        await self.metadata.assign([topic_id_partition])
        segment = remote_segment(at, at + 9, topic_id_partition=topic_id_partition)
        await self.metadata.publish(replace(segment, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED))
        await self.metadata.publish(
            RemoteLogSegmentMetadataUpdate(
                remote_log_segment_id=segment.remote_log_segment_id,
                broker_id=BrokerId(1),
                event_timestamp_ms=0,
                state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                custom_metadata=write_custom_metadata(CustomMetadata(place=place)) if place else None,
            )
        )

    def change_the_bucket_of_cold(self) -> None:
        self.cold = MemoryStore(clock=self.clock, ids=SystemIds())
        self.places = PlacedStore(self.store, {"cold": Place(store=self.cold, key_prefix="c/")})

    async def overwrite(self, data: bytes) -> None:
        await self.store.put_object(KEY, BytesBody(data))


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_the_first_claim_makes_the_object_and_holds_for_all_sidecars_of_the_cluster(stage: Stage) -> None:
    await stage.owners("ours").claim(TOPIC_ID_PARTITION)
    assert read_owning_cluster(await stage.store.fetch_object(KEY, max_bytes=2**30)) == "ours"
    await stage.owners("ours").claim(TOPIC_ID_PARTITION)


async def test_another_clusters_claim_is_respected(stage: Stage) -> None:
    await stage.owners("theirs").claim(TOPIC_ID_PARTITION)
    with pytest.raises(NotOwnedError, match="says cluster theirs"):
        await stage.owners("ours").claim(TOPIC_ID_PARTITION)


async def test_of_two_at_once_one_gets_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have found nothing there before either writes."""
    put_object, have_looked = stage.store.put_object, asyncio.Barrier(2)

    async def put_once_both_have_looked(*args: Any, **named: Any) -> None:
        await have_looked.wait()
        await put_object(*args, **named)

    monkeypatch.setattr(stage.store, "put_object", put_once_both_have_looked)
    claims = [stage.owners(name).claim(TOPIC_ID_PARTITION) for name in ("ours", "theirs")]
    results = await asyncio.gather(*claims, return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["NoneType", "NotOwnedError"]
    winner = next(name for name, result in zip(("ours", "theirs"), results, strict=True) if result is None)
    assert read_owning_cluster(await stage.store.fetch_object(KEY, max_bytes=2**30)) == winner


async def test_the_object_says_who_made_it(stage: Stage) -> None:
    await stage.owners("ours").claim(TOPIC_ID_PARTITION)
    made = read_topic_owner(await stage.store.fetch_object(KEY, max_bytes=2**30))
    assert (made.topic, made.broker_id, made.incarnation) == (TOPIC_ID_PARTITION.topic, 1, "x")


COLD_KEY = owner_key("c/", TOPIC_ID_PARTITION.topic_id)


async def test_a_topic_in_a_place_is_claimed_there_too(stage: Stage) -> None:
    """Clusters with stores of their own may share a place (S-293)."""
    await stage.owners("ours", "cold").claim(TOPIC_ID_PARTITION)
    for store, key in ((stage.store, KEY), (stage.cold, COLD_KEY)):
        assert read_owning_cluster(await store.fetch_object(key, max_bytes=2**30)) == "ours"


async def test_what_another_cluster_has_claimed_in_the_place_is_not_ours(stage: Stage) -> None:
    theirs = TopicOwner(cluster_id="theirs", topic="t", claimed_ms=0, broker_id=1, incarnation="x")
    await stage.cold.put_object(COLD_KEY, BytesBody(theirs.write(TOPIC_ID_PARTITION.topic_id)))
    with pytest.raises(NotOwnedError, match=r"@cold/.*says cluster theirs"):
        await stage.owners("ours", "cold").claim(TOPIC_ID_PARTITION)


async def test_a_topic_may_go_to_a_place_long_after_its_first_segment(stage: Stage) -> None:
    """That the default store's object was seen says nothing of the place's."""
    await stage.owners("ours").claim(TOPIC_ID_PARTITION)
    await stage.copied()
    await stage.owners("ours").claim(TOPIC_ID_PARTITION)
    await stage.owners("ours", "cold").claim(TOPIC_ID_PARTITION)
    assert read_owning_cluster(await stage.cold.fetch_object(COLD_KEY, max_bytes=2**30)) == "ours"


@pytest.mark.parametrize(
    ("is_claimed", "is_away", "goes_on"),
    [
        pytest.param(True, True, True, id="it is claimed in its place, and the default one is away"),
        pytest.param(False, True, False, id="it was never claimed there: that comes after the default one"),
        pytest.param(True, False, False, id="the default one answers, and refuses"),
    ],
)
async def test_the_default_store_halts_a_topic_of_a_place_only_until_it_is_claimed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, is_claimed: bool, is_away: bool, goes_on: bool
) -> None:
    if is_claimed:
        await stage.owners("ours", "cold").claim(TOPIC_ID_PARTITION)

    async def refuse(key: str, *, max_bytes: int) -> bytes:
        raise StoreError(verb="fetch", key=key, reason="trouble", is_away=is_away)

    monkeypatch.setattr(stage.store, "fetch_object", refuse)
    claim = stage.owners("ours", "cold").claim(TOPIC_ID_PARTITION)
    if goes_on:
        await claim
        return
    with pytest.raises(StoreError, match="trouble"):
        await claim


async def test_an_object_of_a_place_that_was_seen_with_segments_is_not_made_anew(stage: Stage) -> None:
    """By no sidecar, for no partition of the topic, whether the place is still where its segments go or not (S-293)."""
    owners = stage.owners("ours", "cold")
    await owners.claim(TOPIC_ID_PARTITION)
    await stage.copied(place="cold")
    await owners.claim(TOPIC_ID_PARTITION, anew=True)
    assert stage.state.partition_state(TOPIC_ID_PARTITION).places_seen == ("cold",)
    stage.change_the_bucket_of_cold()
    with pytest.raises(OwnerMissingError, match=r"no @cold/.*not the same store"):
        await stage.owners("ours", "cold").claim(TOPIC_ID_PARTITION)
    moved, other = stage.moved(), replace(TOPIC_ID_PARTITION, partition=0)
    with pytest.raises(OwnerMissingError):
        await stage.owners("ours", "cold").claim(other)
    with pytest.raises(OwnerMissingError):  # a segment there is to be deleted
        await moved.claim(TOPIC_ID_PARTITION, place="cold")
    with pytest.raises(OwnerMissingError):  # the partition is to be trimmed
        await moved.claim(TOPIC_ID_PARTITION, anew=True)
    assert await stage.objects_in_cold() == []
    await moved.claim(TOPIC_ID_PARTITION)
    assert list(stage.table.missing_owners) == [TOPIC_ID_PARTITION.topic_id], "copies go on, and it is still missing"


async def test_a_halt_by_a_place_ends_when_its_object_is_back(stage: Stage) -> None:
    await stage.owners("ours", "cold").claim(TOPIC_ID_PARTITION)
    await stage.copied(place="cold")
    (key,) = await stage.objects_in_cold()
    data = await stage.cold.fetch_object(key, max_bytes=2**30)
    stage.change_the_bucket_of_cold()
    with pytest.raises(OwnerMissingError):  # nobody has said that it was seen: the segment is enough
        await stage.owners("ours", "cold").claim(TOPIC_ID_PARTITION)
    await stage.cold.put_object(key, BytesBody(data))
    owners = stage.owners("ours", "cold")
    await owners.claim(TOPIC_ID_PARTITION)
    assert stage.state.partition_state(TOPIC_ID_PARTITION).places_seen == ("cold",)
    assert stage.table.missing_owners == {}


async def test_what_lies_in_the_default_place_is_deleted_while_the_topics_place_is_another_store(stage: Stage) -> None:
    await stage.owners("ours", "cold").claim(TOPIC_ID_PARTITION)
    await stage.copied()
    await stage.copied(place="cold", at=10)
    stage.change_the_bucket_of_cold()
    await stage.owners("ours", "cold").claim(TOPIC_ID_PARTITION, place="")


async def test_a_place_that_is_away_keeps_no_topic_that_has_left_it_from_being_trimmed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.owners("ours", "cold").claim(TOPIC_ID_PARTITION)
    await stage.copied(place="cold")
    await stage.owners("ours", "cold").claim(TOPIC_ID_PARTITION)

    async def away(key: str, *, max_bytes: int) -> bytes:
        raise StoreError(verb="fetch", key=key, reason="connection refused", is_away=True)

    monkeypatch.setattr(stage.cold, "fetch_object", away)
    await stage.moved().claim(TOPIC_ID_PARTITION, anew=True)
    with pytest.raises(StoreError, match="connection refused"):
        await stage.moved().claim(TOPIC_ID_PARTITION, place="cold")
    stage.places = PlacedStore(stage.store, {})
    await stage.moved().claim(TOPIC_ID_PARTITION, anew=True)


async def test_a_place_whose_last_segment_has_expired_may_be_emptied(stage: Stage) -> None:
    """S-293: that it was seen is never forgotten, and would keep the topic from being trimmed for ever."""
    owners = stage.owners("ours", "cold")
    await owners.claim(TOPIC_ID_PARTITION)
    await stage.copied(place="cold")
    await stage.copied(at=10)
    await owners.claim(TOPIC_ID_PARTITION, anew=True)
    stage.change_the_bucket_of_cold()
    with pytest.raises(OwnerMissingError):
        await stage.moved().claim(TOPIC_ID_PARTITION, anew=True)
    (in_cold,) = [one for one in stage.metadata.list_remote_log_segments(TOPIC_ID_PARTITION) if one.custom_metadata]
    for state in (RemoteLogSegmentState.DELETE_SEGMENT_STARTED, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED):
        await stage.metadata.publish(
            RemoteLogSegmentMetadataUpdate(
                remote_log_segment_id=in_cold.remote_log_segment_id,
                broker_id=BrokerId(1),
                event_timestamp_ms=0,
                state=state,
                custom_metadata=None,
            )
        )
    assert stage.state.partition_state(TOPIC_ID_PARTITION).places_seen == ("cold",)
    await stage.moved().claim(TOPIC_ID_PARTITION, anew=True)


async def test_where_no_segments_go_any_more_nothing_is_claimed(stage: Stage) -> None:
    """Who deletes there finds what was made before the copy, even of one that never ended."""
    with pytest.raises(OwnerMissingError):
        await stage.moved().claim(TOPIC_ID_PARTITION, place="cold")
    assert await stage.objects_in_cold() == []


async def test_an_answer_of_one_place_says_nothing_of_another(stage: Stage) -> None:
    await stage.owners("ours", "cold").claim(TOPIC_ID_PARTITION)
    await stage.copied(place="cold")
    moved = stage.moved()
    await moved.claim(TOPIC_ID_PARTITION)
    await stage.cold.delete_objects(await stage.objects_in_cold())
    with pytest.raises(OwnerMissingError):
        await moved.claim(TOPIC_ID_PARTITION, place="cold")


HALF = b'{"cluster_id":"\\ud800x"}'
DEEP, LARGE = b"[" * 60_000, b'{"cluster_id":"ours"}' + b" " * MOST_OWNER_BYTES
"""What whoever may write to the bucket can put there."""


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b'{"cluster_id": 7}', b"\xff", DEEP, LARGE, HALF], ids=lambda data: str(data[:20])
)
async def test_an_object_that_cannot_be_read_is_nobodys_leave(stage: Stage, data: bytes) -> None:
    await stage.overwrite(data)
    with pytest.raises(NotOwnedError, match=rf"{KEY} cannot be read: .*; `tiersidecar adopt {TOPIC_ID}` writes the"):
        await stage.owners("ours").claim(TOPIC_ID_PARTITION)
    assert await stage.store.fetch_object(KEY, max_bytes=2**30) == data, "nobody has claimed it anew"


async def test_one_that_comes_between_look_and_claim_may_be_too_large_as_well(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_object = stage.store.put_object

    async def put_behind_another(*args: Any, **named: Any) -> None:
        await stage.store.delete_objects([KEY])
        await put_object(KEY, BytesBody(LARGE))
        await put_object(*args, **named)

    monkeypatch.setattr(stage.store, "put_object", put_behind_another)
    with pytest.raises(NotOwnedError, match="cannot be read: it has more than 65536 bytes"):
        await stage.owners("ours").claim(TOPIC_ID_PARTITION)


async def test_a_look_for_claims_takes_what_is_too_large_for_no_answer(stage: Stage) -> None:
    look = ClaimLook(store=stage.store, key_prefix="prefix/", cluster_id="ours")
    for data, is_claimed in ((b'{"cluster_id":"ours"}', True), (b'{"cluster_id":"theirs"}', False), (DEEP, False)):
        await stage.overwrite(data)
        assert await look.has_claimed(TOPIC_ID_PARTITION.topic_id) is is_claimed
    await stage.overwrite(LARGE)
    with pytest.raises(ObjectTooLargeError, match=KEY):
        await look.has_claimed(TOPIC_ID_PARTITION.topic_id)


async def test_an_answer_counts_for_ten_seconds(stage: Stage) -> None:
    ours = stage.owners("ours")
    await ours.claim(TOPIC_ID_PARTITION)
    await stage.overwrite(b'{"cluster_id":"theirs"}')
    await stage.clock.advance(9)
    await ours.claim(TOPIC_ID_PARTITION)
    await stage.clock.advance(2)
    with pytest.raises(NotOwnedError):
        await ours.claim(TOPIC_ID_PARTITION)


async def test_no_answer_counts_for_whoever_asks_anew(stage: Stage) -> None:
    ours = stage.owners("ours")
    await ours.claim(TOPIC_ID_PARTITION)
    await stage.overwrite(b'{"cluster_id":"theirs"}')
    with pytest.raises(NotOwnedError):
        await ours.claim(TOPIC_ID_PARTITION, anew=True)


async def test_an_object_that_was_seen_with_segments_is_not_made_anew(stage: Stage) -> None:
    """Another store has taken the place of the one that they were copied to."""
    await stage.copied()
    await stage.owners("ours").claim(TOPIC_ID_PARTITION)
    await stage.store.delete_objects([KEY])
    with pytest.raises(OwnerMissingError, match="not the same store") as raised:
        await stage.owners("ours").claim(TOPIC_ID_PARTITION)
    assert list(stage.table.missing_owners.values()) == [str(raised.value)]
    with pytest.raises(OwnerMissingError):  # nor for a partition of the topic of which nothing is remote
        await stage.owners("ours").claim(replace(TOPIC_ID_PARTITION, partition=0))
    await stage.overwrite(b'{"cluster_id":"ours"}')
    await stage.owners("ours").claim(TOPIC_ID_PARTITION)
    assert stage.table.missing_owners == {}


async def test_until_a_segment_is_remote_the_store_may_be_another_one(stage: Stage) -> None:
    await stage.metadata.assign([TOPIC_ID_PARTITION])
    ours = stage.owners("ours")
    await ours.claim(TOPIC_ID_PARTITION)
    await stage.store.delete_objects([KEY])
    await stage.clock.advance(11)
    await ours.claim(TOPIC_ID_PARTITION)
    assert stage.state.partition_state(TOPIC_ID_PARTITION).owner_seen_ms == -1


async def test_what_is_believed_is_still_said_to_be_seen(stage: Stage) -> None:
    """The first segment is finished within the ten seconds of the claim before it."""
    ours = stage.owners("ours")
    await ours.claim(TOPIC_ID_PARTITION)
    await stage.copied()
    await ours.claim(TOPIC_ID_PARTITION)
    assert stage.state.partition_state(TOPIC_ID_PARTITION).owner_seen_ms >= 0


async def test_state_of_a_release_without_owner_objects_is_claimed(stage: Stage) -> None:
    await stage.copied()
    await stage.state.publish_partition_state(TOPIC_ID_PARTITION, PartitionState())
    await stage.owners("ours").claim(TOPIC_ID_PARTITION)
    assert read_owning_cluster(await stage.store.fetch_object(KEY, max_bytes=2**30)) == "ours"


async def test_stores_that_were_exchanged_in_the_configuration_are_found_out(stage: Stage) -> None:
    """S-293: the topic was in both, so that each has an owner object of this very cluster."""
    await stage.owners("ours", "cold").claim(TOPIC_ID_PARTITION)
    stage.places = PlacedStore(
        stage.store, {"far": Place(store=stage.cold, key_prefix="c/"), "cold": Place(store=stage.cold, key_prefix="f/")}
    )
    await stage.cold.put_object(owner_key("f/", TOPIC_ID_PARTITION.topic_id), BytesBody(far_owner()))
    for place, said in (("cold", "far"), ("far", "cold")):
        with pytest.raises(
            WrongPlaceError, match=rf"store of place {place} is that of place {said}, as its @{place}/.*"
        ):
            await stage.owners("ours", place).claim(TOPIC_ID_PARTITION)
        assert "exchanged" in stage.table.missing_owners[TOPIC_ID_PARTITION.topic_id], "the warnings of /readyz"
    await stage.moved().claim(TOPIC_ID_PARTITION)
    stage.store = stage.cold
    stage.places = PlacedStore(stage.store, {})
    await stage.store.put_object(KEY, BytesBody(far_owner()))
    with pytest.raises(WrongPlaceError, match="store of section store is that of place far"):
        await stage.moved().claim(TOPIC_ID_PARTITION)


def far_owner() -> bytes:
    owner = TopicOwner(cluster_id="ours", topic="t", claimed_ms=0, broker_id=1, incarnation="x", place="far")
    return owner.write(TOPIC_ID_PARTITION.topic_id)


async def test_owner_objects_that_name_no_place_count_as_before(stage: Stage) -> None:
    """Those of earlier releases, and which place another cluster calls it is its own affair."""
    for key in (KEY, COLD_KEY):
        store = stage.store if key == KEY else stage.cold
        await store.put_object(key, BytesBody(b'{"version":1,"cluster_id":"ours"}'))
    await stage.owners("ours", "cold").claim(TOPIC_ID_PARTITION)
    await stage.cold.put_object(COLD_KEY, BytesBody(far_owner().replace(b"ours", b"theirs")))
    with pytest.raises(NotOwnedError, match="says cluster theirs"):
        await stage.owners("ours", "cold").claim(TOPIC_ID_PARTITION)


def test_an_owner_object_has_these_bytes() -> None:
    """They outlive this release: what a cluster claimed is never claimed anew."""
    owner = TopicOwner(cluster_id="c", topic="orders", claimed_ms=7, broker_id=2, incarnation="host/1")
    assert owner.write(TOPIC_ID_PARTITION.topic_id) == (
        b'{"version":1,"cluster_id":"c","topic":"orders","topic_id":"'
        + format_uuid(TOPIC_ID_PARTITION.topic_id).encode()
        + b'","claimed_ms":7,"broker_id":2,"incarnation":"host/1","place":""}'
    )


def test_an_owner_object_of_a_mount_names_former_clusters_and_earlier_releases_read_it() -> None:
    owner = TopicOwner(
        cluster_id="c", topic="orders", claimed_ms=7, broker_id=-1, incarnation="mounted", former_clusters=("b", "a")
    )
    data = owner.write(TOPIC_ID_PARTITION.topic_id)
    assert read_topic_owner(data) == owner
    assert read_owning_cluster(data) == "c", "as earlier releases do"
    assert json.loads(data)["version"] == 1


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b'{"version":1,"cluster_id":"c"}', id="of an earlier release"),
        pytest.param(b'{"cluster_id":"c","claimed_ms":"x","former_clusters":"b","place":1}', id="of the wrong types"),
        pytest.param(b'{"cluster_id":"c","former_clusters":["",1,"c"]}', id="former clusters that are none"),
        pytest.param(b'{"cluster_id":"c","claimed_ms":' + b"9" * 400 + b"}", id="a time that no clock shows"),
    ],
)
def test_what_an_owner_object_does_not_say_is_empty(data: bytes) -> None:
    owner = read_topic_owner(data)
    assert (owner.cluster_id, owner.claimed_ms, owner.former_clusters, owner.place) == ("c", 0, (), None)
