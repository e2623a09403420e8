"""The store's objects, listed by the executors in parallel: each lists ranges of keys that together leave nothing out.

A range begins after one key and ends with another, so that what nobody expects is listed too; the bounds are keys of segments
that the metadata know, so the ranges are about equally long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import pyarrow as pa

from tiersidecar.ports.store import ListObjects, Store, StoredObject
from tiersidecar.spark.columns import OBJECTS, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

StoreOpener = Callable[[], AbstractAsyncContextManager[Store]]
"""Opens the store where it is called.  It is pickled, so that executors open it with credentials of their own."""

_ROWS = 5000
_RANGES_AT_ONCE = 8
_RANGES = pa.schema([("prefix", pa.string()), ("after", pa.string()), ("upto", pa.string())])


def listed(spark: SparkSession, open_store: StoreOpener, ranges: Sequence[tuple[str, str, str]]) -> DataFrame:
    """Objects of all ``ranges``: prefix, the key after which to begin, and the last key ("" for none)."""
    at_once = max(1, min(len(ranges), spark.sparkContext.defaultParallelism * 4))
    rows = spark.createDataFrame(list(ranges), ddl(_RANGES)).repartition(at_once)

    def list_ranges(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mine = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
        yield from _synchronous(_batches(open_store, mine))

    return rows.mapInArrow(list_ranges, ddl(OBJECTS))


def ranges_between(prefixes: Iterable[str], bounds: Iterable[str]) -> list[tuple[str, str, str]]:
    """Ranges for :func:`listed` that cover every key under one of ``prefixes``, cut at ``bounds``."""
    found: list[tuple[str, str, str]] = []
    kept: list[str] = []
    for prefix in sorted(set(prefixes)):
        if any(prefix.startswith(other) for other in kept):
            continue
        kept.append(prefix)
        inside = sorted({bound for bound in bounds if bound.startswith(prefix) and bound > prefix})
        for after, upto in zip(["", *inside], [*inside, ""], strict=True):
            found.append((prefix, after, upto))
    return found


async def _batches(open_store: StoreOpener, ranges: Sequence[tuple[str, ...]]) -> AsyncIterator[pa.RecordBatch]:
    async with open_store() as store:
        found: asyncio.Queue[list[StoredObject] | None] = asyncio.Queue(_RANGES_AT_ONCE)
        turn = asyncio.Semaphore(_RANGES_AT_ONCE)

        async def walk() -> None:
            async with asyncio.TaskGroup() as tasks:
                for prefix, after, upto in ranges:
                    tasks.create_task(_list_range(store, (prefix, after, upto), found, turn))

        async def walk_to_the_end() -> None:
            try:
                await walk()
            finally:
                await found.put(None)

        walking = asyncio.create_task(walk_to_the_end())
        try:
            while (rows := await found.get()) is not None:
                yield _objects_batch(rows)
            await walking
        finally:
            walking.cancel()


async def _list_range(
    store: ListObjects,
    key_range: tuple[str, str, str],
    found: asyncio.Queue[list[StoredObject] | None],
    turn: asyncio.Semaphore,
) -> None:
    prefix, after, upto = key_range
    async with turn:
        rows: list[StoredObject] = []
        async for stored in store.list_objects(prefix, start_after=after):
            if upto and stored.key > upto:
                break
            rows.append(stored)
            if len(rows) == _ROWS:
                await found.put(rows)
                rows = []
        if rows:
            await found.put(rows)


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
