"""What the gateway bears: from one connection, and from all together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tiersidecar.formats.wire.framing import DEFAULT_MAX_FRAME_BYTES

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """Names are Kafka's where it has them.

    ``max_collected_request_bytes`` is of requests that are read whole (Fetch, say); all others pass as they arrive.  What holds
    before the login is in ``unauthenticated``.  A request
    has ``request_timeout_s`` to arrive, and a second more for each ``slowest_bytes_per_s`` of it.  A client that takes nothing
    for ``write_timeout_s`` while there is something for it is cut off.
    """

    socket_request_max_bytes: int = DEFAULT_MAX_FRAME_BYTES
    max_collected_request_bytes: int = 8 * MIB
    max_in_flight_requests: int = 100
    request_timeout_s: float = 30.0
    slowest_bytes_per_s: int = 64 * 1024
    write_timeout_s: float = 300.0
    connect_timeout_s: float = 10.0


@dataclass(slots=True)
class ResponseMemory:
    """Bytes of responses that are collected to be rewritten, or filled in, of all connections together.

    Whoever finds no room is called when there is some, in the order in which they asked.  One response may be larger than all
    of it, when it is alone: it must pass somehow.
    """

    size_bytes: int
    held_bytes: int = 0
    _waiting: deque[tuple[int, Callable[[], None]]] = field(default_factory=deque)

    def take(self, size_bytes: int, when_there_is_room: Callable[[], None]) -> bool:
        """Whether ``size_bytes`` are the caller's now; if not, they are when ``when_there_is_room`` is called."""
        if not self._waiting and self._fits(size_bytes):
            self.held_bytes += size_bytes
            return True
        self._waiting.append((size_bytes, when_there_is_room))
        return False

    def take_some(self, size_bytes: int) -> int:
        """At most ``size_bytes``, now: what is free, and nothing while others wait."""
        if self._waiting:
            return 0
        taken = size_bytes if self.held_bytes == 0 else max(min(size_bytes, self.size_bytes - self.held_bytes), 0)
        self.held_bytes += taken
        return taken

    def give_back(self, size_bytes: int) -> None:
        """What was taken; lets the next in."""
        self.held_bytes -= size_bytes
        while self._waiting and self._fits(self._waiting[0][0]):
            wanted, proceed = self._waiting.popleft()
            self.held_bytes += wanted
            proceed()

    def forget(self, when_there_is_room: Callable[[], None]) -> None:
        """Whoever waited with this callable is gone."""
        self._waiting = deque(waiting for waiting in self._waiting if waiting[1] != when_there_is_room)

    def _fits(self, size_bytes: int) -> bool:
        return self.held_bytes == 0 or self.held_bytes + size_bytes <= self.size_bytes
