"""The files of one remote segment as the broker had them: any bytes of the .log, and the indexes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.index_blob import IndexKind
from tiersidecar.formats.kafka.checkpoints import write_leader_epochs
from tiersidecar.formats.kafka.indexes import write_transaction_index
from tiersidecar.formats.kafka.producer_snapshots import write_producer_snapshot
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.metrics.reading import FETCH_BYTES, FETCH_REQUESTS, READ_REQUESTED_BYTES
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.reading.admission import ReaderPool
from tiersidecar.reading.batch_cutter import BatchCutter
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.index_cache import RemoteIndexCache
from tiersidecar.reading.manifests import ManifestCache
from tiersidecar.reading.read_ahead import ReadAhead
from tiersidecar.reading.segment_reader import SegmentReader, beginning_of, cut_plan, first_batch

_ALL_OFFSETS = 1 << 63


class SegmentFiles:
    """Streams a segment's .log, and gives its indexes; what leaves has passed the checks of the other reads."""

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
        """The bytes of the .log in ``byte_range``, which lies within it.  Close it when you leave before its end.

        Read is from the index entry before the range to the end of the batch that its last byte is in: a range that cuts
        batches has been checked like whole ones.

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
        """The index file, parsed and checked, as the broker had it; a transaction index of no transactions is empty.

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
        """As :meth:`_cut_out`; what was found broken is fetched anew, once."""
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
