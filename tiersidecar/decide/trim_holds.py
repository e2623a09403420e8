"""Groups that trims wait for: consumer groups by committed offsets, share groups by start offsets (DESIGN.md section 5).

What is not known is never taken for "has read all": a group that cannot be asked, or was named and has committed nothing,
holds every trim of the partition, and the hold says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tiersidecar.decide.trim import TrimStep
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.policy import TrimHolds

_NAMED_IN_A_REASON = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRead:
    """The known state of one group: the next offset it will read, by (topic, partition); ``problem`` is why that is not known.
    ``begun`` are the partitions that a share group has been given and has acknowledged nothing of."""

    group: str
    offsets: Mapping[tuple[str, int], Offset]
    problem: str = ""
    begun: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsView:
    """All groups that topics here may wait for.  ``consumers_problem`` and ``shares_problem`` say why the groups of that kind
    could not be listed: there may be more than those given."""

    consumers: Sequence[GroupRead] = ()
    shares: Sequence[GroupRead] = ()
    consumers_problem: str = ""
    shares_problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A group that a partition's trims may not pass: ``offset`` is the first that must stay, None where nothing may go.
    ``group`` is empty where it is not known which group."""

    group: str
    offset: Offset | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimHold:
    """``allowed`` may be trimmed now; ``held_bytes`` may not, because of ``holders``, each with the bytes that it alone
    would hold."""

    allowed: tuple[TrimStep, ...]
    held_bytes: int = 0
    holders: tuple[tuple[Holder, int], ...] = ()

    @property
    def reason(self) -> str:
        """Return one sentence; empty when nothing is held back."""
        shown = [holder.reason for holder, _ in self.holders[:_NAMED_IN_A_REASON]]
        more = len(self.holders) - len(shown)
        return "; ".join(shown) + (f"; and {more} more" if more else "")


def holders_of(holds: TrimHolds, topic: str, partition: int, view: GroupsView) -> tuple[Holder, ...]:
    """Return the groups that trims of this partition wait for.

    A group that is named counts whatever it has done.  One that only the pattern matches counts once it has committed an offset
    of any partition of the topic: from then on a partition without one is a partition that it has not begun.  A share group
    counts where it has been given the partition: until it has acknowledged a record of it, its members' records are not known.
    """
    found: list[Holder] = []
    for read in view.consumers:
        is_named = read.group in holds.groups
        if not is_named and not is_matching(holds.groups_pattern, read.group):
            continue
        if is_named or read.problem or any(of_topic == topic for of_topic, _ in read.offsets):
            found.append(_holder("consumer group", read, topic, partition))
    if holds.groups_pattern and view.consumers_problem:
        found.append(Holder(group="", offset=None, reason=f"consumer groups are not known: {view.consumers_problem}"))
    if holds.share:
        if view.shares_problem:
            found.append(Holder(group="", offset=None, reason=f"share groups are not known: {view.shares_problem}"))
        found += [
            _holder("share group", read, topic, partition)
            for read in view.shares
            if read.problem or (topic, partition) in read.offsets or (topic, partition) in read.begun
        ]
    return tuple(found)


def decide_hold(steps: Sequence[TrimStep], holders: Iterable[Holder]) -> TrimHold:
    """Return the steps that no group holds, oldest first; and the holders of the others, the one that holds most first."""
    holding = [(holder, _held_bytes(steps, holder)) for holder in holders]
    holding = [(holder, held) for holder, held in holding if not _lets_go(holder, steps)]
    holding.sort(key=lambda one: (-one[1], one[0].group))
    allowed = tuple(step for step in steps if all(_may_go(step, holder) for holder, _ in holding))
    held_bytes = sum(step.local.size_bytes for step in steps[len(allowed) :])
    return TrimHold(allowed=allowed, held_bytes=held_bytes, holders=tuple(holding))


def _holder(kind: str, read: GroupRead, topic: str, partition: int) -> Holder:
    offset = None if read.problem else read.offsets.get((topic, partition))
    if read.problem:
        reason = f"what {kind} {read.group} has read is not known: {read.problem}"
    elif (topic, partition) in read.begun:
        reason = f"{kind} {read.group} has begun and acknowledged nothing"
    elif offset is None:
        reason = f"{kind} {read.group} has no committed offset"
    else:
        reason = f"{kind} {read.group} has read up to {offset}"
    return Holder(group=read.group, offset=offset, reason=reason)


def is_matching(pattern: str, group: str) -> bool:
    """Return whether the whole name matches; an empty pattern matches none."""
    return bool(pattern) and re.fullmatch(pattern, group) is not None


def _may_go(step: TrimStep, holder: Holder) -> bool:
    return step.forced or (holder.offset is not None and step.offset <= holder.offset)


def _lets_go(holder: Holder, steps: Sequence[TrimStep]) -> bool:
    return all(_may_go(step, holder) for step in steps)


def _held_bytes(steps: Sequence[TrimStep], holder: Holder) -> int:
    return sum(step.local.size_bytes for step in steps if not _may_go(step, holder))
