"""What operators have paused, as records of the state topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.pauses import Pause, PauseKind


class Pauses(Protocol):
    def why_paused(self, topic_id: Uuid | None, kind: PauseKind) -> str:
        """Why ``kind`` stands still for the topic, or, with None, for all topics; empty where it does not.

        Raises:
            MetadataNotReadyError: the state topic has not been replayed to its end yet.
        """
        ...

    def pauses(self) -> Sequence[Pause]:
        """All of them, that of all topics first, then by topic; raises as :meth:`why_paused`."""
        ...


class PauseLog(Pauses, Protocol):
    async def publish_pause(self, pause: Pause) -> None:
        """Begin it, in place of one of the same thing; return after read-back."""

    async def forget_pause(self, pause: Pause) -> None:
        """End it (a tombstone); return after read-back.  One that has ended is no error."""
