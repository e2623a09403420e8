"""Time that a sidecar has seen pass, by the wall clock of its machine, over all its lives: those with one ``state.dir``, and,
where that was lost, those that held its broker's lease before."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class UnseenTime:
    """A time, [from, to), that the wall clock passed while no process of ours watched it: it may never have been."""

    from_ms: int
    to_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTime:
    """``until_ms`` is the wall clock when it was last seen to be right; ``unseen`` ascend, and none touches another."""

    until_ms: int
    unseen: tuple[UnseenTime, ...] = ()
