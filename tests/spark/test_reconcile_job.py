"""The job on what the real plugin left, of every form in one bucket: in order through and through (S-307, S-308, U12)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from tests.support.directory_store import DirectoryStore
from tests.support.plugin_bucket import NOW_MS, PluginBucket
from tests.support.remote_runs import key_ring
from tiersidecar.decide.reconcile_findings import Graces
from tiersidecar.domain.own_objects import OWN_DIRECTORY
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.reconcile.deep_check import DeepCheck
from tiersidecar.reconcile.inputs import ReconcileSettings
from tiersidecar.spark.reconcile_job import (
    ReconcileInputs,
    Reconciler,
    with_preceding,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

RAW = "partition int, offset bigint, value binary"


def inputs_of(bucket: PluginBucket, spark: SparkSession) -> ReconcileInputs:
    """With the last two events as those that came while the store was listed."""
    early, late = bucket.events[:-2], bucket.events[-2:]

    def raw(events: list[bytes], begin: int) -> DataFrame:
        return spark.createDataFrame([(0, begin + at, bytearray(value)) for at, value in enumerate(events)], RAW)

    return ReconcileInputs(
        early_events=raw(early, 0), late_events=lambda: raw(late, len(early)), topics=bucket.known_topics()
    )


def test_what_the_plugin_left_is_in_order_through_and_through(spark: SparkSession, tmp_path: Path) -> None:
    bucket = PluginBucket(tmp_path / "bucket")
    settings = ReconcileSettings(
        graces=Graces(finding_ms=0, copy_ms=0),
        open_store=DirectoryStore(str(bucket.root)),
        deep=DeepCheck(open_key_ring=key_ring),
    )
    job = Reconciler(spark, settings, lambda text: None)
    try:
        seen = job.run(inputs_of(bucket, spark), now_ms=lambda: NOW_MS)
        assert [(row["kind"], row["key"], row["detail"]) for row in seen.findings.collect()] == []
        assert seen.event_count == len(bucket.events)
        assert seen.object_count == 3 * seen.segment_count == 3 * seen.live_segment_count
        assert seen.object_bytes == sum(path.stat().st_size for path in bucket.root.rglob("*") if path.is_file())
    finally:
        job.close()


def test_segments_in_a_place_are_looked_for_there_and_so_are_leftovers(spark: SparkSession, tmp_path: Path) -> None:
    """S-293: the executors list all places, and their own objects there are none of the report's."""
    bucket, cold = PluginBucket(tmp_path / "bucket"), tmp_path / "cold"
    bucket.move_a_topic(cold)
    log = min(cold.rglob("*.log"))
    left = log.with_name(log.name[:21] + "AAAAAAAAAAAAAAAAAAAAAQ.log")
    left.write_bytes(b"x")
    (cold / OWN_DIRECTORY).mkdir()
    (cold / OWN_DIRECTORY / "owner.json").write_bytes(b"x")
    settings = ReconcileSettings(
        graces=Graces(finding_ms=0, copy_ms=0),
        open_store=DirectoryStore(str(bucket.root), cold=str(cold)),
        place_prefixes=("@cold/",),
        deep=DeepCheck(open_key_ring=key_ring),
    )
    job = Reconciler(spark, settings, lambda text: None)
    try:
        seen = job.run(inputs_of(bucket, spark), now_ms=lambda: NOW_MS)
        found = [(row["kind"], row["key"]) for row in seen.findings.collect()]
        assert found == [("orphan-object", f"@cold/{left.relative_to(cold)}")]
    finally:
        job.close()


def test_a_place_that_is_not_configured_is_one_finding(spark: SparkSession, tmp_path: Path) -> None:
    """S-293: nothing in it is looked for, and all else is."""
    bucket, cold = PluginBucket(tmp_path / "bucket"), tmp_path / "cold"
    bucket.move_a_topic(cold)
    (missing := min(bucket.root.rglob("*.log"))).unlink()
    settings = ReconcileSettings(
        graces=Graces(finding_ms=0, copy_ms=0), open_store=DirectoryStore(str(bucket.root)), deep=None
    )
    job = Reconciler(spark, settings, lambda text: None)
    try:
        rows = job.run(inputs_of(bucket, spark), now_ms=lambda: NOW_MS).findings.collect()
    finally:
        job.close()
    assert {(row["kind"], row["key"]) for row in rows} == {
        ("missing-object", str(missing.relative_to(bucket.root))),
        ("unknown-place", "@cold/"),
    }
    (detail,) = [row["detail"] for row in rows if row["kind"] == "unknown-place"]
    assert detail.startswith(f"{len(list(cold.rglob('*.log')))} segments lie in place 'cold'")


@pytest.mark.parametrize("has_segments", [True, False])
def test_a_place_that_does_not_answer_is_one_finding(spark: SparkSession, tmp_path: Path, has_segments: bool) -> None:
    bucket, cold = PluginBucket(tmp_path / "bucket"), tmp_path / "cold"
    if has_segments:
        bucket.move_a_topic(cold)
    lying_there = len(list(cold.rglob("*.log")))
    settings = ReconcileSettings(
        graces=Graces(finding_ms=0, copy_ms=0),
        open_store=DirectoryStore(str(bucket.root)),
        deep=None,
        place_prefixes=("@cold/",),
        away={"@cold/": "no answer"},
    )
    job = Reconciler(spark, settings, lambda text: None)
    try:
        rows = job.run(inputs_of(bucket, spark), now_ms=lambda: NOW_MS).findings.collect()
    finally:
        job.close()
    assert [(row["kind"], row["key"], row["detail"]) for row in rows] == [
        (
            "not-checked",
            "@cold/",
            f"place 'cold' was not listed whole, and its {lying_there} segments were not checked: no answer",
        )
    ]


def test_a_place_that_stops_answering_while_it_is_listed_is_one_finding(spark: SparkSession, tmp_path: Path) -> None:
    """It ended the job, and nothing was reported of the other places."""
    bucket, cold = PluginBucket(tmp_path / "bucket"), tmp_path / "cold"
    bucket.move_a_topic(cold)
    lying_there = len(list(cold.rglob("*.log")))
    (missing := min(bucket.root.rglob("*.log"))).unlink()
    settings = ReconcileSettings(
        graces=Graces(finding_ms=0, copy_ms=0),
        open_store=DirectoryStore(str(bucket.root), cold=str(cold), cold_breaks_off=True),
        deep=None,
        place_prefixes=("@cold/",),
    )
    job = Reconciler(spark, settings, lambda text: None)
    try:
        rows = job.run(inputs_of(bucket, spark), now_ms=lambda: NOW_MS).findings.collect()
    finally:
        job.close()
    assert {(row["kind"], row["key"]) for row in rows} == {
        ("missing-object", str(missing.relative_to(bucket.root))),
        ("not-checked", "@cold/"),
    }
    (detail,) = [row["detail"] for row in rows if row["kind"] == "not-checked"]
    assert f"its {lying_there} segments were not checked" in detail


def test_what_is_before_a_segment_ends_there_or_else_goes_on(spark: SparkSession) -> None:
    """One that an election has cut, with those that end where it begins; not what is deleted, nor another partition's."""
    live, gone = int(State.COPY_SEGMENT_FINISHED), int(State.DELETE_SEGMENT_STARTED)
    rows = [
        ("a", 0, 0, 49, "0:0", live, live),
        ("b", 0, 50, 99, "0:50", live, live),
        ("c", 0, 70, 119, "0:60,1:80", live, live),
        ("d", 0, 120, 129, "1:120", live, live),
        ("e", 0, 60, 110, "0:60", live, gone),
        ("f", 1, 0, 200, "0:0", live, live),
    ]
    columns = "stem string, partition int, start_offset bigint, end_offset bigint, epochs string, before int, after int"
    frame = spark.createDataFrame(rows, columns).withColumn("topic_id", F.lit("topic"))
    told = {row["stem"]: row["preceding"] for row in with_preceding(frame).collect()}
    assert len(told) == len(rows)
    ended = {stem: [one["stem"] for one in told[stem] or ()] for stem in told}
    assert ended == {"a": [], "b": ["a"], "c": ["b"], "d": ["c"], "e": [], "f": []}
    (cut,) = told["c"]
    assert (cut["start_offset"], cut["end_offset"], cut["epochs"]) == (50, 99, "0:50")
    assert [one["stem"] for one in cut["before"]] == ["a"]
    assert told["d"][0]["before"] is None
