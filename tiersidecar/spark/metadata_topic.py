"""The metadata topic as Spark reads it: all of it between two cuts of offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Cut = Mapping[int, int]
"""By partition, an offset: exclusive where it is an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataTopic:
    """``options`` are those of :func:`tiersidecar.spark.kafka_options.kafka_options`."""

    topic: str
    options: Mapping[str, str]

    def read(self, spark: SparkSession, begin: Cut, end: Cut) -> DataFrame:
        """Raw records from ``begin`` up to, not including, ``end``: partition, offset and value."""
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
