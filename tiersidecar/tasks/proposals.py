"""Decide what gateways propose: deletes of users, by the tier role of the partition's leader (docs/design/0006).

A gateway has no right to write the state topic, nor to delete anything at the broker.  It answers its client that a delete is
done only when it has read the start that is published here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from tiersidecar.decide.proposals import (
    MAX_AGE_MS,
    LocalLog,
    Outcome,
    Verdict,
    decide_by_place,
    decide_by_words,
    decide_proposal,
    places_for,
)
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.domain.errors import BrokerRefusedError, RetriableError, TiersidecarError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.proposals import DeleteProposal, ReceivedProposal
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.broker import OffsetAnswer, OffsetSpec
from tiersidecar.ports.metrics.retention import PROPOSALS
from tiersidecar.ports.proposals import Proposals
from tiersidecar.reading.user_deletes import Asker, UserDelete
from tiersidecar.tasks.edges import Actor, Edges, Sources
from tiersidecar.tasks.policies import TopicPolicies

log = structlog.get_logger(__name__)

_MAX_WAITING = 1000
"""Proposals that are looked at again."""
_MAX_EVENTS = 5
"""Refusals of a second that are logged one by one."""
_LOOK_AGAIN_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A proposal that is not decided, read at ``since_s`` of the monotonic clock; equal ones are one."""

    proposal: DeleteProposal
    since_s: float
    at: int


class RequireSoundLogs(Protocol):
    async def require(self, topic_id_partition: TopicIdPartition) -> None:
        """Return where no topic of the sidecars has forgotten the partition: what is said of it now would hide that.

        Raises:
            TopicLossError: one has.
        """


class ProposalsTask:
    """Decides all of the proposals that concern this broker, in the order in which they came."""

    def __init__(
        self,
        *,
        sources: Sources,
        edges: Edges,
        actor: Actor,
        proposals: Proposals,
        policies: TopicPolicies,
        sound: RequireSoundLogs,
        cluster_id: str,
        delays: TrashDelays,
    ) -> None:
        self._table, self._broker, self._state = sources.table, sources.broker, sources.state
        self._proposals, self._policies, self._sound = proposals, policies, sound
        self._ownership, self._broker_id = actor.ownership, actor.broker_id
        self._cluster_id, self._delays = cluster_id, delays
        self._clock, self._trash_clock, self._telemetry = edges.clock, edges.trash_clock, edges.telemetry
        self._waiting: list[Waiting] = []
        self._looked_s = float("-inf")
        self._refused, self._counted_since_s = 0, float("-inf")

    async def run(self) -> None:
        """Decide what comes, until cancelled."""
        await self._proposals.keep_reading(self.take, max_age_ms=MAX_AGE_MS)

    async def take(self, received: Sequence[ReceivedProposal]) -> None:
        """Decide ``received``, and what waits."""
        self._sum_up()
        now_s = self._clock.monotonic_s()
        for one in received:
            if one.proposal is None:
                self._note_refused(None, one.at, f"it cannot be read: {one.fault}")
            else:
                self._waiting.append(Waiting(proposal=one.proposal, since_s=now_s, at=one.at))
        if self._waiting and (received or now_s - self._looked_s >= _LOOK_AGAIN_S):
            self._looked_s = now_s
            await self._look()

    def _sum_up(self) -> None:
        """Log once a second the refusals that had no event of their own."""
        now_s = self._clock.monotonic_s()
        if now_s - self._counted_since_s < 1:
            return
        if self._refused > _MAX_EVENTS:
            log.warning(
                "proposals.refused", number=self._refused - _MAX_EVENTS, reason="more than have events of their own"
            )
        self._refused, self._counted_since_s = 0, now_s

    async def _look(self) -> None:
        # Abandoned, it is done again: nothing is taken off the list before it is decided.
        looked_at = self._waiting = self._by_words(self._waiting)
        if not looked_at:
            return
        views = dict[tuple[str, int], LeaderView]()
        try:
            views = await self._views(looked_at)
            ours, later = self._by_place(looked_at, views)
            facts = await self._local_logs(ours)
            if ours:  # what is taken for said may have been undone, and what is decided on be of an earlier generation
                await self._state.catch_up()
        except RetriableError as error:
            log.debug("proposals.retry", error=str(error))
            ours, later = [], looked_at
            facts = {}
        decided = await asyncio.gather(*(self._decide(waiting, facts) for waiting in ours))
        later += [one for one, is_decided in zip(ours, decided, strict=True) if not is_decided]
        self._waiting = self._with_places(later, views)

    def _with_places(self, later: Sequence[Waiting], views: Collection[tuple[str, int]]) -> list[Waiting]:
        """Return those that keep their places.  Those of partitions that the broker has shown us are a group by partition.  Any
        client can name others: they are one by topic, if that is there, else all together."""
        groups = list[Hashable]()
        for waiting in later:
            owner = waiting.proposal.topic_id_partition
            is_there = (owner.topic, owner.partition) in views
            groups.append(owner if is_there else owner.topic if owner.topic in self._table.topic_ids else None)
        places = places_for(groups, _MAX_WAITING)
        for position, waiting in enumerate(later):
            if position not in places:
                self._note_refused(waiting.proposal, waiting.at, f"{_MAX_WAITING} others wait")
        return [waiting for position, waiting in enumerate(later) if position in places]

    # -- decided

    def _by_words(self, waiting: Sequence[Waiting]) -> list[Waiting]:
        """Return those that the broker is to be asked about; of equal ones the first."""
        kept = dict[DeleteProposal, Waiting]()
        for one in waiting:
            verdict = decide_by_words(one.proposal, cluster_id=self._cluster_id, waited_ms=self._waited_ms(one))
            if verdict is None:
                kept.setdefault(one.proposal, one)
            else:
                self._note(one, verdict)
        return list(kept.values())

    def _by_place(
        self, waiting: Sequence[Waiting], views: Mapping[tuple[str, int], LeaderView]
    ) -> tuple[list[Waiting], list[Waiting]]:
        """Return ours, and those to look at again."""
        ours, later = [], []
        for one in waiting:
            topic_id_partition = one.proposal.topic_id_partition
            verdict = decide_by_place(
                one.proposal,
                view=views.get((topic_id_partition.topic, topic_id_partition.partition)),
                broker_id=self._broker_id,
                is_tiered=self._is_tiered(topic_id_partition),
                waited_ms=self._waited_ms(one),
            )
            if verdict is None:
                ours.append(one)
            elif verdict.outcome is Outcome.LATER:
                later.append(one)
            else:
                self._note(one, verdict)
        return ours, later

    def _waited_ms(self, one: Waiting) -> int:
        return int((self._clock.monotonic_s() - one.since_s) * 1000)

    def _is_tiered(self, topic_id_partition: TopicIdPartition) -> bool | None:
        if topic_id_partition in self._table.assignment:
            return True
        return None if self._policies.policy_for(topic_id_partition.topic) is not None else False

    async def _decide(self, one: Waiting, facts: Mapping[TopicIdPartition, LocalLog]) -> bool:
        """Return whether it is decided."""
        proposal, topic_id_partition = one.proposal, one.proposal.topic_id_partition
        local = facts.get(topic_id_partition)
        if local is None:  # the leader has just changed, or says nothing of itself yet
            return False
        try:
            await self._sound.require(topic_id_partition)
            known = self._state.partition_state(topic_id_partition)
            verdict = decide_proposal(
                proposal,
                local=local,
                start_generation=known.start_generation,
                waited_ms=self._waited_ms(one),
            )
            if verdict.outcome is Outcome.CARRIED_OUT:
                await self._carry_out(proposal, verdict)
        except RetriableError as error:
            log.debug("proposals.retry", error=str(error))
            return False
        except TiersidecarError as error:
            verdict = Verdict(outcome=Outcome.REFUSED, reason=str(error))
        if verdict.outcome is Outcome.LATER:
            return False
        self._note(one, verdict)
        return True

    async def _carry_out(self, proposal: DeleteProposal, verdict: Verdict) -> None:
        topic_id_partition = proposal.topic_id_partition
        delete = UserDelete(offset=proposal.offset, leader_epoch=proposal.leader_epoch, trims=verdict.trims)
        self._ownership.require_role()
        by = f"{proposal.principal} ({proposal.client_id or 'no client id'}, {proposal.address})"
        asker = Asker(
            by=f"DeleteRecords through the gateway of broker {proposal.gateway}: {by}",
            now_ms=self._trash_clock.now().decision_ms,
            delays=self._delays,
        )
        is_new = not delete.is_said(self._state.partition_state(topic_id_partition))
        start = await delete.say_as_read(self._state, topic_id_partition, asker)
        if is_new:
            log.info(
                "records.deleted",
                topic=topic_id_partition.topic,
                partition=topic_id_partition.partition,
                offset=int(proposal.offset),
                remote_log_start_offset=int(start),
                leader_epoch=int(proposal.leader_epoch),
                principal=proposal.principal,
                client_id=proposal.client_id,
                client=proposal.address,
                gateway=int(proposal.gateway),
            )

    # -- asked of the broker, once for all

    async def _views(self, waiting: Sequence[Waiting]) -> dict[tuple[str, int], LeaderView]:
        """Describe topics that the broker has shown us: of others, which any client can name, it would refuse to answer at
        all."""
        topics = {one.proposal.topic_id_partition.topic for one in waiting} & self._table.topic_ids.keys()
        found = await self._described(sorted(topics))
        return {(view.topic_id_partition.topic, view.topic_id_partition.partition): view for view in found}

    async def _described(self, topics: Sequence[str]) -> Sequence[LeaderView]:
        """Describe topics.  With one that we may not describe the broker refuses the whole question; it is as one that is not
        there."""
        if not topics:
            return ()
        try:
            return await self._broker.describe_partitions(topics)
        except BrokerRefusedError as error:
            if len(topics) == 1:
                log.debug("proposals.retry", error=str(error))
                return ()
        half = len(topics) // 2
        return [*await self._described(topics[:half]), *await self._described(topics[half:])]

    async def _local_logs(self, ours: Sequence[Waiting]) -> dict[TopicIdPartition, LocalLog]:
        """Ask, fenced by the proposals' leader epoch: the answers are of that history or none."""
        epochs: dict[TopicIdPartition, LeaderEpoch] = {
            waiting.proposal.topic_id_partition: waiting.proposal.leader_epoch for waiting in ours
        }
        if not epochs:
            return {}
        starts = await self._broker.list_offsets(epochs, OffsetSpec.EARLIEST)
        ends = await self._broker.list_offsets(epochs, OffsetSpec.LATEST)
        return {
            topic_id_partition: LocalLog(
                log_start_offset=starts[topic_id_partition].offset, high_watermark=ends[topic_id_partition].offset
            )
            for topic_id_partition in epochs
            if _is_answered(starts.get(topic_id_partition)) and _is_answered(ends.get(topic_id_partition))
        }

    # -- reported

    def _note(self, one: Waiting, verdict: Verdict) -> None:
        if verdict.outcome is Outcome.REFUSED:
            self._note_refused(one.proposal, one.at, verdict.reason)
        elif verdict.outcome is Outcome.CARRIED_OUT:
            self._telemetry.count(PROPOSALS, outcome=verdict.outcome.value)

    def _note_refused(self, proposal: DeleteProposal | None, at: int, reason: str) -> None:
        self._refused += 1
        self._telemetry.count(PROPOSALS, outcome=Outcome.REFUSED.value)
        if self._refused > _MAX_EVENTS:
            return
        facts = {} if proposal is None else _facts(proposal)
        log.warning("proposal.refused", at=at, reason=reason, **facts)


def _is_answered(answer: OffsetAnswer | None) -> bool:
    return answer is not None and answer.error is None


def _facts(proposal: DeleteProposal) -> dict[str, object]:
    topic_id_partition = proposal.topic_id_partition
    return {
        "topic": topic_id_partition.topic,
        "partition": topic_id_partition.partition,
        "offset": int(proposal.offset),
        "leader_epoch": int(proposal.leader_epoch),
        "principal": proposal.principal,
        "client_id": proposal.client_id,
        "client": proposal.address,
        "gateway": int(proposal.gateway),
    }
