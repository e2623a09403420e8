"""Caches on disk of whoever reads, in directories of their own below ``state.dir``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from tiersidecar.app.config.config import Config
from tiersidecar.domain.errors import ConfigError
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.reading.chunk_files_cache import open_chunk_files_cache
from tiersidecar.reading.chunk_manager import ChunkLayer
from tiersidecar.reading.disk_cache import CacheBound, DiskCacheSettings
from tiersidecar.reading.index_cache import IndexFilesSource
from tiersidecar.reading.index_files_cache import open_index_files_cache

INDEX_CACHE_DIRECTORY = "remote-log-index-cache"
"""Kafka's own name for it; but Kafka has it in a log dir, where we write nothing."""
CHUNK_CACHE_DIRECTORY = "remote-log-chunk-cache"
_WITHOUT_TTL = -1


@asynccontextmanager
async def open_index_cache(
    config: Config,
    store: IndexFilesSource,
    *,
    bound: CacheBound,
    blocking: Blocking,
    clock: Clock,
    suffix: str = "",
) -> AsyncIterator[IndexFilesSource]:
    """Index files in front of those in the ``store``, at most ``bound`` of them.  ``suffix`` makes the directory this
    process's own.

    Raises:
        ConfigError: the directory cannot be used.
    """
    settings = DiskCacheSettings(
        directory=str(Path(config.state_dir) / f"{INDEX_CACHE_DIRECTORY}{suffix}"),
        bound=bound,
        ttl_ms=config.remote_log_index_file_cache_ttl_ms,
    )
    async with AsyncExitStack() as stack:
        with _needing(settings.directory):
            opening = open_index_files_cache(store, settings, blocking=blocking, clock=clock)
            cache = await stack.enter_async_context(opening)
        yield cache


@asynccontextmanager
async def open_chunk_cache(
    config: Config, *, blocking: Blocking, clock: Clock, telemetry: Telemetry, suffix: str = ""
) -> AsyncIterator[Sequence[ChunkLayer]]:
    """Chunks on disk as a layer; none unless ``read.chunk.cache.disk.bytes`` asks for it.

    Where it does not, what an earlier process left in the directory is dropped: a directory of 0 bytes is opened all the same.

    Raises:
        ConfigError: the directory cannot be used.
    """
    settings = DiskCacheSettings(
        directory=str(Path(config.state_dir) / f"{CHUNK_CACHE_DIRECTORY}{suffix}"),
        bound=CacheBound(config.read.chunk_cache_disk_bytes),
        ttl_ms=_WITHOUT_TTL,
    )
    async with AsyncExitStack() as stack:
        with _needing(settings.directory):
            opening = open_chunk_files_cache(settings, blocking=blocking, clock=clock, telemetry=telemetry)
            layer = await stack.enter_async_context(opening)
        yield [layer] if config.read.chunk_cache_disk_bytes else []


@contextmanager
def _needing(directory: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(source="state.dir", faults=(f"{directory} cannot be used: {reason}",)) from error
