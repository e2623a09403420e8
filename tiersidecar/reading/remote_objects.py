"""Objects of remote segments: their keys, their chunk index, and the transform from stored to original bytes; and whether those
of a finished segment are in the store.

What several readers want at once is fetched once, within a time limit, and kept up to a bound in bytes (U2).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from tiersidecar.domain.data_keys import context_of
from tiersidecar.domain.errors import (
    CorruptDataError,
    ObjectNotFoundError,
    ObjectTooLargeError,
    QuotaExceededError,
    StoreError,
)
from tiersidecar.domain.ids import RemoteLogSegmentId, is_like_placed, place_of, place_prefix
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.index_blob import (
    ANY_SEGMENT,
    MOST_CHUNK_BYTES,
    MOST_INDEX_BYTES,
    SegmentBounds,
    bounds_of,
)
from tiersidecar.formats.aiven.key_ring import DataKeys
from tiersidecar.formats.aiven.keys import ObjectKeys, planned_keys, plugin_keys, read_custom_metadata
from tiersidecar.formats.aiven.manifest import Manifest, read_manifest, reading_plan
from tiersidecar.formats.aiven.transforms import DEFAULT_CHUNK_SIZE, ChunkIndex, TransformPlan
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.key_wrapping import key_threads
from tiersidecar.ports.store import FetchRange, Store, StoredObject

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Run at most one task per key.

    A caller that is cancelled stops waiting; the work goes on to its end, so that what it puts into a cache is there
    for the retry.  At most ``max_flights`` run, because callers that give up early would otherwise pile them up.
    """

    def __init__(self, name: str, *, max_flights: int = 256, retry_after_ms: int = 1000) -> None:
        self._name = name
        self._max_flights = max_flights
        self._retry_after_ms = retry_after_ms
        self._flights: dict[K, asyncio.Task[V]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def has(self, key: K) -> bool:
        """Return whether work for ``key`` is in flight."""
        return key in self._flights

    async def run(self, key: K, work: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Return the result of the work in flight for ``key``, else of ``work``.

        Raises:
            QuotaExceededError: too much is in flight already.
        """
        return await asyncio.shield(self._flights.get(key) or self._start(key, work))

    async def aclose(self) -> None:
        """Cancel what is in flight and wait until it has ended."""
        flights = list(self._flights.values())
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)

    def _start(self, key: K, work: Callable[[], Coroutine[Any, Any, V]]) -> asyncio.Task[V]:
        if len(self._flights) >= self._max_flights:
            raise QuotaExceededError(what=f"{self._name} in flight", retry_after_ms=self._retry_after_ms)
        flight = asyncio.create_task(work(), name=f"{self._name} {key}")
        self._flights[key] = flight
        flight.add_done_callback(partial(self._land, key))
        return flight

    def _land(self, key: K, flight: asyncio.Task[V]) -> None:
        del self._flights[key]
        if not flight.cancelled():
            # Every caller may have left: reading the error here keeps asyncio from reporting it as never retrieved.
            flight.exception()


class ByteLru(Generic[K, V]):
    """A map that drops its least recently used values once the sizes add up to more than ``max_bytes``.

    A value larger than the whole bound is not kept: it would drive out everything and then itself.  A dropped value that
    a reader still holds stays alive for that reader alone, so nothing in use is torn away (S-131, U22).
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of what is kept."""
        return self._size_bytes

    def get(self, key: K) -> V | None:
        """Return the value, which becomes the most recently used one; None when it is not kept."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, size_bytes: int) -> list[tuple[K, V]]:
        """Keep ``value``, in place of an earlier one; return what had to go for it, oldest first."""
        self.discard(key)
        if size_bytes > self._max_bytes:
            return [(key, value)]
        self._entries[key] = (value, size_bytes)
        self._size_bytes += size_bytes
        return self._shrink()

    def discard(self, key: K) -> V | None:
        """Drop one value, if it is kept; return it."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._size_bytes -= entry[1]
        return entry[0]

    def oldest(self) -> tuple[K, V] | None:
        """Return the least recently used one; None when nothing is kept."""
        for key, (value, _) in self._entries.items():
            return key, value
        return None

    def keys(self) -> list[K]:
        """Return the keys from the least to the most recently used."""
        return list(self._entries)

    def _shrink(self) -> list[tuple[K, V]]:
        dropped = []
        while self._size_bytes > self._max_bytes:
            key, (value, size_bytes) = self._entries.popitem(last=False)
            self._size_bytes -= size_bytes
            dropped.append((key, value))
        return dropped


FETCH_TIMEOUT_S = 60.0

T = TypeVar("T")


async def fetch_within(timeout_s: float, key: str, fetch: Awaitable[T]) -> T:
    """Return what ``fetch``, of the object ``key``, gives.

    Raises:
        StoreError: not within ``timeout_s``; and as ``fetch`` does.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await fetch
    except TimeoutError as error:
        raise StoreError(verb="fetch", key=key, reason=f"it did not come within {timeout_s} s") from error


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
    configured one and loses it when that changes.  Those of a segment in another place than the default
    one begin with the place (:func:`~tiersidecar.domain.ids.place_prefix`), and have no other path than ours.

    Raises:
        CorruptDataError: custom metadata that cannot be read; or a recorded prefix or path that looks like a place, which no
            field names: whose the objects there are was asked in another place.
    """
    where = f"custom metadata of {metadata.remote_log_segment_id}"
    recorded = read_custom_metadata(metadata.custom_metadata, where=where)
    if recorded.place:
        return planned_keys(metadata, place_prefix(recorded.place))
    keys = plugin_keys(metadata, key_prefix if recorded.object_prefix is None else recorded.object_prefix)
    for key in (keys.log, keys.manifest):
        if place_of(key) and not (is_like_placed(key_prefix) and key.startswith(key_prefix)):
            raise CorruptDataError(where=where, position=0, reason="a prefix that looks like a place")
    return keys


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
        transform = await self._reading_plan(manifest, metadata.remote_log_segment_id)
        manifest = _in_readable_chunks(manifest, transform, bounds, keys.manifest)
        segment = RemoteSegment(metadata=metadata, manifest=manifest, keys=keys, transform=transform)
        self._opened.put(segment.id, segment, len(data) + segment.held_bytes)
        return segment

    async def _reading_plan(self, manifest: Manifest, segment_id: RemoteLogSegmentId) -> TransformPlan:
        if manifest.encryption is None:
            return reading_plan(manifest, None)
        context = context_of(segment_id)
        # Unwrapping the data key is RSA, a millisecond that the loop should not spend; or a question.
        threads = key_threads(self._blocking, self._key_ring, manifest.encryption.data_key, context)
        return await threads.run(reading_plan, manifest, self._key_ring, context)


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
