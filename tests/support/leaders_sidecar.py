"""The sidecar of a partition's leader, as a gateway meets it: what is proposed to it is decided at once."""

from __future__ import annotations

import time
from typing import Any

from tests.support.lane_parts import actor_of, edges_of, sources_of
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.scripted import MemoryStateLog
from tiersidecar.adapters.proposals_topic.log import read_proposal, write_proposal
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.lease import Lease
from tiersidecar.domain.policy import RetentionMode, TopicPolicy
from tiersidecar.domain.proposals import DeleteProposal, ReceivedProposal
from tiersidecar.domain.seen_time import SeenTime
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.clock import Clock
from tiersidecar.tasks.ownership import UNQUESTIONED, Ownership
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.policies import TopicPolicies
from tiersidecar.tasks.proposals import ProposalsTask

CLUSTER = "scripted"
POLICY = TopicPolicy(mode=RetentionMode.STRICT)


def lease_of(
    broker_id: int,
    *,
    decides_proposals: bool = True,
    seen: SeenTime | None = None,
    renewed_ms: int | None = None,
) -> Lease:
    """Renewed just now, unless ``renewed_ms`` says when."""
    return Lease(
        name=str(broker_id),
        cluster_id=CLUSTER,
        broker_id=broker_id,
        incarnation="a/b",
        term=1,
        host="host",
        pid=1,
        version="0.1.0",
        renewed_ms=round(time.time() * 1000) if renewed_ms is None else renewed_ms,
        duration_ms=60_000,
        decides_proposals=decides_proposals,
        seen=seen,
    )


class SoundLogs:
    """Nothing is lost."""

    async def require(self, topic_id_partition: TopicIdPartition) -> None:
        return None


class LeadersSidecar:
    """``ports.proposals.Propose``; ``task`` is the daemon's own, and each record goes through the topic's bytes."""

    def __init__(
        self,
        *,
        broker: Any,
        state: MemoryStateLog,
        clock: Clock,
        delays: TrashDelays,
        broker_id: BrokerId = BrokerId(1),  # noqa: B008 - a number
        ownership: Ownership = UNQUESTIONED,
    ) -> None:
        self.table, self.telemetry = PartitionTable(), RecordedTelemetry()
        self.proposed: list[DeleteProposal] = []
        state.leases[str(broker_id)] = lease_of(broker_id, renewed_ms=clock.now_ms())
        self.task = ProposalsTask(
            sources=sources_of(table=self.table, broker=broker, state=state),
            edges=edges_of(clock, telemetry=self.telemetry),
            actor=actor_of(broker_id=broker_id, ownership=ownership),
            proposals=self,
            policies=TopicPolicies(table=self.table, state=state, defaults=lambda topic: POLICY, unnamed=POLICY),
            sound=SoundLogs(),
            cluster_id=CLUSTER,
            delays=delays,
        )

    def tiers(self, view: LeaderView) -> None:
        """Put the partition on the partition table."""
        topic_id_partition = view.topic_id_partition
        self.table.topic_ids = {**self.table.topic_ids, topic_id_partition.topic: topic_id_partition.topic_id}
        self.table.assignment = {
            **self.table.assignment,
            topic_id_partition: TieredPartition(view=view, role=PartitionRole.LEADER, policy=POLICY),
        }

    async def propose(self, proposal: DeleteProposal) -> None:
        self.proposed.append(proposal)
        await self.receive(write_proposal(proposal), at=len(self.proposed))

    async def receive(self, *values: bytes | None, at: int = 0) -> None:
        """Take records that hold ``values``."""
        await self.task.take([_received(value, offset) for offset, value in enumerate(values, at)])

    @property
    def is_in_use(self) -> bool:
        return bool(self.proposed)

    async def keep_reading(self, take: Any, *, max_age_ms: int) -> None:
        raise AssertionError("records are given to it one by one")


def _received(value: bytes | None, at: int) -> ReceivedProposal:
    try:
        return ReceivedProposal(at=at, proposal=read_proposal(value, where="test"))
    except CorruptDataError as error:
        return ReceivedProposal(at=at, proposal=None, fault=error.reason)
