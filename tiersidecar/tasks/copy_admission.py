"""When the next segment may be copied: its turn, the backfill's rate, a slot, the copy quota."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.tasks.backfill import Backfill
from tiersidecar.tasks.copy_quota import CopyQuota
from tiersidecar.tasks.copy_slots import LIVE, CopySlots


class CopyAdmission:
    """``backfill_quota`` bounds what catches up, before it takes a slot; ``quota`` bounds everything."""

    def __init__(self, *, slots: CopySlots, quota: CopyQuota, backfill: Backfill, backfill_quota: CopyQuota) -> None:
        self._slots, self._quota = slots, quota
        self._backfill, self._backfill_quota = backfill, backfill_quota
        self._backfill_turn = CopySlots(1)

    def quota_wait_s(self, partition: TopicIdPartition) -> float:
        """Seconds for which the quotas hold back its next segment, if nothing else is copied; 0 where they do not."""
        backfill_s = 0.0 if self._backfill.rank(partition) == LIVE else self._backfill_quota.wait_s
        return max(backfill_s, self._quota.wait_s)

    @asynccontextmanager
    async def admitted(self, partition: TopicIdPartition, size_bytes: int) -> AsyncIterator[None]:
        """Wait until a segment of ``size_bytes`` may be copied, and keep the slot for the length of the block."""
        rank = self._backfill.rank(partition)
        if rank != LIVE:
            async with self._backfill_turn.taking(rank):
                await self._backfill_quota.admit(size_bytes)
        async with self._slots.taking(rank):
            await self._quota.admit(size_bytes)
            yield
        if rank != LIVE:
            self._backfill.copied(size_bytes)
