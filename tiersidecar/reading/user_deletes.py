"""A user's delete as the state topic records it, from the gateway or from ``tiersidecar delete-records``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tiersidecar.decide.trash import TrashDelays, user_delete
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.trash import FINAL, TrashEntry
from tiersidecar.ports.state_log import PartitionState, StateLog
from tiersidecar.ports.state_records import TrashLog


class DeletesLog(StateLog, TrashLog, Protocol):
    """Starts, and the decisions below them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """The client of a delete, its time, and how long the delete can be undone."""

    by: str
    now_ms: int
    delays: TrashDelays


@dataclass(frozen=True, slots=True, kw_only=True)
class UserDelete:
    """A delete of all below ``offset`` by a user in ``leader_epoch``; ``trims`` when the broker's log start moves there too,
    which would look unexplained otherwise."""

    offset: Offset
    leader_epoch: LeaderEpoch
    trims: bool

    def is_said(self, known: PartitionState) -> bool:
        """Return whether the delete need not be published again.

        An earlier leader's record may be of a history that an unclean election has cut off, and is forgotten with it: it does
        not count in this epoch.
        """
        trims_there = known.trim_epoch >= self.leader_epoch and known.trim_offset >= self.offset
        return self._is_in_force(known) and (trims_there or not self.trims)

    def _is_in_force(self, known: PartitionState) -> bool:
        """Return whether a user has deleted this far; a start moved by retention alone could be undone."""
        starts_there = (
            known.remote_log_start_epoch >= self.leader_epoch and known.remote_log_start_offset >= self.offset
        )
        return starts_there and any(
            delete.leader_epoch >= self.leader_epoch and delete.offset >= self.offset for delete in known.user_deletes
        )

    async def say(self, state: DeletesLog, partition: TopicIdPartition, asker: Asker) -> Offset:
        """Publish the delete, unless it is there; return the start that was said last, read back: ``offset`` or a higher one.

        What goes is in the trash first.  The topic is read to its end before: an earlier delete may have been undone.

        Raises:
            BrokerRefusedError: a later leader has set a lower start, or an operator has set it back meanwhile,
                so this delete is not in force.
            PublishTimeoutError: not read back in time.
            RetriableError: the topic cannot be read to its end now.
        """
        await state.catch_up()
        return await self.say_as_read(state, partition, asker)

    async def say_as_read(self, state: DeletesLog, partition: TopicIdPartition, asker: Asker) -> Offset:
        """Publish like :meth:`say`, after the caller has caught up and decided by what it read: a start that was set back since
        then makes this delete void."""
        known = state.partition_state(partition)
        if not self.is_said(known):
            opened_ms = FINAL
            if asker.delays.retention_ms or asker.delays.user_ms:
                entry = self._entry(known, state.trash(partition), asker)
                opened_ms = entry.id.opened_ms
                await state.put_into_trash(partition, [entry])
            await state.publish_partition_state(partition, self._state(known, opened_ms))
        known = state.partition_state(partition)
        if not self._is_in_force(known):
            raise BrokerRefusedError(api="DeleteRecords", subject=str(partition), error="FENCED_LEADER_EPOCH")
        return known.remote_log_start_offset

    def _entry(self, known: PartitionState, entries: Sequence[TrashEntry], asker: Asker) -> TrashEntry:
        return user_delete(
            self.offset,
            self.leader_epoch,
            generation=known.start_generation,
            delays=asker.delays,
            now_ms=asker.now_ms,
            by=asker.by,
            from_offset=known.highest_start,
            entries=entries,
            user_deletes=known.user_deletes,
        )

    def _state(self, known: PartitionState, opened_ms: int) -> PartitionState:
        said = known.with_delete(self.offset, self.leader_epoch, opened_ms)
        trim = PartitionState(trim_offset=self.offset, trim_epoch=self.leader_epoch)
        return said.merged_with(trim) if self.trims else said
