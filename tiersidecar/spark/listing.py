"""The store's objects, listed by the executors in parallel: each lists ranges of keys that together leave nothing out.

A range begins after one key and ends with another, so that what nobody expects is listed too; the bounds are keys of segments
that the metadata know, so the ranges are about equally long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

import pyarrow as pa

from tiersidecar.ports.store import StoredObject
from tiersidecar.reconcile.listing import list_ranges
from tiersidecar.reconcile.segment_check import StoreOpener
from tiersidecar.spark.columns import OBJECTS, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RANGES = pa.schema([("prefix", pa.string()), ("after", pa.string()), ("upto", pa.string())])


def listed(spark: SparkSession, open_store: StoreOpener, ranges: Sequence[tuple[str, str, str]]) -> DataFrame:
    """Objects of all ``ranges``: prefix, the key after which to begin, and the last key ("" for none)."""
    at_once = max(1, min(len(ranges), spark.sparkContext.defaultParallelism * 4))
    rows = spark.createDataFrame(list(ranges), ddl(_RANGES)).repartition(at_once)

    def list_mine(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mine = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
        yield from _synchronous(_batches(open_store, mine))

    return rows.mapInArrow(list_mine, ddl(OBJECTS))


async def _batches(open_store: StoreOpener, ranges: Sequence[tuple[str, ...]]) -> AsyncIterator[pa.RecordBatch]:
    async with open_store() as store, aclosing(list_ranges(store, ranges)) as found:
        async for rows in found:
            yield _objects_batch(rows)


def _objects_batch(rows: Sequence[StoredObject]) -> pa.RecordBatch:
    columns = [[row.key for row in rows], [row.size_bytes for row in rows], [row.modified_ms for row in rows]]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, type=field.type) for column, field in zip(columns, OBJECTS, strict=True)], schema=OBJECTS
    )


def _synchronous(batches: AsyncIterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """An asynchronous iterator, driven by a loop of its own."""
    with asyncio.Runner() as runner:
        while True:
            batch = runner.run(_next(batches))
            if batch is None:
                return
            yield batch


async def _next(batches: AsyncIterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    return await anext(batches, None)
