"""Opened remote segments: their keys, their chunk index, and the transform from stored to original bytes; and whether a
finished segment's objects are in the store."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from tiersidecar.domain.chunks import ChunkIndex
from tiersidecar.domain.data_keys import context_of
from tiersidecar.domain.errors import CorruptDataError, ObjectNotFoundError, ObjectTooLargeError
from tiersidecar.domain.ids import RemoteLogSegmentId
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.custom_metadata import read_custom_metadata
from tiersidecar.formats.aiven.key_ring import DataKeys
from tiersidecar.formats.aiven.keys import ObjectKeys, plugin_keys
from tiersidecar.formats.aiven.layout import reading_plan
from tiersidecar.formats.aiven.manifest import Manifest, read_manifest
from tiersidecar.formats.aiven.segment_bounds import (
    ANY_SEGMENT,
    MOST_CHUNK_BYTES,
    MOST_INDEX_BYTES,
    SegmentBounds,
    bounds_of,
)
from tiersidecar.formats.aiven.transforms import DEFAULT_CHUNK_SIZE, TransformPlan
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.store import FetchRange, Store, StoredObject
from tiersidecar.reading.key_threads import key_threads
from tiersidecar.reading.shared_fetches import FETCH_TIMEOUT_S, ByteLru, SingleFlight, fetch_within

_OBJECTS_OF_AN_ENTRY_BYTES = 4096
"""The size of the Python objects of one entry besides the manifest's own bytes: an estimate, for the bound."""
_OBJECTS_OF_A_CHUNK_BYTES = 48
"""A chunk's size and start as Python objects: the manifest may have one byte for it."""
_OBJECTS_OF_AN_EPOCH_BYTES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSegment:
    """A finished remote segment whose manifest has been read."""

    metadata: RemoteLogSegmentMetadata
    manifest: Manifest
    keys: ObjectKeys
    transform: TransformPlan

    @property
    def id(self) -> RemoteLogSegmentId:
        return self.metadata.remote_log_segment_id

    @property
    def chunk_index(self) -> ChunkIndex:
        return self.manifest.chunk_index

    @property
    def held_bytes(self) -> int:
        """Return about how many bytes keeping it takes, besides the manifest's own."""
        sizes, said = self.chunk_index.transformed_sizes, self.manifest.segment
        chunks = _OBJECTS_OF_A_CHUNK_BYTES * len(sizes or ())
        epochs = _OBJECTS_OF_AN_EPOCH_BYTES * len(said.segment_leader_epochs if said else ())
        return _OBJECTS_OF_AN_ENTRY_BYTES + chunks + epochs


def recorded_keys(metadata: RemoteLogSegmentMetadata, key_prefix: str = "") -> ObjectKeys:
    """Return the keys of the three objects: by the custom metadata as far as they say, else under ``key_prefix``.

    The manifest went up beside the others, so the recorded prefix counts for it too; the plugin looks for it under the
    configured one and loses it when that changes (DESIGN.md section 5).
    """
    recorded = read_custom_metadata(
        metadata.custom_metadata, where=f"custom metadata of {metadata.remote_log_segment_id}"
    )
    return plugin_keys(metadata, key_prefix if recorded.object_prefix is None else recorded.object_prefix)


class ManifestCache:
    """Open remote segments; keep what was opened, bounded by bytes."""

    def __init__(
        self,
        *,
        store: FetchRange,
        blocking: Blocking,
        key_prefix: str = "",
        key_ring: DataKeys | None = None,
        max_bytes: int = 32 * 1024 * 1024,
        timeout_s: float = FETCH_TIMEOUT_S,
        most_chunk_bytes: int = MOST_CHUNK_BYTES,
        most_index_bytes: int = MOST_INDEX_BYTES,
    ) -> None:
        self._store = store
        self._blocking = blocking
        self._key_prefix = key_prefix
        self._key_ring = key_ring
        self._timeout_s = timeout_s
        self._most_chunk_bytes, self._most_index_bytes = most_chunk_bytes, most_index_bytes
        self._opened: ByteLru[RemoteLogSegmentId, RemoteSegment] = ByteLru(max_bytes)
        self._flights: SingleFlight[RemoteLogSegmentId, RemoteSegment] = SingleFlight("manifest")

    async def open(self, metadata: RemoteLogSegmentMetadata) -> RemoteSegment:
        """Return the segment with its manifest.

        Raises:
            ObjectNotFoundError: there is no manifest under its key.
            CorruptDataError: it is no manifest, or one of another segment.
            DataKeyError: it is encrypted with a key that we do not have.
            KeyServiceError, KeyRefusedError: the key service is away, or refuses.
        """
        segment_id = metadata.remote_log_segment_id
        opened = self._opened.get(segment_id)
        return opened or await self._flights.run(segment_id, lambda: self._fetch(metadata))

    def forget(self, segment_id: RemoteLogSegmentId) -> None:
        """Drop one segment: it is gone, or its manifest does not fit what was read by it."""
        self._opened.discard(segment_id)

    async def aclose(self) -> None:
        """Give up what is in flight."""
        await self._flights.aclose()

    async def _fetch(self, metadata: RemoteLogSegmentMetadata) -> RemoteSegment:
        keys = recorded_keys(metadata, self._key_prefix)
        bounds = bounds_of(metadata, most_chunk_bytes=self._most_chunk_bytes, most_index_bytes=self._most_index_bytes)
        fetch = fetch_manifest(self._store, keys.manifest, bounds)
        data = await fetch_within(self._timeout_s, keys.manifest, fetch)
        manifest = await self._blocking.run(partial(read_manifest, where=keys.manifest, bounds=bounds), data)
        context = context_of(metadata.remote_log_segment_id)
        # Unwrapping the data key is RSA, a millisecond that the loop should not spend; or a question.
        said = manifest.encryption
        threads = (
            self._blocking if said is None else key_threads(self._blocking, self._key_ring, said.data_key, context)
        )
        transform = await threads.run(reading_plan, manifest, self._key_ring, context)
        manifest = _in_readable_chunks(manifest, transform, bounds, keys.manifest)
        segment = RemoteSegment(metadata=metadata, manifest=manifest, keys=keys, transform=transform)
        self._opened.put(segment.id, segment, len(data) + segment.held_bytes)
        return segment


async def fetch_manifest(store: FetchRange, key: str, bounds: SegmentBounds) -> bytes:
    """Return the object under ``key``, if it is not larger than a manifest of the segment can be.

    Raises:
        CorruptDataError: it is larger.
        ObjectNotFoundError: there is none.
    """
    try:
        return await store.fetch_object(key, max_bytes=bounds.manifest_bytes)
    except ObjectTooLargeError as error:
        raise CorruptDataError(where=key, position=0, reason=error.reason) from error


def _in_readable_chunks(manifest: Manifest, transform: TransformPlan, bounds: SegmentBounds, where: str) -> Manifest:
    """Return the manifest with chunks that fit in memory: a .log that was not transformed may be cut anywhere.

    Raises:
        CorruptDataError: chunks larger than may be opened.
    """
    index = manifest.chunk_index
    if min(index.original_chunk_size, index.original_file_size) <= bounds.most_chunk_bytes:
        return manifest
    if not transform.is_identity:
        reason = (
            f"its chunks have {index.original_chunk_size} bytes, and none of more than {bounds.most_chunk_bytes} is opened:"
            " chunk.size must be as large as what the segment was written with"
        )
        raise CorruptDataError(where=where, position=0, reason=reason)
    cut = TransformPlan(chunk_size=DEFAULT_CHUNK_SIZE).fixed_chunk_index(index.original_file_size)
    return replace(manifest, chunk_index=cut or index)


class SegmentPresence:
    """Report whether objects are in the store; raise StoreError while the store is away, since unknown is not absent."""

    def __init__(self, store: Store, key_prefix: str) -> None:
        self._store, self._key_prefix = store, key_prefix

    async def is_whole(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """Return whether its manifest can be read, is of this segment, and the other two objects have the sizes it says.  A
        segment with another plugin's custom metadata is not whole: nothing says where its objects are."""
        try:
            keys = recorded_keys(metadata, self._key_prefix)
        except CorruptDataError:
            return False
        manifest, _ = await self.read_manifest(keys.manifest, bounds_of(metadata))
        if manifest is None or not _is_of(manifest, metadata):
            return False
        log, indexes = await self.head(keys.log), await self.head(keys.indexes)
        return (
            log is not None
            and indexes is not None
            and log.size_bytes == manifest.chunk_index.transformed_size
            and indexes.size_bytes == manifest.indexes.size_bytes
        )

    async def read_manifest(self, key: str, bounds: SegmentBounds = ANY_SEGMENT) -> tuple[Manifest | None, str]:
        """Return the manifest, and what is wrong with the object: neither where there is no object."""
        try:
            return read_manifest(await fetch_manifest(self._store, key, bounds), where=key, bounds=bounds), ""
        except ObjectNotFoundError:
            return None, ""
        except CorruptDataError as error:
            return None, f"the manifest cannot be read: {error}"

    async def head(self, key: str) -> StoredObject | None:
        """Return the stored object; None where there is none."""
        try:
            return await self._store.head_object(key)
        except ObjectNotFoundError:
            return None


def _is_of(manifest: Manifest, metadata: RemoteLogSegmentMetadata) -> bool:
    """Return whether the manifest's own statements agree with the metadata; the plugin's oldest ones make none."""
    said = manifest.segment
    if manifest.chunk_index.original_file_size != metadata.segment_size_in_bytes:
        return False
    return said is None or (
        said.remote_log_segment_id == metadata.remote_log_segment_id
        and (said.start_offset, said.end_offset) == (metadata.start_offset, metadata.end_offset)
        and said.segment_leader_epochs == metadata.segment_leader_epochs
    )
