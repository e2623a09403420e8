"""What the processes of one gateway tell each other of what they have taken, so that limits hold for all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

from tiersidecar.domain.taken import Taken


class Shared(IntEnum):
    """What is shared.  Of those with a key (a listener, an address, a reader) each key has an amount of its own."""

    RESPONSE_BYTES = 0
    OPENED_BYTES = 1
    UNAUTHENTICATED = 2
    UNAUTHENTICATED_BYTES = 3
    FETCH_QUOTA = 4
    STORE_REQUESTS = 5
    CONNECTIONS = 6
    """By listener."""

    CONNECTIONS_OF_IP = 7
    """By listener and address."""

    UNAUTHENTICATED_OF_IP = 8
    """By network."""

    READER_QUOTA = 9
    """By user and client id."""


class Shares(Protocol):
    """One process's view: it writes its own amounts, and reads those of the others.  Neither waits for anything."""

    @property
    def workers(self) -> int:
        """Return how many worker processes there are."""

    def show(self, what: Shared, taken: Taken, key: str = "") -> None:
        """Let the others see what this process has taken; nothing takes its place back."""

    def others(self, what: Shared, key: str = "") -> Sequence[Taken]:
        """Return what each other worker has taken, in any order: one entry for each, whether it runs or not."""

    def everywhere_else(self, what: Shared, key: str = "") -> Sequence[Taken]:
        """Return the same, and what the process that started the workers has taken: it reads as well, for other roles."""
