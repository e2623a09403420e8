"""Findings of a reconcile run, in names that do not change: they are in reports, metrics and alerts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tiersidecar.domain.ids import place_of, place_prefix

REPORT_SCHEMA_VERSION = 1
"""Version of the report's columns: a change that would break a reader of the old form raises it."""


class FindingKind(StrEnum):
    """Kind of fault; one object, segment or offset range has one kind, the first that applies."""

    MISSING_OBJECT = "missing-object"
    SIZE_MISMATCH = "size-mismatch"
    UNREADABLE_MANIFEST = "unreadable-manifest"
    CONTRADICTING_MANIFEST = "contradicting-manifest"
    ORPHAN_OBJECT = "orphan-object"
    STUCK_COPY = "stuck-copy"
    DANGLING_DELETE = "dangling-delete"
    OBJECT_AFTER_DELETE = "object-after-delete"
    OFFSET_GAP = "offset-gap"
    OFFSET_OVERLAP = "offset-overlap"
    UNKNOWN_TOPIC_ID = "unknown-topic-id"
    FOREIGN_OBJECT = "foreign-object"
    UNREADABLE_EVENT = "unreadable-event"
    CORRUPT_CONTENT = "corrupt-content"
    LOST_METADATA = "lost-metadata"
    LACKING_TRANSACTIONS = "lacking-transactions"
    UNKNOWN_PLACE = "unknown-place"
    NOT_CHECKED = "not-checked"


class Action(StrEnum):
    """Action that a finding calls for."""

    RECOPY = "recopy"
    """The data may still be on a replica or in a pin: copy the segment again under a new id."""
    DELETE_OBJECT = "delete-object"
    """Mark it, and delete it after the grace."""
    DELETE_SEGMENT = "delete-segment"
    """Publish DELETE_SEGMENT_STARTED, delete what is there, publish DELETE_SEGMENT_FINISHED."""
    LOOK = "look"
    """An operator must look: nothing is done automatically."""


ACTIONS = {
    FindingKind.MISSING_OBJECT: Action.RECOPY,
    FindingKind.SIZE_MISMATCH: Action.RECOPY,
    FindingKind.UNREADABLE_MANIFEST: Action.RECOPY,
    FindingKind.CONTRADICTING_MANIFEST: Action.LOOK,
    FindingKind.ORPHAN_OBJECT: Action.DELETE_OBJECT,
    FindingKind.STUCK_COPY: Action.DELETE_SEGMENT,
    FindingKind.DANGLING_DELETE: Action.DELETE_SEGMENT,
    FindingKind.OBJECT_AFTER_DELETE: Action.DELETE_OBJECT,
    FindingKind.OFFSET_GAP: Action.RECOPY,
    FindingKind.OFFSET_OVERLAP: Action.DELETE_SEGMENT,
    FindingKind.UNKNOWN_TOPIC_ID: Action.LOOK,
    FindingKind.FOREIGN_OBJECT: Action.LOOK,
    FindingKind.UNREADABLE_EVENT: Action.LOOK,
    FindingKind.CORRUPT_CONTENT: Action.RECOPY,
    FindingKind.LOST_METADATA: Action.LOOK,
    FindingKind.LACKING_TRANSACTIONS: Action.RECOPY,
    FindingKind.UNKNOWN_PLACE: Action.LOOK,
    FindingKind.NOT_CHECKED: Action.LOOK,
}
"""Actions that a report proposes.  Repair decides anew, and does less (:mod:`tiersidecar.decide.reconcile_repair`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of a report.

    ``topic_id`` and ``segment_id`` are Kafka's 22 characters, ``""`` where there is none; ``partition`` is -1 then.
    ``start_offset`` and ``end_offset`` are inclusive, -1 where unknown.  ``expected_bytes`` and ``found_bytes`` are -1
    where there is nothing to compare.  ``age_ms`` is how long it may have been so.
    """

    kind: FindingKind
    topic: str = ""
    topic_id: str = ""
    partition: int = -1
    segment_id: str = ""
    key: str = ""
    start_offset: int = -1
    end_offset: int = -1
    expected_bytes: int = -1
    found_bytes: int = -1
    age_ms: int = -1
    detail: str = ""

    @property
    def action(self) -> Action:
        """Return the action that the report proposes."""
        return ACTIONS[self.kind]


def place_out_of_reach(prefix: str, segments: int, away: Mapping[str, str]) -> Finding:
    """Return that ``segments`` lie in a place that is not configured, or is ``away`` for the reason given there; its keys begin
    with ``prefix``."""
    name = place_of(prefix)
    if prefix in away:
        detail = f"place {name!r} was not listed whole, and its {segments} segments were not checked: {away[prefix]}"
        return Finding(kind=FindingKind.NOT_CHECKED, key=prefix, detail=detail)
    detail = (
        f"{segments} segments lie in place {name!r}, which the configuration does not name: put it back under places"
    )
    return Finding(kind=FindingKind.UNKNOWN_PLACE, key=prefix, detail=detail)


def place_stopped_answering(place: str, segments: int, reason: str) -> Finding:
    """Return that ``place`` was listed, and then did not answer what was asked about ``segments``: those that lie there, and
    with ``--deep`` those that follow one that does."""
    detail = f"place {place!r} stopped answering, and {segments} segments were not checked, or not whole: {reason}"
    return Finding(kind=FindingKind.NOT_CHECKED, key=place_prefix(place), detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graces:
    """Ages from which something is a finding, in milliseconds; a copy takes longer than anything else."""

    finding_ms: int = 3_600_000
    copy_ms: int = 10_800_000
