"""What pins hold, as the gateway has to know it: from the role ``tier`` beside it, or, in a process of its own, from the disks.

Both are ``services.gateway.tiered_partitions.PendingCopies``.
"""

from __future__ import annotations

import asyncio

from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.pins import PinnedPartition
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.pins import ReadPins
from tiersidecar.tasks.pin_board import PinBoard

_STAYS_PENDING_S = 1.0


class BoardPins:
    """Those that the role ``tier`` of this process keeps."""

    def __init__(self, pins: PinBoard) -> None:
        self._pins = pins

    async def is_pending(self, partition: TopicIdPartition) -> bool:
        """As the Protocol says: until the pins of all log dirs have been read, any may be there."""
        return self._pins.unread is None or bool(self._pins.unread) or bool(self._pins.of(partition))


class ScannedPins:
    """Those of another process, by their files.  Their directories are read when there is a question, one read at a time."""

    def __init__(self, pins: ReadPins, clock: Clock) -> None:
        self._pins, self._clock = pins, clock
        self._turn = asyncio.Lock()
        self._begun_s = float("-inf")
        self._owners = frozenset[PinnedPartition]()
        self._has_faults = False

    async def is_pending(self, partition: TopicIdPartition) -> bool:
        """As the Protocol says; where pins cannot be read, any may be there."""
        owner, asked_s = PinnedPartition.of(partition), self._clock.monotonic_s()
        # That a client tries again needs no fresh look each time; that it is sent away does.
        if owner in self._owners and asked_s - self._begun_s < _STAYS_PENDING_S:
            return True
        async with self._turn:
            if self._begun_s <= asked_s:
                await self._scan()
        return self._has_faults or owner in self._owners

    async def _scan(self) -> None:
        begun_s = self._clock.monotonic_s()
        view = await self._pins.scan(sweep=False)
        self._begun_s, self._has_faults = begun_s, bool(view.faults)
        self._owners = frozenset(pin.owner for pin in view.pins)
