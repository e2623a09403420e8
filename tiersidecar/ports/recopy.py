"""Requests to copy again what the store has lost, from what a broker's disk still has; they stand in the state topic.

``tiersidecar repair`` asks; the leader's sidecar does it, or declines.  Where the leader has declined, so do the followers'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import Offset
from tiersidecar.ports.accepted_losses import AcceptedLosses
from tiersidecar.ports.leases import KnownLeases, Leases
from tiersidecar.ports.pauses import PauseLog
from tiersidecar.ports.state_log import StateChanges, StateLog
from tiersidecar.ports.trash import TrashLog


@dataclass(frozen=True, slots=True, kw_only=True)
class RecopyRequest:
    """Offsets, both inclusive, that are to be remote again.

    ``segment_uuid`` is the segment to be given up once others hold all of them; None: they are in none.  ``from_store``: its
    batches are right, what was uploaded beside them is not: it is written again from the store.  ``declined`` says why the
    sidecar of a broker cannot.
    """

    topic_id_partition: TopicIdPartition
    start_offset: Offset
    end_offset: Offset
    segment_uuid: Uuid | None = None
    from_store: bool = False
    requested_ms: int
    declined: Mapping[BrokerId, str] = field(default_factory=dict)

    def is_same(self, other: RecopyRequest) -> bool:
        """Whether both ask for the same, whenever and whatever was answered."""
        return (self.topic_id_partition, self.start_offset, self.end_offset, self.segment_uuid) == (
            other.topic_id_partition,
            other.start_offset,
            other.end_offset,
            other.segment_uuid,
        )


def segments_of(requests: Iterable[RecopyRequest]) -> frozenset[Uuid]:
    """The remote segments that ``requests`` give up: the store has lost something of each."""
    return frozenset(request.segment_uuid for request in requests if request.segment_uuid is not None)


class RecopyRequests(Protocol):
    def recopies(self, topic_id_partition: TopicIdPartition) -> Sequence[RecopyRequest]:
        """What is asked for and not done, ascending by offset.

        Raises:
            MetadataNotReadyError: the topic has not been replayed to its end yet.
        """

    async def request_recopy(self, request: RecopyRequest) -> None:
        """Ask, or ask again; return after read-back.  Of two for the same the later one counts."""

    async def decline_recopy(self, request: RecopyRequest, broker_id: BrokerId, reason: str) -> None:
        """Say that this broker cannot; return after read-back.  A request that is gone by now stays gone."""

    async def forget_recopy(self, request: RecopyRequest) -> None:
        """It is done, or has nothing to it any more (a tombstone); return after read-back."""


class RequestingStateLog(
    StateLog, StateChanges, RecopyRequests, Leases, KnownLeases, TrashLog, AcceptedLosses, PauseLog, Protocol
):
    """The whole state topic."""
