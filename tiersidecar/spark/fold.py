"""Events to the last state of each segment, by DataFrame operations alone: nothing of it comes to the driver.

The states are those of the daemon's cache (:mod:`tiersidecar.domain.states`), told from the first event of each state: an
update counts if what it leads to is allowed from where the segment was.  All events of a segment are in one partition of the
topic, so their offsets order them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.metadata import hot

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_IDENTITY = ("topic", "topic_id", "partition", "start_offset", "end_offset", "segment_size_bytes", "epochs")


def folded(events: DataFrame, key_prefix: str) -> DataFrame:
    """One row per segment that an event added, in whatever state: its identity, ``before`` and ``after``, and ``stem``, its
    objects' key without the suffix.

    ``before`` is null where the segment was added late.
    """
    is_added, offset = F.col("api_key") == hot.ADDED, F.col("log_offset")

    def first(state: State) -> Column:
        reached = (F.col("state") == int(state)) & F.col("api_key").isin(hot.ADDED, hot.UPDATED)
        # The lowest offset, and in its last bit whether that event was late.
        return F.min(F.when(reached, offset * 2 + F.col("is_late").cast("bigint")))

    grouped = events.where(F.col("uuid").isNotNull()).groupBy("uuid")
    counted = grouped.agg(
        F.max_by(F.struct(*_IDENTITY), F.when(is_added, offset)).alias("added"),
        F.max_by("object_prefix", F.when(F.col("object_prefix").isNotNull(), offset)).alias("object_prefix"),
        F.max("remote_size_bytes").alias("remote_size_bytes"),
        F.max_by("broker_id", F.when(F.col("state") <= int(State.COPY_SEGMENT_FINISHED), offset)).alias("broker_id"),
        F.max("event_timestamp_ms").alias("since_ms"),
        first(State.COPY_SEGMENT_STARTED).alias("at_0"),
        first(State.COPY_SEGMENT_FINISHED).alias("at_1"),
        first(State.DELETE_SEGMENT_STARTED).alias("at_2"),
        first(State.DELETE_SEGMENT_FINISHED).alias("at_3"),
    ).where(F.col("at_0").isNotNull() & F.col("added").isNotNull())
    states = counted.select(
        "uuid",
        "added.*",
        "object_prefix",
        "remote_size_bytes",
        "broker_id",
        "since_ms",
        _state(late=True).alias("after"),
        _state(late=False).alias("before"),
        F.shiftright("at_0", 1).alias("started_at"),
        F.shiftright("at_1", 1).alias("finished_at"),
    )
    return states.withColumn("stem", _stem(key_prefix))


def _state(*, late: bool) -> Column:
    """State by the events up to the cut; of all events if ``late``."""

    def counts(at: str) -> Column:
        known = F.col(at).isNotNull()
        return known if late else known & (F.col(at) % 2 == 0)

    finished_in_time = F.col("at_2").isNull() | (F.col("at_1") < F.col("at_2"))
    deleting = counts("at_2") & (F.col("at_2") > F.col("at_0"))
    return (
        F.when(~counts("at_0"), F.lit(None).cast("int"))
        .when(deleting & counts("at_3") & (F.col("at_3") > F.col("at_2")), int(State.DELETE_SEGMENT_FINISHED))
        .when(deleting, int(State.DELETE_SEGMENT_STARTED))
        .when(counts("at_1") & (F.col("at_1") > F.col("at_0")) & finished_in_time, int(State.COPY_SEGMENT_FINISHED))
        .otherwise(int(State.COPY_SEGMENT_STARTED))
    )


def _stem(key_prefix: str) -> Column:
    """``main_path`` of :mod:`tiersidecar.formats.aiven.keys`, under the recorded prefix or ours."""
    return F.concat(
        F.coalesce(F.col("object_prefix"), F.lit(key_prefix)),
        F.col("topic"),
        F.lit("-"),
        uuid_text(F.col("topic_id")),
        F.lit("/"),
        F.col("partition").cast("string"),
        F.lit("/"),
        F.lpad(F.col("start_offset").cast("string"), 20, "0"),
        F.lit("-"),
        uuid_text(F.col("uuid")),
    )


def uuid_text(column: Column) -> Column:
    """``format_uuid`` of :mod:`tiersidecar.domain.ids`."""
    return F.translate(F.substring(F.base64(column), 1, 22), "+/", "-_")
