"""A user's delete as the state topic says it, whoever brings it: the gateway, or ``tiersidecar delete-records``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tiersidecar.decide.trash import TrashDelays, user_delete
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.trash import TrashEntry
from tiersidecar.ports.state_log import PartitionState, StateLog
from tiersidecar.ports.trash import TrashLog


class DeletesLog(StateLog, TrashLog, Protocol):
    """Starts, and what was decided below them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """For whom a delete is said, when, and how long it can be undone."""

    by: str
    now_ms: int
    delays: TrashDelays


@dataclass(frozen=True, slots=True, kw_only=True)
class UserDelete:
    """All below ``offset`` goes, by a user's will, in ``leader_epoch``; ``trims`` when the broker's log start moves there too,
    which somebody would wonder about otherwise."""

    offset: Offset
    leader_epoch: LeaderEpoch
    trims: bool

    def is_said(self, known: PartitionState) -> bool:
        """Whether nobody need say it any more.

        What an earlier leader said may be of a history that an unclean election has cut off, and is forgotten with it: it
        spares nobody from saying it in this epoch.
        """
        starts_there = (
            known.remote_log_start_epoch >= self.leader_epoch and known.remote_log_start_offset >= self.offset
        )
        trims_there = known.trim_epoch >= self.leader_epoch and known.trim_offset >= self.offset
        return starts_there and (trims_there or not self.trims)

    async def say(self, state: DeletesLog, partition: TopicIdPartition, asker: Asker) -> Offset:
        """Say it, unless it is said; gives the start that was said last, read back: ``offset`` or a higher one.

        What goes is in the trash first.

        Raises:
            BrokerRefusedError: a later leader has said less, so this delete is not in force.
            PublishTimeoutError: not read back in time.
        """
        known = state.partition_state(partition)
        if not self.is_said(known):
            if asker.delays.retention_ms or asker.delays.user_ms:
                await state.put_into_trash(partition, [self._entry(known, asker)])
            await state.publish_partition_state(partition, self._state(known))
        start = state.partition_state(partition).remote_log_start_offset
        if start < self.offset:
            raise BrokerRefusedError(api="DeleteRecords", subject=str(partition), error="FENCED_LEADER_EPOCH")
        return start

    def _entry(self, known: PartitionState, asker: Asker) -> TrashEntry:
        return user_delete(
            self.offset,
            self.leader_epoch,
            generation=known.start_generation,
            delays=asker.delays,
            now_ms=asker.now_ms,
            by=asker.by,
        )

    def _state(self, known: PartitionState) -> PartitionState:
        said = known.with_start(self.offset, self.leader_epoch)
        trim = PartitionState(trim_offset=self.offset, trim_epoch=self.leader_epoch)
        return said.merged_with(trim) if self.trims else said
