"""Decision of repair about one finding, after everything has been looked at again.

Nothing is deleted that cannot be proved to be needless: objects with a readable manifest may be all that is left of a segment
whose events were lost, so they go only if the metadata say that the segment's deletion has begun, or if live segments hold
the same records.  Objects whose manifest cannot be read, or is of another segment, are left to operators.  Whole reports are
refused where they cannot be right.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from tiersidecar.decide.reconcile_findings import ACTIONS, REPORT_SCHEMA_VERSION, Action, Finding, FindingKind
from tiersidecar.domain.states import RemoteLogSegmentState as State

MOST_ORPHANS = 0.01
"""Share of all objects: more orphans than that are no accident of copies but lost metadata or a wrong configuration."""


class ManifestState(StrEnum):
    """State of the manifest object beside an object."""

    ABSENT = "absent"
    OWN = "own"
    """It can be read, and is of the segment that the key names; the oldest manifests name none."""
    UNREADABLE = "unreadable"
    OF_ANOTHER = "of another"
    """It can be read, and names another segment or start offset than the key."""


_DOUBTFUL = frozenset({ManifestState.UNREADABLE, ManifestState.OF_ANOTHER})


class Repair(StrEnum):
    """Action of repair."""

    MARK = "mark"
    DELETE_OBJECT = "delete-object"
    DELETE_SEGMENT = "delete-segment"
    TRASH_SEGMENT = "trash-segment"
    """It goes into the trash; the leader's sidecar deletes it when that is due, if others still hold its records then."""
    RECOPY = "recopy"
    UNRECOVERABLE = "unrecoverable"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairStep:
    """``reason`` says why this is done, or why nothing is."""

    repair: Repair
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFacts:
    """The report's statements about itself, and the present facts.  ``metadata_doubt`` is the report's, or the result of
    looking at the metadata topic again."""

    schema_version: int
    cluster_id: str
    this_cluster_id: str
    key_prefix: str
    this_key_prefix: str
    metadata_topic: str
    this_metadata_topic: str
    begins_at_zero: bool
    object_count: int
    orphan_count: int
    metadata_doubt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairView:
    """The present state.

    ``state`` is the segment's, None where no event names it or its deletion is finished; ``since_ms`` its last event's
    time. ``not_ours`` says why the topic id's data are not this cluster's to touch. ``is_native``: the broker itself
    tiers the topic. ``object_size_bytes`` is None when the object is gone. ``manifest`` is the one beside the object,
    ``manifest_fault`` what is wrong with it and where. ``is_covered`` says that it is of the lineage, and that other live
    segments of the lineage, whole and with all their objects, hold all of its records. ``is_in_trash``: its deletion is
    decided already. ``is_readable``, of a gap: the lineage reads its offsets, be it from the front of a segment that an
    unclean election has cut. ``marked_ms`` is when the object, as it is now, was marked; None: it was not. ``is_whole``
    says that the segment's manifest is right and its other objects have the sizes that it says. ``is_asked``: the
    sidecars were asked for another copy, and ``why_unrecoverable`` is their answer if none has the data; "" while one may
    have.
    """

    state: State | None = None
    since_ms: int = -1
    not_ours: str = ""
    is_native: bool = False
    object_size_bytes: int | None = None
    modified_ms: int = -1
    manifest: ManifestState = ManifestState.ABSENT
    manifest_fault: str = ""
    is_covered: bool = False
    is_in_trash: bool = False
    is_readable: bool = False
    marked_ms: int | None = None
    is_whole: bool = False
    is_asked: bool = False
    why_unrecoverable: str = ""


def refusal(facts: ReportFacts, most_orphans: float = MOST_ORPHANS) -> str:
    """Return why nothing of the report is repaired; "" if it may be."""
    if facts.schema_version != REPORT_SCHEMA_VERSION:
        return f"the report has schema version {facts.schema_version}, not {REPORT_SCHEMA_VERSION}: run reconcile again"
    if facts.cluster_id != facts.this_cluster_id:
        return f"the report is of cluster {facts.cluster_id}, this is {facts.this_cluster_id}"
    if (facts.key_prefix, facts.metadata_topic) != (facts.this_key_prefix, facts.this_metadata_topic):
        return (
            f"the report is of key.prefix {facts.key_prefix!r} and {facts.metadata_topic}, "
            f"the configuration says {facts.this_key_prefix!r} and {facts.this_metadata_topic}"
        )
    if not facts.begins_at_zero:
        return "the metadata topic does not begin at offset 0: events are lost, and what they named would look like orphans"
    if facts.metadata_doubt:
        return facts.metadata_doubt
    if facts.orphan_count > facts.object_count * most_orphans:
        share = facts.orphan_count / max(facts.object_count, 1)
        return (
            f"{facts.orphan_count} of {facts.object_count} objects are orphans ({share:.1%}, more than {most_orphans:.1%}): "
            "that is lost metadata, another cluster's data or a wrong key.prefix, not leftovers"
        )
    return ""


def decide_repair(finding: Finding, view: RepairView, *, grace_ms: int, copy_grace_ms: int, now_ms: int) -> RepairStep:
    """Return the step for one finding; "leave" is the answer wherever there is doubt."""
    if view.not_ours:
        return _leave(view.not_ours)
    match finding.kind:
        case FindingKind.ORPHAN_OBJECT | FindingKind.OBJECT_AFTER_DELETE if view.manifest in _DOUBTFUL:
            return _leave(f"what it holds is unknown: {view.manifest_fault}")
        case FindingKind.ORPHAN_OBJECT if (
            view.manifest is ManifestState.OWN and view.state is None and not view.is_covered
        ):
            return _leave(
                "its manifest can be read, and no live segments hold the same records: it may be the only copy"
            )
        case FindingKind.ORPHAN_OBJECT | FindingKind.OBJECT_AFTER_DELETE:
            # A finished deletion is final, so the run's finding holds.
            return _of_leftover(view, grace_ms=grace_ms, now_ms=now_ms)
        case FindingKind.STUCK_COPY | FindingKind.DANGLING_DELETE | FindingKind.OFFSET_OVERLAP if view.is_native:
            return _leave("the broker tiers the topic itself by now: its segments are its own")
        case FindingKind.STUCK_COPY:
            if view.state is not State.COPY_SEGMENT_STARTED:
                return _leave(f"its segment is {_name(view.state)} by now")
            if now_ms - view.since_ms < copy_grace_ms:
                return _leave("its copy has moved since")
            return RepairStep(repair=Repair.DELETE_SEGMENT, reason="its copy will not finish")
        case FindingKind.DANGLING_DELETE:
            if view.state is not State.DELETE_SEGMENT_STARTED:
                return _leave(f"its segment is {_name(view.state)} by now")
            return RepairStep(repair=Repair.DELETE_SEGMENT, reason="its deletion was begun and not finished")
        case FindingKind.OFFSET_OVERLAP:
            if view.is_in_trash:
                return _leave("it is in the trash already")
            if view.state is not State.COPY_SEGMENT_FINISHED or not view.is_covered:
                return _leave("no other live segments with all their objects hold its records")
            return RepairStep(repair=Repair.TRASH_SEGMENT, reason="other live segments hold all its records")
        case FindingKind.OFFSET_GAP:
            return _leave("live segments hold its offsets by now") if view.is_readable else _of_lost_data(view)
        case FindingKind.MISSING_OBJECT | FindingKind.SIZE_MISMATCH | FindingKind.UNREADABLE_MANIFEST if view.is_whole:
            return _leave("its segment's objects are in order by now")
        case (
            FindingKind.MISSING_OBJECT
            | FindingKind.SIZE_MISMATCH
            | FindingKind.UNREADABLE_MANIFEST
            | FindingKind.CORRUPT_CONTENT
        ):
            if view.state is not State.COPY_SEGMENT_FINISHED:
                return _leave(f"its segment is {_name(view.state)} by now")
            return _of_lost_data(view)
        case FindingKind.LACKING_TRANSACTIONS:
            if view.state is not State.COPY_SEGMENT_FINISHED:
                return _leave(f"its segment is {_name(view.state)} by now")
            if view.why_unrecoverable or view.is_asked:
                return _of_lost_data(view)
            return RepairStep(
                repair=Repair.RECOPY, reason="it is written again from the store, with what its batches say"
            )
        case FindingKind.CONTRADICTING_MANIFEST:
            return _leave("which of the two is right is for people to say: docs/reconcile.md")
        case FindingKind.UNKNOWN_TOPIC_ID | FindingKind.FOREIGN_OBJECT | FindingKind.UNREADABLE_EVENT:
            return _leave("nothing proves that it is ours to touch")
        case FindingKind.NOT_CHECKED:
            return _leave("it was not read: look again once reconcile has the keys, and the place answers")
        case FindingKind.LOST_METADATA:
            return _leave("events are missing: nothing proves that it is a leftover")
        case FindingKind.UNKNOWN_PLACE:
            return _leave("its place is not configured, so nothing in it can be reached")
        case _:
            assert_never(finding.kind)


def _of_lost_data(view: RepairView) -> RepairStep:
    if view.why_unrecoverable:
        return RepairStep(
            repair=Repair.UNRECOVERABLE,
            reason=f"no replica has it, restore it from a version: {view.why_unrecoverable}",
        )
    if view.is_asked:
        return RepairStep(
            repair=Repair.RECOPY, reason="its sidecars have been asked for another copy: it is waited for"
        )
    return RepairStep(repair=Repair.RECOPY, reason="what a broker's disk still has of it is copied again")


def _of_leftover(view: RepairView, *, grace_ms: int, now_ms: int) -> RepairStep:
    if view.object_size_bytes is None:
        return _leave("the object is gone by now")
    if view.state is not None and view.state is not State.DELETE_SEGMENT_STARTED:
        return _leave(f"its segment is {_name(view.state)} by now")
    if now_ms - view.modified_ms < grace_ms:
        return _leave("the object is younger than the grace")
    if view.marked_ms is None:
        return RepairStep(repair=Repair.MARK, reason="it goes after the grace")
    if now_ms - view.marked_ms < grace_ms:
        return _leave("it is marked, and the grace is not over")
    return RepairStep(repair=Repair.DELETE_OBJECT, reason="it was marked, and the grace is over")


def _leave(reason: str) -> RepairStep:
    return RepairStep(repair=Repair.LEAVE, reason=reason)


def _name(state: State | None) -> str:
    return "unknown or deleted" if state is None else state.name


def is_repairable(kind: FindingKind) -> bool:
    """Return whether repair has anything to look at."""
    return ACTIONS[kind] in {Action.DELETE_OBJECT, Action.DELETE_SEGMENT, Action.RECOPY}
