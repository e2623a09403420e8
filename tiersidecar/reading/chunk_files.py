"""Chunks on the local disk: a layer between memory and store (U4, U23).

They are checked on each read.  Files are ``<topic id>-<partition>-<segment uuid>-<chunk>.chunk``, so that also of those that an
earlier process left it is known which segments they are of: what is deleted must not stay here (``gone_segments``).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence, Set
from contextlib import asynccontextmanager

from crc32c import crc32c

from tiersidecar.domain.ids import format_uuid, parse_uuid
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.metrics.reading import READ_CACHE_BYTES
from tiersidecar.ports.store import Buffer, Take
from tiersidecar.ports.telemetry import NoTelemetry, Telemetry
from tiersidecar.reading.chunk_manager import ChunkManager, rest_of_chunk
from tiersidecar.reading.disk_cache import DiskCache, DiskCacheSettings, keeping_tidy
from tiersidecar.reading.gone_segments import CachedSegment
from tiersidecar.reading.remote_objects import RemoteSegment

_SUFFIX = ".chunk"
_SEAL_BYTES = 4
_UUID = "[A-Za-z0-9_-]{22}"
_KEY = re.compile(rf"({_UUID})-([0-9]+)-({_UUID})-[0-9]+")


class ChunkFilesCache:
    """A ChunkManager: files of the original bytes, followed by their CRC32C (big endian)."""

    def __init__(
        self, inner: ChunkManager, cache: DiskCache, *, blocking: Blocking, telemetry: Telemetry | None = None
    ) -> None:
        self._inner = inner
        self._cache = cache
        self._blocking = blocking
        self._telemetry = telemetry or NoTelemetry()

    async def get_chunk(self, segment: RemoteSegment, index: int) -> Buffer:
        """Return the original bytes of chunk ``index``, whole."""
        key = _chunk_key(segment, index)
        kept = await self._cache.get(key)
        if kept is not None:
            unsealed = await self._blocking.run(_unsealed, kept[f"{key}{_SUFFIX}"])
            if unsealed is not None:
                self._telemetry.count(READ_CACHE_BYTES, len(unsealed), tier="disk")
                return unsealed
            self._cache.discard(key)
        chunk = await self._inner.get_chunk(segment, index)
        await self._cache.put(key, {f"{key}{_SUFFIX}": await self._blocking.run(_sealed, chunk)})
        return chunk

    async def get_part(self, segment: RemoteSegment, part: ByteRange) -> memoryview:
        """Return the original bytes from ``part.start`` on; parts are not kept."""
        if _chunk_key(segment, segment.chunk_index.chunk_at(part.start).index) in self._cache:
            return await rest_of_chunk(self, segment, part.start)
        return await self._inner.get_part(segment, part)

    def is_local(self, segment: RemoteSegment) -> bool:
        """Return False: this cache is only configured for a store that is slower than local files."""
        return False

    async def feed(self, segment: RemoteSegment, byte_range: ByteRange, take: Take) -> None:
        """Hand a range of the original bytes of a segment that :meth:`is_local` to ``take``, in the thread that reads them."""
        await self._inner.feed(segment, byte_range, take)

    def discard(self, segment: RemoteSegment, index: int) -> None:
        """Forget a chunk whose content a reader found broken, so that the next :meth:`get_chunk` fetches it anew."""
        self._cache.discard(_chunk_key(segment, index))
        self._inner.discard(segment, index)

    async def aclose(self) -> None:
        """Give up what is in flight."""
        await self._inner.aclose()


class ChunkFilesLayer:
    """The layer, and what it keeps: a ``ChunkCache``.  Opened by :func:`open_chunk_files_cache`."""

    def __init__(self, cache: DiskCache, *, blocking: Blocking, telemetry: Telemetry | None) -> None:
        self._cache, self._blocking, self._telemetry = cache, blocking, telemetry

    def __call__(self, inner: ChunkManager) -> ChunkManager:
        """Return a chunk manager that asks ``inner`` for what is not on the disk."""
        return ChunkFilesCache(inner, self._cache, blocking=self._blocking, telemetry=self._telemetry)

    async def segments(self) -> Set[CachedSegment]:
        """Return the segments of which there are chunks; found in a thread, for there may be hundreds of thousands."""
        return await self._blocking.run(_segments_of, self._cache.keys)

    async def drop(self, segments: Set[CachedSegment]) -> None:
        """Drop the chunks of these segments."""
        await self._cache.drop(await self._blocking.run(_keys_of, self._cache.keys, segments))


@asynccontextmanager
async def open_chunk_files_cache(
    settings: DiskCacheSettings, *, blocking: Blocking, clock: Clock, telemetry: Telemetry | None = None
) -> AsyncIterator[ChunkFilesLayer]:
    """Yield the layer, with the chunks that an earlier process left in its directory.

    Raises:
        OSError: the directory cannot be made or listed.
    """
    cache = DiskCache(settings, blocking=blocking, clock=clock)
    sizes = await cache.list_files()
    keys = (name.removesuffix(_SUFFIX) for name in sizes if name.endswith(_SUFFIX))
    await cache.rehydrate({key: (f"{key}{_SUFFIX}",) for key in keys if _segment_of(key) is not None}, sizes)
    async with keeping_tidy(cache):
        yield ChunkFilesLayer(cache, blocking=blocking, telemetry=telemetry)


def _chunk_key(segment: RemoteSegment, index: int) -> str:
    owner = segment.id.topic_id_partition
    return f"{format_uuid(owner.topic_id)}-{owner.partition}-{format_uuid(segment.id.uuid)}-{index}"


def _segments_of(keys: Sequence[str]) -> set[CachedSegment]:
    of_segments = {key.rpartition("-")[0]: key for key in keys}
    return {one for one in map(_segment_of, of_segments.values()) if one is not None}


def _keys_of(keys: Sequence[str], segments: Set[CachedSegment]) -> list[str]:
    prefixes = {f"{format_uuid(topic_id)}-{partition}-{format_uuid(uuid)}" for topic_id, partition, uuid in segments}
    return [key for key in keys if key.rpartition("-")[0] in prefixes]


def _segment_of(key: str) -> CachedSegment | None:
    """Return whose chunk has this key; None for what an earlier release has named."""
    found = _KEY.fullmatch(key)
    if found is None:
        return None
    topic_id, partition, uuid = found.groups()
    return parse_uuid(topic_id), int(partition), parse_uuid(uuid)


def _sealed(chunk: Buffer) -> bytes:
    return b"".join((chunk, crc32c(chunk).to_bytes(_SEAL_BYTES, "big")))


def _unsealed(data: bytes) -> bytes | None:
    """Return the chunk, or None if it is not what was written."""
    chunk, seal = data[:-_SEAL_BYTES], data[-_SEAL_BYTES:]
    return chunk if crc32c(chunk).to_bytes(_SEAL_BYTES, "big") == seal else None
