"""Write the remote data of a topic into files, with its offsets: nothing else is left of a deleted topic."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import BinaryIO

from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.app.builders.store import open_key_ring
from tiersidecar.app.commands.session import Session
from tiersidecar.app.config.config import Config
from tiersidecar.app.data_source_store import open_reading_store
from tiersidecar.decide.expiry_standing import Standing, standings
from tiersidecar.domain.errors import TrashError
from tiersidecar.domain.ids import TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.offsets import Lineage, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.reading.batch_cutter import BatchSlice
from tiersidecar.reading.chunk_manager import StoreChunkManager
from tiersidecar.reading.index_blobs import IndexBlobReader, RemoteIndexCache
from tiersidecar.reading.read_ahead import ReadAheadBudget
from tiersidecar.reading.remote_objects import ManifestCache
from tiersidecar.reading.segment_lookup import Located
from tiersidecar.reading.segment_reader import Allowance, SegmentReader
from tiersidecar.services.reader.ndjson import BytesFormat, LinePieces, Selection

_THREADS = 4
_MERGED_BYTES = 4 * 1024 * 1024
_AHEAD_BYTES = 16 * 1024 * 1024
_ALL_LINES = 1 << 62
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""Kafka's topic names: none with a partition behind it leads out of a directory."""


async def export_topic(session: Session, topic_id: Uuid, to: Path, *, as_ndjson: bool) -> list[str]:
    """Write each partition into ``to/<topic>-<partition>``; gives a line for each, and one for each hole.

    The writer of the state topic chooses the name: the id stands for one that Kafka would not take.

    Offsets below the remote log start are left out: they were deleted before.  With ``as_ndjson`` records of aborted
    transactions are among the others, as read_uncommitted gives them.

    Raises:
        TrashError: nothing is known of the topic.
        StoreError: an object could not be read.
        CorruptDataError: what was read is damaged.
    """
    partitions = sorted(
        {topic_id_partition for topic_id_partition in _known(session) if topic_id_partition.topic_id == topic_id}
    )
    if not partitions:
        raise TrashError(subject=format_uuid(topic_id), reason="no sidecar has tiered a topic of this id")
    lines = []
    async with AsyncExitStack() as stack:
        reader = await _open_reader(stack, session.config)
        for topic_id_partition in partitions:
            segments = (await session.remote_segments([topic_id_partition]))[topic_id_partition]
            lines += await _Export(session, reader, topic_id_partition, to, as_ndjson=as_ndjson).write(segments)
    return lines


def directory_of(to: Path, topic_id_partition: TopicIdPartition) -> Path:
    """Return where a partition's files go, directly below ``to`` whatever its topic is called."""
    name = (
        topic_id_partition.topic
        if _TOPIC.fullmatch(topic_id_partition.topic)
        else format_uuid(topic_id_partition.topic_id)
    )
    return to / f"{name}-{topic_id_partition.partition}"


def _known(session: Session) -> Iterator[TopicIdPartition]:
    yield from session.state.partitions()
    yield from session.state.trash_partitions()


async def _open_reader(stack: AsyncExitStack, config: Config) -> SegmentReader:
    store = await stack.enter_async_context(open_reading_store(config))
    blocking = await stack.enter_async_context(ThreadBlocking(max_threads=_THREADS, name="read"))
    manifests = ManifestCache(
        store=store, blocking=blocking, key_prefix=config.store.key_prefix, key_ring=open_key_ring(config)
    )
    stack.push_async_callback(manifests.aclose)
    telemetry = NoTelemetry()
    blobs = IndexBlobReader(store=store, blocking=blocking, manifests=manifests, telemetry=telemetry)
    indexes = RemoteIndexCache(blobs, blocking=blocking)
    stack.push_async_callback(indexes.aclose)
    chunks = StoreChunkManager(store=store, blocking=blocking, merged_bytes=_MERGED_BYTES, telemetry=telemetry)
    stack.push_async_callback(chunks.aclose)
    budget = ReadAheadBudget(reader_bytes=_AHEAD_BYTES, total_bytes=_AHEAD_BYTES)
    return SegmentReader(manifests=manifests, indexes=indexes, chunks=chunks, blocking=blocking, budget=budget)


class _Export:
    """One partition."""

    def __init__(
        self,
        session: Session,
        reader: SegmentReader,
        topic_id_partition: TopicIdPartition,
        to: Path,
        *,
        as_ndjson: bool,
    ) -> None:
        self._reader, self._topic_id_partition, self._as_ndjson = reader, topic_id_partition, as_ndjson
        self._directory = directory_of(to, topic_id_partition)
        self._start = max(session.state.partition_state(topic_id_partition).highest_start, 0)

    async def write(self, segments: list[RemoteLogSegmentMetadata]) -> list[str]:
        """Return a file a segment; of what two hold the first counts."""
        await asyncio.to_thread(self._directory.mkdir, parents=True, exist_ok=True)
        lines, next_offset, size_bytes = [], self._start, 0
        for standing in _serving(segments):
            if standing.served_end < next_offset:
                continue
            if standing.segment.start_offset > next_offset:
                lines.append(
                    f"{self._topic_id_partition}: offsets {next_offset} to {standing.segment.start_offset - 1} are not there"
                )
            next_offset, written = await self._write_segment(standing, next_offset)
            size_bytes += written
        lines.append(
            f"{self._topic_id_partition}: offsets {self._start} to {next_offset - 1}, {size_bytes} bytes, {self._directory}"
        )
        return lines

    async def _write_segment(self, standing: Standing, next_offset: int) -> tuple[int, int]:
        first = max(standing.segment.start_offset, next_offset)
        path = self._directory / f"{first:020d}.{'ndjson' if self._as_ndjson else 'log'}"
        located = Located(metadata=standing.segment, stop_offset=Offset(standing.served_end + 1))
        size_bytes = 0
        with await asyncio.to_thread(path.open, "wb") as file, self._reader.read_ahead() as read_ahead:
            slices = self._reader.slices(located, first, standing.served_end + 1, Allowance(), read_ahead)
            async with aclosing(slices):
                async for one in slices:
                    size_bytes += await asyncio.to_thread(self._put, file, one, first)
        return standing.served_end + 1, size_bytes

    def _put(self, file: BinaryIO, batches: BatchSlice, first: int) -> int:
        if not self._as_ndjson:
            return file.write(batches.buffer)
        selection = Selection(offset=first, stop_offset=None, hidden=None, bytes_format=BytesFormat.BASE64)
        return sum(file.write(piece) for piece, _ in LinePieces(batches.buffer, selection, _ALL_LINES))


def _serving(segments: list[RemoteLogSegmentMetadata]) -> list[Standing]:
    finished = [segment for segment in segments if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED]
    lineage = Lineage.of(sorted({entry for one in finished for entry in one.segment_leader_epochs}))
    return [standing for standing in standings(finished, lineage) if standing.serves]
