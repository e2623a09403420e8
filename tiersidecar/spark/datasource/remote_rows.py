"""Slices of whole record batches to Arrow batches of rows, as a consumer would be given them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import AbortedRanges
from tiersidecar.spark.datasource.opened_batches import BatchCollector
from tiersidecar.spark.datasource.record_columns import RowShape, legacy_rows, rows_of


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRows:
    """Records from ``start_offset`` up to, not including, ``stop_offset``; none of a transaction that ``aborted`` has.

    Batches without a record at ``min_timestamp_ms`` or later are left out; others may bring earlier records with them.
    """

    start_offset: int
    stop_offset: int
    aborted: AbortedRanges = field(default_factory=lambda: AbortedRanges({}))
    min_timestamp_ms: int | None = None


class RowMaker:
    """Fed with slices in order, gives rows once there are enough of them; the rest at the end."""

    def __init__(self, shape: RowShape, wanted: WantedRows, *, where: str) -> None:
        self._shape, self._wanted, self._where = shape, wanted, where
        self._collector = BatchCollector(where)

    def feed(self, buffer: memoryview, position: int = 0) -> Iterator[pa.RecordBatch]:
        """Rows, of what was fed before too.  ``buffer`` holds whole batches whose checksums hold, from byte ``position`` of
        the .log on.

        Raises:
            CorruptDataError: records that are none, or do not open.
        """
        for begin, header in iter_batch_headers(buffer, where=self._where):
            if header.is_control or self._wanted.aborted.hides(header) or self._is_too_early(header.max_timestamp):
                continue
            if header.magic < 2:
                yield from self.finish()
                batch = buffer[begin : begin + header.size_bytes]
                start, stop = self._wanted.start_offset, self._wanted.stop_offset
                yield legacy_rows(batch, header, self._shape, start, stop, where=self._where)
            elif header.last_offset >= self._wanted.start_offset and header.base_offset < self._wanted.stop_offset:
                self._collector.add(buffer, begin, header, position + begin)
                if self._collector.is_full:
                    yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Rows of what has been fed and not been given."""
        if self._collector:
            rows = rows_of(self._collector.take(), self._shape, self._wanted.start_offset, self._wanted.stop_offset)
            if rows.num_rows:
                yield rows

    def _is_too_early(self, max_timestamp_ms: int) -> bool:
        return self._wanted.min_timestamp_ms is not None and max_timestamp_ms < self._wanted.min_timestamp_ms
