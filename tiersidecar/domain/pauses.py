"""Pauses that an operator has put on copying or deleting, of one topic or of all (``tiersidecar pause``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tiersidecar.domain.ids import Uuid

ALL_TOPICS = "(all)"
"""Stands for the topic in the pause of all topics; no topic of Kafka's can have this name."""


class PauseKind(StrEnum):
    """What stands still.  ``DELETES`` are trims of brokers' disks too: nothing that a reader may still have goes anywhere."""

    COPIES = "copies"
    DELETES = "deletes"


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedThing:
    """What a pause is about; ``topic_id`` of None is all topics, those to come too."""

    kind: PauseKind
    topic_id: Uuid | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """That ``thing`` stands still until it is resumed.  ``topic``, ``since_ms``, ``by`` and ``reason`` are for people."""

    thing: PausedThing
    topic: str
    since_ms: int
    by: str
    reason: str = ""
