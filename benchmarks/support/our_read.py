"""Our reads of what a copy has left in a store, as the daemon's read role does them: the same wrappers, threads and bounds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

from benchmarks.support.our_copy import THREADS
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.remote_runs import FixedLogStarts
from tiersidecar.adapters.clock import SystemClock, ThreadBlocking
from tiersidecar.adapters.stores.bounded import BoundedStore, StoreLimits
from tiersidecar.adapters.stores.metered import MeteredStore
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.ports.broker import Credentials
from tiersidecar.ports.store import Store
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.lineage import LineageKeeper, NoLiveLog
from tiersidecar.reading.read_path import ReadPath, ReadSettings, open_read_path
from tiersidecar.reading.remote_objects import ManifestCache
from tiersidecar.services.http_listener import HttpServer
from tiersidecar.services.reader.server import ReaderServiceSettings, serve_reader


def partitions_of(metadata: MemoryMetadataLog) -> list[TopicIdPartition]:
    """All partitions that were copied, in order."""
    return sorted({event.remote_log_segment_id.topic_id_partition for event in metadata.events})  # type: ignore[union-attr]


@asynccontextmanager
async def open_reads(
    store: Store, metadata: MemoryMetadataLog, settings: ReadSettings
) -> AsyncIterator[tuple[ReadPath, ThreadBlocking]]:
    """The read path with empty caches."""
    clock = SystemClock()
    bounded = BoundedStore(MeteredStore(store, NoTelemetry()), limits=StoreLimits(), clock=clock)
    async with AsyncExitStack() as stack:
        blocking = await stack.enter_async_context(ThreadBlocking(max_threads=THREADS))
        await _start_threads(blocking)
        manifests = ManifestCache(store=bounded, blocking=blocking)
        stack.push_async_callback(manifests.aclose)
        blobs = IndexBlobReader(store=bounded, blocking=blocking, manifests=manifests)
        lineages = LineageKeeper(metadata=metadata, epochs=blobs, live=NoLiveLog(), blocking=blocking, clock=clock)
        stack.push_async_callback(lineages.aclose)
        path = await stack.enter_async_context(
            open_read_path(
                store=bounded,
                metadata=metadata,
                manifests=manifests,
                lineages=lineages,
                log_starts=FixedLogStarts(),
                blocking=blocking,
                clock=clock,
                settings=settings,
            )
        )
        yield path, blocking


async def _start_threads(blocking: ThreadBlocking) -> None:
    """All of them: the daemon does so once in its life, so it is no part of a read."""
    meeting = threading.Barrier(THREADS)
    await asyncio.gather(*(blocking.run(meeting.wait) for _ in range(THREADS)))


async def read_all(path: ReadPath, partitions: Collection[TopicIdPartition]) -> int:
    """Every batch of the partitions, one stream each, all at once; gives their bytes."""
    return sum(await asyncio.gather(*(_read_partition(path, partition) for partition in partitions)))


async def _read_partition(path: ReadPath, partition: TopicIdPartition) -> int:
    size_bytes = 0
    async with aclosing(path.reader.stream_batches(partition, 0)) as parts:
        async for part in parts:
            size_bytes += len(part.batches)
    return size_bytes


class Everyone:
    """``AuthorizeRead``: there is no broker to ask."""

    async def log_in(self, credentials: Credentials) -> None:
        return None

    async def may_read(self, credentials: Credentials, topic: str) -> bool:
        return True


class Copied:
    """``PartitionCatalogue``."""

    def __init__(self, metadata: MemoryMetadataLog) -> None:
        self._partitions = partitions_of(metadata)

    def partitions(self) -> Collection[TopicIdPartition]:
        return self._partitions


@asynccontextmanager
async def open_service(
    store: Store, metadata: MemoryMetadataLog, settings: ReadSettings, service: ReaderServiceSettings
) -> AsyncIterator[HttpServer]:
    """The HTTP service over :func:`open_reads`."""
    async with (
        open_reads(store, metadata, settings) as (path, blocking),
        serve_reader(
            path=path, catalogue=Copied(metadata), authorize=Everyone(), blocking=blocking, settings=service
        ) as server,
    ):
        yield server
