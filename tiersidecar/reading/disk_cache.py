"""A cache of groups of small files on the local disk: of index files here, of chunks in ``chunk_files`` (S-121, S-123 to S-132;
U4, U22, U23).

Files are written whole or not at all, and go only when no reader can still have them.  ``<name>.tmp`` becomes ``<name>`` by a
rename; what is dropped becomes ``<name>.deleted`` and is removed a while later (Kafka's RemoteIndexCache; S-127, S-129, S-130).
A reader that has a file open keeps it whatever becomes of its name.  All methods of the directory block: call them off the
loop.

Index files are named as Kafka's: ``<start offset>_<segment uuid>.index``, ``.timeindex``, ``.txnindex``; and beside them
``.crc32c``, because indexes have no checksum of their own: the CRC32C of the three one after the other, big endian.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from crc32c import crc32c

from tiersidecar.domain.ids import RemoteLogSegmentId, format_uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.reading.index_blobs import IndexFiles, IndexFilesSource

_SUFFIXES = (".index", ".timeindex", ".txnindex", ".crc32c")


class IndexFilesCache:
    """An :class:`IndexFilesSource` in front of another one.  Opened by :func:`open_index_files_cache`."""

    def __init__(self, inner: IndexFilesSource, cache: DiskCache) -> None:
        self._inner = inner
        self._cache = cache

    async def read_index_files(self, metadata: RemoteLogSegmentMetadata) -> IndexFiles:
        """Return the offset, time and transaction index of a remote segment."""
        names = _names(metadata)
        kept = await self._cache.get(_index_key(metadata.remote_log_segment_id))
        if kept is not None:
            *contents, seal = (kept[name] for name in names)
            if _seal(contents) == seal:
                offset_index, time_index, transaction_index = contents
                return IndexFiles(offset_index=offset_index, time_index=time_index, transaction_index=transaction_index)
        files = await self._inner.read_index_files(metadata)
        contents = [files.offset_index, files.time_index, files.transaction_index]
        sealed = dict(zip(names, [*contents, _seal(contents)], strict=True))
        await self._cache.put(_index_key(metadata.remote_log_segment_id), sealed)
        return files

    def discard(self, segment_id: RemoteLogSegmentId) -> None:
        """Forget files whose content failed its checks, so that the next read fetches them anew (U23)."""
        self._cache.discard(_index_key(segment_id))
        self._inner.discard(segment_id)


@asynccontextmanager
async def open_index_files_cache(
    inner: IndexFilesSource, settings: DiskCacheSettings, *, blocking: Blocking, clock: Clock
) -> AsyncIterator[IndexFilesCache]:
    """Yield the cache, with what an earlier process left in its directory: complete sets only, the rest is removed.

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


def _index_key(segment_id: RemoteLogSegmentId) -> str:
    return format_uuid(segment_id.uuid)


def _names(metadata: RemoteLogSegmentMetadata) -> tuple[str, ...]:
    stem = f"{metadata.start_offset}_{format_uuid(metadata.remote_log_segment_id.uuid)}"
    return tuple(f"{stem}{suffix}" for suffix in _SUFFIXES)


TEMPORARY_SUFFIX = ".tmp"
DELETED_SUFFIX = ".deleted"


class CacheDirectory:
    """One directory of our own.  Nothing in it is worth an fsync: checks find what a crash has torn, and it is dropped."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def open(self) -> dict[str, int]:
        """Make the directory, remove what an earlier process left unfinished, and list the files with their sizes, the
        least recently used first."""
        # Caches hold records in the clear, also of encrypted segments.
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found: list[tuple[int, str, int]] = []
        for path in self._path.iterdir():
            if path.suffix in {TEMPORARY_SUFFIX, DELETED_SUFFIX}:
                path.unlink(missing_ok=True)
            elif path.is_file():
                stat = path.stat()
                found.append((stat.st_mtime_ns, path.name, stat.st_size))
        return {name: size for _, name, size in sorted(found)}

    def read(self, names: Iterable[str]) -> dict[str, bytes] | None:
        """Return all of these files, or None if one is missing."""
        try:
            return {name: (self._path / name).read_bytes() for name in names}
        except FileNotFoundError:
            return None

    def write(self, files: Mapping[str, bytes]) -> None:
        """Put files in place, one after the other, each whole.

        Raises:
            OSError: the disk is full, say; what is half written is removed.
        """
        for name, data in files.items():
            temporary = self._path / f"{name}{TEMPORARY_SUFFIX}"
            try:
                temporary.write_bytes(data)
                temporary.replace(self._path / name)
            except OSError:
                with suppress(OSError):
                    temporary.unlink()
                raise

    def mark_deleted(self, names: Iterable[str]) -> None:
        """Take files out of the cache; :meth:`remove_marked` removes them."""
        for name in names:
            with suppress(FileNotFoundError):
                (self._path / name).rename(self._path / f"{name}{DELETED_SUFFIX}")

    def remove_marked(self, names: Iterable[str]) -> None:
        """Remove what :meth:`mark_deleted` has marked."""
        for name in names:
            (self._path / f"{name}{DELETED_SUFFIX}").unlink(missing_ok=True)


log = structlog.get_logger(__name__)

_TIDY_INTERVAL_S = 5.0


@dataclass(slots=True)
class _Entry:
    names: tuple[str, ...]
    size_bytes: int
    used_at_s: float


@dataclass(slots=True)
class CacheBound:
    """Limit of a cache.  It may be changed while the cache runs, which is down to it within seconds (S-124)."""

    max_bytes: int = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskCacheSettings:
    """Kafka's: ``remote.log.index.file.cache.total.size.bytes``, ``remote.log.index.file.cache.ttl.ms`` (-1: no limit),
    and the delay after which a dropped file is removed."""

    directory: str
    bound: CacheBound = field(default_factory=CacheBound)
    ttl_ms: int = 15 * 60 * 1000
    file_delete_delay_ms: int = 10_000


class DiskCache:
    """Groups of files by key.  Opened by :func:`open_disk_cache`."""

    def __init__(self, settings: DiskCacheSettings, *, blocking: Blocking, clock: Clock) -> None:
        self._settings = settings
        self._bound = settings.bound
        self._files = CacheDirectory(settings.directory)
        self._blocking = blocking
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._marked: deque[tuple[float, tuple[str, ...]]] = deque()
        self._forgotten: dict[str, tuple[str, ...]] = {}
        self.size_bytes = 0

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    async def get(self, key: str) -> dict[str, bytes] | None:
        """Return the files of ``key`` by name, or None.  A disk that fails is no error for the reader."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.used_at_s = self._clock.monotonic_s()
        self._entries.move_to_end(key)
        try:
            files = await self._blocking.run(self._files.read, entry.names)
        except OSError as error:
            self._complain("read.cache.read.failed", error)
            files = None
        if files is None or sum(map(len, files.values())) != entry.size_bytes:
            # The file was removed or cut from outside: as if it had never been here.
            self.discard(key)
            return None
        return files

    async def put(self, key: str, files: Mapping[str, bytes]) -> None:
        """Keep ``files``, and drop the least recently used if they are too many.  A disk that fails is no error for the reader:
        nothing is kept then."""
        size_bytes = sum(map(len, files.values()))
        if size_bytes > self._bound.max_bytes:
            return
        try:
            await self._blocking.run(self._files.write, files)
        except OSError as error:
            self._complain("read.cache.write.failed", error)
            return
        self.discard(key)
        self._keep(key, tuple(files), size_bytes)
        try:
            await self._shrink()
        except OSError as error:
            self._complain("read.cache.tidy.failed", error)

    @property
    def keys(self) -> Sequence[str]:
        """Return what is kept now."""
        return tuple(self._entries)

    def discard(self, key: str) -> None:
        """Forget ``key``: a later :meth:`put` replaces its files, or else :meth:`tidy` drops them."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.size_bytes -= entry.size_bytes
            self._forgotten[key] = entry.names

    async def drop(self, keys: Iterable[str]) -> None:
        """Drop what will not be asked for again.  A disk that fails is complained of: the files go with a later start."""
        try:
            for key in keys:
                await self._drop_entry(key)
        except OSError as error:
            self._complain("read.cache.tidy.failed", error)

    async def rehydrate(self, groups: Mapping[str, tuple[str, ...]], sizes: Mapping[str, int]) -> None:
        """Take over what is there: ``groups`` of names by key, ``sizes`` of files."""
        for key, names in groups.items():
            self._keep(key, names, sum(sizes[name] for name in names))
        stray = set(sizes) - {name for names in groups.values() for name in names}
        await self._drop(tuple(sorted(stray)))
        await self._shrink()

    async def tidy(self) -> None:
        """Drop what has been idle for too long, is too much now, or was forgotten; remove what was dropped long enough ago."""
        await self._shrink()
        while self._forgotten:
            await self._drop_forgotten(next(iter(self._forgotten)))
        now_s = self._clock.monotonic_s()
        if self._settings.ttl_ms >= 0:
            idle_since_s = now_s - self._settings.ttl_ms / 1000
            for key in [key for key, entry in self._entries.items() if entry.used_at_s < idle_since_s]:
                await self._drop_entry(key)
        removable_since_s = now_s - self._settings.file_delete_delay_ms / 1000
        while self._marked and self._marked[0][0] <= removable_since_s:
            await self._remove_marked()

    async def finish(self) -> None:
        """Remove what was dropped or forgotten, at once: nobody reads any more, and what was erased must not stay until the
        next start.  A disk that fails is complained of."""
        try:
            while self._forgotten:
                await self._drop_forgotten(next(iter(self._forgotten)))
            while self._marked:
                await self._remove_marked()
        except OSError as error:
            self._complain("read.cache.tidy.failed", error)

    async def list_files(self) -> dict[str, int]:
        """Prepare the directory; return the sizes of its files by name, least recently used first."""
        return await self._blocking.run(self._files.open)

    async def run(self) -> None:
        """Tidy for ever."""
        while True:
            await self._clock.sleep(_TIDY_INTERVAL_S)
            try:
                await self.tidy()
            except OSError as error:
                self._complain("read.cache.tidy.failed", error)

    def _complain(self, event: str, error: OSError) -> None:
        log.warning(event, directory=self._settings.directory, reason=str(error))

    def _keep(self, key: str, names: tuple[str, ...], size_bytes: int) -> None:
        self._forgotten.pop(key, None)
        self._entries[key] = _Entry(names, size_bytes, self._clock.monotonic_s())
        self.size_bytes += size_bytes

    async def _shrink(self) -> None:
        while self.size_bytes > self._bound.max_bytes:
            await self._drop_entry(next(iter(self._entries)))

    async def _drop_entry(self, key: str) -> None:
        entry = self._entries.get(key)
        if entry is not None:
            self.discard(key)
            await self._drop_forgotten(key)

    async def _drop_forgotten(self, key: str) -> None:
        """Drop what was forgotten of ``key``, which is known until that is done: a call that is cancelled may not have
        begun."""
        names = self._forgotten[key]
        await self._drop(names)
        if self._forgotten.get(key) is names:
            del self._forgotten[key]

    async def _drop(self, names: tuple[str, ...]) -> None:
        if names:
            try:
                await self._blocking.run(self._files.mark_deleted, names)
            finally:  # a call that is cancelled may have done its work
                self._marked.append((self._clock.monotonic_s(), names))

    async def _remove_marked(self) -> None:
        """Remove what was dropped first."""
        await self._blocking.run(self._files.remove_marked, self._marked[0][1])
        self._marked.popleft()


@asynccontextmanager
async def keeping_tidy(cache: DiskCache) -> AsyncIterator[None]:
    """Tidy ``cache`` in the background while the context lasts, and once more at its end."""
    tidying = asyncio.create_task(cache.run(), name="tidy read cache")
    try:
        yield
    finally:
        tidying.cancel()
        with suppress(asyncio.CancelledError):
            await tidying
        await cache.finish()
