"""Find gaps and overlaps by the rules of :mod:`tiersidecar.decide.reconcile_offsets`, for the partitions that may have any.

Spark finds these without Python, and without sorting: where segments simply follow each other, every start but the first
is where another one ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from tiersidecar.decide.reconcile_findings import Graces
from tiersidecar.decide.reconcile_offsets import LineSegment, PartitionLine, decide_offsets
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.reconcile.report_schema import FINDINGS
from tiersidecar.spark.columns import ddl, findings_batch
from tiersidecar.spark.fold import uuid_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PARTITION = ("topic_id", "partition")


def offset_findings(segments: DataFrame, graces: Graces, now_ms: int) -> DataFrame:
    """Return the findings of all partitions of topics that the cluster knows; ``segments`` are those of :func:`folded`, with
    ``is_topic_known`` and ``is_compacted``."""
    counted = segments.where(
        F.col("is_topic_known")
        & F.col("after").isin(int(State.COPY_SEGMENT_FINISHED), int(State.DELETE_SEGMENT_STARTED))
    )
    wanted = counted.join(F.broadcast(_crooked(counted)), [*_PARTITION], "left_semi").select(
        "topic", uuid_text(F.col("topic_id")).alias("topic_id"), "partition", uuid_text(F.col("uuid")).alias("segment_id"),
        "start_offset", "end_offset", "epochs", "broker_id", "started_at", "finished_at", "since_ms", "after", "is_compacted",
    )  # fmt: skip

    def of_partition(table: pa.Table) -> pa.Table:
        found = decide_offsets(_line(table), graces, now_ms)
        return pa.Table.from_batches([findings_batch(found)], schema=FINDINGS)

    return wanted.groupBy(*_PARTITION).applyInArrow(of_partition, ddl(FINDINGS))


def _crooked(segments: DataFrame) -> DataFrame:
    """Return the partitions whose segments are not one after the other.

    In a chain the starts but the lowest are the ends but the highest, each plus one; and segments whose starts and ends agree
    like this are a chain.  Sums of hashes are compared: 2 x 40 bits, which millions of segments do not overflow.
    """
    after = F.col("end_offset") + 1
    by_partition = segments.groupBy(*_PARTITION).agg(
        F.min("start_offset").alias("first"),
        F.max(after).alias("last"),
        *(F.sum(half(after) - half(F.col("start_offset"))).alias(f"sum_{n}") for n, half in enumerate(_HALVES)),
    )
    is_chain = F.expr("true")
    for n, half in enumerate(_HALVES):
        is_chain = is_chain & (F.col(f"sum_{n}") == half(F.col("last")) - half(F.col("first")))
    return by_partition.where(~is_chain).select(*_PARTITION)


_HALVES: tuple[Callable[[Column], Column], ...] = (
    lambda offset: F.xxhash64(offset).bitwiseAND(0xFF_FFFF_FFFF),
    lambda offset: F.shiftright(F.xxhash64(offset), 24),
)


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
