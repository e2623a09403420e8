"""Copies that this sidecar has begun, kept beyond the process: a COPY_SEGMENT_STARTED that is not in it is another's.

The broker's id in the event proves nothing: native tiering writes the same one, and so does a second sidecar beside the broker.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol

from tiersidecar.domain.ids import Uuid


class CopyJournal(Protocol):
    @property
    def begun(self) -> Set[Uuid]:
        """Return ids of segments whose copy this sidecar, or a former process with its state.dir, began and has not settled."""

    async def begin(self, segment: Uuid) -> None:
        """Note a copy before it is published; it is on the disk when this returns.

        Raises:
            StateDirError: the disk does not take it.
        """

    async def settle(self, segment: Uuid) -> None:
        """Forget a copy that is finished or removed; one that is not known is no error.  What a crash leaves of this is only
        an entry too many."""


class NoJournal:
    """Journal of a process that copies nothing."""

    begun: Set[Uuid] = frozenset()

    async def begin(self, segment: Uuid) -> None:
        return None

    async def settle(self, segment: Uuid) -> None:
        return None
