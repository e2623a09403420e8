"""The retain lane of a led partition: expire the remote log, then trim the broker's local log (strict mode)."""

from __future__ import annotations

import asyncio

from tiersidecar.decide.topics import TieredPartition
from tiersidecar.domain.errors import PartitionHaltedError, RetriableError
from tiersidecar.tasks.expire import ExpireTask
from tiersidecar.tasks.ownership import MayDelete
from tiersidecar.tasks.trim import TrimTask


class RetainTask:
    """Both steps in order, for one partition at a time; ``slots`` bounds how many partitions at once."""

    def __init__(self, *, expire: ExpireTask, trim: TrimTask, guard: MayDelete, slots: asyncio.Semaphore) -> None:
        self.expire, self.trim, self._guard, self._slots = expire, trim, guard, slots

    def has_work(self, partition: TieredPartition) -> bool:
        """Return whether it is worth starting the lane: cheap, and asked at every look.  The guard comes last, which looks at
        all of the metadata topic."""
        if not (self.expire.may_have_work(partition) or self.trim.may_have_work(partition)):
            return False
        return not self._is_forbidden(partition) or self.expire.owes_an_answer(partition)

    def may_act(self, partition: TieredPartition) -> bool:
        """Return whether a round would expire and trim: where that is forbidden it ends at once."""
        return self.expire.may_act(partition) and not self._is_forbidden(partition)

    async def run(self, partition: TieredPartition) -> None:
        """Do one round.  What goes wrong with the remote log is raised after the trim: a store that refuses to delete must not
        let the broker's disk fill up."""
        if self._is_forbidden(partition):
            await self.expire.answer_undelete(partition)  # it need not wait for a lane that stands still
            return
        async with self._slots:
            failure: Exception | None = None
            try:
                await self.expire.run(partition)
            except (RetriableError, PartitionHaltedError) as error:
                failure = error
            await self.trim.run(partition)
            if failure is not None:
                raise failure

    async def make_room(self, partition: TieredPartition) -> None:
        """Trim alone, where a full disk forces it: of a partition of which nothing expires now, because what is remote of it
        can be neither read nor deleted."""
        if self._is_forbidden(partition) or not self.trim.is_forced(partition):
            return
        async with self._slots:
            await self.trim.run(partition)

    def _is_forbidden(self, partition: TieredPartition) -> bool:
        return bool(self._guard.reason_not_to_delete_of(partition.view.topic_id_partition.topic_id))
