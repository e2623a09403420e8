"""The bucket, partition by partition, and what its manifests say."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.support.golden import GOLDEN
from tests.support.manual_clock import ManualClock
from tests.support.metadata_events import FINISHED, added
from tests.support.remote_events import object_keys_in
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.decide.recover import BadManifest, Left, StoredObjects
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.index_blob import SegmentIndexes
from tiersidecar.formats.aiven.keys import planned_keys
from tiersidecar.formats.aiven.manifest import write_manifest
from tiersidecar.formats.aiven.transforms import TransformPlan
from tiersidecar.ports.store import BytesBody
from tiersidecar.reconcile.bucket_walk import BucketPartition, read_manifests, walk_bucket

PREFIX = "tiered/"
NONE = ByteRange(0, 0)
INDEXES = SegmentIndexes(offset=NONE, timestamp=NONE, producer_snapshot=NONE, leader_epoch=NONE, transaction=None)


def owner(topic: str, partition: int) -> TopicIdPartition:
    return TopicIdPartition(topic_id=Uuid(topic.encode().ljust(16, b"x")), topic=topic, partition=partition)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=ManualClock(), ids=SystemIds())


def manifest_of(segment: RemoteLogSegmentMetadata) -> bytes:
    chunks = TransformPlan(chunk_size=4096).fixed_chunk_index(segment.segment_size_in_bytes)
    assert chunks is not None
    return write_manifest(metadata=segment, chunk_index=chunks, indexes=INDEXES, compression=False)


async def put(store: MemoryStore, segment: RemoteLogSegmentMetadata, *, kinds: str = "lim") -> None:
    keys = planned_keys(segment, PREFIX)
    for kind, key, data in (
        ("l", keys.log, b"x"),
        ("i", keys.indexes, b""),
        ("m", keys.manifest, manifest_of(segment)),
    ):
        if kind in kinds:
            await store.put_object(key, BytesBody(data))


async def walked(store: MemoryStore, below: tuple[str, ...] = ("",)) -> list[BucketPartition]:
    return [one async for one in walk_bucket(store, PREFIX, below)]


async def test_each_partition_comes_once_with_its_segments(store: MemoryStore) -> None:
    for topic, partition in (("orders", 0), ("orders", 10), ("orders", 2), ("orders-late", 0)):
        for number in (1, 2):
            await put(store, added(number, 10 * number, 10 * number + 9, owner=owner(topic, partition)))
    found = await walked(store)
    assert sorted(one.owner for one in found) == sorted(
        [owner("orders", 0), owner("orders", 10), owner("orders", 2), owner("orders-late", 0)]
    )
    assert {tuple(sorted(objects.start_offset for objects in one.stored.values())) for one in found} == {(10, 20)}
    only = await walked(store, (f"{owner('orders', 0).qualified.partition('/')[0]}/",))
    assert {one.owner.topic for one in only} == {"orders"}


async def test_what_is_there_of_a_segment_is_said(store: MemoryStore) -> None:
    of = owner("orders", 0)
    await put(store, added(1, 0, 9, owner=of))
    await put(store, added(2, 10, 19, owner=of), kinds="li")
    await put(store, added(3, 20, 29, owner=of), kinds="m")
    for key in ("tiered/notes.txt", "tiered/.tiersidecar/owners/x.json", "elsewhere/x.log"):
        await store.put_object(key, BytesBody(b""))
    (found,) = await walked(store)
    now_ms = ManualClock().now_ms()
    expected = [
        StoredObjects(start_offset=0, has_log=True, has_indexes=True, has_manifest=True, modified_ms=now_ms),
        StoredObjects(start_offset=10, has_log=True, has_indexes=True),
        StoredObjects(start_offset=20, has_manifest=True, modified_ms=now_ms),
    ]
    assert sorted(found.stored.values(), key=lambda one: one.start_offset) == expected


async def read_all(store: MemoryStore) -> dict[Uuid, RemoteLogSegmentMetadata | BadManifest]:
    (partition,) = await walked(store)
    return await read_manifests(store, PREFIX, partition, partition.stored, asyncio.Semaphore(8))


async def test_a_manifest_has_all_but_custom_metadata(store: MemoryStore) -> None:
    segments = [
        replace(added(n, 10 * n, 10 * n + 9, {0: 10 * n, 5: 10 * n + 4}, owner=owner("orders", 0)), state=FINISHED)
        for n in range(1, 200)
    ]
    for segment in segments:
        await put(store, segment)
    found = await read_all(store)
    assert sorted(found.values(), key=lambda one: getattr(one, "start_offset", -1)) == segments


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:-9], Left.UNREADABLE),
        (lambda data: data.replace(b'"startOffset":10', b'"startOffset":11'), Left.WRONG_KEY),
        (lambda data: data.replace(b'"topic":"orders"', b'"topic":"others"'), Left.WRONG_KEY),
        (lambda data: data.replace(b'"endOffset":19', b'"endOffset":9'), Left.UNREADABLE),
        (lambda data: data.replace(b'"segmentLeaderEpochs":{"0":10}', b'"segmentLeaderEpochs":{}'), Left.UNREADABLE),
        (lambda data: data.replace(b'"endOffset":19', b'"endOffset":99999999999999999999'), Left.UNREADABLE),
        (lambda data: b" " * 10_000_000, Left.UNREADABLE),
    ],
    ids=["cut short", "another start", "another topic", "ends before it begins", "no epoch", "no offset", "too large"],
)
async def test_a_manifest_that_is_none_is_named(store: MemoryStore, change: object, reason: Left) -> None:
    segment = added(1, 10, 19, owner=owner("orders", 0))
    await put(store, segment)
    key = planned_keys(segment, PREFIX).manifest
    await store.put_object(key, BytesBody(change(manifest_of(segment))))  # type: ignore[operator]
    (found,) = (await read_all(store)).values()
    assert isinstance(found, BadManifest)
    assert (found.reason, key in found.detail) == (reason, True)


async def test_objects_that_the_plugin_wrote_are_read(store: MemoryStore) -> None:
    root = GOLDEN / "aiven-objects" / "compressed"
    for key in object_keys_in(root):
        await store.put_object(f"{PREFIX}{key}", BytesBody((root / key).read_bytes()))
    found = await walked(store)
    assert len(found) > 3
    for partition in found:
        manifests = await read_manifests(store, PREFIX, partition, partition.stored, asyncio.Semaphore(8))
        assert not [one for one in manifests.values() if isinstance(one, BadManifest)]
