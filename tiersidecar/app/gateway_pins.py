"""The pinned offsets that gateway and read service have to know: from the role ``tier`` beside them, or, in another process,
from the disks.  Both are ``reading.pending_copies.PendingCopies``.
"""

from __future__ import annotations

import asyncio

from tiersidecar.app.config.top_level import Role
from tiersidecar.app.parts import Parts
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.segments import PinnedPartition
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.pins import ANYWHERE, PendingCopies, ReadPins
from tiersidecar.tasks.partition_table import PinTable

_STAYS_PENDING_S = 1.0


def pending_copies(parts: Parts) -> PendingCopies:
    """Return the pending copies of this process."""
    scanned = ScannedPins(parts.pins, parts.clock)
    return PinsInTable(parts.table.pins, scanned) if Role.TIER in parts.roles else scanned


class PinsInTable:
    """Those that the role ``tier`` of this process keeps; ``scanned`` while it stands by, for another process keeps them."""

    def __init__(self, pins: PinTable, scanned: PendingCopies) -> None:
        self._pins, self._scanned = pins, scanned

    async def is_pending(self, partition: TopicIdPartition, *, below: int = ANYWHERE) -> bool:
        """Return whether a copy is pending: where the pins of a log dir could not be read, any may be there."""
        if self._pins.unread is None:
            return await self._scanned.is_pending(partition, below=below)
        if self._pins.unread:
            return True
        return any(pin.base_offset < below for pin in self._pins.of(partition))


class ScannedPins:
    """Those of another process, by their files.  Their directories are read when there is a question, one read at a time."""

    def __init__(self, pins: ReadPins, clock: Clock) -> None:
        self._pins, self._clock = pins, clock
        self._turn = asyncio.Lock()
        self._begun_s = float("-inf")
        self._lowest: dict[PinnedPartition, int] = {}
        self._has_faults = False

    async def is_pending(self, partition: TopicIdPartition, *, below: int = ANYWHERE) -> bool:
        """Return whether a copy is pending; where pins cannot be read, any may be there."""
        owner, asked_s = PinnedPartition.of(partition), self._clock.monotonic_s()
        # That a client tries again needs no fresh look each time; that it is sent away does.
        if self._lowest.get(owner, ANYWHERE) < below and asked_s - self._begun_s < _STAYS_PENDING_S:
            return True
        async with self._turn:
            if self._begun_s <= asked_s:
                await self._scan()
        return self._has_faults or self._lowest.get(owner, ANYWHERE) < below

    async def _scan(self) -> None:
        begun_s = self._clock.monotonic_s()
        view = await self._pins.scan(sweep=False)
        self._begun_s, self._has_faults = begun_s, bool(view.faults)
        self._lowest = {}
        for pin in view.pins:
            self._lowest[pin.owner] = min(self._lowest.get(pin.owner, ANYWHERE), pin.base_offset)
