"""Turn record batches into rows in Arrow, column by column: no Python object is made for a record of format 2.

Keys and values lie in the opened batches with other bytes between them.  Arrow gets the whole buffer as one binary array in
which every second element is a field, and gathers those.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.formats.kafka.record_batches import RecordBatchHeader, TimestampType
from tiersidecar.formats.kafka.records import Record, read_records
from tiersidecar.spark.datasource.batch_columns import LOG_APPEND_TIME_FLAG, BatchColumns, Chosen
from tiersidecar.spark.datasource.opened_batches import OpenedBatches
from tiersidecar.spark.datasource.record_fields import (
    Column,
    MalformedRecordsError,
    RecordFields,
    find_fields,
    find_headers,
)
from tiersidecar.spark.datasource.row_schema import (
    CREATE_TIME,
    HEADER,
    HEADERS,
    LOG_APPEND_TIME,
    NO_TIMESTAMP_TYPE,
    row_schema,
)

_MICROSECONDS_PER_MS = 1000
_LATEST_MS = (2**63 - 1) // _MICROSECONDS_PER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShape:
    """Shape of the rows of one partition of a topic."""

    topic: str
    partition: int
    include_headers: bool = False

    @property
    def schema(self) -> pa.Schema:
        return row_schema(include_headers=self.include_headers)


def rows_of(opened: OpenedBatches, shape: RowShape, start_offset: int, stop_offset: int) -> pa.RecordBatch:
    """Return rows of the records from ``start_offset`` up to, not including, ``stop_offset``, in order.

    Raises:
        CorruptDataError: records that are none.
    """
    batches = opened.batches
    try:
        fields = find_fields(opened.data, batches.starts, batches.stops, batches.record_count)
        return _rows(opened, fields, shape, start_offset, stop_offset)
    except (MalformedRecordsError, pa.ArrowInvalid) as error:
        raise CorruptDataError(where=opened.where, position=opened.position, reason=str(error)) from error


def legacy_rows(
    batch: memoryview, header: RecordBatchHeader, shape: RowShape, start_offset: int, stop_offset: int, *, where: str
) -> pa.RecordBatch:
    """Return the same of one message of format 0 or 1, or of those compressed in it; these were written before 2017.

    Raises:
        CorruptDataError: as :func:`~tiersidecar.formats.kafka.records.read_records`.
    """
    records = [record for record in read_records(batch, where=where) if start_offset <= record.offset < stop_offset]
    columns = [
        [record.key for record in records],
        [record.value for record in records],
        [shape.topic] * len(records),
        [shape.partition] * len(records),
        [record.offset for record in records],
        [record.timestamp_ms * _MICROSECONDS_PER_MS for record in records],
        [_legacy_type(header, record) for record in records],
        *([[None] * len(records)] if shape.include_headers else []),
    ]
    schema = shape.schema
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _legacy_type(header: RecordBatchHeader, record: Record) -> int:
    if header.magic == 0:
        return NO_TIMESTAMP_TYPE
    return LOG_APPEND_TIME if record.timestamp_type is TimestampType.LOG_APPEND_TIME else CREATE_TIME


def _rows(
    opened: OpenedBatches, fields: RecordFields, shape: RowShape, start_offset: int, stop_offset: int
) -> pa.RecordBatch:
    batches, counts = opened.batches, opened.batches.record_count
    offsets = np.repeat(batches.base_offset, counts) + fields.offset_delta
    by_log = (batches.attributes & LOG_APPEND_TIME_FLAG) != 0
    size = len(offsets)
    arrays = [
        *_binaries(opened.data, (fields.key_start, fields.key_size), (fields.value_start, fields.value_size)),
        pa.repeat(pa.scalar(shape.topic, pa.string()), size),
        pa.repeat(pa.scalar(shape.partition, pa.int32()), size),
        pa.array(offsets),
        _timestamps(batches, by_log, fields.timestamp_delta),
        pa.array(np.repeat(np.where(by_log, LOG_APPEND_TIME, CREATE_TIME).astype(np.int32), counts)),
    ]
    if shape.include_headers:
        arrays.append(_headers(opened.data, fields))
    rows = pa.RecordBatch.from_arrays(arrays, schema=shape.schema)
    # Offsets rise; only the first and the last batch of a read reach over its bounds.
    begin, end = np.searchsorted(offsets, [start_offset, stop_offset])
    return rows if (begin, end) == (0, size) else rows.slice(begin, max(end - begin, 0))


def _timestamps(batches: BatchColumns, by_log: Chosen, deltas: Column) -> pa.Array:
    counts = batches.record_count
    bases = np.repeat(np.where(by_log, batches.max_timestamp, batches.base_timestamp), counts)
    milliseconds = np.where(np.repeat(by_log, counts), bases, bases + deltas) if by_log.any() else bases + deltas
    # Spark counts in microseconds: a later time than it can express becomes its latest.
    milliseconds = np.clip(milliseconds, -_LATEST_MS, _LATEST_MS)
    return pa.array(milliseconds * _MICROSECONDS_PER_MS).cast(pa.timestamp("us", tz="UTC"))


def _binaries(data: bytes | memoryview, *fields: tuple[Column, Column]) -> Iterator[pa.Array]:
    """Yield the bytes of all records of each field, given by starts and sizes; a size of -1 is null."""
    width, count = 2 * len(fields), len(fields[0][0])
    edges = np.empty((count, width), np.int32)
    for place, (starts, sizes) in enumerate(fields):
        edges[:, 2 * place] = starts
        edges[:, 2 * place + 1] = starts + np.maximum(sizes, 0)
    # Elements alternate: a field, and the bytes between it and the next one.
    elements = pa.Array.from_buffers(
        pa.binary(), max(edges.size - 1, 0), [None, pa.py_buffer(edges), pa.py_buffer(data)], null_count=0
    )
    for place, (_, sizes) in enumerate(fields):
        wanted = np.arange(2 * place, edges.size, width, dtype=np.int64)
        yield elements.take(_nullable(wanted, sizes < 0))


def _nullable(values: Column, nulls: NDArray[np.bool_]) -> pa.Array:
    return pa.array(values, mask=nulls) if nulls.any() else pa.array(values)


def _headers(data: bytes | memoryview, fields: RecordFields) -> pa.Array:
    found = find_headers(data, fields)
    counts = fields.header_count
    keys, values = _binaries(data, (found.key_start, found.key_size), (found.value_start, found.value_size))
    pairs = pa.StructArray.from_arrays([_texts(keys), values], fields=list(HEADER))
    ends = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    nothing = counts == 0
    return pa.ListArray.from_arrays(
        pa.array(ends), pairs, type=HEADERS, mask=pa.array(nothing) if nothing.any() else None
    )


def _texts(keys: pa.Array) -> pa.Array:
    """Return header keys as text; bytes that are not UTF-8 are replaced, as in Kafka's consumer."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode(errors="replace") for key in keys.to_pylist()], pa.string())
