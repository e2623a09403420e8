"""A stop of expiry by the guard, as the state topic keeps it (docs/design/0003-expiry-and-the-end-of-things.md)."""

from __future__ import annotations

from dataclasses import dataclass

from tiersidecar.domain.offsets import NO_EPOCH, LeaderEpoch, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardStop:
    """Too much was due at once: nothing expires until its cause ends, or an operator confirms.

    ``up_to`` is the remote log start that was due.  The two retentions and the two limits are those by which it was judged,
    ``since_ms`` is the wall clock then.  ``is_over``: it has ended.  ``leader_epoch`` and ``number`` order what leaders say of
    it; ``number`` counts up with each change.
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
        """Of two, the later counts."""
        return (self.leader_epoch, self.number)


def later_stop(known: GuardStop | None, said: GuardStop | None) -> GuardStop | None:
    """Which of two counts; ``said`` comes later in the topic, and says nothing where it is None."""
    if known is None or said is None:
        return known if said is None else said
    return said if said.order >= known.order else known
