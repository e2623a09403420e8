"""Memory for opened record batches, of the readers of several processes together."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tiersidecar.decide.shares import total
from tiersidecar.domain.errors import NoMemoryLeftError
from tiersidecar.domain.taken import Taken
from tiersidecar.formats.kafka.opened_memory import OpenedMemory
from tiersidecar.ports.shares import Shared, Shares


class SharedOpenedMemory(OpenedMemory):
    """``size_bytes`` for all processes of ``shares``: one codec's window may take most of them, so they cannot be divided."""

    def __init__(self, size_bytes: int, shares: Shares, *, rest: Callable[[], None]) -> None:
        super().__init__(size_bytes, rest=rest)
        self._shares = shares
        self._turn = threading.Lock()

    def change(self, before_bytes: int, now_bytes: int) -> None:
        """Hold ``now_bytes`` instead of ``before_bytes``; raise what :meth:`OpenedMemory.change` does."""
        with self._turn:
            more_bytes = now_bytes - before_bytes
            others_bytes = total(self._shares.everywhere_else(Shared.OPENED_BYTES))
            if more_bytes > 0 and now_bytes <= self.size_bytes < self.held_bytes + more_bytes + others_bytes:
                raise NoMemoryLeftError(wanted_bytes=more_bytes)
            super().change(before_bytes, now_bytes)
            self._shares.show(Shared.OPENED_BYTES, Taken(self.held_bytes))
