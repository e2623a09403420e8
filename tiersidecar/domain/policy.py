"""Wishes of a topic's owner, its tiering mode and its two retentions; the pauses that an operator has put
on copying or deleting, of one topic or of all; and stops of expiry by its guard.

``tiersidecar pause`` writes the pauses; the stops are in docs/design/0003-expiry-and-the-end-of-things.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.offsets import NO_EPOCH, LeaderEpoch, Offset
from tiersidecar.domain.readable import moment_text


class RetentionMode(StrEnum):
    """``STRICT``: the broker keeps everything and we trim.  ``RACE``: the broker's own retention stays in charge."""

    STRICT = "strict"
    RACE = "race"


class TieringMode(StrEnum):
    """Mode of a topic in the state topic: a retention mode, or that tiering is off.

    ``DETACHED``: nothing is copied or trimmed, what is remote stays readable and expires.  ``DELETING``: all that is remote
    goes (KIP-950's two ways).
    """

    STRICT = "strict"
    RACE = "race"
    DETACHED = "detached"
    DELETING = "deleting"


class ShareGroupHold(StrEnum):
    """Rules by which trims stop at the start offsets of share groups, which only the broker's own log can serve."""

    HOLD = "hold"
    IGNORE = "ignore"


UNLIMITED = -1
AS_TOTAL = -2
"""``local.retention.*`` of -2: the same as the total retention (S-050)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimHolds:
    """Groups that a trim in strict mode waits for: these consumer groups, those whose whole name matches ``groups_pattern`` and
    that have committed offsets of the topic, and share groups."""

    groups: tuple[str, ...] = ()
    groups_pattern: str = ""
    share_groups: ShareGroupHold = ShareGroupHold.HOLD

    @property
    def share(self) -> bool:
        return self.share_groups is ShareGroupHold.HOLD

    @property
    def needs_list(self) -> bool:
        """Return whether all groups of the cluster must be known, and not only those named here."""
        return self.share or bool(self.groups_pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicy:
    """The user's settings of one topic.  Milliseconds and bytes per partition; -1 is without limit.

    ``delete_remote``: tiering was switched off with deletion, so all that is remote goes (KIP-950).
    """

    mode: RetentionMode = RetentionMode.STRICT
    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED
    local_retention_ms: int = AS_TOTAL
    local_retention_bytes: int = AS_TOTAL
    copy_disabled: bool = False
    delete_remote: bool = False
    copy_lag_ms: int = 0
    copy_lag_bytes: int = 0
    holds: TrimHolds = TrimHolds()

    @property
    def effective_local_retention_ms(self) -> int:
        """Return the local retention, never longer than the total (S-051)."""
        return _at_most(self.local_retention_ms, self.retention_ms)

    @property
    def effective_local_retention_bytes(self) -> int:
        """Return the local retention, never more than the total (S-051)."""
        return _at_most(self.local_retention_bytes, self.retention_bytes)

    @property
    def effective_copy_lag_ms(self) -> int:
        """Return the lag; -1 is the effective local retention (S-028)."""
        return self.effective_local_retention_ms if self.copy_lag_ms == -1 else self.copy_lag_ms

    @property
    def effective_copy_lag_bytes(self) -> int:
        """Return the lag; -1 is the effective local retention (S-028)."""
        return self.effective_local_retention_bytes if self.copy_lag_bytes == -1 else self.copy_lag_bytes


def _at_most(local: int, total: int) -> int:
    if local == AS_TOTAL:
        return total
    if total == UNLIMITED:
        return local
    return total if local == UNLIMITED else min(local, total)


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


_STOPPED = {PauseKind.COPIES: "copying is paused", PauseKind.DELETES: "deletes and trims are paused"}


def things_of(topic_id: Uuid | None, kind: PauseKind) -> tuple[PausedThing, ...]:
    """Return the records whose pauses count for a topic: the one of all topics first."""
    everything = PausedThing(kind=kind)
    return (everything,) if topic_id is None else (everything, PausedThing(kind=kind, topic_id=topic_id))


def why_paused(known: Mapping[PausedThing, Pause], topic_id: Uuid | None, kind: PauseKind) -> str:
    """Return the sentence that says why ``kind`` stands still for the topic, empty where it does not."""
    if not known:
        return ""
    return next((pause_sentence(known[thing]) for thing in things_of(topic_id, kind) if thing in known), "")


def pause_sentence(pause: Pause) -> str:
    """Return the pause in one sentence, without a full stop."""
    of_all = " for all topics" if pause.topic == ALL_TOPICS else f" for topic {pause.topic}"
    reason = f": {pause.reason}" if pause.reason else ""
    return f"{_STOPPED[pause.thing.kind]}{of_all} since {moment_text(pause.since_ms)} by {pause.by}{reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardStop:
    """Too much was due at once: nothing expires until its cause ends, or an operator confirms.

    ``up_to`` is the remote log start that was due.  The two retentions and the two limits are those that decided it,
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
