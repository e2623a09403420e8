"""The executors' part of the data source, put together: the store, and what reads segments of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack

import pyarrow as pa

from tiersidecar.adapters.blocking import ThreadBlocking
from tiersidecar.app.builders.store import open_key_ring
from tiersidecar.app.config.config import Config
from tiersidecar.app.data_source_store import open_reading_store, say_errors_only
from tiersidecar.ports.telemetry import NoTelemetry, Telemetry
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
    config: Config,
    share: Share,
    *,
    include_headers: bool,
    min_timestamp_ms: int | None = None,
    telemetry: Telemetry | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows of one share, in this process; raises as :meth:`ShareReader.rows`."""
    say_errors_only()
    with BackgroundLoop("tiersidecar reads") as loop:
        stack = AsyncExitStack()
        try:
            reads = loop.run(_open_reads(stack, config, telemetry or NoTelemetry()))
            reader = ShareReader(loop, reads, include_headers=include_headers, min_timestamp_ms=min_timestamp_ms)
            yield from reader.rows(share)
        finally:
            loop.run(stack.aclose())


async def _open_reads(stack: AsyncExitStack, config: Config, telemetry: Telemetry) -> Reads:
    store = await stack.enter_async_context(open_reading_store(config))
    blocking = await stack.enter_async_context(ThreadBlocking(max_threads=_THREADS, name="read"))
    manifests = ManifestCache(
        store=store,
        blocking=blocking,
        key_prefix=config.store.key_prefix,
        key_ring=open_key_ring(config),
        most_chunk_bytes=config.store.chunk_size,
        most_index_bytes=config.read.index_max_bytes,
    )
    stack.push_async_callback(manifests.aclose)
    blobs = IndexBlobReader(store=store, blocking=blocking, manifests=manifests, telemetry=telemetry)
    indexes = RemoteIndexCache(blobs, blocking=blocking)
    stack.push_async_callback(indexes.aclose)
    chunks = StoreChunkManager(store=store, blocking=blocking, merged_bytes=_MERGED_BYTES, telemetry=telemetry)
    stack.push_async_callback(chunks.aclose)
    return Reads(manifests=manifests, indexes=indexes, chunks=chunks)
