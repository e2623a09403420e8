"""The picture of a bucket: what its manifests tell, what is left out, and how it follows (issue 21)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.inline_blocking import InlineBlocking
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.remote_runs import RUNS, RemoteRun, load_run
from tests.support.served_bucket import follower_of
from tiersidecar.domain.errors import StoreError
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.ports.metrics.bucket import BUCKET_LOOKS, BUCKET_REFUSED, BUCKET_SEGMENTS
from tiersidecar.ports.store import BytesBody, StoredObject
from tiersidecar.services.bucket.follow import BucketFollower
from tiersidecar.services.bucket.picture import BucketPicture

TRANSACTIONS = "transactions-EXGICqv_Q_6R0FmJX3Hk1g/0/"
LAST = f"{TRANSACTIONS}00000000000000000133-YP1BNkXtQ0S2eUGcI-LZjw"


class Bucket:
    """A run of the plugin in memory, and what follows it."""

    def __init__(self, run: RemoteRun) -> None:
        self.run, self.telemetry = run, RecordedTelemetry()
        self.picture = BucketPicture(InlineBlocking())
        self.follower: BucketFollower = follower_of(run, self.picture, self.telemetry)

    def is_ready(self) -> bool:
        return self.follower.state.is_ready

    async def keys(self) -> list[str]:
        return [one.key async for one in self.run.store.list_objects()]

    def segments(self, name: str) -> list[RemoteLogSegmentMetadata]:
        return list(self.picture.list_remote_log_segments(self.run.partition(name)))


@pytest.fixture
async def bucket() -> Bucket:
    return Bucket(await load_run("plain"))


@pytest.mark.parametrize("name", RUNS)
async def test_manifests_tell_what_the_events_told(name: str) -> None:
    bucket = Bucket(await load_run(name))
    await bucket.follower.look()
    assert set(bucket.picture.partitions()) == set(bucket.run.partitions)
    for partition in bucket.run.partitions:
        told = list(bucket.run.metadata.list_remote_log_segments(partition))
        shown = list(bucket.picture.list_remote_log_segments(partition))
        unknown: dict[str, Any] = {"custom_metadata": None, "event_timestamp_ms": 0, "txn_index_empty": False}
        assert [replace(one, **unknown) for one in shown] == [replace(one, **unknown) for one in told]
        assert all(one.txn_index_empty for one in shown if "transactions" not in partition.topic)
    assert bucket.follower.state.refused == {}


def _manifest(**changes: object) -> Callable[[Any], Any]:
    def spoil(document: Any) -> Any:
        segment = document["remoteLogSegmentMetadata"]
        return {**document, "remoteLogSegmentMetadata": {**segment, **changes}}

    return spoil


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no JSON": (lambda _: b"{", "not JSON"),
    "of another version": (lambda one: {**one, "version": "2"}, "version is '2'"),
    "of no segment": (lambda one: {**one, "remoteLogSegmentMetadata": None}, "does not say which segment"),
    "of another offset than its key": (_manifest(startOffset=134), "starts at offset 134"),
    "ends before it starts": (_manifest(endOffset=12), "offsets \\[133, 12\\]|outside its offsets"),
    "without leader epochs": (_manifest(segmentLeaderEpochs={}), "names no leader epoch"),
    "with leader epochs past its end": (_manifest(segmentLeaderEpochs={"0": 133, "1": 9999}), "outside its offsets"),
    "with leader epochs out of order": (_manifest(segmentLeaderEpochs={"0": 150, "1": 140}), "out of order"),
    "of a log of another size": (
        lambda one: {**one, "chunkIndex": {**one["chunkIndex"], "finalTransformedChunkSize": 3}},
        "the manifest speaks of 3",
    ),
}


@pytest.mark.parametrize("damage", REFUSED)
async def test_a_manifest_that_contradicts_is_named_and_left_out(bucket: Bucket, damage: str) -> None:
    spoil, reason = REFUSED[damage]
    key = f"{LAST}.rsm-manifest"
    spoilt = spoil(json.loads(await bucket.run.store.fetch_object(key, max_bytes=2**30)))
    data = spoilt if isinstance(spoilt, bytes) else json.dumps(spoilt).encode()
    await bucket.run.store.put_object(key, BytesBody(data))
    await bucket.follower.look()
    (found,) = bucket.follower.state.refused.values()
    assert found.listed.key == key
    assert pytest.approx(1) == bucket.telemetry.value(BUCKET_REFUSED)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(found.reason)
    assert [segment.start_offset for segment in bucket.segments("transactions-0")] == [0, 43, 86]


@pytest.mark.parametrize("suffix", ["log", "indexes"])
async def test_a_segment_whose_object_is_missing_is_left_out_until_it_is_there(bucket: Bucket, suffix: str) -> None:
    key = f"{LAST}.{suffix}"
    data = await bucket.run.store.fetch_object(key, max_bytes=2**30)
    await bucket.follower.look()
    await bucket.run.store.delete_objects([key])
    await bucket.follower.look()
    assert [segment.start_offset for segment in bucket.segments("transactions-0")] == [0, 43, 86]
    (found,) = bucket.follower.state.refused.values()
    assert found.reason == f"missing beside it: .{suffix}"
    await bucket.run.store.put_object(key, BytesBody(data))
    await bucket.follower.look()
    assert [segment.start_offset for segment in bucket.segments("transactions-0")] == [0, 43, 86, 133]
    assert bucket.follower.state.refused == {}


async def test_it_follows_a_bucket_that_grows_and_drops_what_is_gone(bucket: Bucket) -> None:
    later = {
        key: await bucket.run.store.fetch_object(key, max_bytes=2**30)
        for key in await bucket.keys()
        if key.startswith(LAST)
    }
    await bucket.run.store.delete_objects(list(later))
    first = await bucket.follower.look()
    version = bucket.picture.version(bucket.run.partition("transactions-0"))
    for key, data in later.items():
        await bucket.run.store.put_object(key, BytesBody(data))
    grown = await bucket.follower.look()
    assert (grown.added, grown.removed, grown.objects) == (1, 0, first.objects + 3)
    assert bucket.picture.version(bucket.run.partition("transactions-0")) > version
    assert bucket.picture.highest_offset_for_epoch(bucket.run.partition("transactions-0"), 0) == 179
    await bucket.run.store.delete_objects([key for key in await bucket.keys() if key.startswith(LAST)])
    _check_sizes(bucket)
    gone = await bucket.follower.look()
    _check_sizes(bucket)
    assert (gone.added, gone.removed) == (0, 1)
    assert bucket.picture.highest_offset_for_epoch(bucket.run.partition("transactions-0"), 0) == 132
    await bucket.run.store.delete_objects([key for key in await bucket.keys() if key.startswith("transactions")])
    await bucket.follower.look()
    assert "transactions" not in bucket.picture.topics()


def _check_sizes(bucket: Bucket) -> None:
    sizes = [
        sum(segment.segment_size_in_bytes for segment in bucket.segments(str(each))) for each in bucket.run.partitions
    ]
    assert bucket.picture.totals()[1] == sum(sizes) > 0
    assert [bucket.picture.remote_log_size_bytes(each) for each in bucket.run.partitions] == sizes


async def test_a_listing_without_any_segment_changes_nothing(bucket: Bucket) -> None:
    await bucket.follower.look()
    segments = bucket.telemetry.value(BUCKET_SEGMENTS)
    await bucket.run.store.delete_objects(await bucket.keys())
    with pytest.raises(StoreError, match="look whether it is mounted"):
        await bucket.follower.look()
    assert sum(len(bucket.segments(str(partition))) for partition in bucket.run.partitions) == segments


class Failing:
    """A store whose manifests of some partition cannot be fetched."""

    def __init__(self, bucket: Bucket) -> None:
        self._store, self.is_away = bucket.run.store, True

    def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        return self._store.list_objects(prefix, start_after=start_after)

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        if self.is_away and key.startswith("transactions"):
            raise StoreError(verb="fetch", key=key, reason="away")
        return await self._store.fetch_object(key, max_bytes=max_bytes)


async def test_a_store_that_fails_in_the_middle_is_read_on_at_the_next_look(bucket: Bucket) -> None:
    store = Failing(bucket)
    bucket.follower = follower_of(bucket.run, bucket.picture, bucket.telemetry, store)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="away"):
        await bucket.follower.look()
    assert not bucket.is_ready()
    assert bucket.telemetry.value(BUCKET_LOOKS) is None
    store.is_away = False
    await bucket.follower.look()
    assert bucket.is_ready()
    assert set(bucket.picture.partitions()) == set(bucket.run.partitions)


async def test_a_name_stands_for_the_topic_id_that_was_copied_to_last(bucket: Bucket) -> None:
    older = "AAAAAAAAAAAAAAAAAAAAAQ"
    for key in [key for key in await bucket.keys() if key.startswith(TRANSACTIONS)]:
        data = await bucket.run.store.fetch_object(key, max_bytes=2**30)
        if key.endswith("manifest"):
            document = json.loads(data)
            segment = document["remoteLogSegmentMetadata"]
            segment["eventTimestampMs"] -= 86_400_000
            segment["remoteLogSegmentId"]["topicIdPartition"]["topicId"] = older
            data = json.dumps(document).encode()
        await bucket.run.store.put_object(key.replace("EXGICqv_Q_6R0FmJX3Hk1g", older), BytesBody(data))
    await bucket.follower.look()
    living = bucket.run.partition("transactions-0")
    assert bucket.picture.topic("transactions") == {0: living}
    assert [name for name, _ in bucket.picture.shadowed] == ["transactions"]
    assert bucket.picture.name_of(living.topic_id) == "transactions"
    await bucket.run.store.delete_objects([key for key in await bucket.keys() if key.startswith(TRANSACTIONS)])
    await bucket.follower.look()
    assert bucket.picture.topic("transactions")[0].topic_id != living.topic_id
    assert bucket.picture.shadowed == ()


# -- looks at one place, by events


async def hidden(bucket: Bucket) -> dict[str, bytes]:
    """Take the objects of the last segment of transactions out of the bucket."""
    taken = {
        key: await bucket.run.store.fetch_object(key, max_bytes=2**30)
        for key in await bucket.keys()
        if key.startswith(LAST)
    }
    await bucket.run.store.delete_objects(list(taken))
    return taken


async def shown_again(bucket: Bucket, objects: dict[str, bytes]) -> None:
    for key, data in sorted(objects.items()):
        await bucket.run.store.put_object(key, BytesBody(data))


@pytest.mark.parametrize("start_offset", [133, None])
async def test_one_place_is_looked_at(bucket: Bucket, start_offset: int | None) -> None:
    objects = await hidden(bucket)
    await bucket.follower.look()
    before = len(bucket.segments("transactions-0"))
    partition = bucket.run.partition("transactions-0")
    there = await bucket.follower.look_at(partition, start_offset)
    assert len(bucket.segments("transactions-0")) == before
    await shown_again(bucket, objects)
    assert await bucket.follower.look_at(partition, start_offset) - there == {
        one.remote_log_segment_id.uuid for one in bucket.segments("transactions-0")[-1:]
    }
    assert len(bucket.segments("transactions-0")) == before + 1
    await bucket.follower.look_at(partition, start_offset)
    assert len(bucket.segments("transactions-0")) == before + 1, "and is there once"


async def test_a_segment_of_which_a_part_is_still_on_its_way_is_not_there(bucket: Bucket) -> None:
    """A bucket that is replicated gets its objects in any order."""
    objects = await hidden(bucket)
    await bucket.follower.look()
    partition = bucket.run.partition("transactions-0")
    await shown_again(bucket, {key: data for key, data in objects.items() if not key.endswith(".log")})
    assert await bucket.follower.look_at(partition, 133) == set()
    await shown_again(bucket, objects)
    assert len(await bucket.follower.look_at(partition, 133)) == 1
    assert bucket.segments("transactions-0")[-1].start_offset == 133


async def test_what_both_ways_find_is_there_once(bucket: Bucket) -> None:
    """An event comes while the listing reads the same manifest."""
    objects = await hidden(bucket)
    await bucket.follower.look()
    before = len(bucket.segments("transactions-0"))
    await shown_again(bucket, objects)
    fetch, partition = bucket.run.store.fetch_object, bucket.run.partition("transactions-0")

    async def fetching(key: str, *, max_bytes: int) -> bytes:
        bucket.run.store.fetch_object = fetch  # type: ignore[method-assign]
        await bucket.follower.look_at(partition, 133)
        return await fetch(key, max_bytes=max_bytes)

    bucket.run.store.fetch_object = fetching  # type: ignore[method-assign]
    look = await bucket.follower.look()
    assert (look.added, len(bucket.segments("transactions-0"))) == (0, before + 1)


async def test_what_comes_amid_a_listing_stays(bucket: Bucket) -> None:
    """The listing has passed its place by then, and would take it out for want of having seen it."""
    objects = await hidden(bucket)
    await bucket.follower.look()
    listing = bucket.run.store.list_objects
    partition = bucket.run.partition("transactions-0")

    async def passing(prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        async for stored in listing(prefix, start_after=start_after):
            yield stored
        if not prefix:
            await shown_again(bucket, objects)
            await bucket.follower.look_at(partition, 133)

    bucket.run.store.list_objects = passing  # type: ignore[method-assign]
    await bucket.follower.look()
    assert bucket.segments("transactions-0")[-1].start_offset == 133
    bucket.run.store.list_objects = listing  # type: ignore[method-assign]
    await hidden(bucket)
    await bucket.follower.look()
    assert bucket.segments("transactions-0")[-1].start_offset < 133, "gone is gone"
