"""A user's delete as a gateway proposes it: the gateway saw the broker accept it, and the leader's tier role decides."""

from __future__ import annotations

from dataclasses import dataclass

from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteProposal:
    """A delete of all records below ``offset`` by ``principal``, whose DeleteRecords the broker has accepted.

    ``leader_epoch`` is the one in which the gateway found the leader after the broker's answer, ``low_watermark`` that of the
    answer; -1 where not every follower had it in time.  ``start_generation`` is that of the remote log start which the
    gateway knew: an operator who sets the start back ends all earlier proposals.  ``gateway`` is the broker that it stands
    in front of.
    """

    cluster_id: str
    topic_id_partition: TopicIdPartition
    offset: Offset
    leader_epoch: LeaderEpoch
    low_watermark: Offset
    start_generation: int
    principal: str
    client_id: str
    address: str
    gateway: BrokerId
    proposed_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedProposal:
    """A record of the proposals topic; ``proposal`` is None where it cannot be read, ``fault`` says why.

    ``at`` is its offset there.
    """

    at: int
    proposal: DeleteProposal | None
    fault: str = ""
