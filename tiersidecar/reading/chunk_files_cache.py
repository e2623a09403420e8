"""Chunks on the local disk, checked on each read: a layer between memory and store (U4, U22)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from crc32c import crc32c

from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.metrics.reading import READ_CACHE_BYTES
from tiersidecar.ports.store import Buffer
from tiersidecar.ports.telemetry import NoTelemetry, Telemetry
from tiersidecar.reading.chunk_manager import ChunkLayer, ChunkManager, rest_of_chunk
from tiersidecar.reading.disk_cache import DiskCache, DiskCacheSettings, keeping_tidy
from tiersidecar.reading.manifests import RemoteSegment

_SUFFIX = ".chunk"
_SEAL_BYTES = 4


class ChunkFilesCache:
    """A ChunkManager: files ``<segment uuid>-<chunk>.chunk`` of the original bytes, followed by their CRC32C (big endian)."""

    def __init__(
        self, inner: ChunkManager, cache: DiskCache, *, blocking: Blocking, telemetry: Telemetry | None = None
    ) -> None:
        self._inner = inner
        self._cache = cache
        self._blocking = blocking
        self._telemetry = telemetry or NoTelemetry()

    async def get_chunk(self, segment: RemoteSegment, index: int) -> Buffer:
        """See :class:`ChunkManager`."""
        key = _key(segment, index)
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
        """See :class:`ChunkManager`; parts are not kept."""
        if _key(segment, segment.chunk_index.chunk_at(part.start).index) in self._cache:
            return await rest_of_chunk(self, segment, part.start)
        return await self._inner.get_part(segment, part)

    def is_local(self, segment: RemoteSegment) -> bool:
        """See :class:`ChunkManager`; who has these files made has a store that is slower than they are."""
        return False

    async def feed(self, segment: RemoteSegment, byte_range: ByteRange, take: Callable[[memoryview], bool]) -> None:
        """See :class:`ChunkManager`."""
        await self._inner.feed(segment, byte_range, take)

    def discard(self, segment: RemoteSegment, index: int) -> None:
        """See :class:`ChunkManager`."""
        self._cache.discard(_key(segment, index))
        self._inner.discard(segment, index)

    async def aclose(self) -> None:
        """See :class:`ChunkManager`."""
        await self._inner.aclose()


@asynccontextmanager
async def open_chunk_files_cache(
    settings: DiskCacheSettings, *, blocking: Blocking, clock: Clock, telemetry: Telemetry | None = None
) -> AsyncIterator[ChunkLayer]:
    """The layer, with the chunks that an earlier process left in its directory.

    Raises:
        OSError: the directory cannot be made or listed.
    """
    cache = DiskCache(settings, blocking=blocking, clock=clock)
    sizes = await cache.list_files()
    chunks = {name.removesuffix(_SUFFIX): (name,) for name in sizes if name.endswith(_SUFFIX)}
    await cache.rehydrate(chunks, sizes)
    async with keeping_tidy(cache):
        yield lambda inner: ChunkFilesCache(inner, cache, blocking=blocking, telemetry=telemetry)


def _key(segment: RemoteSegment, index: int) -> str:
    return f"{format_uuid(segment.id.uuid)}-{index}"


def _sealed(chunk: Buffer) -> bytes:
    return b"".join((chunk, crc32c(chunk).to_bytes(_SEAL_BYTES, "big")))


def _unsealed(data: bytes) -> bytes | None:
    """The chunk, or None if it is not what was written."""
    chunk, seal = data[:-_SEAL_BYTES], data[-_SEAL_BYTES:]
    return chunk if crc32c(chunk).to_bytes(_SEAL_BYTES, "big") == seal else None
