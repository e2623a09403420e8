"""Index files on the local disk, named and treated as Kafka's RemoteIndexCache does (S-121, S-123 to S-132; U23).

``<start offset>_<segment uuid>.index``, ``.timeindex``, ``.txnindex``, in one directory; and beside them ``.crc32c``, because
indexes have no checksum of their own: the CRC32C of the three one after the other, big endian.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from crc32c import crc32c

from tiersidecar.domain.ids import RemoteLogSegmentId, format_uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.reading.disk_cache import DiskCache, DiskCacheSettings, keeping_tidy
from tiersidecar.reading.index_blobs import IndexFiles
from tiersidecar.reading.index_cache import IndexFilesSource

_SUFFIXES = (".index", ".timeindex", ".txnindex", ".crc32c")


class IndexFilesCache:
    """An :class:`IndexFilesSource` in front of another one.  Opened by :func:`open_index_files_cache`."""

    def __init__(self, inner: IndexFilesSource, cache: DiskCache) -> None:
        self._inner = inner
        self._cache = cache

    async def read_index_files(self, metadata: RemoteLogSegmentMetadata) -> IndexFiles:
        """See :class:`IndexFilesSource`."""
        names = _names(metadata)
        kept = await self._cache.get(_key(metadata.remote_log_segment_id))
        if kept is not None:
            *contents, seal = (kept[name] for name in names)
            if _seal(contents) == seal:
                offset_index, time_index, transaction_index = contents
                return IndexFiles(offset_index=offset_index, time_index=time_index, transaction_index=transaction_index)
        files = await self._inner.read_index_files(metadata)
        contents = [files.offset_index, files.time_index, files.transaction_index]
        sealed = dict(zip(names, [*contents, _seal(contents)], strict=True))
        await self._cache.put(_key(metadata.remote_log_segment_id), sealed)
        return files

    def discard(self, segment_id: RemoteLogSegmentId) -> None:
        """See :class:`IndexFilesSource`."""
        self._cache.discard(_key(segment_id))
        self._inner.discard(segment_id)


@asynccontextmanager
async def open_index_files_cache(
    inner: IndexFilesSource, settings: DiskCacheSettings, *, blocking: Blocking, clock: Clock
) -> AsyncIterator[IndexFilesCache]:
    """The cache, with what an earlier process left in its directory: complete sets only, the rest is removed.

    Raises:
        OSError: the directory cannot be made or listed.
    """
    cache = DiskCache(settings, blocking=blocking, clock=clock)
    sizes = await cache.list_files()
    stems = [name.removesuffix(_SUFFIXES[0]) for name in sizes if name.endswith(_SUFFIXES[0])]
    groups = {stem: tuple(f"{stem}{suffix}" for suffix in _SUFFIXES) for stem in stems}
    whole = {stem: names for stem, names in groups.items() if all(name in sizes for name in names)}
    await cache.rehydrate({stem.partition("_")[2]: names for stem, names in whole.items()}, sizes)
    async with keeping_tidy(cache):
        yield IndexFilesCache(inner, cache)


def _seal(contents: Sequence[bytes]) -> bytes:
    return crc32c(b"".join(contents)).to_bytes(4, "big")


def _key(segment_id: RemoteLogSegmentId) -> str:
    return format_uuid(segment_id.uuid)


def _names(metadata: RemoteLogSegmentMetadata) -> tuple[str, ...]:
    stem = f"{metadata.start_offset}_{format_uuid(metadata.remote_log_segment_id.uuid)}"
    return tuple(f"{stem}{suffix}" for suffix in _SUFFIXES)
