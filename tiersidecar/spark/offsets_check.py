"""Gaps and overlaps by the rules of :mod:`tiersidecar.decide.reconcile_offsets`, for the partitions that may have any.

Which these are, a window over each partition's segments tells without Python: all whose segments are not simply one after the
other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from tiersidecar.decide.reconcile_findings import Graces
from tiersidecar.decide.reconcile_offsets import LineSegment, PartitionLine, decide_offsets
from tiersidecar.domain.epochs import EpochEntry
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.spark.columns import FINDINGS, ddl, findings_batch
from tiersidecar.spark.fold import uuid_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARTITION = ("topic_id", "partition")


def offset_findings(segments: DataFrame, graces: Graces, now_ms: int) -> DataFrame:
    """Findings of all partitions of topics that the cluster knows; ``segments`` are those of :func:`folded`, with
    ``is_topic_known`` and ``is_compacted``."""
    counted = segments.where(
        F.col("is_topic_known")
        & F.col("after").isin(int(State.COPY_SEGMENT_FINISHED), int(State.DELETE_SEGMENT_STARTED))
    )
    ordered = Window.partitionBy(*_PARTITION).orderBy("start_offset", "end_offset")
    before = F.max("end_offset").over(ordered.rowsBetween(Window.unboundedPreceding, -1))
    whole = Window.partitionBy(*_PARTITION)
    crooked = counted.withColumn("is_crooked", (F.col("start_offset") != before + 1).cast("int")).withColumn(
        "crooked", F.max(F.coalesce("is_crooked", F.lit(0))).over(whole)
    )
    wanted = crooked.where(F.col("crooked") == 1).select(
        "topic", uuid_text(F.col("topic_id")).alias("topic_id"), "partition", uuid_text(F.col("uuid")).alias("segment_id"),
        "start_offset", "end_offset", "epochs", "broker_id", "started_at", "finished_at", "since_ms", "after", "is_compacted",
    )  # fmt: skip

    def of_partition(table: pa.Table) -> pa.Table:
        found = decide_offsets(_line(table), graces, now_ms)
        return pa.Table.from_batches([findings_batch(found)], schema=FINDINGS)

    return wanted.groupBy(*_PARTITION).applyInArrow(of_partition, ddl(FINDINGS))


def _line(table: pa.Table) -> PartitionLine:
    rows = table.to_pylist()
    return PartitionLine(
        topic=rows[0]["topic"],
        topic_id=rows[0]["topic_id"],
        partition=rows[0]["partition"],
        segments=[_segment(row) for row in rows],
        is_compacted=rows[0]["is_compacted"],
    )


def _segment(row: dict[str, Any]) -> LineSegment:
    pairs = (pair.split(":") for pair in row["epochs"].split(","))
    return LineSegment(
        segment_id=row["segment_id"],
        start_offset=row["start_offset"],
        end_offset=row["end_offset"],
        epochs=tuple(EpochEntry(LeaderEpoch(int(epoch)), Offset(int(start))) for epoch, start in pairs),
        broker_id=row["broker_id"],
        started_at=row["started_at"],
        finished_at=-1 if row["finished_at"] is None else row["finished_at"],
        since_ms=row["since_ms"],
        is_going=row["after"] == int(State.DELETE_SEGMENT_STARTED),
    )
