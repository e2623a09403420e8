"""Pauses that an operator has put on copying or deleting, of one topic or of all, and stops of expiry by its guard.

``tiersidecar pause`` writes the former; the latter are in docs/design/0003-expiry-and-the-end-of-things.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.offsets import NO_EPOCH, LeaderEpoch, Offset

ALL_TOPICS = "(all)"
"""Stands for the topic in the pause of all topics; no topic of Kafka's can have this name."""


class PauseKind(StrEnum):
    """Operation that is paused.  ``DELETES`` includes trims of brokers' disks: nothing that a reader may still have goes."""

    COPIES = "copies"
    DELETES = "deletes"


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedThing:
    """Subject of a pause; ``topic_id`` of None is all topics, future ones too."""

    kind: PauseKind
    topic_id: Uuid | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A pause of ``thing`` until it is resumed.  ``topic``, ``since_ms``, ``by`` and ``reason`` are for the operator."""

    thing: PausedThing
    topic: str
    since_ms: int
    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardStop:
    """Too much was due at once: nothing expires until its cause ends, or an operator confirms.

    ``up_to`` is the remote log start that was due.  The two retentions and the two limits are those by which it was judged,
    ``since_ms`` is the wall clock then.  ``is_over``: it has ended.  ``leader_epoch`` and ``number`` order the leaders' records
    of it; ``number`` counts up with each change.
    """

    reason: str
    up_to: Offset
    retention_ms: int
    retention_bytes: int
    max_share: float
    max_bytes: int
    since_ms: int
    is_over: bool = False
    leader_epoch: LeaderEpoch = NO_EPOCH
    number: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """Return the sort key: of two stops the later one counts."""
        return (self.leader_epoch, self.number)


def later_stop(known: GuardStop | None, said: GuardStop | None) -> GuardStop | None:
    """Return which of two counts; ``said`` comes later in the topic, and is None where it has no stop."""
    if known is None or said is None:
        return known if said is None else said
    return said if said.order >= known.order else known
