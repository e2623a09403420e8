"""Fold events to the last state of each segment by DataFrame operations: none of them come to the driver.

The states are those of the daemon's cache.  Nearly all segments go the straight way, each state once and one after the
other: their state follows from the offsets of those events.  All others, with repeated, refused or reordered events, are
folded one by one by :func:`tiersidecar.domain.segment_fold.fold_segment`, whose rules are the cache's.  All events of a
segment are in one partition of the topic, so their offsets order them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.metadata import hot
from tiersidecar.reconcile.segment_rows import ADDED, SEGMENT, folded_segment
from tiersidecar.spark.columns import EVENTS, ddl

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SEGMENTS = pa.schema(
    [EVENTS.field(name) for name in (*SEGMENT, *ADDED)]
    + [
        ("object_prefix", pa.string()),
        ("remote_size_bytes", pa.int64()),
        ("broker_id", pa.int32()),
        ("since_ms", pa.int64()),
        ("after", pa.int32()),
        ("before", pa.int32()),
        ("started_at", pa.int64()),
        ("finished_at", pa.int64()),
    ]
)
"""One segment.  ``broker_id`` is the one that copied it; ``since_ms`` the time of the last event that counts."""

_CROOKED = (
    "log_offset", "is_late", "api_key", "state", "broker_id", "event_timestamp_ms", *ADDED, "object_prefix",
    "remote_size_bytes",
)  # fmt: skip
"""Columns of events that the fold of one segment looks at."""

_ROWS = 5000

_DELETIONS = "deletions"
"""A column of the partition's own deletion events, ``offset:is_late:state``, or null."""


def folded(events: DataFrame, key_prefix: str, keep: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """Return one row per segment that an event added, in whatever state: columns of :data:`SEGMENTS`, ``before`` and ``after``
    the cut, and ``stem``, its objects' key without the suffix.

    ``before`` is null where the segment was added late.  ``keep`` receives frames that are read twice.
    """
    counted = keep(_counted(events))
    straight = counted.where(_is_straight()).select(*_straight_columns())
    if counted.where(~_is_straight()).isEmpty():
        return with_stem(straight, key_prefix)
    crooked = counted.where(~_is_straight()).select(*SEGMENT, _DELETIONS)
    theirs = events.join(crooked, list(SEGMENT)).select(*SEGMENT, _DELETIONS, *_CROOKED)
    # Not by applyInArrow, which costs milliseconds for each group.
    in_order = theirs.repartition(*SEGMENT).sortWithinPartitions(*SEGMENT, "log_offset")
    one_by_one = in_order.mapInArrow(_folded_one_by_one, ddl(SEGMENTS))
    return with_stem(straight.unionByName(one_by_one), key_prefix)


def _counted(events: DataFrame) -> DataFrame:
    """Return a row per segment with an addition: the first event of each state, and how many events there are."""
    is_added, offset = F.col("api_key") == hot.ADDED, F.col("log_offset")

    def first(state: State) -> Column:
        kind = hot.ADDED if state is State.COPY_SEGMENT_STARTED else hot.UPDATED
        reached = (F.col("state") == int(state)) & (F.col("api_key") == kind)
        # The lowest offset, and in its last bit whether that event was late.
        return F.min(F.when(reached, offset * 2 + F.col("is_late").cast("bigint")))

    is_of_segment = F.col("api_key").isin(hot.ADDED, hot.UPDATED)
    counted = events.where(is_of_segment).groupBy(*SEGMENT).agg(
        F.count("*").alias("events"),
        F.max_by(F.struct(*ADDED), F.when(is_added, offset)).alias("added"),
        F.max_by("object_prefix", F.when(F.col("object_prefix").isNotNull(), offset)).alias("object_prefix"),
        F.max_by("remote_size_bytes", F.when(F.col("remote_size_bytes").isNotNull(), offset)).alias("remote_size_bytes"),
        F.max_by("broker_id", F.when(F.col("state") <= int(State.COPY_SEGMENT_FINISHED), offset)).alias("broker_id"),
        F.max_by("event_timestamp_ms", offset).alias("since_ms"),
        *(first(state).alias(f"at_{int(state)}") for state in State),
    ).where(F.col("at_0").isNotNull())  # fmt: skip
    deletions = events.where(F.col("api_key") == hot.PARTITION_DELETE).groupBy("topic_id", "partition").agg(
        F.array_join(
            F.transform(
                F.array_sort(F.collect_list(F.struct("log_offset", "is_late", "state"))),
                lambda one: F.concat_ws(
                    ":",
                    one["log_offset"].cast("string"),
                    one["is_late"].cast("int").cast("string"),
                    one["state"].cast("string"),
                ),
            ),
            ",",
        ).alias(_DELETIONS)
    )  # fmt: skip
    return counted.join(F.broadcast(deletions), ["topic_id", "partition"], "left")


def _is_straight() -> Column:
    """Return whether each state is there at most once, in their order, and nothing else."""
    at = [F.col(f"at_{int(state)}") for state in State]
    known = sum((one.isNotNull().cast("int") for one in at[1:]), F.lit(1))
    ascends = F.col("events") == known
    for before, after in ((at[0], at[1]), (at[0], at[2]), (at[1], at[2]), (at[2], at[3])):
        ascends = ascends & F.coalesce(before < after, F.expr("true"))
    has_begun = at[3].isNull() | at[2].isNotNull()
    return ascends & has_begun & F.col(_DELETIONS).isNull()


def _straight_columns() -> list[Column]:
    columns: dict[str, Column] = {
        **{name: F.col(f"added.{name}") for name in ADDED},
        "after": _state(late=True),
        "before": _state(late=False),
        "started_at": F.shiftright("at_0", 1),
        "finished_at": F.shiftright("at_1", 1),
    }
    return [columns.get(name, F.col(name)).alias(name) for name in SEGMENTS.names]


def _state(*, late: bool) -> Column:
    """Return the state by the events up to the cut; by all events if ``late``."""

    def counts(state: State) -> Column:
        at = F.col(f"at_{int(state)}")
        return at.isNotNull() if late else at.isNotNull() & (at % 2 == 0)

    deleting = counts(State.DELETE_SEGMENT_STARTED)
    return (
        F.when(~counts(State.COPY_SEGMENT_STARTED), F.lit(None).cast("int"))
        .when(deleting & counts(State.DELETE_SEGMENT_FINISHED), int(State.DELETE_SEGMENT_FINISHED))
        .when(deleting, int(State.DELETE_SEGMENT_STARTED))
        .when(counts(State.COPY_SEGMENT_FINISHED), int(State.COPY_SEGMENT_FINISHED))
        .otherwise(int(State.COPY_SEGMENT_STARTED))
    )


def _folded_one_by_one(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fold in ``mapInArrow``: events in the order of their segments, and of each in the order of their offsets."""
    rows = (row for batch in batches for row in batch.to_pylist())
    groups = groupby(rows, key=lambda row: tuple(row[name] for name in SEGMENT))
    segments = (found for _, group in groups if (found := _folded_one(list(group))) is not None)
    while some := list(islice(segments, _ROWS)):
        yield pa.RecordBatch.from_pylist(some, schema=SEGMENTS)


def _folded_one(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    deletions = [tuple(map(int, one.split(":"))) for one in (rows[0][_DELETIONS] or "").split(",") if one]
    return folded_segment(rows, [(offset, bool(is_late), state) for offset, is_late, state in deletions])


def with_stem(segments: DataFrame, key_prefix: str) -> DataFrame:
    """Add ``main_path`` of :mod:`tiersidecar.formats.aiven.keys`, under the recorded prefix or ours, as ``stem``."""
    stem = F.concat(
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
    return segments.withColumn("stem", stem)


def uuid_text(column: Column) -> Column:
    """Return ``format_uuid`` of :mod:`tiersidecar.domain.ids` as a column."""
    return F.translate(F.substring(F.base64(column), 1, 22), "+/", "-_")
