"""First pass: the offset map of the dirty part of a log (``Cleaner.buildOffsetMap``)."""

from __future__ import annotations

from collections.abc import Iterable

from tiersidecar.domain.errors import OffsetMapTooSmallError
from tiersidecar.formats.compaction.offset_map import OffsetMap
from tiersidecar.formats.compaction.raw_records import iter_raw_records
from tiersidecar.formats.compaction.transactions import CleanedTransactions
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.record_batches import Buffer, RecordBatchHeader, check_batch, iter_batch_headers


class OffsetMapBuilder:
    """Reads dirty segments in their order until all were read or the map is full.

    Records below ``first_dirty_offset``, of aborted transactions, in control batches and without a key are not put in.  The
    map's ``latest_offset`` moves only with whole batches: of the batch in which the map got full every record stays.
    """

    def __init__(
        self, offset_map: OffsetMap, *, first_dirty_offset: int, aborted: Iterable[AbortedTransaction] = ()
    ) -> None:
        self._map, self._first_dirty_offset = offset_map, first_dirty_offset
        self._transactions = CleanedTransactions(aborted)

    def add(self, log: Buffer, *, next_base_offset: int, where: str) -> bool:
        """Put in the whole .log of the next segment; return False where the map got full, and no further segment may come.

        Raises:
            CorruptDataError: a batch is damaged or cannot be read.
            OffsetMapTooSmallError: not one batch of the dirty part fits.
        """
        view = memoryview(log)
        for position, header in iter_batch_headers(view, where=where):
            batch = view[position : position + header.size_bytes]
            check_batch(batch, header, where=where, position=position)
            if not self.take(batch, header, where=where, position=position):
                return False
        self.end_segment(next_base_offset)
        return True

    def take(self, batch: memoryview, header: RecordBatchHeader, *, where: str, position: int) -> bool:
        """Put in the next batch, whose checksum was checked; False where the map got full, and nothing further may come.

        Raises:
            CorruptDataError: it cannot be read.
            OffsetMapTooSmallError: not one batch of the dirty part fits.
        """
        if header.is_control:
            self._transactions.may_drop_marker(batch, header, where=where, position=position)
        elif not self._transactions.is_aborted(header):
            for record in iter_raw_records(batch, header, where=where, position=position):
                if record.key is None or record.offset < self._first_dirty_offset:
                    continue
                if self._map.is_full:
                    self._check_progress(where)
                    return False
                self._map.put(record.key, record.offset)
        if header.last_offset >= self._first_dirty_offset:
            self._map.latest_offset = header.last_offset
        return True

    def end_segment(self, next_base_offset: int) -> None:
        """All batches of a segment were put in: the map reaches up to ``next_base_offset``, where the next one begins."""
        self._map.latest_offset = next_base_offset - 1

    def _check_progress(self, where: str) -> None:
        if self._map.latest_offset < self._first_dirty_offset:
            raise OffsetMapTooSmallError(where=where, size_bytes=self._map.size_bytes, keys=len(self._map))
