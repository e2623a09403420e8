"""Serve the operations that read the log: batches, records, offsets by timestamp."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, closing

from aiohttp import web

from tiersidecar.domain.errors import MetadataNotReadyError, OffsetBetweenTiersError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.records import aborted_ranges
from tiersidecar.ports.broker import Credentials, ReadLocal
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.pins import PendingCopies
from tiersidecar.ports.store import Buffer
from tiersidecar.reading.read_path import ReadPath
from tiersidecar.reading.remote_log_reader import FetchedBatches, RemoteBatches
from tiersidecar.reading.segment_lookup import OffsetBounds
from tiersidecar.reading.timestamp_lookup import TimestampAndOffset
from tiersidecar.services.reader.callers import Callers
from tiersidecar.services.reader.compacted_topics import CompactedTopics
from tiersidecar.services.reader.continuous_log import ContinuousLog, LogRead
from tiersidecar.services.reader.ndjson import BytesFormat, LinePieces, Selection, batch_groups
from tiersidecar.services.reader.routes import (
    FORMAT,
    ISOLATION,
    LIMIT_RECORDS,
    MAX_BYTES,
    NDJSON,
    OCTETS,
    OFFSET,
    STOP_OFFSET,
    TIER,
    TIMESTAMP,
    Isolation,
    Tier,
)
from tiersidecar.services.reader.streams import BodyWriter

FIRST_OFFSET_HEADER = "Kafka-First-Offset"
NEXT_OFFSET_HEADER = "Kafka-Next-Offset"

_COPIED_BYTES = 1024 * 1024
_LATEST, _EARLIEST, _MAX_TIMESTAMP = -1, -2, -3


class LogOperations:
    """Stream what the read path finds, and stop when the client is gone."""

    def __init__(
        self,
        *,
        path: ReadPath,
        local: ReadLocal | None,
        pending: PendingCopies | None,
        compacted: CompactedTopics | None,
        callers: Callers,
        partition_of: Callable[[web.Request], Awaitable[TopicIdPartition]],
        blocking: Blocking,
        bodies: BodyWriter,
    ) -> None:
        self._path = path
        self._log = ContinuousLog(
            reader=path.reader, local=local, blocking=blocking, pending=pending, compacted=compacted
        )
        self._remote = ContinuousLog(reader=path.reader, local=None, blocking=blocking)
        self._local = local
        self._callers = callers
        self._partition_of = partition_of
        self._blocking = blocking
        self._bodies = bodies

    async def read_batches(self, request: web.Request) -> web.StreamResponse:
        """Serve ``read_batches``."""
        log, read = self._log_of(request), await self._read(request)
        max_bytes = MAX_BYTES.read_if_given(request)
        if max_bytes is not None:
            return await self._bounded(request, log, read, max_bytes)
        stream = log.stream_batches(read)
        async with aclosing(stream) as parts, aclosing(_buffers(parts)) as rest:
            first = await anext(parts, None)
            return await self._bodies.write(
                request,
                None,
                self._callers.while_allowed(
                    request, read.partition.topic, first.batches.buffer if first else None, rest
                ),
                media_type=OCTETS,
                headers={FIRST_OFFSET_HEADER: str(first.batches.base_offset)} if first else {},
            )

    async def read_records(self, request: web.Request) -> web.StreamResponse:
        """Serve ``read_records``."""
        is_committed = ISOLATION.read(request) == Isolation.READ_COMMITTED
        log, read = self._log_of(request), await self._read(request, read_committed=is_committed)
        bytes_format, limit = BytesFormat(FORMAT.read(request)), LIMIT_RECORDS.read(request)
        stream = log.stream_batches(read)
        async with aclosing(stream) as parts, aclosing(self._lines(parts, read, bytes_format, limit)) as lines:
            return await self._bodies.write(
                request,
                None,
                self._callers.while_allowed(request, read.partition.topic, await anext(lines, None), lines),
                media_type=NDJSON,
                headers={},
            )

    async def find_offset(self, request: web.Request) -> web.StreamResponse:
        """Serve ``find_offset``."""
        partition = await self._partition_of(request)
        timestamp_ms = TIMESTAMP.read(request)
        caller = self._callers.credentials(request)
        if timestamp_ms in {_LATEST, _EARLIEST}:
            offset = await self._border_offset(caller, partition, timestamp_ms)
            return web.json_response({"offset": offset, "timestamp_ms": None, "leader_epoch": None})
        return web.json_response(_found_document(await self._find(caller, partition, timestamp_ms)))

    async def _border_offset(self, caller: Credentials, partition: TopicIdPartition, timestamp_ms: int) -> Offset:
        if timestamp_ms == _LATEST:
            return await self._log.end_offset(caller, partition)
        return await self._log.start_offset(caller, partition)

    async def _find(
        self, caller: Credentials, partition: TopicIdPartition, timestamp_ms: int
    ) -> TimestampAndOffset | None:
        """Find the record: remote ones come first in the log; for -3 that of the larger timestamp, the earlier if equal."""
        before = await self._path.reader.bounds(partition)
        if timestamp_ms == _MAX_TIMESTAMP:
            remote = await self._path.timestamps.find_latest(partition)
        else:
            remote = await self._path.timestamps.find(partition, timestamp_ms)
        if self._local is None or (remote is not None and timestamp_ms != _MAX_TIMESTAMP):
            return remote
        answer = await self._local.find_offset(caller, partition, timestamp_ms)
        if remote is None:
            local_start = (await self._local.find_offset(caller, partition, _EARLIEST)).offset
            await self._require_known(partition, before, local_start)
        if answer.offset < 0 or (remote is not None and remote.timestamp_ms >= answer.timestamp_ms):
            return remote
        return TimestampAndOffset(
            timestamp_ms=answer.timestamp_ms, offset=answer.offset, leader_epoch=answer.leader_epoch
        )

    async def _require_known(self, partition: TopicIdPartition, bounds: OffsetBounds, local_start: Offset) -> None:
        """Check that nothing beyond ``bounds`` is remote, or about to be, that the broker no longer has.

        Raises:
            OffsetBetweenTiersError: records are about to be.
            RetriableError: records are remote, or that is not known yet.
        """
        if local_start <= bounds.end:
            return
        if (await self._path.reader.current_bounds(partition)).end > bounds.end:
            raise MetadataNotReadyError(subject=str(partition))
        if local_start > bounds.log_start and await self._log.is_pending(partition, local_start):
            raise OffsetBetweenTiersError(
                subject=str(partition), offset=bounds.end, remote_end=bounds.end, local_start=local_start
            )

    def _log_of(self, request: web.Request) -> ContinuousLog:
        return self._remote if TIER.read(request) == Tier.REMOTE else self._log

    async def _read(self, request: web.Request, *, read_committed: bool = False) -> LogRead:
        partition = await self._partition_of(request)
        return LogRead(
            caller=self._callers.credentials(request),
            partition=partition,
            offset=OFFSET.read(request),
            stop_offset=STOP_OFFSET.read_if_given(request),
            read_committed=read_committed,
        )

    async def _bounded(
        self, request: web.Request, log: ContinuousLog, read: LogRead, max_bytes: int
    ) -> web.StreamResponse:
        fetched = await log.read_batches(read, max_bytes=max_bytes)
        headers = {NEXT_OFFSET_HEADER: str(fetched.next_offset), "Content-Length": str(fetched.size_bytes)}
        if fetched.slices:
            headers[FIRST_OFFSET_HEADER] = str(fetched.slices[0].base_offset)
        return await self._bodies.write(
            request,
            None,
            self._callers.while_allowed(request, read.partition.topic, None, _each(_own_bytes(fetched))),
            media_type=OCTETS,
            headers=headers,
        )

    async def _lines(
        self, parts: AsyncGenerator[RemoteBatches, None], read: LogRead, bytes_format: BytesFormat, limit: int
    ) -> AsyncGenerator[bytes, None]:
        """Yield lines of up to ``limit`` records, as they are opened."""
        opening = self._path.opening
        async for part in parts:
            aborted = part.aborted_transactions
            hidden = None if aborted is None else aborted_ranges(aborted)
            selection = Selection(
                offset=read.offset, stop_offset=read.stop_offset, hidden=hidden, bytes_format=bytes_format
            )
            for group in batch_groups(part.batches.buffer):
                with closing(LinePieces(group, selection, limit, monotonic_s=opening.monotonic_s)) as pieces:
                    while (piece := await opening.run(pieces.next_piece)) is not None:
                        lines, count = piece
                        limit -= count
                        if pieces.holds_memory:
                            async with opening.taken_by_another(pieces.close):
                                yield lines
                        else:
                            yield lines
                if limit == 0:
                    return


async def _buffers(parts: AsyncGenerator[RemoteBatches, None]) -> AsyncGenerator[memoryview, None]:
    async for part in parts:
        yield part.batches.buffer


def _own_bytes(fetched: FetchedBatches) -> Sequence[Buffer]:
    """Return a copy of a small answer: while it waits for its client it would hold a whole chunk."""
    if fetched.size_bytes <= _COPIED_BYTES:
        return [bytes(one.buffer) for one in fetched.slices]
    return [one.buffer for one in fetched.slices]


async def _each(buffers: Sequence[Buffer]) -> AsyncIterator[Buffer]:
    for buffer in buffers:
        yield buffer


def _found_document(found: TimestampAndOffset | None) -> dict[str, int | None]:
    if found is None:
        return {"offset": None, "timestamp_ms": None, "leader_epoch": None}
    return {"offset": found.offset, "timestamp_ms": found.timestamp_ms, "leader_epoch": found.leader_epoch}
