"""A journal of copies in flight in memory: it outlives the sidecars of a test as the file outlives processes."""

from __future__ import annotations

from tiersidecar.domain.errors import StateDirError
from tiersidecar.domain.ids import Uuid


class HeldJournal:
    """``full``: it takes nothing more."""

    def __init__(self) -> None:
        self.begun: set[Uuid] = set()
        self.full = False

    async def begin(self, segment: Uuid) -> None:
        self._require_room()
        self.begun.add(segment)

    async def settle(self, segment: Uuid) -> None:
        self._require_room()
        self.begun.discard(segment)

    def _require_room(self) -> None:
        if self.full:
            raise StateDirError(path="copies-in-flight", reason="No space left on device")
