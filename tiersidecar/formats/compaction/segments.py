"""A new segment out of one or several: the .log while it streams past, and its companions.

The rewrite itself is an argument: that of a cleaner, or that of an erasure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.compaction.rewriting import RewrittenBatch
from tiersidecar.formats.compaction.whole_batches import WholeBatches
from tiersidecar.formats.kafka.indexes import IndexRebuilder
from tiersidecar.formats.kafka.record_batches import (
    NO_TIMESTAMP,
    Buffer,
    RecordBatchHeader,
    read_batch_header,
)
from tiersidecar.formats.native import CleanedRun, IndexParts, clamped

MOST_OFFSETS = (1 << 31) - 1
"""An index has offsets relative to the base of its segment, in 31 bits."""

RewriteBatch = Callable[[memoryview, RecordBatchHeader, int], RewrittenBatch]
"""Given a whole batch with a right checksum, its header and its position, returns what stays of it."""

OffsetBounds = tuple[int, int]
"""First and last offset that the new segment may have."""
RewriteRun = Callable[[memoryview, int, int, OffsetBounds, IndexParts], tuple[CleanedRun, bytes] | None]
"""Given a slice of whole batches, where in it the next one begins, its position in the .log, and how far the new segment is,
returns what stays of the batches from there on that native code takes; None where there is no native code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTally:
    """Counts of the sources and of the new segment.  ``last_offset`` is -1 where no batch stays, and ``max_timestamp_ms`` where
    no record does: a batch that is kept empty still has the time of its latest record, which a look-up by time would not find.

    ``untouched_batches`` are the same bytes as before.
    """

    bytes_read: int = 0
    bytes_kept: int = 0
    records_read: int = 0
    records_kept: int = 0
    batches_read: int = 0
    batches_kept: int = 0
    untouched_batches: int = 0
    last_offset: int = -1
    max_timestamp_ms: int = NO_TIMESTAMP


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenSegment:
    """The companions of the new .log."""

    offset_index: bytes
    time_index: bytes
    tally: SegmentTally


class SegmentRewriter:
    """Takes the .log files of one group, each in slices of any size, in order, and returns the new one in pieces.

    ``rewrite_run`` does what ``rewrite`` would with many batches at once.  At most one batch and the slice in hand are in
    memory.
    """

    def __init__(self, rewrite: RewriteBatch, *, base_offset: Offset, rewrite_run: RewriteRun | None = None) -> None:
        self._rewrite, self._rewrite_run, self._base_offset = rewrite, rewrite_run, base_offset
        self._indexes = IndexRebuilder(base_offset=base_offset)
        self._batches, self._write_position = WholeBatches(), 0
        self._counts = dict.fromkeys(SegmentTally.__slots__, 0) | {"last_offset": -1, "max_timestamp_ms": NO_TIMESTAMP}

    def feed(self, data: Buffer, *, where: str) -> Iterator[Buffer]:
        """Yield what stays of the next slice of ``where``; the buffer may be reused once the iterator has ended.

        Raises:
            CorruptDataError: a batch is damaged or cannot be read, or its offsets are too far from the first.
        """
        batches = self._batches
        batches.begin_slice(data)
        while True:
            if len(run := self._take_run(batches)):
                yield run
            found = batches.next_batch(where=where)
            if found is None:
                break
            batch, header, position = found
            rewritten = self._rewrite(batch, header, position)
            self._count(rewritten, batch)
            if len(rewritten.data):
                self._index(rewritten, where, position)
                yield rewritten.data
        batches.end_slice()

    def end_of_source(self, *, where: str) -> None:
        """End the .log that was fed; the next one of the group begins at its position 0.

        Raises:
            TruncatedDataError: it ends within a batch.
        """
        self._batches.end(where=where)

    def finish(self) -> RewrittenSegment:
        """Return the companions of the .log, after the last source."""
        offset_index, time_index = self._indexes.finish()
        return RewrittenSegment(
            offset_index=offset_index.write(), time_index=time_index.write(), tally=SegmentTally(**self._counts)
        )

    def _take_run(self, batches: WholeBatches) -> Buffer:
        """Return what stays of the next batches that native code takes, if there are any, and go past them."""
        if self._rewrite_run is None:
            return b""
        bounds = self._base_offset, clamped(self._base_offset + MOST_OFFSETS)
        indexed = self._write_position, *self._indexes.known
        taken = self._rewrite_run(batches.view, batches.place, batches.position, bounds, indexed)
        if taken is None or taken[0].batches_read == 0:
            return b""
        run, data = taken
        counts = self._counts
        counts["bytes_read"] += run.stop - batches.place
        counts["bytes_kept"] += len(data)
        for name in ("records_read", "records_kept", "batches_read", "batches_kept", "untouched_batches"):
            counts[name] += getattr(run, name)
        if run.batches_kept:
            counts["last_offset"] = run.last_offset_kept
            counts["max_timestamp_ms"] = max(counts["max_timestamp_ms"], run.max_timestamp)
        self._write_position, *known = run.indexed
        self._indexes.add_rows(run.index_rows, known)
        batches.skip_to(run.stop)
        return data

    def _count(self, rewritten: RewrittenBatch, batch: memoryview) -> None:
        counts, is_kept = self._counts, len(rewritten.data) > 0
        counts["bytes_read"] += len(batch)
        counts["bytes_kept"] += len(rewritten.data)
        counts["records_read"] += rewritten.read
        counts["records_kept"] += rewritten.kept
        counts["batches_read"] += 1
        counts["batches_kept"] += is_kept
        counts["untouched_batches"] += rewritten.data is batch

    def _index(self, rewritten: RewrittenBatch, where: str, position: int) -> None:
        data = rewritten.data
        header = read_batch_header(data, where=where, position=position)
        if header.last_offset - self._base_offset > MOST_OFFSETS:
            reason = f"offset {header.last_offset} is more than {MOST_OFFSETS} above base offset {self._base_offset}"
            raise CorruptDataError(where=where, position=position, reason=reason)
        self._indexes.add(self._write_position, header)
        self._write_position += len(data)
        self._counts["last_offset"] = header.last_offset
        if rewritten.kept:
            self._counts["max_timestamp_ms"] = max(self._counts["max_timestamp_ms"], header.max_timestamp)
