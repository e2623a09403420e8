"""Limits on the clients of every listener: which connections stay, how slowly a client may read, which site a browser names.

**Crowd.**  A connection without a request costs its sender nothing, so it protects nothing either: waiting ones give way to new
ones, the longest waiting of the largest crowd first.  Where none waits, one gives way whose client does not take its answer:
that costs no more.  A new one is refused only where every other has a request in hand.

**Pace.**  A client that takes a byte now and then would keep memory and a place for as long as it likes.

**Host.**  Requests that a browser makes for another site (DNS rebinding) are refused where no login is needed.  A page of
evil.example whose name is made to mean 127.0.0.1 may read what a service on the reader's own machine answers.  Its requests
have ``Host: evil.example:8091``, with the service's own port.  No other requests are refused: a proxy in front is reached at an
address or a port of its own, and passes that on, or else its own name for the service.
"""

from __future__ import annotations

import ipaddress
import socket
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from aiohttp import web

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


class LeastPace:
    """At least ``bytes_per_s``, on average over each ``over_s`` in which something was waiting for the client; 0 is no limit.

    The time in which nothing waits for it does not count: it may ask, process or sleep as long as it likes.
    """

    def __init__(self, *, bytes_per_s: int, over_s: float) -> None:
        self._bytes_per_s, self._over_s = bytes_per_s, over_s
        self._waited_s, self._taken_bytes = 0.0, 0

    def took(self, size_bytes: int, waited_s: float) -> str:
        """Count ``size_bytes`` taken in ``waited_s`` more; return why that is too slow, "" where it is not."""
        self._waited_s += waited_s
        self._taken_bytes += size_bytes
        if self._waited_s < self._over_s:
            return ""
        waited_s, taken_bytes = self._waited_s, self._taken_bytes
        self.begin_anew()
        if taken_bytes >= self._bytes_per_s * waited_s:
            return ""
        return (
            f"the client took {taken_bytes} bytes in {waited_s:.0f} s of what was waiting for it: "
            f"{self._bytes_per_s} a second are the least"
        )

    def begin_anew(self) -> None:
        """Begin anew: the client has taken all that there was for it."""
        self._waited_s, self._taken_bytes = 0.0, 0


HOSTS_FILE = Path("/etc/hosts")
REFUSAL = (
    "the Host of this request is not a name of this machine, so a browser may have been led here by another site: "
    "ask by localhost, or put the name into the hosts file of this machine"
)
_MOST_HOSTS_BYTES = 1024 * 1024
_HTTP_PORT = 80


class HostCheck:
    """Knows this machine's names: its own, those of its hosts file at the start, and ``names``.

    Where ``listen_host`` is no loopback address, it refuses only what is answered to this machine alone: other machines have
    names for it which are not known here, and may ask for the rest without a browser.
    """

    def __init__(self, listen_host: str, *, names: Collection[str] = (), hosts_file: Path = HOSTS_FILE) -> None:
        self._is_on = _is_loopback(listen_host)
        self._names = {_plain(name) for name in (socket.gethostname(), "localhost.localdomain", *names)}
        self._names |= _names_in(hosts_file)

    def is_foreign(self, request: web.BaseRequest, *, only_locals_may_ask: bool = False) -> bool:
        """Return whether ``request`` is meant for another site; ``only_locals_may_ask``: it is answered because it comes from
        this machine, where a browser may have been led to send it."""
        host = request.headers.get("Host", "")
        if not (self._is_on or only_locals_may_ask) or not host or request.transport is None:
            return False
        own_address = request.transport.get_extra_info("sockname")  # None once the client is gone
        name, port = _parts(host)
        return own_address is not None and port == own_address[1] and not self._is_own(_plain(name))

    def _is_own(self, name: str) -> bool:
        labels = name.split(".")
        # No site has a name of one label, nor one that ends with a number, which is an address (127.1, say).
        is_no_site = len(labels) == 1 or labels[-1][:1].isdigit() or name.startswith("[")
        return is_no_site or labels[-1] == "localhost" or name in self._names


def _parts(host: str) -> tuple[str, int]:
    name, colon, port = host.rpartition(":")
    if colon and port.isascii() and port.isdecimal() and len(port) < 6:
        return name, int(port)
    return host, _HTTP_PORT


def _plain(name: str) -> str:
    return name.strip().rstrip(".").lower()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _names_in(hosts_file: Path) -> set[str]:
    """Return the names in the hosts file: each line has an address, and its names."""
    try:
        with hosts_file.open(encoding="utf-8", errors="replace") as file:
            lines = file.read(_MOST_HOSTS_BYTES).splitlines()
    except OSError:
        return set()
    return {_plain(name) for line in lines for name in line.partition("#")[0].split()[1:]}
