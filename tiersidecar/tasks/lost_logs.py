"""Halts a led partition that one of the sidecars' own topics has forgotten, before anything is done with it.

What a process knew of the topics stands in its ``state.dir``, which may be lost with them; this asks the topics of each other.
"""

from __future__ import annotations

from typing import Protocol

from tiersidecar.decide.lost_logs import KnownOfPartition, reason_log_lost
from tiersidecar.decide.topics import TieredPartition
from tiersidecar.domain.errors import TopicLossError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.ports.accepted_losses import AcceptedLosses
from tiersidecar.ports.metadata_log import MetadataLog
from tiersidecar.ports.state_log import PartitionState, StateLog
from tiersidecar.reading.lineage import LineageSource
from tiersidecar.tasks.board import Board
from tiersidecar.tasks.catch_up import LaneWork

_NOTHING = PartitionState()


class LossState(StateLog, AcceptedLosses, Protocol):
    """The state topic, and what is accepted as lost."""


class HasClaimed(Protocol):
    async def has_claimed(self, topic_id: Uuid) -> bool:
        """Whether this cluster's sidecars have claimed it in the store: they were here before.

        Raises:
            StoreError: the store is away.
        """


class LostLogs:
    """Asked by each lane that copies, trims or deletes."""

    def __init__(
        self, *, board: Board, metadata: MetadataLog, state: LossState, claims: HasClaimed, lineages: LineageSource
    ) -> None:
        self._board, self._metadata, self._state = board, metadata, state
        self._claims, self._lineages = claims, lineages

    def before(self, work: LaneWork) -> LaneWork:
        """``work``, begun where no loss is proven; of a topic that is refused nothing of ours is remote.

        Raises:
            TopicLossError: one is.
        """

        async def checked(partition: TieredPartition) -> None:
            await self.require(partition.view.topic_id_partition)
            await work(partition)

        return checked

    async def require(self, tip: TopicIdPartition) -> None:
        """Return where no loss is proven of the partition.

        Raises:
            TopicLossError: one is.
            StoreError: nobody can tell, for the store is away.
        """
        reason = "" if tip.topic in self._board.refused_topics else await self._reason(tip)
        if reason:
            self._board.lost_logs[tip] = f"{tip}: {reason}"
            raise TopicLossError(subject=str(tip), reason=reason)
        self._board.lost_logs.pop(tip, None)

    async def _reason(self, tip: TopicIdPartition) -> str:
        state, accepted = self._state.partition_state(tip), self._state.accepted_losses()
        unfinished = sum(1 for _ in self._metadata.list_unfinished_segments(tip))
        has_segments = self._metadata.segment_count(tip) > unfinished
        # The usual case costs nothing; a lineage may have to be read from the store.
        may_be_trimmed = not has_segments and state.owner_seen_ms >= 0 and state.trim_offset >= 0
        if state != _NOTHING and not may_be_trimmed:
            return ""
        has_record = state != _NOTHING or self._has_record(tip)
        # Asked only where it matters: what is new must be begun while the store is away, too.
        was_claimed = has_segments and not has_record and await self._claims.has_claimed(tip.topic_id)
        lineage = await self._lineages.lineage(tip)
        return reason_log_lost(
            KnownOfPartition(
                has_record=has_record,
                was_claimed=was_claimed,
                has_segments=has_segments,
                was_seen=state.owner_seen_ms >= 0,
                remote_log_start_offset=state.start_in(lineage),
                held_offset=state.held_in(lineage),
                state_loss_accepted=self._state.topic_id in accepted,
                metadata_loss_accepted=self._metadata.topic_id in accepted,
            )
        )

    def _has_record(self, tip: TopicIdPartition) -> bool:
        known = (tip.topic_id, tip.partition)
        return any((one.topic_id, one.partition) == known for one in self._state.partitions())
