"""What an operator has accepted as lost of the sidecars' own topics (``tiersidecar accept-topic-loss``)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol


class AcceptedLosses(Protocol):
    @property
    def topic_id(self) -> str:
        """The state topic's id as it is now; empty while that is not known."""
        ...

    def accepted_losses(self) -> Collection[str]:
        """Ids of topics, as they are since then, that may lack what was in them before.

        Raises:
            MetadataNotReadyError: the state topic has not been replayed to its end yet.
        """
        ...

    async def accept_losses(self, topic_ids: Mapping[str, str], *, by: str) -> None:
        """Say that what the topics of these names and ids lack is lost for good; return after read-back."""
