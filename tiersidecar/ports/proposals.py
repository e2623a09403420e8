"""The proposals topic: gateways write into it, tier roles read it.  It is a way to ask, and no record of what holds: that is
the state topic's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from tiersidecar.domain.proposals import DeleteProposal, ReceivedProposal

TakeProposals = Callable[[Sequence[ReceivedProposal]], Awaitable[None]]
"""Given what came, in order; called often with nothing, too."""


class Propose(Protocol):
    async def propose(self, proposal: DeleteProposal) -> None:
        """Return once the proposal is durable (acks=all).

        Raises:
            BrokerUnreachableError: the topic is out of reach.
            BrokerRefusedError: the broker did not take it.
        """


class Proposals(Propose, Protocol):
    async def keep_reading(self, take: TakeProposals, *, max_age_ms: int) -> None:
        """Make the topic when it is missing; give ``take`` what comes, and what came in the last ``max_age_ms``; never ends."""
