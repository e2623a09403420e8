"""The executors' part of the data source, put together: the store, and what reads segments of it."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import pyarrow as pa
import structlog

from tiersidecar.adapters.blocking import ThreadBlocking
from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.build_store import open_key_ring, open_store
from tiersidecar.app.config import Config
from tiersidecar.ports.store import Store
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.reading.chunk_manager import StoreChunkManager
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.index_cache import RemoteIndexCache
from tiersidecar.reading.manifests import ManifestCache
from tiersidecar.spark.datasource.background_loop import BackgroundLoop
from tiersidecar.spark.datasource.plan import Share
from tiersidecar.spark.datasource.share_reading import Reads, ShareReader

_THREADS = 4
_MERGED_BYTES = 4 * 1024 * 1024


def read_share(
    config: Config, share: Share, *, include_headers: bool, min_timestamp_ms: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Rows of one share, in this process; raises as :meth:`ShareReader.rows`."""
    say_errors_only()
    with BackgroundLoop("tiersidecar reads") as loop:
        stack = AsyncExitStack()
        try:
            reads = loop.run(_open_reads(stack, config))
            reader = ShareReader(loop, reads, include_headers=include_headers, min_timestamp_ms=min_timestamp_ms)
            yield from reader.rows(share)
        finally:
            loop.run(stack.aclose())


async def _open_reads(stack: AsyncExitStack, config: Config) -> Reads:
    store = await stack.enter_async_context(open_reading_store(config))
    blocking = await stack.enter_async_context(ThreadBlocking(max_threads=_THREADS, name="read"))
    manifests = ManifestCache(
        store=store, blocking=blocking, key_prefix=config.store.key_prefix, key_ring=open_key_ring(config)
    )
    stack.push_async_callback(manifests.aclose)
    indexes = RemoteIndexCache(IndexBlobReader(store=store, blocking=blocking, manifests=manifests), blocking=blocking)
    stack.push_async_callback(indexes.aclose)
    chunks = StoreChunkManager(store=store, blocking=blocking, merged_bytes=_MERGED_BYTES)
    stack.push_async_callback(chunks.aclose)
    return Reads(manifests=manifests, indexes=indexes, chunks=chunks)


@asynccontextmanager
async def open_reading_store(config: Config) -> AsyncIterator[Store]:
    """The configured store, for reads."""
    clock = SystemClock()
    pace = UploadPace(None, clock)
    async with open_store(config, pace=pace, clock=clock, ids=SystemIds(), telemetry=NoTelemetry()) as store:
        yield store


def say_errors_only() -> None:
    """In processes that are not ours, Spark's or a notebook's: where nobody has configured structlog.  Their logging is left
    as it is."""
    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
            cache_logger_on_first_use=False,
        )
