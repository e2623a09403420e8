"""The read path, put together: from a store and a metadata view to a reader of the remote tier.

The files of one remote segment as the broker had them: any bytes of the .log, and the indexes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import place_of
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.index_blob import IndexKind
from tiersidecar.formats.kafka.indexes import write_transaction_index
from tiersidecar.formats.kafka.log_dir_files import write_leader_epochs
from tiersidecar.formats.kafka.opened_memory import OpenedMemory
from tiersidecar.formats.kafka.producer_state import write_producer_snapshot
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.metadata_log import MetadataView
from tiersidecar.ports.metrics.reading import FETCH_BYTES, FETCH_REQUESTS, READ_REQUESTED_BYTES
from tiersidecar.ports.store import ReadStore
from tiersidecar.ports.telemetry import NoTelemetry, Telemetry
from tiersidecar.reading.admission import FetchQuota, ReaderPool
from tiersidecar.reading.batch_cutter import BatchCutter
from tiersidecar.reading.carried_transactions import OpenAtCuts
from tiersidecar.reading.chunk_manager import (
    ChunkLayer,
    ChunkManager,
    FetchLatency,
    MemoryChunkCache,
    StoreChunkManager,
)
from tiersidecar.reading.holes import GIVE_UP
from tiersidecar.reading.index_blobs import IndexBlobReader, IndexFilesSource, RemoteIndexCache
from tiersidecar.reading.lineage import LineageSource, LogStarts
from tiersidecar.reading.open_transactions import AbortedTransactions, OpenTransactions, UndecidedTransactions
from tiersidecar.reading.opening import DEFAULT_OPENED_BYTES, Opening
from tiersidecar.reading.read_ahead import ReadAhead, ReadAheadBudget
from tiersidecar.reading.reader_limits import ColdReads
from tiersidecar.reading.remote_log_reader import RemoteLogReader, SegmentWalk
from tiersidecar.reading.remote_objects import FETCH_TIMEOUT_S, ManifestCache
from tiersidecar.reading.segment_lookup import CatchUp, SegmentLookup
from tiersidecar.reading.segment_reader import SegmentReader, beginning_of, cut_plan, first_batch
from tiersidecar.reading.timestamp_lookup import TimestampLookup

_ALL_OFFSETS = 1 << 63


class SegmentFiles:
    """Stream a segment's .log, and return its indexes; all bytes pass the checks of the other reads first."""

    def __init__(
        self,
        *,
        manifests: ManifestCache,
        indexes: RemoteIndexCache,
        blobs: IndexBlobReader,
        segments: SegmentReader,
        pool: ReaderPool,
        blocking: Blocking,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._manifests = manifests
        self._indexes = indexes
        self._blobs = blobs
        self._segments = segments
        self._pool = pool
        self._blocking = blocking
        self._clock = clock
        self._telemetry = telemetry

    async def stream_log(
        self, metadata: RemoteLogSegmentMetadata, byte_range: ByteRange
    ) -> AsyncGenerator[memoryview, None]:
        """Yield the bytes of the .log in ``byte_range``, which lies within it.  Close it when you leave before its end.

        The read goes from the index entry before the range to the end of the batch that has its last byte: a range that cuts
        batches is checked like whole ones.

        Raises:
            As :meth:`RemoteLogReader.stream_batches`.
        """
        self._telemetry.count(FETCH_REQUESTS, topic=metadata.topic_id_partition.topic)
        self._pool.begun(metadata.topic_id_partition.topic)
        self._telemetry.count(READ_REQUESTED_BYTES, len(byte_range))
        parts = self._checked(metadata, byte_range)
        async with aclosing(parts), aclosing(self._pool.in_steps(parts, self._clock)) as steps:
            async for part in steps:
                yield part

    async def read_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexKind) -> bytes:
        """Return the index file, parsed and checked, as the broker had it; a transaction index of no transactions is empty.

        Raises:
            CorruptDataError: it fails its checks, also when fetched anew.
            QuotaExceededError: shed, at once.
        """
        async with self._pool.admit():
            match kind:
                case IndexKind.OFFSET:
                    return (await self._indexes.indexes(metadata)).offset_index.write()
                case IndexKind.TIMESTAMP:
                    return (await self._indexes.indexes(metadata)).time_index.write()
                case IndexKind.TRANSACTION:
                    return write_transaction_index((await self._indexes.indexes(metadata)).aborted_transactions)
                case IndexKind.LEADER_EPOCH:
                    return write_leader_epochs(await self._blobs.read_leader_epochs(metadata))
                case IndexKind.PRODUCER_SNAPSHOT:
                    return write_producer_snapshot(await self._blobs.read_producer_snapshot(metadata))

    async def _checked(
        self, metadata: RemoteLogSegmentMetadata, byte_range: ByteRange
    ) -> AsyncGenerator[memoryview, None]:
        """Yield what :meth:`_cut_out` does; broken bytes are fetched anew, once."""
        left, has_failed = byte_range, False
        with self._segments.read_ahead() as read_ahead:
            while len(left):
                try:
                    async with aclosing(self._cut_out(metadata, left, read_ahead)) as parts:
                        async for part in parts:
                            left = ByteRange(left.start + len(part), left.stop)
                            self._telemetry.count(FETCH_BYTES, len(part), topic=metadata.topic_id_partition.topic)
                            self._pool.charge(metadata.topic_id_partition.topic, len(part))
                            yield part
                except CorruptDataError:
                    if has_failed:
                        raise
                    has_failed = True
                    await self._segments.discard(metadata)

    async def _cut_out(
        self, metadata: RemoteLogSegmentMetadata, byte_range: ByteRange, read_ahead: ReadAhead
    ) -> AsyncGenerator[memoryview, None]:
        segment = await self._manifests.open(metadata)
        if byte_range.start == 0:
            begin = first_batch(metadata)
        else:
            indexes = await self._indexes.indexes(metadata)
            begin = beginning_of(indexes, metadata, indexes.offset_index.lookup_position(byte_range.start).offset)
        cutter = BatchCutter(cut_plan(segment, begin, start_offset=0, stop_offset=_ALL_OFFSETS))
        position = begin.position
        async with aclosing(self._segments.cut(segment, cutter, None, read_ahead)) as steps:
            async for step in steps:
                for batches in step.slices:
                    wanted = batches.buffer[max(byte_range.start - position, 0) : max(byte_range.stop - position, 0)]
                    position += len(batches)
                    if len(wanted):
                        yield wanted
                if position >= byte_range.stop:
                    return
        cutter.finish()


_MIB = 1024 * 1024
_LARGE_FETCH_BYTES = 4 * _MIB
"""The size of a chunk by default, and of merged ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """Sizes and bounds of the read path; the two of the pool are ``remote.log.reader.threads`` and
    ``remote.log.reader.max.pending.tasks``.  Read-ahead follows the store's latency and is bounded per reader and for all of
    them together.  Neighbouring chunks are fetched by one request up to ``merged_fetch_bytes``.  ``parallel_fetches`` run at
    once, or more where read-ahead may want more."""

    reader_threads: int = 10
    reader_max_pending_tasks: int = 100
    chunk_cache_bytes: int = 128 * _MIB
    index_memory_bytes: int = 64 * _MIB
    read_ahead_bytes: int = 64 * _MIB
    read_ahead_total_bytes: int = 64 * _MIB
    parallel_fetches: int = 16
    merged_fetch_bytes: int = 4 * _MIB
    fetch_timeout_s: float = FETCH_TIMEOUT_S
    opened_memory_bytes: int = DEFAULT_OPENED_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPath:
    """The parts of the read path that services use."""

    metadata: MetadataView
    reader: RemoteLogReader
    timestamps: TimestampLookup
    opening: Opening
    cold: ColdReads
    lookup: SegmentLookup
    files: SegmentFiles
    aborted: AbortedTransactions
    undecided: UndecidedTransactions
    manifests: ManifestCache
    indexes: RemoteIndexCache
    chunks: MemoryChunkCache


@asynccontextmanager
async def open_read_path(
    *,
    store: ReadStore,
    metadata: MetadataView,
    manifests: ManifestCache,
    lineages: LineageSource,
    log_starts: LogStarts,
    blocking: Blocking,
    clock: Clock,
    quota: FetchQuota | None = None,
    requests: FetchQuota | None = None,
    cold: ColdReads | None = None,
    telemetry: Telemetry | None = None,
    settings: ReadSettings | None = None,
    catch_up: CatchUp | None = None,
    long_blocking: Blocking | None = None,
    rest: Callable[[], None] = lambda: None,
    opened: OpenedMemory | None = None,
    chunk_layers: Sequence[ChunkLayer] = (),
    index_files: IndexFilesSource | None = None,
    hole_advice: str = GIVE_UP,
) -> AsyncIterator[ReadPath]:
    """Build the read path; what is in flight in it ends when the context does.

    ``chunk_layers`` stand between the memory cache and the store, the last one nearest to the caller: a disk cache, say.
    ``index_files`` is what the index cache asks instead of the store: a disk cache again.  ``long_blocking`` opens the batches
    that take seconds, beside ``blocking`` if it is given; threads that open batches call ``rest`` every millisecond or so.
    ``opened`` is used in place of a memory of ``settings.opened_memory_bytes`` and its ``rest``.
    ``hole_advice`` is for the operator whose readers meet a hole.
    """
    cold = cold or ColdReads(clock=clock, telemetry=telemetry)
    settings, telemetry = settings or ReadSettings(), telemetry or NoTelemetry()
    async with AsyncExitStack() as stack:
        blobs = IndexBlobReader(
            store=store, blocking=blocking, manifests=manifests, timeout_s=settings.fetch_timeout_s, telemetry=telemetry
        )
        indexes = RemoteIndexCache(index_files or blobs, blocking=blocking, max_bytes=settings.index_memory_bytes)
        stack.push_async_callback(indexes.aclose)
        latency = FetchLatency(clock, place_of)
        budget = ReadAheadBudget(
            reader_bytes=settings.read_ahead_bytes,
            total_bytes=settings.read_ahead_total_bytes,
            latency=latency,
            telemetry=telemetry,
        )
        chunks = _chunk_manager(store, blocking, settings, budget, telemetry, chunk_layers)
        stack.push_async_callback(chunks.aclose)
        lookup = SegmentLookup(
            metadata=metadata,
            lineages=lineages,
            log_starts=log_starts,
            clock=clock,
            telemetry=telemetry,
            hole_advice=hole_advice,
        )
        cuts = OpenAtCuts(metadata=metadata, blobs=blobs, manifests=manifests, chunks=chunks, blocking=blocking)
        open_transactions = OpenTransactions(lookup=lookup, snapshots=blobs, cuts=cuts)
        stack.push_async_callback(open_transactions.aclose)
        aborted = AbortedTransactions(lookup=lookup, indexes=indexes, open_transactions=open_transactions)
        undecided = UndecidedTransactions(lookup=lookup, indexes=indexes, open_transactions=open_transactions)
        segments = SegmentReader(manifests=manifests, indexes=indexes, chunks=chunks, blocking=blocking, budget=budget)
        opening = Opening(
            memory=opened or OpenedMemory(settings.opened_memory_bytes, rest=rest),
            blocking=blocking,
            long_blocking=blocking if long_blocking is None else long_blocking,
            clock=clock,
        )
        pool = ReaderPool(
            running=settings.reader_threads,
            waiting=settings.reader_max_pending_tasks,
            quota=quota,
            requests=requests,
            telemetry=telemetry,
            clock=clock,
            cold=cold,
        )
        yield ReadPath(
            cold=cold,
            metadata=metadata,
            reader=RemoteLogReader(
                lookup=lookup,
                walk=SegmentWalk(metadata=metadata, lookup=lookup, segments=segments),
                aborted=aborted,
                undecided=undecided,
                pool=pool,
                clock=clock,
                telemetry=telemetry,
                catch_up=catch_up,
            ),
            timestamps=TimestampLookup(lookup=lookup, segments=segments, indexes=indexes, pool=pool, opening=opening),
            opening=opening,
            lookup=lookup,
            files=SegmentFiles(
                manifests=manifests,
                indexes=indexes,
                blobs=blobs,
                segments=segments,
                pool=pool,
                blocking=blocking,
                clock=clock,
                telemetry=telemetry,
            ),
            aborted=aborted,
            undecided=undecided,
            manifests=manifests,
            indexes=indexes,
            chunks=chunks,
        )


def _chunk_manager(
    store: ReadStore,
    blocking: Blocking,
    settings: ReadSettings,
    budget: ReadAheadBudget,
    telemetry: Telemetry,
    layers: Sequence[ChunkLayer],
) -> MemoryChunkCache:
    chunks: ChunkManager = StoreChunkManager(
        store=store,
        blocking=blocking,
        max_parallel=max(settings.parallel_fetches, settings.read_ahead_total_bytes // _LARGE_FETCH_BYTES),
        merged_bytes=settings.merged_fetch_bytes,
        timeout_s=settings.fetch_timeout_s,
        telemetry=telemetry,
        latency=budget.latency,
    )
    for layer in layers:
        chunks = layer(chunks)
    return MemoryChunkCache(
        chunks, max_bytes=settings.chunk_cache_bytes, max_flights=budget.most_flights, telemetry=telemetry
    )
