"""What a gateway connection knows of its two sides: the connection to the client, and the one to its broker."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tiersidecar.services.gateway.exchange import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class SideEvents:
    """What a side tells.

    ``received`` must be done with the bytes when it returns: they lie in a buffer that is read into again.  ``lost`` comes
    once, at the end; ``changed`` when the side begins or ceases to be full.
    """

    received: Callable[[Buffer], None]
    lost: Callable[[], None]
    changed: Callable[[], None]


class Side(Protocol):
    """One of the two connections.

    ``full_since_s`` is when it last took something while more was waiting for it, None while nothing waits; ``owes_since_s``
    when that began.  ``taken_bytes`` is what it has taken in all.  ``is_gone`` before :meth:`take`, and again at the end.
    """

    full_since_s: float | None
    owes_since_s: float | None
    taken_bytes: int
    is_gone: bool

    @property
    def is_full(self) -> bool:
        """Whether something waits."""
        ...

    @property
    def waiting_bytes(self) -> int:
        """What waits to be sent."""
        ...

    async def take(self, connected: socket.socket) -> None:
        """Begin, with a connected socket that does not block.  Reads nothing before it is wanted.

        Raises:
            OSError: the handshake failed.
        """
        ...

    def read(self, *, wanted: bool) -> None:
        """Begin or stop to read."""
        ...

    def write(self, data: Buffer) -> None:
        """Send now what the socket takes; a copy of the rest waits."""
        ...

    def write_all(self, pieces: Sequence[Buffer]) -> None:
        """As :meth:`write`, of pieces that nobody changes any more: they are not copied."""
        ...

    def close(self) -> None:
        """After what has been written has gone."""
        ...

    def abort(self) -> None:
        """At once."""
        ...


MakeSide = Callable[[SideEvents], Side]
