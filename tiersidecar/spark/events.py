"""Read the metadata topic with Spark, between two cuts of offsets, and decode it into columns with the daemon's own codec."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from tiersidecar.reconcile.segment_rows import event_fields
from tiersidecar.spark.columns import EVENTS, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
import json
from collections.abc import Mapping
from dataclasses import dataclass

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Cut = Mapping[int, int]
"""An offset by partition: exclusive where it is an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataTopic:
    """``options`` are those of :func:`tiersidecar.spark.kafka_options.kafka_options`."""

    topic: str
    options: Mapping[str, str]

    def read(self, spark: SparkSession, begin: Cut, end: Cut) -> DataFrame:
        """Return raw records from ``begin`` up to, not including, ``end``: partition, offset and value."""
        reader = spark.read.format("kafka").options(**self.options)
        return (
            reader.option("assign", json.dumps({self.topic: sorted(begin)}))
            .option("startingOffsets", _offsets(self.topic, begin))
            .option("endingOffsets", _offsets(self.topic, end))
            .option("failOnDataLoss", "true")
            .load()
            .select("partition", "offset", "value")
        )


def _offsets(topic: str, cut: Cut) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in cut.items()}})


RAW_COLUMNS = ("partition", "offset", "is_late", "value")
"""Input of :func:`decoded`: the record's partition, offset and value, and whether it came after the listing began."""


def decoded(raw: DataFrame) -> DataFrame:
    """Return columns of :data:`~tiersidecar.spark.columns.EVENTS`, one row for each row of ``raw``."""
    return raw.select(*RAW_COLUMNS).mapInArrow(_decode_batches, ddl(EVENTS))


def _decode_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        partitions, offsets, lates, values = (column.to_pylist() for column in batch.columns)
        rows = [
            event_fields(value or b"", place)
            for value, place in zip(values, zip(partitions, offsets, strict=True), strict=True)
        ]
        columns = [partitions, offsets, lates, *map(list, zip(*rows, strict=True))] if rows else [[]] * len(EVENTS)
        arrays = [pa.array(column, type=field.type) for column, field in zip(columns, EVENTS, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=EVENTS)
