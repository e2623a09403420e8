"""Logs of compacted topics, and one round of our cleaner over them, all in memory."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import zstandard
from aiokafka.codec import lz4_encode

from tests.support.batches import batch_bytes, record_bytes, xerial
from tiersidecar.decide.compaction import CleanableSegment, CompactionSettings, group_segments
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.compaction.cleaning import Cleaner, CleaningTerms, LastRecord
from tiersidecar.formats.compaction.offset_map import OffsetMap, OffsetMapBuilder
from tiersidecar.formats.compaction.rewriting import DELETE_HORIZON_FLAG, RewrittenBatch
from tiersidecar.formats.compaction.segments import OffsetBounds, RewrittenSegment, SegmentRewriter
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.producer_state import TransactionWalk
from tiersidecar.formats.kafka.record_batches import RecordBatchHeader, iter_batch_headers
from tiersidecar.formats.kafka.records import Record, read_records
from tiersidecar.formats.native import CleanedRun, IndexParts

CODECS = {
    0: lambda data: data,
    1: lambda data: gzip.compress(data, mtime=0),
    2: xerial,
    3: lz4_encode,
    4: lambda data: zstandard.compress(data),
}
TRANSACTIONAL, CONTROL = 0x10, 0x20
NOW_MS = 1_790_000_000_000
ABORT, COMMIT = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSegment:
    """A .log with its base offset; ``next_base_offset`` is its successor's."""

    base_offset: int
    next_base_offset: int
    log: bytes

    @property
    def cleanable(self) -> CleanableSegment:
        """Return it for :func:`group_segments`."""
        return CleanableSegment(
            start_offset=Offset(self.base_offset),
            end_offset=Offset(self.next_base_offset - 1),
            size_bytes=len(self.log),
            max_timestamp_ms=max((header.max_timestamp for _, header in iter_batch_headers(self.log)), default=-1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedLog:
    """The result of a round: the new segments, what lies beside each, its transaction index, and the new cleaner offset."""

    segments: tuple[LogSegment, ...]
    artefacts: tuple[RewrittenSegment, ...]
    aborted: tuple[tuple[AbortedTransaction, ...], ...]
    cleaner_offset: int


def data_batch(
    base_offset: int,
    records: Sequence[tuple[bytes | None, bytes | None]],
    *,
    codec: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
    base_timestamp: int = NOW_MS - 1_000_000,
    delete_horizon: bool = False,
) -> bytes:
    """Return records of key and value; ``producer`` is id, epoch and base sequence."""
    body = b"".join(
        record_bytes(n, key, value, timestamp_delta=n * 3, headers=((b"n", b"%d" % n),) if n % 2 else ())
        for n, (key, value) in enumerate(records)
    )
    return batch_bytes(
        base_offset,
        CODECS[codec](body),
        count=len(records),
        attributes=codec | (TRANSACTIONAL if transactional else 0) | (DELETE_HORIZON_FLAG if delete_horizon else 0),
        base_timestamp=base_timestamp,
        max_timestamp=base_timestamp + 3 * (len(records) - 1),
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )


def marker_batch(base_offset: int, kind: int, *, producer_id: int, epoch: int = 0) -> bytes:
    """Return an end-transaction marker: 0 aborts, 1 commits."""
    body = record_bytes(0, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0))
    return batch_bytes(
        base_offset,
        body,
        attributes=TRANSACTIONAL | CONTROL,
        base_timestamp=NOW_MS - 1_000_000,
        producer_id=producer_id,
        producer_epoch=epoch,
    )


def aborted_of(segments: Iterable[LogSegment]) -> tuple[AbortedTransaction, ...]:
    """Return them off the batches."""
    walk = TransactionWalk()
    for segment in segments:
        for position, header in iter_batch_headers(segment.log):
            if header.is_transactional or header.is_control:
                batch = memoryview(segment.log)[position : position + header.size_bytes]
                walk.take(batch, where="log", position=position)
    return walk.finish().aborted


def clean(
    segments: Sequence[LogSegment],
    *,
    now_ms: int,
    delete_retention_ms: int = 86_400_000,
    first_dirty_offset: int = 0,
    upper_bound_offset: int | None = None,
    last_records: Mapping[int, LastRecord] | None = None,
    map_bytes: int = 24 * 10_000,
    segment_bytes: int = 1 << 30,
    aborted: Sequence[AbortedTransaction] | None = None,
    slice_bytes: int = 700,
    renews_from: int | None = None,
) -> CleanedLog:
    """Run one round over ``segments``, all of which may be cleaned; the second pass has them in slices.  ``renews_from``: see
    ``CleaningTerms.first_dirty_offset``."""
    known = tuple(aborted_of(segments) if aborted is None else aborted)
    bound = segments[-1].next_base_offset if upper_bound_offset is None else upper_bound_offset
    offset_map = OffsetMap(map_bytes)
    builder = OffsetMapBuilder(offset_map, first_dirty_offset=first_dirty_offset, aborted=known)
    for segment in segments:
        if segment.next_base_offset <= first_dirty_offset:
            continue
        if not builder.add(segment.log, next_base_offset=segment.next_base_offset, where="log"):
            break
    terms = CleaningTerms(
        now_ms=now_ms,
        delete_retention_ms=delete_retention_ms,
        upper_bound_offset=bound,
        last_records=last_records or {},
        first_dirty_offset=renews_from,
    )
    cleaner = Cleaner(offset_map, terms, known)
    end = offset_map.latest_offset + 1
    by_base = {one.base_offset: one for one in segments}
    settings = CompactionSettings(
        min_cleanable_dirty_ratio=0,
        min_compaction_lag_ms=0,
        max_compaction_lag_ms=0,
        segment_bytes=segment_bytes,
        segment_index_bytes=1 << 20,
    )
    covered = [one.cleanable for one in segments if one.base_offset < end]
    cleaned, artefacts, aborts = [], [], []
    for group in group_segments(covered, settings):
        new, beside = _clean_group(cleaner, [by_base[one.start_offset] for one in group], slice_bytes)
        cleaned.append(new)
        artefacts.append(beside)
        aborts.append(cleaner.take_retained())
    cleaned += [one for one in segments if one.base_offset >= end]
    return CleanedLog(segments=tuple(cleaned), artefacts=tuple(artefacts), aborted=tuple(aborts), cleaner_offset=end)


def _clean_group(
    cleaner: Cleaner, group: Sequence[LogSegment], slice_bytes: int
) -> tuple[LogSegment, RewrittenSegment]:
    out = bytearray()
    newest_ms = -1

    def rewrite(batch: memoryview, header: RecordBatchHeader, position: int) -> RewrittenBatch:
        return cleaner.clean(batch, header, segment_max_timestamp_ms=newest_ms, where="log", position=position)

    def rewrite_run(
        view: memoryview, start: int, _position: int, bounds: OffsetBounds, indexed: IndexParts
    ) -> tuple[CleanedRun, bytes] | None:
        return cleaner.clean_run(view, start, len(view), bounds, indexed)

    rewriter = SegmentRewriter(rewrite, base_offset=Offset(group[0].base_offset), rewrite_run=rewrite_run)
    for source in group:
        newest_ms = source.cleanable.max_timestamp_ms
        for begin in range(0, len(source.log), slice_bytes):
            for piece in rewriter.feed(source.log[begin : begin + slice_bytes], where="log"):
                out += piece
        rewriter.end_of_source(where="log")
    new = LogSegment(base_offset=group[0].base_offset, next_base_offset=group[-1].next_base_offset, log=bytes(out))
    return new, rewriter.finish()


def all_records(log: bytes) -> list[Record]:
    """Return them, markers too."""
    return [
        record
        for position, header in iter_batch_headers(log)
        for record in read_records(log[position : position + header.size_bytes])
    ]


def committed_records(segments: Iterable[LogSegment]) -> list[Record]:
    """Return what a read_committed consumer of the whole log is shown, by following markers."""
    log = b"".join(segment.log for segment in segments)
    aborted = {
        (transaction.producer_id, transaction.first_offset, transaction.last_offset)
        for transaction in aborted_of(segments)
    }
    shown = []
    for position, header in iter_batch_headers(log):
        hides = header.is_transactional and any(
            pid == header.producer_id and first <= header.base_offset <= last for pid, first, last in aborted
        )
        if not header.is_control and not hides:
            shown += read_records(log[position : position + header.size_bytes])
    return shown


def table(records: Iterable[Record]) -> dict[bytes, Record]:
    """Return key to last record; tombstones are in it."""
    found: dict[bytes, Record] = {}
    for record in records:
        if record.key is not None:
            found[record.key] = record
    return found
