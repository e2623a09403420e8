"""List the store with the executors in parallel, and group the objects by segment, by their keys alone.

A range begins after one key and ends with another, so unexpected objects are listed too.  The bounds are keys of segments in
the metadata, so the ranges are about equally long.  An object of no segment has a row of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from tiersidecar.adapters.ending_loop import EndingRunner
from tiersidecar.domain.own_objects import OWN_DIRECTORY
from tiersidecar.formats.aiven.keys import LAYOUT_PATTERN, ObjectKind
from tiersidecar.ports.store import PROBE_NAME
from tiersidecar.reconcile.segment_check import OBJECT_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing

import pyarrow as pa

from tiersidecar.ports.store import StoredObject
from tiersidecar.reconcile.listing import list_ranges
from tiersidecar.reconcile.segment_check import StoreOpener
from tiersidecar.spark.columns import LISTED, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RANGES = pa.schema([("prefix", pa.string()), ("after", pa.string()), ("upto", pa.string())])


def listed(spark: SparkSession, open_store: StoreOpener, ranges: Sequence[tuple[str, str, str]]) -> DataFrame:
    """Return objects of all ``ranges``: prefix, the key after which to begin, and the last key ("" for none); and places that
    stopped answering, as :data:`~tiersidecar.spark.columns.LISTED` has them."""
    at_once = max(1, min(len(ranges), spark.sparkContext.defaultParallelism * 4))
    rows = spark.createDataFrame(list(ranges), ddl(_RANGES)).repartition(at_once)

    def list_mine(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mine = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
        yield from _synchronous(_batches(open_store, mine))

    return rows.mapInArrow(list_mine, ddl(LISTED))


async def _batches(open_store: StoreOpener, ranges: Sequence[tuple[str, ...]]) -> AsyncIterator[pa.RecordBatch]:
    away: dict[str, str] = {}
    async with open_store() as store, aclosing(list_ranges(store, ranges, away)) as found:
        async for rows in found:
            yield _objects_batch(rows)
    if away:
        nothing = [None] * len(away)
        yield _batch([[*away.keys()], nothing, nothing, [*away.values()]])


def _objects_batch(rows: Sequence[StoredObject]) -> pa.RecordBatch:
    keys, sizes, times = [row.key for row in rows], [row.size_bytes for row in rows], [row.modified_ms for row in rows]
    return _batch([keys, sizes, times, [None] * len(rows)])


def _batch(columns: Sequence[Sequence[object]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(column, type=field.type) for column, field in zip(columns, LISTED, strict=True)], schema=LISTED
    )


def places_away(rows: DataFrame) -> dict[str, str]:
    """Return why places stopped answering, by their prefixes, from the rows of :func:`listed`."""
    return {row["key"]: row["away"] for row in rows.where(F.col("away").isNotNull()).select("key", "away").collect()}


def objects_but_of(rows: DataFrame, away: Iterable[str]) -> DataFrame:
    """Return the objects among the rows of :func:`listed`, but for those of places that are ``away``, by their prefixes."""
    objects = rows.where(F.col("away").isNull()).drop("away")
    for prefix in away:
        objects = objects.where(~F.col("key").startswith(prefix))
    return objects


def _synchronous(batches: AsyncIterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run an asynchronous iterator in an event loop of its own."""
    with EndingRunner() as runner:
        while True:
            batch = runner.run(_next(batches))
            if batch is None:
                return
            yield batch


async def _next(batches: AsyncIterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    return await anext(batches, None)


_FOREIGN = "foreign"


def layout_of(prefixes: Iterable[str]) -> str:
    """Return a pattern, for Java, of keys of our layout under one of ``prefixes``; its groups are LAYOUT_PATTERN's."""
    quoted = "|".join(f"\\Q{prefix}\\E" for prefix in sorted(prefixes, reverse=True))
    return f"^(?:{quoted}){re.sub(r'[?]P<[a-z_]+>', '', LAYOUT_PATTERN)}$"


def by_segment(objects: DataFrame, layout: str, own_prefixes: Iterable[str]) -> DataFrame:
    """Return ``stem``, bytes and time of each of the up to three objects of a segment; an object that is not of the layout is a
    row under its whole key with ``foreign_bytes`` and ``foreign_ms``.  The sidecars' own objects are left out, under each of
    ``own_prefixes``."""
    is_ours = F.expr("false")
    for prefix, name in product(sorted(own_prefixes), (OWN_DIRECTORY, PROBE_NAME)):
        is_ours = is_ours | F.col("key").startswith(prefix + name)
    stem = F.expr("substring(key, 1, length(key) - length(substring_index(key, '.', -1)) - 1)")
    suffix = F.substring_index("key", ".", -1)
    is_of_layout = F.col("is_of_layout")
    rows = (
        objects.withColumn("is_of_layout", F.col("key").rlike(layout))
        .where(is_of_layout | ~is_ours)
        .select(
            F.when(is_of_layout, stem).otherwise(F.col("key")).alias("stem"),
            F.when(is_of_layout, suffix).otherwise(F.lit(_FOREIGN)).alias("kind"),
            "size_bytes",
            "modified_ms",
        )
    )
    kinds = {**dict(zip(OBJECT_COLUMNS, map(str, ObjectKind), strict=True)), _FOREIGN: _FOREIGN}
    columns = [
        F.max(F.when(F.col("kind") == kind, F.col(source))).alias(f"{name}_{unit}")
        for name, kind in kinds.items()
        for source, unit in (("size_bytes", "bytes"), ("modified_ms", "ms"))
    ]
    return rows.groupBy("stem").agg(*columns)


def sizes() -> list[Column]:
    """Return the sizes of the three, null where there is none."""
    return [F.col(f"{name}_bytes") for name in OBJECT_COLUMNS]


def is_foreign() -> Column:
    """Return whether the row has an object that is no segment's."""
    return F.col(f"{_FOREIGN}_bytes").isNotNull()
