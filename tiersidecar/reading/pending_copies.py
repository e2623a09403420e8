"""What pins hold that the broker has deleted and the remote tier is yet to get: in no tier for now, and not lost."""

from __future__ import annotations

from typing import Protocol

from tiersidecar.domain.ids import TopicIdPartition

ANYWHERE = 2**63 - 1


class PendingCopies(Protocol):
    async def is_pending(self, partition: TopicIdPartition, *, below: int = ANYWHERE) -> bool:
        """Whether pins may hold what the broker has deleted and the remote tier has not got yet, of segments that begin below
        offset ``below``: pins made before the call, and any, as long as it is not known which there are."""
        ...
