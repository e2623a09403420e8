"""Tiering policy of a topic: its mode and its two retentions (DESIGN.md section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
    """Whether trims stop at the start offsets of share groups, which only the broker's own log can serve."""

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
