"""Run the reconcile job: events and objects in, findings out; joined by Spark, decided by :mod:`tiersidecar.decide`.

1. Events up to the topic's end now are decoded.  2. The objects are listed.  3. Events that came meanwhile are decoded too,
marked late.  4. All are folded to segments, joined with the objects by key, and rows that are not plainly in order are decided.

Each of these is one pass: counts are observed on the way, without another pass.

So every object was listed between the two cuts (docs/design/0007-reconcile.md).  Only counts and the bounds of the listing's
ranges come to the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from tiersidecar.adapters.ending_loop import EndingRunner
from tiersidecar.decide.reconcile_findings import Finding, FindingKind, place_out_of_reach
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.aiven.keys import ObjectKind
from tiersidecar.formats.metadata import hot
from tiersidecar.reconcile.inputs import KnownTopic, ReconcileSettings, Seen
from tiersidecar.reconcile.listing import ranges_between
from tiersidecar.reconcile.report_schema import FINDINGS
from tiersidecar.reconcile.segment_check import SegmentCheck
from tiersidecar.spark.columns import ddl, findings_batch
from tiersidecar.spark.events import decoded
from tiersidecar.spark.fold import folded, uuid_text, with_stem
from tiersidecar.spark.objects_by_segment import (
    by_segment,
    is_foreign,
    layout_of,
    listed,
    objects_but_of,
    places_away,
    sizes,
)
from tiersidecar.spark.offsets_check import offset_findings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_SEGMENTS_PER_RANGE = 5000
_MOST_RANGES = 2000
_SAMPLES_PER_BOUND = 10
_ENDED = "array<struct<stem:string,start_offset:bigint,end_offset:bigint,epochs:string>>"
_PRECEDING = f"array<struct<stem:string,start_offset:bigint,end_offset:bigint,epochs:string,before:{_ENDED}>>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileInputs:
    """Sources of events and objects.

    ``early_events`` are those up to the first cut; ``late_events`` is called after the listing, for those from there on.
    ``objects`` is an inventory, or None: then the store is listed.  An inventory is older than all events: those after
    ``inventory_time_ms`` count as late.  ``metadata_doubt`` is called when all events are read, with the numbers of segments of
    known and of unknown topics: it returns why events may be missing, or not this cluster's; "" if nothing says so.
    """

    early_events: DataFrame
    late_events: Callable[[], DataFrame]
    topics: Sequence[KnownTopic]
    objects: DataFrame | None = None
    inventory_time_ms: int | None = None
    metadata_doubt: Callable[[int, int], str] = lambda known, foreign: ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled(Seen):
    """Counts and findings of a run.  ``findings`` are persisted: :meth:`Reconciler.close` releases them."""

    findings: DataFrame


class Reconciler:
    """One run; ``say`` is called with the name of each step that begins."""

    def __init__(self, spark: SparkSession, settings: ReconcileSettings, say: Callable[[str], None]) -> None:
        self._spark, self._settings, self._say = spark, settings, say
        self._kept: list[DataFrame] = []

    def run(self, inputs: ReconcileInputs, *, now_ms: Callable[[], int]) -> Reconciled:
        """Find everything; lazily in Spark, so it is done when this returns.

        Raises:
            Py4JJavaError, PySparkException: Spark failed; with the executor's error in it.
        """
        early = decoded(inputs.early_events.withColumn("is_late", F.expr("false")))
        objects = inputs.objects
        if inputs.inventory_time_ms is not None:
            is_after = F.coalesce(F.col("event_timestamp_ms") >= inputs.inventory_time_ms, F.expr("false"))
            early = early.withColumn("is_late", is_after)
        self._say("reading the metadata topic")
        early = self._keep(early)
        if objects is None:
            ranges = self._ranges(early)
            self._say(f"listing the store in {len(ranges)} ranges")
            assert self._settings.open_store is not None, "without an inventory the store is listed"
            rows = self._keep(listed(self._spark, self._settings.open_store, ranges))
            stopped = places_away(rows)
            objects, self._settings = objects_but_of(rows, stopped), self._settings.without(stopped)
        self._say("reading what was published meanwhile")
        events = early.unionByName(self._keep(decoded(inputs.late_events().withColumn("is_late", F.expr("true")))))
        event_count, bad_count = events.agg(F.count("*"), F.count("fault")).collect()[0]
        seen_segments, seen_objects, seen_findings = (Observation(name) for name in ("segments", "objects", "findings"))
        known = self._topics(inputs.topics)
        folded_events = folded(events, self._settings.key_prefix, self._keep)
        segments = self._keep(_observed_segments(self._with_topics(folded_events, known), seen_segments))
        recorded = {*(seen_segments.get["prefixes"] or [])}
        unknown = self._settings.places_out_of_reach(recorded)
        prefixes = {*self._settings.prefixes, *(recorded - unknown)}
        doubt = inputs.metadata_doubt(seen_segments.get["known"], seen_segments.get["all"] - seen_segments.get["known"])
        self._say("comparing")
        decided_ms = now_ms()
        observed = objects.observe(seen_objects, F.count("*").alias("all"), F.sum("size_bytes").alias("bytes"))
        by_stem = by_segment(observed, layout_of(prefixes), self._settings.prefixes)
        is_elsewhere = F.coalesce(F.col("object_prefix").isin(sorted(unknown)), F.expr("false"))
        within_reach = segments.where(~is_elsewhere) if unknown else segments
        findings = self._of_segments(within_reach, by_stem, known, prefixes, doubt, decided_ms)
        away = self._settings.away
        if unknown or away:
            remaining = segments.where(is_elsewhere & (F.col("after") != int(State.DELETE_SEGMENT_FINISHED)))
            none = self._spark.createDataFrame([(prefix, 0) for prefix in away], "object_prefix string, count bigint")
            counted = remaining.groupBy("object_prefix").count().unionByName(none).groupBy("object_prefix")
            summed = counted.agg(F.sum("count").alias("count"))
            findings = findings.unionByName(summed.mapInArrow(partial(_out_of_reach, dict(away)), ddl(FINDINGS)))
        findings = findings.unionByName(offset_findings(segments, self._settings.graces, decided_ms))
        if bad_count:
            bad = events.where(F.col("fault").isNotNull()).select("log_partition", "log_offset", "fault")
            findings = findings.unionByName(bad.mapInArrow(_unreadable_events, ddl(FINDINGS)))
        findings = self._keep(_observed_findings(findings, seen_findings))
        return Reconciled(
            findings=findings,
            event_count=event_count,
            segment_count=seen_segments.get["all"],
            live_segment_count=seen_segments.get["live"],
            live_bytes=seen_segments.get["live_bytes"] or 0,
            object_count=seen_objects.get["all"],
            object_bytes=seen_objects.get["bytes"] or 0,
            orphan_count=seen_findings.get["orphans"],
            orphan_bytes=seen_findings.get["orphan_bytes"] or 0,
            metadata_doubt=doubt,
        )

    def close(self) -> None:
        """Release the data kept on the executors' disks."""
        for frame in self._kept:
            frame.unpersist()
        self._kept.clear()

    def _keep(self, frame: DataFrame) -> DataFrame:
        kept = frame.persist(StorageLevel.DISK_ONLY)
        kept.count()
        self._kept.append(kept)
        return kept

    def _ranges(self, events: DataFrame) -> list[tuple[str, str, str]]:
        added = events.where(F.col("api_key") == hot.ADDED)
        count = added.count()
        ranges = max(self._spark.sparkContext.defaultParallelism * 4, count // _SEGMENTS_PER_RANGE)
        wanted = min(ranges, _MOST_RANGES, max(count, 1))
        share = min(1.0, wanted * _SAMPLES_PER_BOUND / max(count, 1))
        stems = sorted(
            row[0] for row in with_stem(added.sample(share, seed=1), self._settings.key_prefix).select("stem").collect()
        )
        bounds = stems[:: max(1, len(stems) // wanted)]
        return ranges_between(self._prefixes(events), bounds)

    def _prefixes(self, rows: DataFrame) -> set[str]:
        """Return our prefixes, and those that segments were recorded under, as far as they can be listed: few."""
        rows = rows.where(F.col("object_prefix").isNotNull()).select("object_prefix").distinct()
        recorded = {row[0] for row in rows.collect()}
        return {*self._settings.prefixes, *(recorded - self._settings.places_out_of_reach(recorded))}

    def _topics(self, topics: Sequence[KnownTopic]) -> DataFrame:
        rows = [(one.topic_id, one.topic, not one.is_gone, one.is_gone, one.is_compacted) for one in topics]
        columns = "topic_known boolean, topic_owned boolean, topic_compacted boolean"
        return self._spark.createDataFrame(rows, f"topic_id_text string, topic_name string, {columns}")

    def _with_topics(self, segments: DataFrame, known: DataFrame) -> DataFrame:
        named = segments.withColumn("topic_id_text", uuid_text(F.col("topic_id")))
        return _with_facts(named.join(F.broadcast(known), "topic_id_text", "left")).drop("topic_name")

    def _of_segments(
        self, segments: DataFrame, objects: DataFrame, known: DataFrame, prefixes: set[str], doubt: str, now_ms: int
    ) -> DataFrame:
        rows = segments.select(
            "stem", "topic", F.col("topic_id_text").alias("topic_id"), "partition",
            uuid_text(F.col("uuid")).alias("segment_id"), "start_offset", "end_offset", "epochs", "before", "after",
            "since_ms", "segment_size_bytes", "remote_size_bytes", "is_topic_known", "is_topic_owned",
        )  # fmt: skip
        rows = (
            with_preceding(rows) if self._settings.deep else rows.withColumn("preceding", F.lit(None).cast(_PRECEDING))
        )
        joined = rows.join(objects, "stem", "full_outer")
        reads = self._settings.reads_manifests and self._settings.open_store is not None
        rows = joined.where(~_is_in_order(is_plain=self._settings.is_plain, reads_manifests=reads))
        check = SegmentCheck(
            graces=self._settings.graces,
            now_ms=now_ms,
            open_store=self._settings.open_store,
            reads_manifests=reads,
            is_plain=self._settings.is_plain,
            deep=self._settings.deep,
            metadata_doubt=doubt,
        )
        ends = segments.groupBy("topic_id_text", "partition").agg(F.max("end_offset").alias("known_until"))
        named = _named(rows, known, prefixes).join(
            F.broadcast(ends.withColumnRenamed("topic_id_text", "topic_id")), ["topic_id", "partition"], "left"
        )
        return named.mapInArrow(partial(_checked, check), ddl(FINDINGS))


def _checked(check: SegmentCheck, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Check rows in ``mapInArrow``: one batch of findings for each batch of rows."""
    with EndingRunner() as runner:
        for batch in batches:
            found = runner.run(check.check(batch.to_pylist()))
            if found:
                yield findings_batch(found)


def with_preceding(segments: DataFrame) -> DataFrame:
    """Add ``preceding``: live segments that end where each begins, whose snapshots have the transactions open there; where
    there are none, as at few segments, those that go on past that, which an election may have cut."""
    keys, finished = ["topic_id", "partition", "start_offset"], int(State.COPY_SEGMENT_FINISHED)
    is_live = (F.col("before") == finished) & (F.col("after") == finished)
    one = ("stem", "start_offset", "end_offset", "epochs")
    ended = (
        segments.where(is_live)
        .select("topic_id", "partition", (F.col("end_offset") + 1).alias("start_offset"), F.struct(*one).alias("one"))
        .groupBy(keys)
        .agg(F.collect_list("one").alias("ended"))
    )
    known = segments.join(ended, keys, "left")
    alone = known.where(is_live & F.col("ended").isNull() & (F.col("start_offset") > 0)).select(keys).distinct()
    others = known.where(is_live).select(
        "topic_id", "partition", F.struct(*one, F.col("ended").alias("before")).alias("one")
    )
    going_on = (
        alone.join(others, ["topic_id", "partition"])
        .where((F.col("one.start_offset") < F.col("start_offset")) & (F.col("one.end_offset") >= F.col("start_offset")))
        .groupBy(keys)
        .agg(F.collect_list("one").alias("going_on"))
    )
    without_before = F.transform("ended", lambda each: each.withField("before", F.lit(None).cast(_ENDED)))
    preceding = F.coalesce(without_before, F.col("going_on")).cast(_PRECEDING)
    return known.join(going_on, keys, "left").withColumn("preceding", preceding).drop("ended", "going_on")


def _observed_segments(segments: DataFrame, seen: Observation) -> DataFrame:
    is_live = F.col("after") == int(State.COPY_SEGMENT_FINISHED)
    return segments.observe(
        seen,
        F.count("*").alias("all"),
        F.count(F.when(F.col("is_topic_known"), 1)).alias("known"),
        F.count(F.when(is_live, 1)).alias("live"),
        F.sum(F.when(is_live, F.col("segment_size_bytes"))).alias("live_bytes"),
        F.collect_set("object_prefix").alias("prefixes"),
    )


def _observed_findings(findings: DataFrame, seen: Observation) -> DataFrame:
    is_orphan = F.col("kind") == FindingKind.ORPHAN_OBJECT.value
    return findings.observe(
        seen,
        F.count(F.when(is_orphan, 1)).alias("orphans"),
        F.sum(F.when(is_orphan, F.col("found_bytes"))).alias("orphan_bytes"),
    )


def _named(rows: DataFrame, known: DataFrame, prefixes: set[str]) -> DataFrame:
    """Return the names of objects without any event, by their keys.

    Where prefixes begin alike, a key can be read in two ways, of which the topic's id is the same: its topic is the one
    of that id, and the key must begin with a prefix of ours and that topic's name.
    """
    layout, names = layout_of(prefixes), ("topic", "topic_id", "partition", "start_offset", "segment_id")
    key, named = F.concat("stem", F.lit(f".{ObjectKind.LOG}")), rows
    has_no_events = F.col("after").isNull()
    for place, name in enumerate(names, 1):
        said = F.regexp_extract(key, layout, place)
        if name in {"partition", "start_offset"}:
            # 20 digits may be more than a long holds: that is no offset of Kafka's.
            said = F.coalesce(said.try_cast("bigint"), F.lit(-1))
        named = named.withColumn(name, F.when(has_no_events, said).otherwise(F.col(name)))
    keyed = named.withColumnRenamed("topic_id", "topic_id_text").drop("is_topic_known", "is_topic_owned")
    joined = _with_facts(keyed.join(F.broadcast(known), "topic_id_text", "left"))
    has_topics_name = F.expr("false")
    for prefix in sorted(prefixes):
        begin = F.concat(F.lit(prefix), F.col("topic_name"), F.lit("-"), F.col("topic_id_text"), F.lit("/"))
        has_topics_name = has_topics_name | F.coalesce(F.col("stem").startswith(begin), F.expr("false"))
    topic = F.when(has_no_events & F.col("is_topic_known"), F.col("topic_name")).otherwise(F.col("topic"))
    named_so = joined.withColumns({"has_topics_name": ~has_no_events | has_topics_name, "topic": topic}).drop(
        "topic_name"
    )
    return named_so.withColumnRenamed("topic_id_text", "topic_id")


def _with_facts(rows: DataFrame) -> DataFrame:
    """Add the facts of the broadcast topics."""
    return rows.withColumns(
        {
            "is_topic_known": F.coalesce("topic_known", F.expr("false")),
            "is_topic_owned": F.coalesce("topic_owned", F.expr("false")),
            "is_compacted": F.coalesce("topic_compacted", F.expr("false")),
        }
    ).drop("topic_known", "topic_owned", "topic_compacted")


def _is_in_order(*, is_plain: bool, reads_manifests: bool) -> Column:
    """Return whether no rule can find a fault in the row: true of most, so they never leave the JVM."""
    log, indexes, manifest = sizes()
    finished, deleted = int(State.COPY_SEGMENT_FINISHED), int(State.DELETE_SEGMENT_FINISHED)
    none_is_there = log.isNull() & indexes.isNull() & manifest.isNull()
    is_gone = (F.col("after") == deleted) & none_is_there
    if reads_manifests:
        return F.coalesce(is_gone & ~is_foreign(), F.expr("false"))
    adds_up = F.col("remote_size_bytes").isNull() | (F.col("remote_size_bytes") == log + indexes + manifest)
    is_whole = log.isNotNull() & indexes.isNotNull() & manifest.isNotNull() & adds_up
    if is_plain:
        is_whole = is_whole & (log == F.col("segment_size_bytes"))
    is_live = (F.col("before") == finished) & (F.col("after") == finished) & F.col("is_topic_known") & is_whole
    return F.coalesce((is_gone | is_live) & ~is_foreign(), F.expr("false"))


def _out_of_reach(away: Mapping[str, str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield findings_batch(place_out_of_reach(row["object_prefix"], row["count"], away) for row in batch.to_pylist())


def _unreadable_events(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield findings_batch(
            Finding(
                kind=FindingKind.UNREADABLE_EVENT,
                detail=f"metadata partition {row['log_partition']} offset {row['log_offset']}: {row['fault']}",
            )
            for row in batch.to_pylist()
        )
