"""The store's objects, partition by partition, as one ordered listing gives them: what is kept is one partition at a time.

Keys ascend, so that the objects of a segment are neighbours, and so are the segments of a partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace

from tiersidecar.decide.recover import BadManifest, Left, StoredObjects
from tiersidecar.domain.errors import CorruptDataError, ObjectNotFoundError, ObjectTooLargeError
from tiersidecar.domain.ids import DEFAULT_PLACE, BrokerId, TopicIdPartition, Uuid, format_uuid, place_prefix
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.aiven.index_blob import ANY_SEGMENT
from tiersidecar.formats.aiven.keys import (
    CustomMetadata,
    ObjectKind,
    main_path,
    parse_object_key,
    write_custom_metadata,
)
from tiersidecar.formats.aiven.manifest import Manifest, read_manifest
from tiersidecar.ports.store import FetchRange, ListObjects, StoredObject

MANIFESTS_AT_ONCE = 64
_LARGEST_OFFSET = 2**63 - 1
_LARGEST_SIZE = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPartition:
    """The segments of one partition that have objects, by their ids."""

    owner: TopicIdPartition
    stored: Mapping[Uuid, StoredObjects] = field(default_factory=dict)


class _Row:
    """A segment while its objects are listed."""

    __slots__ = ("kinds", "modified_ms", "place", "start_offset")

    def __init__(self, start_offset: int, place: str) -> None:
        self.start_offset, self.place, self.kinds, self.modified_ms = start_offset, place, set[str](), -1

    def freeze(self) -> StoredObjects:
        return StoredObjects(
            start_offset=self.start_offset,
            has_log=ObjectKind.LOG in self.kinds,
            has_indexes=ObjectKind.INDEXES in self.kinds,
            has_manifest=ObjectKind.MANIFEST in self.kinds,
            modified_ms=self.modified_ms,
            place=self.place,
        )


async def walk_places(
    store: ListObjects, key_prefix: str, places: Iterable[str], below: Sequence[str] = ("",)
) -> AsyncIterator[BucketPartition]:
    """Yield as :func:`walk_bucket` does, each partition once, with what lies of it in the default place or any of ``places``;
    ``below`` ascends.  Of a segment that is in several places the first whole one counts.

    Raises:
        StoreError: one could not be listed to the end.
    """
    async with AsyncExitStack() as stack:
        walks = [
            await stack.enter_async_context(aclosing(walk_bucket(store, key_prefix, below, place)))
            for place in (DEFAULT_PLACE, *places)
        ]
        heads = [await anext(walk, None) for walk in walks]
        while there := [head for head in heads if head is not None]:
            owner = min((head.owner for head in there), key=_order_of_keys)
            yield _in_one(owner, [head for head in there if head.owner == owner])
            for number, head in enumerate(heads):
                if head is not None and head.owner == owner:
                    heads[number] = await anext(walks[number], None)


def _order_of_keys(owner: TopicIdPartition) -> str:
    return f"{owner.qualified}/"


def _in_one(owner: TopicIdPartition, several: Sequence[BucketPartition]) -> BucketPartition:
    stored: dict[Uuid, StoredObjects] = {}
    for partition in several:
        for uuid, objects in partition.stored.items():
            if uuid not in stored or (objects.is_whole and not stored[uuid].is_whole):
                stored[uuid] = objects
    return BucketPartition(owner=owner, stored=stored)


async def walk_bucket(
    store: ListObjects, key_prefix: str, below: Sequence[str] = ("",), place: str = DEFAULT_PLACE
) -> AsyncGenerator[BucketPartition, None]:
    """Yield each partition that has objects under ``key_prefix``, or under that of ``place``, or only those whose key goes on
    with one of ``below``.

    Objects that are not of the layout are passed over.

    Raises:
        StoreError: it could not be listed to the end.
    """
    owner: TopicIdPartition | None = None
    rows: dict[Uuid, _Row] = {}
    stem, row = "", None
    key_prefix = place_prefix(place) or key_prefix
    for start in below:
        async for stored in store.list_objects(f"{key_prefix}{start}"):
            head, _, suffix = stored.key.rpartition(".")
            if head != stem or row is None:
                parsed = parse_object_key(stored.key, key_prefix)
                if parsed is None or parsed.start_offset > _LARGEST_OFFSET:
                    continue
                found = parsed.segment_id.topic_id_partition
                if found != owner:
                    if owner is not None:
                        yield _frozen(owner, rows)
                    owner, rows = found, {}
                stem = head
                row = rows.setdefault(parsed.segment_id.uuid, _Row(parsed.start_offset, place))
            _note(row, stored, suffix)
    if owner is not None:
        yield _frozen(owner, rows)


def _note(row: _Row, stored: StoredObject, suffix: str) -> None:
    row.kinds.add(suffix)
    if suffix == ObjectKind.MANIFEST:
        row.modified_ms = stored.modified_ms


def _frozen(owner: TopicIdPartition, rows: Mapping[Uuid, _Row]) -> BucketPartition:
    return BucketPartition(owner=owner, stored={uuid: row.freeze() for uuid, row in rows.items()})


def manifest_key(key_prefix: str, owner: TopicIdPartition, uuid: Uuid, start_offset: int) -> str:
    """Return the key of a segment's manifest."""
    place = f"{owner.qualified}/{start_offset:020d}-{format_uuid(uuid)}"
    return f"{key_prefix}{place}.{ObjectKind.MANIFEST}"


async def read_manifests(
    store: FetchRange,
    key_prefix: str,
    partition: BucketPartition,
    wanted: Iterable[Uuid],
    turn: asyncio.Semaphore,
) -> dict[Uuid, RemoteLogSegmentMetadata | BadManifest]:
    """Read the manifests of ``wanted``, as many at once as ``turn`` lets through; what they describe names its place.

    Raises:
        StoreError: the store is away.
    """
    found: dict[Uuid, RemoteLogSegmentMetadata | BadManifest] = {}
    left = iter(wanted)

    async def read_some() -> None:
        for uuid in left:  # shared: each takes the next one
            async with turn:
                found[uuid] = await _read_one(store, key_prefix, partition, uuid)

    try:
        async with asyncio.TaskGroup() as reading:
            for _ in range(MANIFESTS_AT_ONCE):
                reading.create_task(read_some())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return found


async def _read_one(
    store: FetchRange, key_prefix: str, partition: BucketPartition, uuid: Uuid
) -> RemoteLogSegmentMetadata | BadManifest:
    start_offset, place = partition.stored[uuid].start_offset, partition.stored[uuid].place
    key_prefix = place_prefix(place) or key_prefix
    key = manifest_key(key_prefix, partition.owner, uuid, start_offset)
    try:
        data = await store.fetch_object(key, max_bytes=ANY_SEGMENT.manifest_bytes)
        segment = segment_of_manifest(read_manifest(data, where=key), key, key_prefix)
        if not place or isinstance(segment, BadManifest):
            return segment
        return replace(segment, custom_metadata=write_custom_metadata(CustomMetadata(place=place)))
    except (CorruptDataError, ObjectTooLargeError) as error:
        return BadManifest(reason=Left.UNREADABLE, detail=str(error))
    except ObjectNotFoundError:
        return BadManifest(reason=Left.PARTIAL, detail=f"{key} went while it was read")


def segment_of_manifest(manifest: Manifest, key: str, key_prefix: str) -> RemoteLogSegmentMetadata | BadManifest:
    """Return the finished segment that ``manifest``, found under ``key``, describes.

    It has all that its events had but custom metadata, which are None, and the time of COPY_SEGMENT_FINISHED, for which that of
    COPY_SEGMENT_STARTED stands.
    """
    said = manifest.segment
    if said is None:
        return BadManifest(reason=Left.UNREADABLE, detail=f"{key} does not say whose it is")
    named = f"{key_prefix}{main_path(said.remote_log_segment_id, said.start_offset)}.{ObjectKind.MANIFEST}"
    if named != key:
        return BadManifest(reason=Left.WRONG_KEY, detail=f"the object at {key} is the manifest of {named}")
    size = manifest.chunk_index.original_file_size
    if not 0 <= size <= _LARGEST_SIZE or said.end_offset > _LARGEST_OFFSET:
        return BadManifest(reason=Left.UNREADABLE, detail=f"{key}: a size or an offset that no event can have")
    try:
        return RemoteLogSegmentMetadata(
            remote_log_segment_id=said.remote_log_segment_id,
            start_offset=said.start_offset,
            end_offset=said.end_offset,
            max_timestamp_ms=said.max_timestamp_ms,
            broker_id=BrokerId(said.broker_id),
            event_timestamp_ms=said.event_timestamp_ms,
            segment_size_in_bytes=size,
            segment_leader_epochs=said.segment_leader_epochs,
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            txn_index_empty=bool(said.txn_index_empty),
        )
    except ValueError as error:
        return BadManifest(reason=Left.UNREADABLE, detail=f"{key}: {error}")
