"""A cache of groups of small files, bounded by bytes and by idleness (S-123 to S-131)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import structlog

from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.reading.cache_directory import CacheDirectory

log = structlog.get_logger(__name__)

_TIDY_INTERVAL_S = 5.0


@dataclass(slots=True)
class _Entry:
    names: tuple[str, ...]
    size_bytes: int
    used_at_s: float


@dataclass(slots=True)
class CacheBound:
    """How much a cache may keep.  It may be changed while the cache runs, which is down to it within seconds (S-124)."""

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
        self.size_bytes = 0

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    async def get(self, key: str) -> dict[str, bytes] | None:
        """The files of ``key`` by name, or None.  A disk that does not give them is no error of the reader's either."""
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
            # Somebody removed or cut a file: as if it had never been here.
            self.discard(key)
            return None
        return files

    async def put(self, key: str, files: Mapping[str, bytes]) -> None:
        """Keep ``files``, and drop what was not used longest if they are too many.  A disk that does not take them is no
        error of the reader's: nothing is kept then."""
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

    def discard(self, key: str) -> None:
        """Forget ``key``: a later :meth:`put` replaces its files."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.size_bytes -= entry.size_bytes

    async def rehydrate(self, groups: Mapping[str, tuple[str, ...]], sizes: Mapping[str, int]) -> None:
        """Take over what is there: ``groups`` of names by key, ``sizes`` of files."""
        for key, names in groups.items():
            self._keep(key, names, sum(sizes[name] for name in names))
        stray = set(sizes) - {name for names in groups.values() for name in names}
        await self._drop(tuple(sorted(stray)))
        await self._shrink()

    async def tidy(self) -> None:
        """Drop what has been idle for too long, or is too much now; remove what was dropped long enough ago."""
        await self._shrink()
        now_s = self._clock.monotonic_s()
        if self._settings.ttl_ms >= 0:
            idle_since_s = now_s - self._settings.ttl_ms / 1000
            for key in [key for key, entry in self._entries.items() if entry.used_at_s < idle_since_s]:
                await self._drop_entry(key)
        removable_since_s = now_s - self._settings.file_delete_delay_ms / 1000
        while self._marked and self._marked[0][0] <= removable_since_s:
            await self._blocking.run(self._files.remove_marked, self._marked.popleft()[1])

    async def list_files(self) -> dict[str, int]:
        """Prepare the directory; what there is in it by name, with sizes, least recently used first."""
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
        self._entries[key] = _Entry(names, size_bytes, self._clock.monotonic_s())
        self.size_bytes += size_bytes

    async def _shrink(self) -> None:
        while self.size_bytes > self._bound.max_bytes:
            await self._drop_entry(next(iter(self._entries)))

    async def _drop_entry(self, key: str) -> None:
        entry = self._entries.get(key)
        if entry is not None:
            self.discard(key)
            await self._drop(entry.names)

    async def _drop(self, names: tuple[str, ...]) -> None:
        if names:
            await self._blocking.run(self._files.mark_deleted, names)
            self._marked.append((self._clock.monotonic_s(), names))


@asynccontextmanager
async def keeping_tidy(cache: DiskCache) -> AsyncIterator[None]:
    """Tidy ``cache`` in the background while the context lasts."""
    tidying = asyncio.create_task(cache.run(), name="tidy read cache")
    try:
        yield
    finally:
        tidying.cancel()
        with suppress(asyncio.CancelledError):
            await tidying
