"""The read path of a process: one for its roles ``read`` and ``gateway``, so that cache, pool and quota are theirs together.

The quotas of reads, of bytes and of requests to the store, on the process's clock.

Caches on disk for all readers, in directories of their own below ``state.dir``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.adapters.opening_rests import OpeningRests
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.top_level import Role
from tiersidecar.app.gateway_workers.shared_memory import SharedOpenedMemory
from tiersidecar.app.parts import Parts
from tiersidecar.decide.quota import RateQuota
from tiersidecar.decide.reader_quotas import ReaderQuotaRule
from tiersidecar.domain.errors import ConfigError, MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.shares import Shares
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.reading.admission import CountedFetches
from tiersidecar.reading.chunk_files import ChunkFilesLayer, open_chunk_files_cache
from tiersidecar.reading.disk_cache import CacheBound, DiskCacheSettings, open_index_files_cache
from tiersidecar.reading.gone_segments import GoneSegments, dropping
from tiersidecar.reading.hedged_fetches import HedgedFetches
from tiersidecar.reading.holes import GIVE_UP, GIVE_UP_AT_SOURCE
from tiersidecar.reading.index_blobs import IndexBlobReader, IndexFilesSource
from tiersidecar.reading.lineage import StateLogStarts
from tiersidecar.reading.opening import LONG_AT_ONCE
from tiersidecar.reading.read_path import ReadPath, ReadSettings, open_read_path
from tiersidecar.reading.reader_limits import ColdReads

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
    """Open index files in front of those in the ``store``, at most ``bound`` of them.  ``suffix`` makes the directory this
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
) -> AsyncIterator[Sequence[ChunkFilesLayer]]:
    """Open chunks on disk as a layer; none unless ``read.chunk.cache.disk.bytes`` asks for it.

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


class ConfiguredFetchQuota:
    """``remote.log.manager.fetch.max.bytes.per.second``, or ``read.store.requests.per.minute``, as the read path wants it."""

    def __init__(self, quota: RateQuota, clock: Clock) -> None:
        self._quota, self._clock = quota, clock

    def throttle_s(self) -> float:
        """Return 0 when a read may start, else the seconds until one may."""
        return self._quota.throttle_s(self._clock.monotonic_s())

    def record(self, amount: int) -> None:
        """Charge what a read has returned, or asked of the store."""
        self._quota.record(amount, self._clock.monotonic_s())


_CATCH_UP_S = 5.0
"""A client waits meanwhile: it is asked to try again long before it gives the connection up."""


async def open_process_read_path(stack: AsyncExitStack, parts: Parts) -> ReadPath:
    """Open until ``stack`` closes.  A gateway in a process of its own has directories of its own: caches are not shared.

    Raises:
        ConfigError: the caches' directories cannot be used.
    """
    config = parts.config

    async def catch_up(partition: TopicIdPartition) -> None:
        try:
            async with asyncio.timeout(_CATCH_UP_S):
                await parts.metadata.catch_up(partition)
                await parts.state.catch_up()
        except TimeoutError as error:
            raise MetadataNotReadyError(subject=str(partition)) from error

    parts.status.cold = cold = cold_reads_of(config, parts.clock, parts.telemetry, parts.shares)
    rest, shares = OpeningRests(), parts.shares
    suffix = "" if Role.READ in parts.roles else "-gateway"
    requests = ConfiguredFetchQuota(parts.tuning.store_requests, parts.clock)
    store = HedgedFetches(
        CountedFetches(parts.store, requests),
        percent=config.read.hedged_fetches_percent,
        clock=parts.clock,
        telemetry=parts.telemetry,
    )
    stack.push_async_callback(store.aclose)
    blobs = IndexBlobReader(store=store, blocking=parts.blocking, manifests=parts.manifests, telemetry=parts.telemetry)
    index_files = await stack.enter_async_context(
        open_index_cache(
            config, blobs, bound=parts.tuning.index_cache, blocking=parts.blocking, clock=parts.clock, suffix=suffix
        )
    )
    chunk_layers = await stack.enter_async_context(
        open_chunk_cache(config, blocking=parts.blocking, clock=parts.clock, telemetry=parts.telemetry, suffix=suffix)
    )
    path = await stack.enter_async_context(
        open_read_path(
            store=store,
            metadata=parts.metadata,
            manifests=parts.manifests,
            lineages=parts.lineages,
            log_starts=StateLogStarts(parts.state),
            blocking=parts.blocking,
            clock=parts.clock,
            quota=ConfiguredFetchQuota(parts.tuning.fetch_quota, parts.clock),
            requests=requests,
            cold=cold,
            telemetry=parts.telemetry,
            catch_up=catch_up,
            settings=ReadSettings(
                reader_threads=config.remote_log_reader_threads,
                reader_max_pending_tasks=config.remote_log_reader_max_pending_tasks,
                chunk_cache_bytes=config.read.chunk_cache_memory_bytes,
                read_ahead_bytes=config.read.ahead_reader_max_bytes,
                read_ahead_total_bytes=config.read.ahead_memory_bytes,
                opened_memory_bytes=config.read.opened_memory_bytes,
            ),
            long_blocking=await stack.enter_async_context(ThreadBlocking(max_threads=LONG_AT_ONCE, name="opening")),
            rest=rest,
            opened=None if shares is None else SharedOpenedMemory(config.read.opened_memory_bytes, shares, rest=rest),
            index_files=index_files,
            chunk_layers=chunk_layers,
            hole_advice=hole_advice(config),
        )
    )
    gone = GoneSegments(
        [path.chunks, *chunk_layers],
        metadata=parts.metadata,
        assigned=lambda: [*parts.table.assignment, *parts.table.departing],
        clock=parts.clock,
    )
    await stack.enter_async_context(dropping(gone))
    return path


def hole_advice(config: Config) -> str:
    """Return what an operator can do about records that are nowhere: of a read-only mount nothing is deleted here."""
    return GIVE_UP if config.source is None else GIVE_UP_AT_SOURCE


def cold_reads_of(config: Config, clock: Clock, telemetry: Telemetry, shares: Shares | None = None) -> ColdReads:
    """Build the counts of the readers, with the budgets of ``remote.fetch.quota``."""
    return ColdReads(
        clock=clock,
        rules=[
            ReaderQuotaRule(user=rule.user, client_id=rule.client_id, bytes_per_s=rule.consumer_byte_rate)
            for rule in config.remote_fetch_quota
        ],
        window_num=config.remote_log_manager_fetch_quota_window_num,
        window_size_s=config.remote_log_manager_fetch_quota_window_size_seconds,
        telemetry=telemetry,
        shares=shares,
    )
