"""The proposals topic: gateways write to it, tier roles read it.  It carries requests, and does not record what holds: the
state topic does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from tiersidecar.domain.proposals import DeleteProposal, ReceivedProposal

TakeProposals = Callable[[Sequence[ReceivedProposal]], Awaitable[None]]
"""Receives new proposals, in order; called often with none, too."""


class Propose(Protocol):
    async def propose(self, proposal: DeleteProposal) -> None:
        """Return once the proposal is durable (acks=all).

        Raises:
            BrokerUnreachableError: the topic is out of reach.
            BrokerRefusedError: the broker did not take it.
        """


class Proposals(Propose, Protocol):
    @property
    def is_in_use(self) -> bool:
        """Return whether there has been a proposal, ever, as far as is known: a gateway may be about to write another."""

    async def keep_reading(self, take: TakeProposals, *, max_age_ms: int) -> None:
        """Create the topic when it is missing; pass ``take`` new proposals, and those of the last ``max_age_ms``; never end."""
