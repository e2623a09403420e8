"""The store's objects, partition by partition, as one ordered listing gives them: what is kept is one partition at a time.

Keys ascend, so that the objects of a segment are neighbours, and so are the segments of a partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tiersidecar.decide.recover import BadManifest, Left, StoredObjects
from tiersidecar.domain.errors import CorruptDataError, ObjectNotFoundError, ObjectTooLargeError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.aiven.index_blob import ANY_SEGMENT
from tiersidecar.formats.aiven.keys import ObjectKind, main_path, parse_object_key
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

    __slots__ = ("kinds", "modified_ms", "start_offset")

    def __init__(self, start_offset: int) -> None:
        self.start_offset, self.kinds, self.modified_ms = start_offset, set[str](), -1

    def freeze(self) -> StoredObjects:
        return StoredObjects(
            start_offset=self.start_offset,
            has_log=ObjectKind.LOG in self.kinds,
            has_indexes=ObjectKind.INDEXES in self.kinds,
            has_manifest=ObjectKind.MANIFEST in self.kinds,
            modified_ms=self.modified_ms,
        )


async def walk_bucket(
    store: ListObjects, key_prefix: str, below: Sequence[str] = ("",)
) -> AsyncIterator[BucketPartition]:
    """Yield each partition that has objects under ``key_prefix``, or only those whose key goes on with one of ``below``.

    Objects that are not of the layout are passed over.

    Raises:
        StoreError: it could not be listed to the end.
    """
    owner: TopicIdPartition | None = None
    rows: dict[Uuid, _Row] = {}
    stem, row = "", None
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
                row = rows.setdefault(parsed.segment_id.uuid, _Row(parsed.start_offset))
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
    """Read the manifests of ``wanted``, as many at once as ``turn`` lets through.

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
    start_offset = partition.stored[uuid].start_offset
    key = manifest_key(key_prefix, partition.owner, uuid, start_offset)
    try:
        data = await store.fetch_object(key, max_bytes=ANY_SEGMENT.manifest_bytes)
        return segment_of_manifest(read_manifest(data, where=key), key, key_prefix)
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
