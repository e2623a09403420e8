"""A bucket filled by the real daemon, damaged in more than 200 seeded ways: each found once, by its name, and none invented;
then repaired (S-072, S-075, S-231, S-307, S-309, U11, U12)."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.command_line import answer_of
from tests.support.daemon import Daemon, daemon_settings, wait_for
from tests.support.kafka_admin import wait_until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.produce import ProducedRecord, produce_mix
from tests.support.read_service import Shape, fetch_records, shape_of
from tests.support.reconcile_damage import Damages, Expected, shown
from tests.support.remote_events import fold, in_state, read_events
from tiersidecar.app.config.config import load_config
from tiersidecar.app.reconcile_parts import RunOptions
from tiersidecar.app.reconcile_run import run_reconcile
from tiersidecar.decide.reconcile_findings import FindingKind as K
from tiersidecar.decide.reconcile_findings import Graces
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.aiven.keys import ObjectKind
from tiersidecar.reconcile.report import REPORT_FILES, Summary, read_findings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(1200)]

TOPIC, METADATA = "recon", "__rlm_recon"
SEGMENT_BYTES = 16_384
COUNTS = {
    "missing_object": 25,
    "size_mismatch": 25,
    "unreadable_manifest": 15,
    "contradicting_manifest": 15,
    "orphan_object": 30,
    "object_after_delete": 20,
    "foreign_object": 15,
    "unknown_topic_id": 15,
    "stuck_copy": 20,
    "dangling_delete": 20,
    "offset_gap": 5,
    "offset_overlap": 8,
}
LEFT = {K.UNKNOWN_TOPIC_ID}
"""What only people can decide about."""
TRIMMED_SHARE = 0.2
"""Of the topic: what only the store has, so that damage to it is loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """A bucket, and what is in it.  Below ``local_start`` the broker has nothing any more."""

    daemon: Daemon
    produced: list[ProducedRecord]
    local_start: int


@pytest.fixture
def filled(kafka: KafkaCluster, tmp_path: Path) -> Filled:
    """The daemon has copied more than a hundred segments and ended; the broker still has most of them."""
    kafka.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES, configs={"retention.ms": "-1", "retention.bytes": "-1"})
    produced = asyncio.run(produce_mix(kafka.client_settings, TOPIC, total_bytes=3_200_000, batch_bytes=4_096, seed=8))
    settings = daemon_settings(
        tmp_path,
        bootstrap_servers=kafka.bootstrap_servers,
        log_dirs=list(kafka.brokers[0].log_dirs),
        topics=[{"name": TOPIC}],
        **{"remote.log.metadata.topic.name": METADATA, "state.topic.name": "__state_recon"},
    )
    with Daemon(tmp_path, settings) as running:
        running.wait_until_ready()
        sealed = len(list(kafka.brokers[0].partition_dir(TOPIC, 0).glob("*.log"))) - 1
        manifests = lambda: len(list(running.store_root.rglob("*.rsm-manifest"))) >= sealed  # noqa: E731
        wait_for(manifests, f"{sealed} segments are remote", running, timeout_s=180)
        wait_for(lambda: len(finished(kafka)) >= sealed, "all are finished", running, timeout_s=60)
        assert running.stop() == 0
    local = sorted(int(path.stem) for path in kafka.brokers[0].partition_dir(TOPIC, 0).glob("*.log"))
    local_start = local[int(len(local) * TRIMMED_SHARE)]
    kafka.brokers[0].admin.delete_records(TOPIC, 0, local_start)
    wait_until(lambda: first_local(kafka) >= local_start, "the broker has let go of its oldest segments", timeout_s=90)
    return Filled(daemon=running, produced=produced, local_start=local_start)


def first_local(kafka: KafkaCluster) -> int:
    return min(int(path.stem) for path in kafka.brokers[0].partition_dir(TOPIC, 0).glob("*.log"))


def finished(kafka: KafkaCluster) -> list[RemoteLogSegmentMetadata]:
    return in_state(fold(read_events(kafka.client_settings, METADATA)), State.COPY_SEGMENT_FINISHED)


def begun(kafka: KafkaCluster) -> list[RemoteLogSegmentMetadata]:
    return in_state(fold(read_events(kafka.client_settings, METADATA)), State.COPY_SEGMENT_STARTED)


def reconciled(spark: SparkSession, daemon: Daemon, report: Path) -> tuple[Summary, list[dict[str, Any]]]:
    config = load_config(daemon.config_path, os.environ)
    options = RunOptions(config_file=daemon.config_path, report=report, graces=Graces(finding_ms=0, copy_ms=0))
    summary = run_reconcile(spark, config, options, lambda text: None)
    assert all((report / name).stat().st_size for name in REPORT_FILES)
    findings = list(read_findings(report))
    local = report.with_name(f"{report.name}-local")
    arguments = ("--local", "--report", str(local), "--grace", "0s", "--copy-grace", "0s")
    locally = answer_of(daemon.config_path, "reconcile", *arguments, code=3 if findings else 0)
    assert_alike(findings, list(read_findings(local)))
    ours, theirs = summary.document(), locally
    same = ("findings", "event_count", "segment_count", "live_bytes", "object_count", "object_bytes", "orphan_bytes")
    assert {name: theirs[name] for name in same} == {name: ours[name] for name in same}
    return summary, findings


def assert_alike(of_spark: list[dict[str, Any]], locally: list[dict[str, Any]]) -> None:
    """The run without Spark finds the same, in all fields but how long it has been so (issue 20)."""

    def sorted_lines(findings: list[dict[str, Any]]) -> list[str]:
        return sorted(json.dumps({**finding, "age_ms": 0}, sort_keys=True) for finding in findings)

    assert sorted_lines(locally) == sorted_lines(of_spark)


def test_each_damage_is_found_once_and_repaired(
    spark: SparkSession, kafka: KafkaCluster, filled: Filled, tmp_path: Path
) -> None:
    daemon = filled.daemon
    damages = Damages(
        root=daemon.store_root,
        backup=tmp_path / "backup",
        segments=finished(kafka),
        seed=8,
        # After each copy: a segment that was finished after its twin is the one that readers use, and not needless.
        now_ms=int(time.time() * 1000),
    )
    damages.do(COUNTS)
    asyncio.run(damages.publish(kafka.client_settings, METADATA, 5))
    assert len(damages.expected) == sum(COUNTS.values()) > 200
    lost = damages.lost_below(filled.local_start)
    assert 5 < len(lost) < len(damages.spans) - 30, "some of each is wanted"

    summary, findings = reconciled(spark, daemon, tmp_path / "report")
    assert_same(shown(findings), damages.expected)
    assert summary.findings == dict(Counter(kind for kind, _ in damages.expected))

    untold = [
        one for one in damages.expected if one[0] is K.OBJECT_AFTER_DELETE and one[1].endswith(ObjectKind.MANIFEST)
    ]
    assert untold, "a manifest that cannot be read is wanted among what deletions left behind"
    the_report_is_repaired(daemon, tmp_path / "report", wanted=len(damages.spans), untold=len(untold))
    damages.restore(K.CONTRADICTING_MANIFEST)
    for kind, key in damages.expected:
        if kind in {K.FOREIGN_OBJECT, K.UNKNOWN_TOPIC_ID} and (daemon.store_root / key).is_file():
            (daemon.store_root / key).unlink()  # an operator has looked
    with daemon:
        daemon.wait_until_ready()
        what_the_broker_has_is_copied_again(daemon, tmp_path / "report", lost, recopied=len(damages.spans) - len(lost))
        every_record_is_readable_but(sorted(lost.values()), filled)
        wait_for(lambda: not needless_in_trash(daemon), "the leader has deleted what is needless", daemon, timeout_s=60)
        # What an attempt that failed has begun is the leader's to clear away, at one of its next rounds.
        wait_for(lambda: not begun(kafka), "no copy is left as begun", daemon, timeout_s=60)
        assert daemon.stop() == 0
    _, left = reconciled(spark, daemon, tmp_path / "second")
    looked_at = [one for one in damages.expected if one[0] in LEFT and "/" not in one[1]]
    assert_same(shown(left), [*lost, *looked_at, *untold])


def what_the_broker_has_is_copied_again(
    daemon: Daemon, report: Path, lost: Mapping[Expected, tuple[int, int]], *, recopied: int
) -> None:
    """By the leader's sidecar, under new ids; and of what is lost it is said which offsets."""
    arguments = ("--grace", "0s", "--copy-grace", "0s", "--most-orphans", "0.5", "--wait", "4m", "--apply")
    answer = answer_of(daemon.config_path, "repair", str(report), *arguments)
    told = json.loads((report / "recopies.json").read_text())
    spans = sorted((one["start_offset"], one["end_offset"]) for one in told if one["outcome"] == "unrecoverable")
    assert spans == sorted(lost.values())
    assert answer.get("pending", 0) == 0, [one for one in told if one["outcome"] == "pending"]
    assert all("are on none of this broker's disks" in reason for one in told for reason in one["reasons"].values())
    assert answer["unrecoverable"] == len(lost)
    assert len(told) == answer.get("recopied", 0) + len(lost)
    # Some were done before: they were asked for by the run that had no sidecar to answer.
    assert answer.get("recopied", 0) <= recopied


def every_record_is_readable_but(lost: Sequence[tuple[int, int]], filled: Filled) -> None:
    """Out of the store, through the read service; its end, which is not remote, from the broker."""
    wanted = [
        shape_of(record) for record in filled.produced if not any(start <= record.offset <= end for start, end in lost)
    ]
    begin = 0
    found: list[Shape] = []
    for start, end in [*lost, (filled.produced[-1].offset + 1, -1)]:
        if begin < start:
            found += fetch_records(filled.daemon.read_url, TOPIC, 0, offset=begin, stop=start)
        begin = end + 1
    assert found == sorted(wanted)


def the_report_is_repaired(daemon: Daemon, report: Path, *, wanted: int, untold: int) -> None:
    """Refused for its share of orphans; dry; then marked; then deleted.  What is to be copied again is only asked for: there is
    no sidecar.  Left are manifests that cannot be read, of which nobody can tell what they hold."""
    graces = ("--grace", "0s", "--copy-grace", "0s", "--wait", "0s")
    refused = answer_of(daemon.config_path, "repair", str(report), "--apply", *graces, code=1)
    assert "orphans" in refused["refusal"]
    allowed = ("repair", str(report), *graces, "--most-orphans", "0.5")
    dry = answer_of(daemon.config_path, *allowed)
    assert not dry["done"]
    leftovers = COUNTS["orphan_object"] + COUNTS["object_after_delete"] - untold
    ended, needless = COUNTS["stuck_copy"] + COUNTS["dangling_delete"], COUNTS["offset_overlap"]
    assert (dry["mark"], dry["delete_segment"], dry.get("delete_object", 0)) == (leftovers, ended, 0), dry
    assert (dry["trash_segment"], dry["recopy"]) == (needless, wanted), dry
    asked = answer_of(daemon.config_path, *allowed, "--apply")
    assert asked["done"]
    assert asked["pending"] == wanted
    again = answer_of(daemon.config_path, *allowed, "--apply")
    assert (again["delete_object"], again.get("mark", 0), again.get("delete_segment", 0)) == (leftovers, 0, 0)
    assert again.get("trash_segment", 0) == 0
    assert sum(row["segments"] for row in needless_in_trash(daemon)) == needless


def needless_in_trash(daemon: Daemon) -> list[dict[str, Any]]:
    listed = answer_of(daemon.config_path, "trash", "ls")
    return [row for row in listed["entries"] if row["kind"] == "repair"]


def assert_same(found: list[Expected], expected: list[Expected]) -> None:
    invented, missed = Counter(found) - Counter(expected), Counter(expected) - Counter(found)
    assert (dict(invented), dict(missed)) == ({}, {})
