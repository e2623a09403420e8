"""Request copies from the sidecars for what a report found missing or damaged, and wait for the outcomes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tiersidecar.app.commands.session import Session
from tiersidecar.decide.reconcile_findings import Finding, FindingKind
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, parse_uuid
from tiersidecar.domain.offsets import Offset
from tiersidecar.ports.state_records import RecopyRequest

_LOOK_AGAIN_S = 0.5


class Outcome(StrEnum):
    """The outcome of a request."""

    RECOPIED = "recopied"
    """Live segments with all their objects hold the offsets, or no reader may have them any more."""
    UNRECOVERABLE = "unrecoverable"
    """No replica's disk has them: the sidecar of each has said so."""
    PENDING = "pending"
    """Not every sidecar that might has answered yet; the request stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecopyOutcome:
    """``reasons`` are those of the brokers that declined."""

    request: RecopyRequest
    outcome: Outcome
    reasons: Mapping[BrokerId, str]

    def document(self) -> dict[str, object]:
        """Return it as JSON."""
        owner = self.request.topic_id_partition
        return {
            "topic": owner.topic,
            "partition": owner.partition,
            "start_offset": self.request.start_offset,
            "end_offset": self.request.end_offset,
            "outcome": self.outcome.value,
            "reasons": {str(broker): reason for broker, reason in self.reasons.items()},
        }


def request_for(finding: Finding, *, now_ms: int) -> RecopyRequest:
    """Return the request for a damaged segment, or for offsets that are in none."""
    return RecopyRequest(
        topic_id_partition=owner_of(finding),
        start_offset=Offset(finding.start_offset),
        end_offset=Offset(finding.end_offset),
        segment_uuid=parse_uuid(finding.segment_id) if finding.segment_id else None,
        from_store=finding.kind is FindingKind.LACKING_TRANSACTIONS,
        requested_ms=now_ms,
    )


def owner_of(finding: Finding) -> TopicIdPartition:
    """Return the partition that a finding is of."""
    return TopicIdPartition(topic_id=parse_uuid(finding.topic_id), topic=finding.topic, partition=finding.partition)


class RecopyDesk:
    """Requests of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._replicas: dict[TopicIdPartition, frozenset[BrokerId]] = {}

    async def standing(self, finding: Finding) -> RecopyRequest | None:
        """Return the request that stands for it already."""
        wanted = request_for(finding, now_ms=0)
        return self._standing(wanted)

    async def why_unrecoverable(self, request: RecopyRequest) -> str:
        """Return what all replicas' sidecars say; "" while one may still do it."""
        replicas = await self._replicas_of(request.topic_id_partition)
        if not replicas <= request.declined.keys():
            return ""
        return "; ".join(f"broker {broker}: {reason}" for broker, reason in sorted(request.declined.items()))

    async def ask(self, requests: Iterable[RecopyRequest]) -> list[RecopyRequest]:
        """Publish them, each of several findings of a segment once; a request that stands already is left as it is."""
        asked: list[RecopyRequest] = []
        for request in requests:
            if any(request.is_same(one) for one in asked):
                continue
            asked.append(request)
            if self._standing(request) is None:
                await self._session.state.request_recopy(request)
        return asked

    async def wait(self, requests: Sequence[RecopyRequest], *, most_s: float) -> list[RecopyOutcome]:
        """Wait until each is done or declined by all replicas, or the time is over."""
        until_s = self._session.clock.monotonic_s() + most_s
        while True:
            outcomes = [await self._outcome(request) for request in requests]
            is_over = self._session.clock.monotonic_s() >= until_s
            if is_over or all(one.outcome is not Outcome.PENDING for one in outcomes):
                return outcomes
            await self._session.clock.sleep(_LOOK_AGAIN_S)

    async def withdraw(self, outcomes: Iterable[RecopyOutcome]) -> None:
        """Take back those that no replica can do, so that a later run asks anew: a replica may have come back by then."""
        for one in outcomes:
            if one.outcome is Outcome.UNRECOVERABLE:
                await self._session.state.forget_recopy(one.request)

    async def _outcome(self, request: RecopyRequest) -> RecopyOutcome:
        now = self._standing(request)
        if now is None:
            return RecopyOutcome(request=request, outcome=Outcome.RECOPIED, reasons={})
        outcome = Outcome.UNRECOVERABLE if await self.why_unrecoverable(now) else Outcome.PENDING
        return RecopyOutcome(request=now, outcome=outcome, reasons=now.declined)

    def _standing(self, request: RecopyRequest) -> RecopyRequest | None:
        standing = self._session.state.recopies(request.topic_id_partition)
        return next((one for one in standing if one.is_same(request)), None)

    async def _replicas_of(self, owner: TopicIdPartition) -> frozenset[BrokerId]:
        if owner not in self._replicas:
            views = await self._session.broker.describe_partitions([owner.topic])
            self._replicas |= {view.topic_id_partition: frozenset(view.replicas) for view in views}
        return self._replicas.get(owner, frozenset())


def counts(outcomes: Iterable[RecopyOutcome]) -> dict[str, int]:
    """Return how many there are of each."""
    found: defaultdict[str, int] = defaultdict(int)
    for one in outcomes:
        found[one.outcome.value] += 1
    return dict(found)
