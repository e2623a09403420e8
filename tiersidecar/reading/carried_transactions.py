"""Transactions that are open where a segment begins, or where an unclean election has cut one (docs/design/0011).

A transaction is open where a segment begins if the remote segment before it says so (docs/design/0011).

A segment's snapshot and index are of its own end.  A transaction that was open at the cut may have been committed behind it,
which no file shows, and have its end in the history that counts.  So the front is walked, from the last offset before the cut
at which a whole segment ends, and whose snapshot shows what is open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from tiersidecar.domain.errors import (
    CorruptDataError,
    HistoryChangedError,
    ObjectNotFoundError,
)
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition
from tiersidecar.domain.offsets import Lineage, Offset
from tiersidecar.domain.segments import NO_LOG_END, RemoteLogSegmentMetadata
from tiersidecar.formats.kafka.indexes import read_transaction_index
from tiersidecar.formats.kafka.producer_state import (
    ProducerState,
    TransactionWalk,
    WalkWithin,
    open_before,
    open_states,
)
from tiersidecar.formats.kafka.segment_scan import SegmentScanner
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.metadata_log import MetadataView
from tiersidecar.reading.chunk_manager import ChunkManager
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.remote_objects import ByteLru, ManifestCache
from tiersidecar.reading.segment_stream import Pace

log = structlog.get_logger(__name__)

_SEGMENTS_KEPT = 10_000
_STATES_KEPT = 100_000
_SLICE_BYTES = 256 * 1024
"""Looked at in one go."""

_States = tuple[ProducerState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """Batches of ``segment`` from offset ``start`` up to, not including, ``stop``."""

    segment: RemoteLogSegmentMetadata
    start: Offset
    stop: Offset


class OpenAtCuts:
    """Walk fronts of segments, a chunk in memory at a time, and keep the results: the same segment and cut always give the
    same.  ``pace`` is asked before each slice, where reading must not come in bursts."""

    def __init__(
        self,
        *,
        metadata: MetadataView,
        blobs: IndexBlobReader,
        manifests: ManifestCache,
        chunks: ChunkManager,
        blocking: Blocking,
        pace: Pace | None = None,
    ) -> None:
        self._metadata, self._blobs, self._manifests = metadata, blobs, manifests
        self._chunks, self._blocking, self._pace = chunks, blocking, pace
        self._kept: ByteLru[tuple[RemoteLogSegmentId, Offset], _States] = ByteLru(_STATES_KEPT)

    async def at(self, segment: RemoteLogSegmentMetadata, offset: Offset, lineage: Lineage) -> _States:
        """Return the producers whose transaction is open at ``offset``, which is in ``segment`` or its end, and up to which it
        is of ``lineage``.  One that began before the remote tier is included if the walk, or the segment's own files, show it.

        Raises:
            HistoryChangedError: it is of another lineage below ``offset``.
            StoreError: the store did not deliver, or an object is gone.
            CorruptDataError: what is there fails its checks, also when fetched anew.
        """
        if not is_ours_below(segment, offset, lineage):
            subject = str(segment.remote_log_segment_id.topic_id_partition)
            raise HistoryChangedError(subject=subject, end_offset=offset)
        key = (segment.remote_log_segment_id, offset)
        found = self._kept.get(key)
        if found is None:
            whole, way = self._way_to(segment, offset, lineage)
            try:
                found = await self._walk(whole, way)
            except CorruptDataError:
                await self._forget(way)  # bytes are damaged on the way more often than at rest
                found = await self._walk(whole, way)
            self._kept.put(key, found, 1 + len(found))
        return found

    def _way_to(
        self, segment: RemoteLogSegmentMetadata, offset: Offset, lineage: Lineage
    ) -> tuple[RemoteLogSegmentMetadata | None, Sequence[_Span]]:
        """Return the whole segment at whose end the walk begins, None if there is none, and what to walk, ascending."""
        way = list[_Span]()
        topic_id_partition = segment.remote_log_segment_id.topic_id_partition
        while True:
            held = held_before(self._metadata, topic_id_partition, segment.start_offset, lineage)
            whole = max(
                (one for one in held if one.is_within(lineage) and one.next_offset <= offset),
                key=lambda one: one.next_offset,
                default=None,
            )
            start = segment.start_offset if whole is None else whole.next_offset
            way.append(_Span(segment=segment, start=start, stop=offset))
            if whole is not None or not held:
                return whole, way[::-1]
            # Cut itself, or it goes on past the offset: the segments before it say what is open.
            segment, offset = max(held, key=lambda one: one.start_offset), segment.start_offset

    async def _walk(self, whole: RemoteLogSegmentMetadata | None, way: Sequence[_Span]) -> _States:
        if whole is not None:
            states = open_states(await self._blobs.read_producer_snapshot(whole))
        else:
            states = await self._open_where_all_begins(way[0].segment)
        walk = TransactionWalk(states)
        for span in way:
            if span.start < span.stop:
                await self._feed(span, walk)
        return walk.finish().open_at_end

    async def _open_where_all_begins(self, first: RemoteLogSegmentMetadata) -> _States:
        """Return what was open before ``first`` and is still at its end, or was aborted in it.  What ``first`` has committed is
        not known, since there is no segment before it."""
        states = await self._blobs.read_producer_snapshot(first)
        index = b""
        if not first.txn_index_empty:
            index = (await self._blobs.read_index_files(first)).transaction_index
        where = f"transaction index of {first.remote_log_segment_id}"
        entries = read_transaction_index(index, base_offset=first.start_offset, where=where)
        return open_before(first.start_offset, entries, states)

    async def _feed(self, span: _Span, walk: TransactionWalk) -> None:
        opened = await self._manifests.open(span.segment)
        scanner = SegmentScanner(
            where=opened.keys.log,
            base_offset=span.segment.start_offset,
            next_base_offset=span.segment.next_offset,
            transactions=WalkWithin(walk, start=span.start, stop=span.stop),
        )
        for index in range(opened.chunk_index.chunk_count):
            before = scanner.next_offset
            rest = memoryview(await self._chunks.get_chunk(opened, index))
            while rest:
                count = min(len(rest), _SLICE_BYTES)
                if self._pace is not None:
                    count = await self._pace.grant(count)
                await self._blocking.run(scanner.feed, rest[:count])
                rest = rest[count:]
            # No checksum covers a batch's base offset: that it is the right one shows by the batch that follows.
            if span.stop <= before < scanner.next_offset:
                return
        scanner.finish()

    async def _forget(self, way: Sequence[_Span]) -> None:
        for span in way:
            opened = await self._manifests.open(span.segment)
            for index in range(opened.chunk_index.chunk_count):
                self._chunks.discard(opened, index)
            self._manifests.forget(opened.id)


def held_before(
    metadata: MetadataView, topic_id_partition: TopicIdPartition, offset: Offset, lineage: Lineage
) -> list[RemoteLogSegmentMetadata]:
    """Return finished segments that have what comes right before ``offset``, and are of ``lineage`` up to there."""
    epoch = lineage.epoch_for_offset(offset - 1) if offset else None
    if epoch is None:
        return []
    held = metadata.finished_segments_at(topic_id_partition, epoch, offset - 1)
    return [one for one in held if is_ours_below(one, offset, lineage)]


def is_ours_below(segment: RemoteLogSegmentMetadata, offset: Offset, lineage: Lineage) -> bool:
    """Return whether the part of the segment below ``offset``, which it reaches, is of that history."""
    epochs = tuple(epoch for epoch in segment.segment_leader_epochs if epoch.start_offset < offset)
    return lineage.contains_segment(epochs, offset - 1, NO_LOG_END)


class CarriedTransactions:
    """Read producer snapshots of remote segments, and keep those that this process has written itself.

    Each snapshot that is uploaded is completed from its batches and the snapshot before it.  So this process need not trust a
    broker's memory, and only the store has to survive a restart or a change of leaders.
    """

    def __init__(self, *, metadata: MetadataView, blobs: IndexBlobReader, cuts: OpenAtCuts) -> None:
        self._metadata, self._blobs, self._cuts = metadata, blobs, cuts
        self._kept: ByteLru[RemoteLogSegmentId, _States] = ByteLru(_SEGMENTS_KEPT)

    def keep(self, segment: RemoteLogSegmentMetadata, open_at_end: Sequence[ProducerState]) -> None:
        """Keep the snapshot written for ``segment``, so that the next one need not fetch it."""
        self._kept.put(segment.remote_log_segment_id, tuple(open_at_end), 1)

    async def at(self, topic_id_partition: TopicIdPartition, offset: Offset, lineage: Lineage) -> _States:
        """Return the producers whose transaction is open at ``offset``, without those for which a segment of ``lineage`` that
        reaches past it shows a commit.  None where no remote segment reaches it, or its files are lost.

        An election may have cut such a segment: what it has past the cut, a commit among it, may have another end in the
        history that counts, so its front is walked (simulation, cluster seed 800213).

        Raises:
            StoreError: they could not be read.
        """
        held = held_before(self._metadata, topic_id_partition, offset, lineage)
        # The one that goes on past the offset the least; a whole one before one that an election has cut.
        before = min(held, key=lambda one: (not one.is_within(lineage), one.end_offset), default=None)
        if before is None:
            return ()
        if not before.is_within(lineage):
            try:
                return await self._cuts.at(before, offset, lineage)
            except (ObjectNotFoundError, CorruptDataError) as error:
                _log_unknown(before, error)
        try:
            return await self._open_by_files(before, offset)
        except (ObjectNotFoundError, CorruptDataError) as error:
            _log_unknown(before, error)
            return ()

    async def _open_by_files(self, before: RemoteLogSegmentMetadata, offset: Offset) -> _States:
        """Return the producers with an open transaction by the segment's own files."""
        states = self._kept.get(before.remote_log_segment_id)
        if states is None:
            states = open_states(await self._blobs.read_producer_snapshot(before))
            self.keep(before, states)
        if before.next_offset == offset:
            return states
        index = b""
        if not before.txn_index_empty:
            index = (await self._blobs.read_index_files(before)).transaction_index
        where = f"transaction index of {before.remote_log_segment_id}"
        return open_before(offset, read_transaction_index(index, base_offset=before.start_offset, where=where), states)


def _log_unknown(segment: RemoteLogSegmentMetadata, error: Exception) -> None:
    log.warning("segment.transactions.unknown", segment_id=str(segment.remote_log_segment_id), error=str(error))
