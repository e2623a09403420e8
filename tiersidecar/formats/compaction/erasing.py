"""One batch without the records of given keys, for a log that is not compacted.

No batch goes, even if no record of it stays: every offset is still in a batch, so that no reader takes its place for a hole,
and so is every sequence of a producer.  Markers stay as they are.  Records of aborted transactions go with the others: their
bytes are in the object, whatever readers are shown.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.compaction.raw_records import RawRecord, iter_raw_records, open_records
from tiersidecar.formats.compaction.rewriting import Emptied, Keeps, RewrittenBatch, empty_batch, rewrite_batch
from tiersidecar.formats.kafka.record_batches import COMPRESSION_MASK, RecordBatchHeader

_MOST_SOUGHT = 64
"""Keys that are searched for as bytes, one by one: with more, reading every record costs less."""


class KeyEraser:
    """Rewrites the batches of one .log (``where``) without the records of ``keys``, for a
    :class:`~tiersidecar.formats.compaction.segments.SegmentRewriter`.

    Keys that a record has are added to ``found``.  Records are read only where a key's bytes are among them at all: most
    batches are passed on after a search.
    """

    def __init__(self, keys: AbstractSet[bytes], *, found: set[bytes] | None = None, where: str) -> None:
        self._keys, self._where = keys, where
        self._found: set[bytes] = set() if found is None else found
        self._sought = sorted(keys, key=len, reverse=True) if len(keys) <= _MOST_SOUGHT else []
        self.is_first_compressed: bool | None = None
        """True if the first batch that was kept is compressed; None before there was one."""

    def __call__(self, batch: memoryview, header: RecordBatchHeader, position: int) -> RewrittenBatch:
        """Return what stays of the batch; raise what :func:`erase_keys` does."""
        if self.is_first_compressed is None:
            self.is_first_compressed = bool(header.attributes & COMPRESSION_MASK)
        if header.magic >= 2 and self._sought and not header.is_control:
            records = open_records(batch, header, where=self._where, position=position)
            if not any(key in records for key in self._sought):
                count = max(header.record_count, 0)
                return RewrittenBatch(data=batch, read=count, kept=count)
        return erase_keys(batch, header, self._keys, self._found, where=self._where, position=position)


def erase_keys(
    batch: memoryview,
    header: RecordBatchHeader,
    keys: AbstractSet[bytes],
    found: set[bytes] | None = None,
    *,
    where: str = "record batch",
    position: int = 0,
) -> RewrittenBatch:
    """Return the batch without the records whose key is one of ``keys``: the same bytes where it has none.  Keys that a record
    has are added to ``found``.

    A message of format 0 or 1 that has one becomes a batch of format 2, with the same offsets.

    Raises:
        CorruptDataError: the records cannot be read.
    """
    if header.is_control or header.record_count == 0:
        count = max(header.record_count, 0)
        return RewrittenBatch(data=batch, read=count, kept=count)
    keeps = _keeps(keys, set() if found is None else found)
    if header.magic < 2:
        return _erase_from_message(batch, header, keeps, where, position)
    return rewrite_batch(
        batch,
        header,
        keeps,
        Emptied.KEPT_EMPTY,
        where=where,
        position=position,
    )


def _keeps(keys: AbstractSet[bytes], found: set[bytes]) -> Keeps:
    def keeps(record: RawRecord) -> bool:
        if record.key is None or record.key not in keys:
            return True
        found.add(record.key)
        return False

    return keeps


def _erase_from_message(
    message: memoryview, header: RecordBatchHeader, keeps: Keeps, where: str, position: int
) -> RewrittenBatch:
    records = list(iter_raw_records(message, header, where=where, position=position))
    kept = sum(keeps(one) for one in records)
    if kept == len(records):
        return RewrittenBatch(data=message, read=kept, kept=kept)
    first, last = records[0].offset, records[-1].offset
    if kept:
        return rewrite_batch(
            message,
            header,
            keeps,
            Emptied.DROPPED,
            span=(first, last),
            where=where,
            position=position,
        )
    attributes = header.attributes & ~COMPRESSION_MASK
    as_format_2 = replace(
        header,
        magic=2,
        base_offset=Offset(first),
        last_offset_delta=last - first,
        attributes=attributes,
    )
    return RewrittenBatch(data=empty_batch(as_format_2), read=len(records), kept=0)
