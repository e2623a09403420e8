"""What repair does, and what it leaves alone (U11: manual clean-up is dangerous, so is a careless machine)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiersidecar.decide.reconcile_findings import REPORT_SCHEMA_VERSION, Finding, FindingKind
from tiersidecar.decide.reconcile_repair import (
    ManifestState,
    Repair,
    RepairView,
    ReportFacts,
    decide_repair,
    is_repairable,
    refusal,
)
from tiersidecar.domain.states import RemoteLogSegmentState as State

NOW_MS, GRACE_MS, COPY_GRACE_MS = 1_000_000, 100_000, 300_000
K = FindingKind
THERE = RepairView(object_size_bytes=5, modified_ms=0)
MARKED = replace(THERE, marked_ms=NOW_MS - GRACE_MS)
LIVE = RepairView(state=State.COPY_SEGMENT_FINISHED)
READABLE = replace(MARKED, manifest=ManifestState.OWN)
FACTS = ReportFacts(
    schema_version=REPORT_SCHEMA_VERSION,
    cluster_id="c",
    this_cluster_id="c",
    key_prefix="p/",
    this_key_prefix="p/",
    metadata_topic="t",
    this_metadata_topic="t",
    begins_at_zero=True,
    object_count=1000,
    orphan_count=10,
)


@pytest.mark.parametrize(
    ("kind", "view", "repair"),
    [
        pytest.param(K.ORPHAN_OBJECT, THERE, Repair.MARK, id="an orphan seen for the first time"),
        pytest.param(K.ORPHAN_OBJECT, MARKED, Repair.DELETE_OBJECT, id="an orphan marked a grace ago"),
        pytest.param(K.ORPHAN_OBJECT, replace(MARKED, marked_ms=NOW_MS - 1), Repair.LEAVE, id="an orphan marked just now"),
        pytest.param(K.ORPHAN_OBJECT, RepairView(), Repair.LEAVE, id="an orphan that is gone"),
        pytest.param(
            K.ORPHAN_OBJECT, replace(MARKED, modified_ms=NOW_MS - 1), Repair.LEAVE, id="an orphan written anew just now"
        ),
        pytest.param(K.ORPHAN_OBJECT, READABLE, Repair.LEAVE, id="an orphan with a manifest: perhaps the only copy"),
        pytest.param(
            K.ORPHAN_OBJECT, replace(READABLE, is_covered=True), Repair.DELETE_OBJECT, id="the same, but others are live"
        ),
        pytest.param(
            K.ORPHAN_OBJECT,
            replace(READABLE, state=State.DELETE_SEGMENT_STARTED),
            Repair.DELETE_OBJECT,
            id="the same, but its deletion has begun",
        ),
        pytest.param(
            K.ORPHAN_OBJECT,
            replace(MARKED, state=State.COPY_SEGMENT_STARTED),
            Repair.LEAVE,
            id="an orphan whose copy is known by now",
        ),
        pytest.param(
            K.ORPHAN_OBJECT,
            replace(MARKED, state=State.COPY_SEGMENT_FINISHED),
            Repair.LEAVE,
            id="an orphan whose segment is live by now",
        ),
        pytest.param(
            K.ORPHAN_OBJECT,
            replace(READABLE, manifest=ManifestState.UNREADABLE, is_covered=True),
            Repair.LEAVE,
            id="an orphan whose manifest cannot be read",
        ),
        pytest.param(
            K.ORPHAN_OBJECT,
            replace(READABLE, manifest=ManifestState.OF_ANOTHER, is_covered=True),
            Repair.LEAVE,
            id="an orphan whose manifest names another segment",
        ),
        pytest.param(
            K.ORPHAN_OBJECT,
            replace(READABLE, manifest=ManifestState.UNREADABLE, state=State.DELETE_SEGMENT_STARTED),
            Repair.LEAVE,
            id="an orphan whose manifest cannot be read, its deletion begun",
        ),
        pytest.param(
            K.OBJECT_AFTER_DELETE,
            replace(READABLE, manifest=ManifestState.OF_ANOTHER),
            Repair.LEAVE,
            id="what a deletion left behind, with a manifest of another segment",
        ),
        pytest.param(K.OBJECT_AFTER_DELETE, THERE, Repair.MARK, id="what a deletion left behind"),
        pytest.param(
            K.OBJECT_AFTER_DELETE, READABLE, Repair.DELETE_OBJECT, id="what a deletion left behind, with its manifest"
        ),
        pytest.param(
            K.STUCK_COPY, RepairView(state=State.COPY_SEGMENT_STARTED, since_ms=0), Repair.DELETE_SEGMENT, id="a stuck copy"
        ),
        pytest.param(
            K.STUCK_COPY,
            RepairView(state=State.COPY_SEGMENT_STARTED, since_ms=NOW_MS - COPY_GRACE_MS + 1),
            Repair.LEAVE,
            id="a copy that was begun again",
        ),
        pytest.param(
            K.STUCK_COPY, RepairView(state=State.COPY_SEGMENT_FINISHED, since_ms=0), Repair.LEAVE, id="a copy that finished"
        ),
        pytest.param(K.STUCK_COPY, RepairView(), Repair.LEAVE, id="a copy that was deleted meanwhile"),
        pytest.param(
            K.DANGLING_DELETE,
            RepairView(state=State.DELETE_SEGMENT_STARTED, since_ms=0),
            Repair.DELETE_SEGMENT,
            id="a deletion that did not finish",
        ),
        pytest.param(K.DANGLING_DELETE, RepairView(), Repair.LEAVE, id="a deletion that finished"),
        pytest.param(
            K.OFFSET_OVERLAP,
            RepairView(state=State.COPY_SEGMENT_FINISHED, is_covered=True),
            Repair.TRASH_SEGMENT,
            id="a needless copy, the other one whole",
        ),
        pytest.param(
            K.OFFSET_OVERLAP,
            RepairView(state=State.COPY_SEGMENT_FINISHED),
            Repair.LEAVE,
            id="a needless copy, if the other one were whole",
        ),
        pytest.param(
            K.OFFSET_OVERLAP,
            RepairView(state=State.COPY_SEGMENT_FINISHED, is_covered=True, is_in_trash=True),
            Repair.LEAVE,
            id="a needless copy that is in the trash already",
        ),
        pytest.param(
            K.LACKING_TRANSACTIONS, replace(LIVE, is_whole=True), Repair.RECOPY, id="indexes that lack an abort"
        ),
        pytest.param(
            K.LACKING_TRANSACTIONS,
            RepairView(state=State.DELETE_SEGMENT_STARTED),
            Repair.LEAVE,
            id="indexes that lack an abort of a segment that goes by now",
        ),
        pytest.param(
            K.LACKING_TRANSACTIONS, replace(LIVE, is_asked=True), Repair.RECOPY, id="one that is being written again"
        ),
        pytest.param(K.MISSING_OBJECT, LIVE, Repair.RECOPY, id="an object that is missing"),
        pytest.param(K.SIZE_MISMATCH, LIVE, Repair.RECOPY, id="an object of another size"),
        pytest.param(K.UNREADABLE_MANIFEST, LIVE, Repair.RECOPY, id="a manifest that cannot be read"),
        pytest.param(K.MISSING_OBJECT, replace(LIVE, is_whole=True), Repair.LEAVE, id="an object that is back"),
        pytest.param(
            K.CORRUPT_CONTENT,
            replace(LIVE, is_whole=True),
            Repair.RECOPY,
            id="content that is damaged, in objects that look right",
        ),
        pytest.param(
            K.MISSING_OBJECT,
            RepairView(state=State.DELETE_SEGMENT_STARTED),
            Repair.LEAVE,
            id="an object missing of a segment that is being deleted by now",
        ),
        pytest.param(K.MISSING_OBJECT, replace(LIVE, is_asked=True), Repair.RECOPY, id="a copy on its way is waited for"),
        pytest.param(
            K.MISSING_OBJECT,
            replace(LIVE, is_asked=True, why_unrecoverable="broker 1: it is on none of its disks"),
            Repair.UNRECOVERABLE,
            id="what no broker has",
        ),
        pytest.param(
            K.STUCK_COPY,
            RepairView(state=State.COPY_SEGMENT_STARTED, since_ms=0, not_ours="it is another's"),
            Repair.LEAVE,
            id="a stuck copy of another cluster",
        ),
        pytest.param(
            K.STUCK_COPY,
            RepairView(state=State.COPY_SEGMENT_STARTED, since_ms=NOW_MS - COPY_GRACE_MS),
            Repair.DELETE_SEGMENT,
            id="a copy that has not moved for the whole grace",
        ),
        pytest.param(
            K.STUCK_COPY,
            RepairView(state=State.COPY_SEGMENT_STARTED, since_ms=0, is_native=True),
            Repair.LEAVE,
            id="a copy in flight of a topic that the broker itself tiers",
        ),
        pytest.param(
            K.DANGLING_DELETE,
            RepairView(state=State.DELETE_SEGMENT_STARTED, since_ms=0, is_native=True),
            Repair.LEAVE,
            id="a deletion of a broker that tiers the topic itself",
        ),
        pytest.param(
            K.OFFSET_OVERLAP,
            RepairView(state=State.COPY_SEGMENT_FINISHED, is_covered=True, is_native=True),
            Repair.LEAVE,
            id="a needless copy of a broker that tiers the topic itself",
        ),
        pytest.param(
            K.OFFSET_OVERLAP,
            RepairView(state=State.DELETE_SEGMENT_STARTED, is_covered=True),
            Repair.LEAVE,
            id="a needless copy that is going already",
        ),
        pytest.param(
            K.ORPHAN_OBJECT,
            replace(MARKED, modified_ms=NOW_MS - GRACE_MS),
            Repair.DELETE_OBJECT,
            id="an orphan exactly as old as the grace",
        ),
        pytest.param(
            K.ORPHAN_OBJECT,
            replace(MARKED, marked_ms=NOW_MS - GRACE_MS + 1),
            Repair.LEAVE,
            id="an orphan marked almost a grace ago",
        ),
        pytest.param(
            K.SIZE_MISMATCH,
            replace(LIVE, why_unrecoverable="broker 1: it is on none of its disks"),
            Repair.UNRECOVERABLE,
            id="what no broker has, whether asked again or not",
        ),
        pytest.param(
            K.OFFSET_GAP, RepairView(is_asked=True), Repair.RECOPY, id="a gap, as well"
        ),
        pytest.param(
            K.CORRUPT_CONTENT,
            RepairView(state=State.DELETE_SEGMENT_STARTED),
            Repair.LEAVE,
            id="damaged content of a segment that is being deleted by now",
        ),
        pytest.param(K.OFFSET_GAP, RepairView(), Repair.RECOPY, id="offsets that are in no segment"),
        pytest.param(K.OFFSET_GAP, RepairView(is_readable=True), Repair.LEAVE, id="a gap that is filled by now"),
        pytest.param(
            K.CONTRADICTING_MANIFEST, LIVE, Repair.LEAVE, id="a manifest that says otherwise: which one is right?"
        ),
    ],
)  # fmt: skip
def test_findings(kind: FindingKind, view: RepairView, repair: Repair) -> None:
    step = decide_repair(Finding(kind=kind), view, grace_ms=GRACE_MS, copy_grace_ms=COPY_GRACE_MS, now_ms=NOW_MS)
    assert step.repair is repair
    assert step.reason


@pytest.mark.parametrize("kind", [kind for kind in FindingKind if not is_repairable(kind)])
def test_what_needs_data_or_a_person_is_left_alone(kind: FindingKind) -> None:
    view = replace(READABLE, is_covered=True, state=State.COPY_SEGMENT_FINISHED)
    step = decide_repair(Finding(kind=kind), view, grace_ms=0, copy_grace_ms=0, now_ms=NOW_MS)
    assert step.repair is Repair.LEAVE
    assert step.reason


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        pytest.param(FACTS, "", id="a report of here, with one orphan in a hundred"),
        pytest.param(replace(FACTS, orphan_count=11), "more than 1.0%", id="more orphans than one in a hundred"),
        pytest.param(replace(FACTS, object_count=0, orphan_count=0), "", id="an empty bucket"),
        pytest.param(replace(FACTS, object_count=0, orphan_count=1), "100.0%", id="an orphan and no object at all"),
        pytest.param(replace(FACTS, metadata_doubt="events are lost"), "events are lost", id="metadata in doubt"),
        pytest.param(replace(FACTS, begins_at_zero=False), "does not begin at offset 0", id="events are lost"),
        pytest.param(replace(FACTS, this_cluster_id="d"), "cluster c", id="another cluster's report"),
        pytest.param(replace(FACTS, this_key_prefix=""), "key.prefix 'p/'", id="another key prefix"),
        pytest.param(replace(FACTS, this_metadata_topic="u"), "and t", id="another metadata topic"),
        pytest.param(replace(FACTS, schema_version=99), "schema version 99", id="a report of a later version"),
    ],
)
def test_refusals(facts: ReportFacts, said: str) -> None:
    found = refusal(facts)
    assert (found == "") if not said else (said in found)


@pytest.mark.parametrize(
    ("kind", "view", "said"),
    [
        pytest.param(
            K.ORPHAN_OBJECT,
            replace(MARKED, manifest=ManifestState.UNREADABLE, manifest_fault="a.rsm-manifest is not JSON"),
            "a.rsm-manifest is not JSON",
            id="which manifest cannot be read",
        ),
        pytest.param(K.STUCK_COPY, replace(LIVE, not_ours="it is cluster d's"), "it is cluster d's", id="whose it is"),
        pytest.param(K.STUCK_COPY, LIVE, "COPY_SEGMENT_FINISHED by now", id="what became of it"),
        pytest.param(K.UNKNOWN_PLACE, RepairView(), "its place is not configured", id="that it is out of reach"),
        pytest.param(K.DANGLING_DELETE, RepairView(), "unknown or deleted by now", id="that it is gone"),
        pytest.param(K.MISSING_OBJECT, RepairView(), "unknown or deleted by now", id="that its segment is gone"),
        pytest.param(
            K.ORPHAN_OBJECT,
            replace(MARKED, state=State.COPY_SEGMENT_STARTED),
            "COPY_SEGMENT_STARTED by now",
            id="that its copy runs",
        ),
        pytest.param(
            K.LACKING_TRANSACTIONS,
            replace(LIVE, why_unrecoverable="broker 1: not on its disks"),
            "restore it from a version: broker 1: not on its disks",
            id="that its transactions can be had from no broker",
        ),
        pytest.param(
            K.LACKING_TRANSACTIONS,
            replace(LIVE, is_asked=True),
            "have been asked for another copy: it is waited for",
            id="that its transactions have been asked for",
        ),
        pytest.param(
            K.LACKING_TRANSACTIONS, LIVE, "written again from the store", id="that its batches say them themselves"
        ),
        pytest.param(
            K.MISSING_OBJECT,
            replace(LIVE, why_unrecoverable="broker 1: not on its disks"),
            "broker 1: not on its disks",
            id="what the brokers said",
        ),
    ],
)
def test_a_step_says_why(kind: FindingKind, view: RepairView, said: str) -> None:
    step = decide_repair(Finding(kind=kind), view, grace_ms=GRACE_MS, copy_grace_ms=COPY_GRACE_MS, now_ms=NOW_MS)
    assert said in step.reason


def test_what_repair_looks_at() -> None:
    """U11: the kinds that are for people to judge are not among them."""
    assert {kind for kind in FindingKind if is_repairable(kind)} == {
        K.ORPHAN_OBJECT,
        K.OBJECT_AFTER_DELETE,
        K.STUCK_COPY,
        K.DANGLING_DELETE,
        K.OFFSET_OVERLAP,
        K.OFFSET_GAP,
        K.MISSING_OBJECT,
        K.SIZE_MISMATCH,
        K.UNREADABLE_MANIFEST,
        K.CORRUPT_CONTENT,
        K.LACKING_TRANSACTIONS,
    }
