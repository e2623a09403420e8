"""Who stays when there are more HTTP connections than there may be.

A connection without a request costs its sender nothing, so it protects nothing either: those that wait give way to new ones,
the longest waiting of the largest crowd first.  Refused is a new one only where every other has a request in hand.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import dataclass
from typing import Generic, TypeVar

C = TypeVar("C")

_IPV6_SITE_BITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission(Generic[C]):
    """``instead_of`` is what is to be closed for it."""

    is_admitted: bool
    instead_of: C | None = None


class Crowd(Generic[C]):
    """Counts connections by origin, and knows which of them wait for a request."""

    def __init__(self, *, most: int, most_per_origin: int) -> None:
        self._most, self._most_per_origin = most, most_per_origin
        self._origins: dict[C, str] = {}
        self._counts: Counter[str] = Counter()
        self._waiting: dict[str, dict[C, int]] = {}
        """Of each origin, the longest waiting first; with the number of its turn."""
        self._turn = 0

    def __len__(self) -> int:
        return len(self._origins)

    def admit(self, connection: C, origin: str) -> Admission[C]:
        """Take in ``connection``, which waits for its first request; ``origin`` is empty where it has no bound of its own."""
        instead_of = None
        if origin and self._counts[origin] >= self._most_per_origin:
            instead_of = self._longest_waiting(origin)
        elif len(self) >= self._most:
            instead_of = self._of_the_largest_crowd()
        else:
            return self._take(connection, origin, None)
        if instead_of is None:
            return Admission(is_admitted=False)
        self.leave(instead_of)
        return self._take(connection, origin, instead_of)

    def begin_request(self, connection: C) -> None:
        """``connection`` has a request in hand, and gives way to none."""
        origin = self._origins.get(connection)
        if origin is not None:
            self._no_longer_waits(connection, origin)

    def end_request(self, connection: C) -> None:
        """``connection`` waits for its next request."""
        origin = self._origins.get(connection)
        if origin is not None:
            self._waits(connection, origin)

    def leave(self, connection: C) -> None:
        """``connection`` has ended; no harm if it had left before."""
        origin = self._origins.pop(connection, None)
        if origin is None:
            return
        self._no_longer_waits(connection, origin)
        self._counts[origin] -= 1
        if not self._counts[origin]:
            del self._counts[origin]

    def _take(self, connection: C, origin: str, instead_of: C | None) -> Admission[C]:
        self._origins[connection] = origin
        self._counts[origin] += 1
        self._waits(connection, origin)
        return Admission(is_admitted=True, instead_of=instead_of)

    def _waits(self, connection: C, origin: str) -> None:
        self._turn += 1
        waiting = self._waiting.setdefault(origin, {})
        waiting.pop(connection, None)
        waiting[connection] = self._turn

    def _no_longer_waits(self, connection: C, origin: str) -> None:
        waiting = self._waiting.get(origin, {})
        waiting.pop(connection, None)
        if not waiting:
            self._waiting.pop(origin, None)

    def _longest_waiting(self, origin: str) -> C | None:
        return next(iter(self._waiting.get(origin, {})), None)

    def _of_the_largest_crowd(self) -> C | None:
        if not self._waiting:
            return None

        def size_and_age(origin: str) -> tuple[int, int]:
            return self._counts[origin], -next(iter(self._waiting[origin].values()))

        return self._longest_waiting(max(self._waiting, key=size_and_age))


def origin_of(address: str) -> str:
    """Return what is counted as one origin: an IPv4 address, a network of 64 bits of IPv6; empty for this machine's own, which
    proxies and probes beside the daemon share."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is None:
            return "" if ip.is_loopback else str(ipaddress.ip_network((ip, _IPV6_SITE_BITS), strict=False))
        ip = ip.ipv4_mapped
    return "" if ip.is_loopback else str(ip)
