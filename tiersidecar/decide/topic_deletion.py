"""Decision whether a topic is gone for good, and which sidecar removes its remote data (S-183, S-190, T-47)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, Uuid

GONE = "UNKNOWN_TOPIC_ID"
"""The only answer to Metadata by topic id that says that the topic does not exist any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A topic id that the cluster denied each time it was asked, from ``first_s`` to ``last_s`` (a clock that never goes
    back)."""

    first_s: float
    last_s: float


def observe_absences(
    known: Mapping[Uuid, Absence], answers: Mapping[Uuid, str | None], now_s: float
) -> dict[Uuid, Absence]:
    """Return the absences after ``answers``: a topic that was not denied this time, or not asked for, begins anew."""
    return {
        topic_id: replace(known.get(topic_id, Absence(first_s=now_s, last_s=now_s)), last_s=now_s)
        for topic_id, answer in answers.items()
        if answer == GONE
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """The remains of a topic, by the metadata at ``seen_s``: the number of segments, and of those half copied or half deleted.
    It has stayed so, under our watch, for ``rested_s``."""

    segments: int
    unfinished: frozenset[RemoteLogSegmentId]
    seen_s: float
    rested_s: float = 0.0


def observe_remains(known: Remains | None, seen: Remains, *, grace_s: float) -> Remains:
    """Return ``seen``, rested for as long as nothing changed.  The time between two looks counts for half the grace at most:
    after a pause of our own (a paused machine), our view of what other sidecars did may not have caught up yet."""
    if known is None or (known.segments, known.unfinished) != (seen.segments, seen.unfinished):
        return seen
    return replace(seen, rested_s=known.rested_s + min(seen.seen_s - known.seen_s, grace_s / 2))


def is_at_rest(remains: Remains, *, grace_s: float) -> bool:
    """Return whether no sidecar is deleting it: one that began before us writes an event with each segment."""
    return not remains.segments or remains.rested_s >= grace_s


def is_ours_to_delete(
    absence: Absence,
    *,
    grace_s: float,
    led_last: bool,
    topic_id: Uuid,
    broker_id: BrokerId,
    live_brokers: Collection[BrokerId],
) -> bool:
    """Return whether the absence has lasted long enough for this sidecar: ``grace_s`` for the last leader's, at least twice
    that for the others, which take turns by the topic's id, so that mostly one does it."""
    waits = 1 if led_last else 2 + _rank(topic_id, broker_id, live_brokers)
    return absence.last_s > absence.first_s and absence.last_s - absence.first_s >= waits * grace_s


def _rank(topic_id: Uuid, broker_id: BrokerId, live_brokers: Collection[BrokerId]) -> int:
    brokers = sorted({*live_brokers, broker_id})
    return (brokers.index(broker_id) + int.from_bytes(topic_id, "big")) % len(brokers)
