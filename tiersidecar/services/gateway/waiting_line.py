"""Connections that have to wait until they are begun: taken from the kernel, and not looked at.

An address that has as many connections before their login as it may gets another one only as an older one ends.  Were it
turned away, it would come back at once, and the clients that have logged in would pay for that.  So it waits here, where it
costs a descriptor, and a few a second are let in.

Addresses take turns.  Of one address the newest goes first: a client that means well logs in within milliseconds, and one
that does not would stay in front of it for as long as it may.
"""

from __future__ import annotations

import socket
from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A client's socket, its address, and since when it waits."""

    client: socket.socket
    ip: str
    port: int
    since_s: float


class WaitingLine:
    """At most ``most`` of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._all: OrderedDict[Waiting, None] = OrderedDict()
        self._by_ip: OrderedDict[str, OrderedDict[Waiting, None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, waiting: Waiting) -> int:
        """Let it wait; gives how many were closed for it, those that wait longest."""
        self._all[waiting] = None
        self._by_ip.setdefault(waiting.ip, OrderedDict())[waiting] = None
        closed = 0
        while len(self._all) > self._most:
            self._close_oldest()
            closed += 1
        return closed

    def next(self) -> Waiting | None:
        """Take the newest of the address whose turn it is; None: none waits."""
        if not self._by_ip:
            return None
        ip, of_ip = next(iter(self._by_ip.items()))
        self._by_ip.move_to_end(ip)
        waiting = next(reversed(of_ip))
        self._remove(waiting)
        return waiting

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
        of_ip = self._by_ip[waiting.ip]
        del of_ip[waiting]
        if not of_ip:
            del self._by_ip[waiting.ip]
