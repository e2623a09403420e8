"""Slices of whole record batches to Arrow batches of rows, as a consumer would be given them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import AbortedRanges
from tiersidecar.spark.datasource.batch_columns import (
    BatchColumns,
    Chosen,
    hidden_by,
    is_format_2,
    read_batch_columns,
)
from tiersidecar.spark.datasource.opened_batches import BatchCollector
from tiersidecar.spark.datasource.record_columns import RowShape, legacy_rows, rows_of

MOST_ROWS = 65_536
"""Of one Arrow batch: Spark holds it whole, outside its heap."""


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
        if not is_format_2(buffer):
            yield from self._legacy(buffer)
            return
        batches = read_batch_columns(buffer, where=self._where)
        batches = batches.those(self._is_wanted(batches))
        while len(batches):
            taken = self._collector.add(buffer, batches, position)
            batches = batches.those(slice(taken, None))
            if self._collector.is_full:
                yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Rows of what has been fed and not been given."""
        if self._collector:
            rows = rows_of(self._collector.take(), self._shape, self._wanted.start_offset, self._wanted.stop_offset)
            for begin in range(0, rows.num_rows, MOST_ROWS):
                yield rows.slice(begin, MOST_ROWS)

    def _is_wanted(self, batches: BatchColumns) -> Chosen:
        wanted = self._wanted
        chosen: Chosen = (batches.last_offset >= wanted.start_offset) & (batches.base_offset < wanted.stop_offset)
        if wanted.min_timestamp_ms is not None:
            chosen &= batches.max_timestamp >= wanted.min_timestamp_ms
        chosen &= ~batches.is_control & ~hidden_by(wanted.aborted, batches) & (batches.record_count != 0)
        return chosen

    def _legacy(self, buffer: memoryview) -> Iterator[pa.RecordBatch]:
        yield from self.finish()
        wanted = self._wanted
        for begin, header in iter_batch_headers(buffer, where=self._where):
            message = buffer[begin : begin + header.size_bytes]
            is_late = wanted.min_timestamp_ms is None or header.max_timestamp >= wanted.min_timestamp_ms
            rows = legacy_rows(message, header, self._shape, wanted.start_offset, wanted.stop_offset, where=self._where)
            if is_late and rows.num_rows:
                yield rows
