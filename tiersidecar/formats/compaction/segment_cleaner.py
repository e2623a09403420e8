"""Second pass over one segment that stays one: the same span of offsets, whatever is left of it."""

from __future__ import annotations

from dataclasses import replace

from tiersidecar.formats.compaction.cleaning import Cleaner
from tiersidecar.formats.compaction.rewriting import RewrittenBatch, empty_batch
from tiersidecar.formats.kafka.record_batches import COMPRESSION_MASK, RecordBatchHeader


class SegmentCleaner:
    """Cleans the batches of one .log of ``size_bytes``, for a
    :class:`~tiersidecar.formats.compaction.segments.SegmentRewriter`.

    Its last batch stays, empty if need be: a .log without any batch would be no segment, and a reader that has come to it must
    be told where to go on.
    """

    def __init__(self, cleaner: Cleaner, *, size_bytes: int, max_timestamp_ms: int, where: str) -> None:
        self._cleaner, self._size_bytes, self._max_timestamp_ms = cleaner, size_bytes, max_timestamp_ms
        self._where = where
        self.is_first_compressed: bool | None = None
        """Whether the first batch that was kept is compressed; None before there was one."""

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


def _emptied(header: RecordBatchHeader) -> bytes:
    """Formats 0 and 1 cannot say it."""
    if header.magic >= 2:
        return empty_batch(header)
    return empty_batch(replace(header, magic=2, last_offset_delta=0, attributes=header.attributes & ~COMPRESSION_MASK))
