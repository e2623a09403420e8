"""Verdict on a proposed delete: by what the broker itself says now, and never by the proposal alone where the broker can be
asked (docs/design/0006)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum

from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.proposals import DeleteProposal
from tiersidecar.domain.segments import LeaderView

MAX_AGE_MS = 300_000
"""Longer than any client waits: a client without an answer for so long has seen its request fail.  How long a proposal waits is
counted by the monotonic clock of the decider, since it was read: by the clocks of two machines that are minutes apart each one
would be old, after the broker's part has been done."""
NEWS_MS = 15_000
"""An existing topic, a leader epoch or an undelete is known here by then."""
NOT_IN_TIME = -1
"""The low watermark of an answer for which not every follower was in time."""


class Outcome(Enum):
    """Outcome of one proposal; the values are those of the metric."""

    CARRIED_OUT = "carried_out"
    REFUSED = "refused"
    LATER = "later"
    """The state known here is older than the proposal; it is looked at again."""
    ANOTHERS = "anothers"
    """Another broker leads: its sidecar decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``reason`` is for the operator.  ``trims``: the broker's own log start is the user's work, too."""

    outcome: Outcome
    reason: str = ""
    trims: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLog:
    """The leader's report of its log in the proposal's epoch."""

    log_start_offset: Offset
    high_watermark: Offset


def decide_by_words(proposal: DeleteProposal, *, cluster_id: str, waited_ms: int) -> Verdict | None:
    """Return a verdict by the proposal alone; None: the broker is to be asked."""
    if proposal.cluster_id != cluster_id:
        return _refused(f"it is of cluster {proposal.cluster_id}, this one is {cluster_id}")
    if waited_ms > MAX_AGE_MS:
        return _refused(f"it has waited for {waited_ms // 1000} s; its client was answered long ago that it failed")
    if proposal.offset < 0:
        return _refused(f"offset {proposal.offset} is none")
    if proposal.low_watermark != NOT_IN_TIME and proposal.low_watermark < proposal.offset:
        return _refused(
            f"the broker's answer had low watermark {proposal.low_watermark}, so it did not accept offset {proposal.offset}"
        )
    return None


def decide_by_place(
    proposal: DeleteProposal,
    *,
    view: LeaderView | None,
    broker_id: BrokerId,
    is_tiered: bool | None,
    waited_ms: int,
) -> Verdict | None:
    """Return a verdict unless the proposal is ours to decide; None: it is.

    ``view`` is the broker's present view of the partition by its name, None where there is none.  ``is_tiered`` is None while
    the partition has not been looked at here yet.
    """
    topic_id_partition = proposal.topic_id_partition
    if view is None:
        return _not_yet("there is no such partition, or we may not see it", waited_ms)
    if view.topic_id_partition.topic_id != topic_id_partition.topic_id:
        return _refused("its topic was deleted; the one of this name now has another id")
    if view.leader_epoch < proposal.leader_epoch:
        return _not_yet(f"leader epoch {proposal.leader_epoch} is not known here", waited_ms)
    if view.leader_id != broker_id:
        return Verdict(outcome=Outcome.ANOTHERS)
    if view.leader_epoch > proposal.leader_epoch:
        # An unclean election between the two may have given its offsets to other records.
        return _refused(f"it is of leader epoch {proposal.leader_epoch}, this one is {view.leader_epoch}")
    if is_tiered is None:
        return Verdict(outcome=Outcome.LATER, reason="the partition has not been looked at here yet")
    return None if is_tiered else _refused("the topic is not tiered")


def decide_proposal(proposal: DeleteProposal, *, local: LocalLog, start_generation: int, waited_ms: int) -> Verdict:
    """Return the verdict on a proposal that is ours, by the present offsets of the leader, this broker, in this leader epoch.

    A user's offset at or above the former log start has moved it there, so if it lies above the log start now, the broker has
    not done this delete.  Of one below it the broker keeps no trace: its answer, which the gateway has bound to the request, is
    the proof, and the trash keeps for ``user.delete.delay`` what goes.
    """
    if proposal.start_generation > start_generation:
        return _not_yet("an operator's undelete is not known here", waited_ms)
    if proposal.start_generation < start_generation:
        return _refused("an operator has set the remote log start back since")
    if proposal.offset > local.high_watermark:
        return _refused(f"offset {proposal.offset} is above the high watermark {local.high_watermark}")
    if proposal.offset > local.log_start_offset:
        return _refused(
            f"the broker's log starts at {local.log_start_offset}: it has not deleted what lies below {proposal.offset}"
        )
    return Verdict(outcome=Outcome.CARRIED_OUT, trims=proposal.offset == local.log_start_offset)


def places_for(groups: Sequence[Hashable], most: int) -> set[int]:
    """Return which waiting proposals, by their positions, may go on waiting: at most ``most``.

    ``groups`` has each one's group, in the order in which they came.  The first of each group have a place before the second of
    any, so that a flood in one group pushes out none of another that has few.
    """
    before, turns = Counter[Hashable](), list[int]()
    for group in groups:
        turns.append(before[group])
        before[group] += 1
    return set(sorted(range(len(groups)), key=turns.__getitem__)[:most])


def _not_yet(reason: str, waited_ms: int) -> Verdict:
    """Return that it is looked at later; unknown for so long, it is not true, and must not keep a place that others need."""
    return _refused(reason) if waited_ms > NEWS_MS else Verdict(outcome=Outcome.LATER, reason=reason)


def _refused(reason: str) -> Verdict:
    return Verdict(outcome=Outcome.REFUSED, reason=reason)
