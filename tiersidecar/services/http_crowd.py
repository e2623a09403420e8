"""Decide which HTTP connections stay when there are more than the limit.

A connection without a request costs its sender nothing, so it protects nothing either: waiting ones give way to new ones,
the longest waiting of the largest crowd first.  Where none waits, one gives way whose client does not take its answer: that
costs no more.  A new one is refused only where every other has a request in hand.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

C = TypeVar("C")

_IPV6_SITE_BITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission(Generic[C]):
    """``instead_of`` is the connection to close for it."""

    is_admitted: bool
    instead_of: C | None = None


class Crowd(Generic[C]):
    """Count connections by origin, and know which of them wait for a request, and which for their client."""

    def __init__(self, *, most: int, most_per_origin: int) -> None:
        self._most, self._most_per_origin = most, most_per_origin
        self._origins: dict[C, str] = {}
        self._counts: Counter[str] = Counter()
        self._waiting, self._stalled = _Line[C](), _Line[C]()
        self._paused: set[C] = set()

    def __len__(self) -> int:
        return len(self._origins)

    def admit(self, connection: C, origin: str) -> Admission[C]:
        """Take in ``connection``, which waits for its first request; ``origin`` is empty where it has no bound of its own."""
        instead_of = None
        if origin and self._counts[origin] >= self._most_per_origin:
            instead_of = _first_given(self._waiting.longest_of(origin), self._stalled.longest_of(origin))
        elif len(self) >= self._most:
            instead_of = self._of_most()
        else:
            return self._take(connection, origin, None)
        if instead_of is None:
            return Admission(is_admitted=False)
        self.leave(instead_of)
        return self._take(connection, origin, instead_of)

    def give_way(self) -> C | None:
        """Remove and return a waiting connection, to be closed; None where all have a request in hand that the client takes."""
        instead_of = self._of_most()
        if instead_of is not None:
            self.leave(instead_of)
        return instead_of

    def begin_request(self, connection: C) -> None:
        """Note that ``connection`` has a request in hand, and gives way only if its client stops taking what is sent."""
        origin = self._origins.get(connection)
        if origin is not None:
            self._waiting.leave(connection, origin)
            if connection in self._paused:
                self._stalled.join(connection, origin)

    def end_request(self, connection: C) -> None:
        """Note that ``connection`` waits for its next request."""
        origin = self._origins.get(connection)
        if origin is not None:
            self._stalled.leave(connection, origin)
            self._waiting.join(connection, origin)

    def pause(self, connection: C) -> None:
        """Note that the client of ``connection`` does not take what is sent."""
        origin = self._origins.get(connection)
        if origin is not None:
            self._paused.add(connection)
            if not self._waiting.has(connection, origin):
                self._stalled.join(connection, origin)

    def resume(self, connection: C) -> None:
        """Note that it has taken what was sent."""
        origin = self._origins.get(connection)
        if origin is not None:
            self._paused.discard(connection)
            self._stalled.leave(connection, origin)

    def leave(self, connection: C) -> None:
        """Remove ``connection``, which has ended; it may have left before."""
        origin = self._origins.pop(connection, None)
        if origin is None:
            return
        self._paused.discard(connection)
        self._waiting.leave(connection, origin)
        self._stalled.leave(connection, origin)
        self._counts[origin] -= 1
        if not self._counts[origin]:
            del self._counts[origin]

    def _of_most(self) -> C | None:
        return _first_given(self._waiting.longest(self._counts), self._stalled.longest(self._counts))

    def _take(self, connection: C, origin: str, instead_of: C | None) -> Admission[C]:
        self._origins[connection] = origin
        self._counts[origin] += 1
        self._waiting.join(connection, origin)
        return Admission(is_admitted=True, instead_of=instead_of)


class _Line(Generic[C]):
    """Connections by origin, of each the longest waiting first."""

    def __init__(self) -> None:
        self._turn = 0
        self._of_origins: dict[str, dict[C, int]] = {}
        """Connections with the number of their turn."""

    def has(self, connection: C, origin: str) -> bool:
        return connection in self._of_origins.get(origin, {})

    def join(self, connection: C, origin: str) -> None:
        self._turn += 1
        line = self._of_origins.setdefault(origin, {})
        line.pop(connection, None)
        line[connection] = self._turn

    def leave(self, connection: C, origin: str) -> None:
        line = self._of_origins.get(origin, {})
        line.pop(connection, None)
        if not line:
            self._of_origins.pop(origin, None)

    def longest_of(self, origin: str) -> C | None:
        return next(iter(self._of_origins.get(origin, {})), None)

    def longest(self, counts: Mapping[str, int]) -> C | None:
        """Return the longest waiting of the origin that has most connections by ``counts``."""
        if not self._of_origins:
            return None

        def size_and_age(origin: str) -> tuple[int, int]:
            return counts[origin], -next(iter(self._of_origins[origin].values()))

        return self.longest_of(max(self._of_origins, key=size_and_age))


def _first_given(one: C | None, other: C | None) -> C | None:
    return other if one is None else one


def origin_of(address: str) -> str:
    """Return the origin under which connections are counted: an IPv4 address, a network of 64 bits of IPv6; empty for this
    machine's own, which proxies and probes beside the daemon share."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is None:
            return "" if ip.is_loopback else str(ipaddress.ip_network((ip, _IPV6_SITE_BITS), strict=False))
        ip = ip.ipv4_mapped
    return "" if ip.is_loopback else str(ip)
