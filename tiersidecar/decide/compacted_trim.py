"""Limit of trimming the broker's log of a compacted topic (docs/design/0017-remote-compaction.md).

Two cleaners work on such a partition: the sidecar's on the remote log, the broker's on its own.  A reader that goes from one
log into the other must find there the tombstone of each value that it has read.  Two rules see to that, beside those of every
trim:

* *Nothing goes that either cleaner has not passed.*  Below the remote cleaner offset the remote log has no value any more that
  a record below it replaces.
* *The broker still has the tombstones that the remote log is not clean of.*  Its cleaner removes a tombstone no earlier than
  ``delete.retention.ms`` after the round in which it first passed it.  So its offset must have been seen at or below the remote
  one within half of that time: the other half is the reader's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tiersidecar.domain.offsets import Offset

_RECENT_SHARE = 0.5
"""Of ``delete.retention.ms``."""
_MOST_SIGHTINGS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSighting:
    """The broker's cleaner offset, as its checkpoint said it last at ``at_s`` of the monotonic clock."""

    offset: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomView:
    """``cleaner_offset`` is the remote one, None where none counts, and ``oldest_dirty_ms`` when the first remote segment was
    copied that is not clean to its end, None where all are.  ``brokers`` is the broker's now, -1 where its cleaner has not been
    there, None where that cannot be read.  ``sightings`` are earlier ones of this process, and this one."""

    cleaner_offset: Offset | None
    oldest_dirty_ms: int | None
    brokers: int | None
    sightings: Sequence[CleanerSighting]
    now_s: float
    now_ms: int
    delete_retention_ms: int
    min_compaction_lag_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Nothing may go that ends above ``stop_offset``; ``reason`` says why."""

    stop_offset: int
    reason: str


def decide_room(view: RoomView) -> Room:
    """Return how far a trim may go by the two cleaners alone."""
    if view.cleaner_offset is None:
        return Room(stop_offset=-1, reason="the remote log has not been cleaned yet")
    if view.brokers is None or view.brokers < 0:
        return Room(
            stop_offset=-1, reason="the broker's cleaner has not cleaned its log yet, or its checkpoint is unreadable"
        )
    due_ms = view.now_ms - view.delete_retention_ms - view.min_compaction_lag_ms
    if view.oldest_dirty_ms is not None and view.oldest_dirty_ms < due_ms:
        return Room(
            stop_offset=-1,
            reason=f"the sidecar's cleaner is late: the remote log has been dirty from offset {view.cleaner_offset} on for "
            "longer than delete.retention.ms",
        )
    recent_s = view.delete_retention_ms * _RECENT_SHARE / 1000
    if not any(one.offset <= view.cleaner_offset and view.now_s - one.at_s <= recent_s for one in view.sightings):
        return Room(
            stop_offset=-1,
            reason=(
                f"the broker's cleaner is at offset {view.brokers}, and the remote log is clean up to {view.cleaner_offset} "
                "alone: trims go on after the next round of the sidecar's cleaner"
            ),
        )
    return Room(
        stop_offset=min(view.cleaner_offset, view.brokers),
        reason=f"the remote log is clean up to offset {view.cleaner_offset}, and the broker's up to {view.brokers}",
    )


def with_sighting(known: Sequence[CleanerSighting], offset: int, now_s: float) -> tuple[CleanerSighting, ...]:
    """Return the sightings with another one, the latest last; of the same offset the last one counts, and few are kept."""
    if known and known[-1].offset == offset:
        return (*known[:-1], replace(known[-1], at_s=now_s))
    return (*known, CleanerSighting(offset=offset, at_s=now_s))[-_MOST_SIGHTINGS:]
