"""Second pass: choice of the records and batches of a log that stay (``Cleaner.cleanInto``), and one segment cleaned by it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tiersidecar.formats import native
from tiersidecar.formats.compaction.offset_map import OffsetMap
from tiersidecar.formats.compaction.raw_records import RawRecord, native_frame, open_records
from tiersidecar.formats.compaction.rewriting import (
    Emptied,
    RewrittenBatch,
    delete_horizon_ms,
    empty_batch,
    new_batch,
    rewrite_batch,
)
from tiersidecar.formats.compaction.segments import OffsetBounds
from tiersidecar.formats.compaction.transactions import CleanedTransactions
from tiersidecar.formats.kafka.compressing import compress
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.producer_state import ProducerState
from tiersidecar.formats.kafka.record_batches import COMPRESSION_MASK, Buffer, RecordBatchHeader
from tiersidecar.formats.native import HIGHEST, CleanedRun, IndexParts, TermParts, clamped


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRecord:
    """Last record in the log of one active producer; ``data_offset`` is None where that is a marker."""

    data_offset: int | None
    epoch: int


def last_records(states: Iterable[ProducerState]) -> dict[int, LastRecord]:
    """Return them by producer id, of a producer snapshot (``UnifiedLog.lastRecordsOfActiveProducers``)."""
    return {
        state.producer_id: LastRecord(
            data_offset=state.last_offset if state.last_offset >= 0 else None, epoch=state.epoch
        )
        for state in states
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningTerms:
    """Terms of one round.

    ``upper_bound_offset`` is the first offset that the round does not clean: the batch that ends right before it stays, empty
    if need be, so that the last offset is not lost.  ``legacy_horizon_ms`` is for formats 0 and 1, which have no horizon of
    their own: tombstones of segments whose largest timestamp is at or below it may go.
    ``first_dirty_offset``: from it on another cleaner may have set delete horizons, in a log that was cleaned before this one.
    Readers of this log may just have read what the round takes out, so these horizons are set anew, and nothing goes by them;
    nor do tombstones of formats 0 and 1.  None: all horizons are this log's own, as on a broker.
    ``due_by_ms``: horizons after it are not due yet, whatever the time is.
    """

    now_ms: int
    delete_retention_ms: int
    upper_bound_offset: int
    legacy_horizon_ms: int = 0
    first_dirty_offset: int | None = None
    due_by_ms: int | None = None
    last_records: Mapping[int, LastRecord] = field(default_factory=dict)

    @property
    def horizon_ms(self) -> int:
        """Return what this round sets: at most what a batch can say, for topics whose tombstones are to stay for ever."""
        return clamped(self.now_ms + self.delete_retention_ms)

    @property
    def due_ms(self) -> int:
        """Return the time by which horizons are due: what has one at or before it may go."""
        return self.now_ms if self.due_by_ms is None else min(self.now_ms, self.due_by_ms)


class Cleaner:
    """Takes every batch below the map's end, from the log's first on, in order; or those of one segment, with the
    ``transactions`` that its predecessors have left (:meth:`CleanedTransactions.resumed`)."""

    def __init__(
        self,
        offset_map: OffsetMap,
        terms: CleaningTerms,
        aborted: Iterable[AbortedTransaction] = (),
        *,
        transactions: CleanedTransactions | None = None,
    ) -> None:
        self._map, self._terms = offset_map, terms
        self._transactions = transactions or CleanedTransactions(aborted)
        self._native = native.core.walks
        lasts = {one.data_offset for one in terms.last_records.values() if one.data_offset is not None}
        self._kept_empty = array("q", sorted({terms.upper_bound_offset - 1, *lasts}))
        """Last offsets of the batches that may have to stay without a record."""

    def clean(
        self,
        batch: memoryview,
        header: RecordBatchHeader,
        *,
        segment_max_timestamp_ms: int,
        where: str,
        position: int,
    ) -> RewrittenBatch:
        """Return what stays of a batch whose checksum was checked.

        Raises:
            CorruptDataError: it cannot be read.
        """
        may_drop = self._may_drop(batch, header, where, position)
        drops_records, is_dirty = may_drop, self._is_dirty(header)
        if header.is_control:
            horizon_ms = None if is_dirty else delete_horizon_ms(header)
            drops_records = may_drop and horizon_ms is not None and horizon_ms <= self._terms.due_ms
        keeps_empty = self._is_last_of_producer(header) or header.next_offset == self._terms.upper_bound_offset
        emptied = Emptied.KEPT_EMPTY if keeps_empty and header.magic >= 2 else Emptied.DROPPED
        if drops_records:
            # Its records need not be read: none stays.
            data = empty_batch(header) if emptied is Emptied.KEPT_EMPTY else b""
            return RewrittenBatch(data=data, read=max(header.record_count, 0), kept=0)
        rewritten = None if header.is_control else self._rewrite_natively(batch, header, emptied, where, position)
        return rewritten or rewrite_batch(
            batch,
            header,
            lambda record: header.is_control or self._keeps(record, header, segment_max_timestamp_ms),
            emptied,
            horizon_ms=self._terms.horizon_ms,
            is_horizon_due=may_drop and header.is_control,
            renews_horizon=is_dirty,
            where=where,
            position=position,
        )

    def clean_run(
        self, view: memoryview, start: int, stop: int, bounds: OffsetBounds, indexed: IndexParts
    ) -> tuple[CleanedRun, bytes] | None:
        """Return what stays of the batches from ``start`` of ``view`` on that end at ``stop`` or before, as far as native code
        takes them; None where there is none."""
        if self._native is None:
            return None
        terms = self._native_terms()
        done = self._native.clean_run(view, start, stop, bounds, self._kept_empty, self._map.slots, terms, indexed)
        if done[0].batches_read:
            self._transactions.pass_over(done[0].last_offset_read)
        return done

    def _rewrite_natively(
        self, batch: memoryview, header: RecordBatchHeader, emptied: Emptied, where: str, position: int
    ) -> RewrittenBatch | None:
        """Return what :func:`rewrite_batch` would, if native code reads the records."""
        frame = native_frame(header)
        if self._native is None or frame is None:
            return None
        records = open_records(batch, header, where=where, position=position)
        done = self._native.clean_records(records, frame, self._map.slots, self._native_terms())
        if done is None:
            return None
        read, kept, new = done
        if not kept:
            data: Buffer = empty_batch(header) if emptied is Emptied.KEPT_EMPTY else b""
        elif new is None:
            data = batch
        else:
            attributes, base_ms, max_ms, body = new
            data = new_batch(header, attributes, base_ms, max_ms, kept, compress(body, header.compression))
        return RewrittenBatch(data=data, read=read, kept=kept)

    def _native_terms(self) -> TermParts:
        first = self._terms.first_dirty_offset
        first_dirty = HIGHEST if first is None else clamped(first)
        return clamped(self._map.latest_offset), self._terms.due_ms, self._terms.horizon_ms, first_dirty

    def take_retained(self) -> tuple[AbortedTransaction, ...]:
        """Take the retained ones (:meth:`CleanedTransactions.take_retained`)."""
        return self._transactions.take_retained()

    def _may_drop(self, batch: memoryview, header: RecordBatchHeader, where: str, position: int) -> bool:
        if header.is_control:
            return self._transactions.may_drop_marker(batch, header, where=where, position=position)
        return self._transactions.is_aborted(header)

    def _is_dirty(self, header: RecordBatchHeader) -> bool:
        first = self._terms.first_dirty_offset
        return first is not None and header.last_offset >= first

    def _is_last_of_producer(self, header: RecordBatchHeader) -> bool:
        last = self._terms.last_records.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.data_offset is None:
            return header.is_control and header.producer_epoch == last.epoch
        return header.last_offset == last.data_offset

    def _keeps(self, record: RawRecord, header: RecordBatchHeader, segment_max_timestamp_ms: int) -> bool:
        if record.offset > self._map.latest_offset:
            return True
        if record.key is None or record.offset < self._map.get(record.key):
            return False
        return not record.is_tombstone or self._keeps_tombstone(header, segment_max_timestamp_ms)

    def _keeps_tombstone(self, header: RecordBatchHeader, segment_max_timestamp_ms: int) -> bool:
        if self._is_dirty(header):
            return True
        if header.magic < 2:
            return segment_max_timestamp_ms > self._terms.legacy_horizon_ms
        horizon_ms = delete_horizon_ms(header)
        return horizon_ms is None or self._terms.due_ms < horizon_ms


class SegmentCleaner:
    """Cleans the batches of one .log of ``size_bytes`` that stays one, with the same span of offsets, for a
    :class:`~tiersidecar.formats.compaction.segments.SegmentRewriter`.

    Its last batch stays, empty if need be: a .log without any batch would be no segment, and a reader that has come to it must
    learn where to go on.
    """

    def __init__(self, cleaner: Cleaner, *, size_bytes: int, max_timestamp_ms: int, where: str) -> None:
        self._cleaner, self._size_bytes, self._max_timestamp_ms = cleaner, size_bytes, max_timestamp_ms
        self._where = where
        self.is_first_compressed: bool | None = None
        """True if the first batch that was kept is compressed; None before there was one."""

    def __call__(self, batch: memoryview, header: RecordBatchHeader, position: int) -> RewrittenBatch:
        """Return what stays of the batch.

        Raises:
            CorruptDataError: it cannot be read.
        """
        cleaned = self._cleaner.clean(
            batch,
            header,
            segment_max_timestamp_ms=self._max_timestamp_ms,
            where=self._where,
            position=position,
        )
        if not len(cleaned.data) and position + len(batch) == self._size_bytes:
            cleaned = replace(cleaned, data=_emptied(header))
        if cleaned.data is not batch and cleaned.data == batch:
            cleaned = replace(cleaned, data=batch)  # kept empty, as it was: nothing is to be written for its sake
        if self.is_first_compressed is None and len(cleaned.data):
            self.is_first_compressed = bool(header.attributes & COMPRESSION_MASK) and cleaned.kept > 0
        return cleaned

    def rewrite_run(
        self, view: memoryview, start: int, position: int, bounds: OffsetBounds, indexed: IndexParts
    ) -> tuple[CleanedRun, bytes] | None:
        """Return what stays of the batches from ``start`` of ``view`` on, which is ``position`` of the .log, as far as native
        code takes them; None where there is none.  The last one of the .log is not among them."""
        stop = max(start + self._size_bytes - position - 1, 0)
        done = self._cleaner.clean_run(view, start, stop, bounds, indexed)
        if self.is_first_compressed is None and done is not None and done[0].batches_kept:
            self.is_first_compressed = False
        return done


def _emptied(header: RecordBatchHeader) -> bytes:
    """Return the batch without records, in format 2 at least: formats 0 and 1 cannot say it."""
    if header.magic >= 2:
        return empty_batch(header)
    return empty_batch(replace(header, magic=2, last_offset_delta=0, attributes=header.attributes & ~COMPRESSION_MASK))
