"""Connections that nobody looks at: those that have to wait until they are begun, and those that ended in a crowd.

An address that has as many connections before their login as it may gets another one only as an older one ends.  Were it
turned away, it would come back at once, and the clients that have logged in would pay for that.  So it waits here, where it
costs a descriptor, and a few a second are let in.

Addresses take turns.  Of one address the newest goes first: a client that means well logs in within milliseconds, and one
that does not would stay in front of it for as long as it may.

That helps only while fewer come than are let in.  Whoever is let in costs another its place, or is refused by the broker; were
those told, they would be back at once, and newer: as many would come as go, and one login in three waited for as long as the
attack lasted.  So while others wait, a client whose connection ends without a login is not told for a while: its socket stays
open, with nobody behind it.  A broker does the same for less (``connection.failed.authentication.delay.ms``).
"""

from __future__ import annotations

import socket
from collections import OrderedDict, deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A client's socket, its address, since when it waits, and its network, which takes turns with others: of IPv4 the
    address."""

    client: socket.socket
    ip: str
    port: int
    since_s: float
    network: str


class WaitingLine:
    """At most ``most`` of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._all: OrderedDict[Waiting, None] = OrderedDict()
        self._by_network: OrderedDict[str, OrderedDict[Waiting, None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, waiting: Waiting) -> int:
        """Let it wait; gives how many were closed for it, those that wait longest."""
        self._all[waiting] = None
        self._by_network.setdefault(waiting.network, OrderedDict())[waiting] = None
        closed = 0
        while len(self._all) > self._most:
            self._close_oldest()
            closed += 1
        return closed

    def next(self) -> Waiting | None:
        """Take the newest of the address whose turn it is; None: none waits."""
        if not self._by_network:
            return None
        network, of_network = next(iter(self._by_network.items()))
        self._by_network.move_to_end(network)
        waiting = next(reversed(of_network))
        self._remove(waiting)
        return waiting

    def close_oldest(self) -> bool:
        """Close the one that waits longest; False where none waits."""
        if not self._all:
            return False
        self._close_oldest()
        return True

    def close_before(self, since_s: float) -> int:
        """Close those that have waited since before ``since_s``; gives how many."""
        closed = 0
        while self._all and next(iter(self._all)).since_s < since_s:
            self._close_oldest()
            closed += 1
        return closed

    def close(self) -> None:
        """Close all."""
        while self._all:
            self._close_oldest()

    def _close_oldest(self) -> None:
        oldest = next(iter(self._all))
        self._remove(oldest)
        oldest.client.close()

    def _remove(self, waiting: Waiting) -> None:
        del self._all[waiting]
        of_network = self._by_network[waiting.network]
        del of_network[waiting]
        if not of_network:
            del self._by_network[waiting.network]


class LeftOpen:
    """Sockets of clients whose connections ended, at most ``most`` of them: what they send is not read, and nothing answers."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._all: deque[tuple[float, socket.socket]] = deque()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, client: socket.socket, now_s: float) -> None:
        """Keep the connection open that ``client`` has, and will lose; of too many the oldest is closed."""
        try:
            kept = client.dup()
        except OSError:
            return  # gone already, or no descriptor is left: it is told at once
        self._all.append((now_s, kept))
        if len(self._all) > self._most:
            self._close_oldest()

    def close_oldest(self) -> bool:
        """Close the one that ended first; False where there is none."""
        if not self._all:
            return False
        self._close_oldest()
        return True

    def close_before(self, since_s: float) -> None:
        """Close those that ended before ``since_s``."""
        while self._all and self._all[0][0] < since_s:
            self._close_oldest()

    def close(self) -> None:
        """Close all."""
        while self._all:
            self._close_oldest()

    def _close_oldest(self) -> None:
        self._all.popleft()[1].close()
