"""Connections that have not logged in: what they may hold, how many there are, and how long they may take.

Any host can make them.  So they have a budget of their own, and when it is used up the oldest of them end, and no connection
that has logged in: a login takes some milliseconds, so that new ones get through.  They are let in at a bounded rate then
(:class:`WaitingLine`), or to turn them away would cost more than to have them.

On a listener whose broker demands no login (PLAINTEXT, SSL), every connection counts as logged in.  That is learnt from what
the broker answers: as soon as it has let in one connection without SASL, the listener is known to be open; until then, and
again once it has let one in by SASL, only those count that the broker has let in.
"""

from __future__ import annotations

import socket
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tiersidecar.decide.shares import allowance
from tiersidecar.domain.taken import Taken
from tiersidecar.ports.shares import Shared, Shares

KIB = 1024
MIB = 1024 * KIB

_LOGIN_TIMEOUT = "login_timeout"
_NOT_HELD_OPEN = frozenset({"client", "shutdown", _LOGIN_TIMEOUT})
"""Reasons to end a connection at once: the client knows, or may mean well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnauthenticatedLimits:
    """Before the login: ``buffer_bytes`` for all connections together, ``request_bytes`` for a request, ``login_timeout_s``
    from the connection to the login, and how many there may be, in all and of one address."""

    buffer_bytes: int = 16 * MIB
    request_bytes: int = 64 * KIB
    login_timeout_s: float = 30.0
    max_connections: int = 1000
    max_connections_per_ip: int = 500


class Unauthenticated:
    """All connections of a process that have not logged in.

    With ``shares``, the limits are of several processes together: each may use its part of them, and more while the others do
    not use theirs.  What was lent ends as soon as another needs it: at the next connection, or at the next sweep.
    """

    def __init__(self, limits: UnauthenticatedLimits | None = None, shares: Shares | None = None) -> None:
        self.limits = limits or UnauthenticatedLimits()
        self._shares = shares
        self.held_bytes = 0
        # In the order in which they came; dicts because any of them may go.
        self._all: dict[PendingLogin, None] = {}
        self._by_ip: dict[str, dict[PendingLogin, None]] = {}
        self._holding: dict[PendingLogin, None] = {}

    @property
    def count(self) -> int:
        """Return how many there are."""
        return len(self._all)

    def is_crowded(self, listener: ListenerLogins, ip: str) -> bool:
        """Return whether one more from ``ip`` would cost another its place."""
        if listener.is_open:
            return False
        return len(self._all) >= self._most() or len(self._by_ip.get(ip, ())) >= self._most_of(ip)

    def enter(self, listener: ListenerLogins, ip: str, now_s: float, shed: Callable[[str], None]) -> PendingLogin:
        """Enter a connection from ``ip`` that is to log in; ``shed`` ends it, for a reason.  Older ones may be shed for it."""
        login = PendingLogin(self, listener, ip, now_s, shed)
        if listener.is_open:
            login.is_done = True
            return login
        of_ip = self._by_ip.setdefault(ip, {})
        self._all[login] = of_ip[login] = None
        self._show(ip)
        if len(of_ip) > self._most_of(ip):
            self._shed_oldest(of_ip, "unauthenticated_per_ip")
        elif len(self._all) > self._most():
            self._shed_of_crowd()
        return login

    def sweep(self, now_s: float) -> None:
        """End those that have taken too long."""
        while self._all and now_s - next(iter(self._all)).since_s > self.limits.login_timeout_s:
            self._shed_oldest(self._all, _LOGIN_TIMEOUT)
        if self._shares is not None:
            self._end_what_was_lent()

    def forget_open(self) -> None:
        """Forget the connections of listeners that are known to be open."""
        for login in tuple(self._all):
            if login.listener.is_open:
                login.done()

    def hold(self, login: PendingLogin, size_bytes: int) -> None:
        """Set the bytes that ``login`` holds; where all hold too much, the one that has held something longest goes first."""
        self._hold(size_bytes - login.held_bytes)
        login.held_bytes = size_bytes
        if not size_bytes:
            self._holding.pop(login, None)
            return
        self._holding.setdefault(login)
        self._shed_bytes()

    def remove(self, login: PendingLogin) -> None:
        """Remove a connection that has logged in, or is gone."""
        self._hold(-login.held_bytes)
        login.held_bytes = 0
        self._holding.pop(login, None)
        self._all.pop(login, None)
        of_ip = self._by_ip.get(login.ip)
        if of_ip is not None:
            of_ip.pop(login, None)
            if not of_ip:
                del self._by_ip[login.ip]
        self._show(login.ip)

    def _most(self) -> int:
        return self._allowance(self.limits.max_connections, Shared.UNAUTHENTICATED)

    def _most_of(self, ip: str) -> int:
        return self._allowance(self.limits.max_connections_per_ip, Shared.UNAUTHENTICATED_OF_IP, ip)

    def _allowance(self, limit: int, what: Shared, key: str = "") -> int:
        if self._shares is None:
            return limit
        return allowance(limit, self._shares.workers, self._shares.others(what, key))

    def _show(self, ip: str) -> None:
        if self._shares is not None:
            self._shares.show(Shared.UNAUTHENTICATED, Taken(len(self._all)))
            self._shares.show(Shared.UNAUTHENTICATED_OF_IP, Taken(len(self._by_ip.get(ip, ()))), ip)

    def _hold(self, change_bytes: int) -> None:
        self.held_bytes += change_bytes
        if change_bytes and self._shares is not None:
            self._shares.show(Shared.UNAUTHENTICATED_BYTES, Taken(self.held_bytes))

    def _end_what_was_lent(self) -> None:
        for ip in tuple(self._by_ip):
            while len(of_ip := self._by_ip.get(ip, {})) > self._most_of(ip):
                self._shed_oldest(of_ip, "unauthenticated_per_ip")
        while len(self._all) > self._most():
            self._shed_of_crowd()
        self._shed_bytes()

    def _shed_bytes(self) -> None:
        while self._holding and self.held_bytes > self._allowance(
            self.limits.buffer_bytes, Shared.UNAUTHENTICATED_BYTES
        ):
            self._shed_oldest(self._holding, "unauthenticated_bytes")

    def _shed_of_crowd(self) -> None:
        self._shed_oldest(max(self._by_ip.values(), key=len), "unauthenticated")

    def _shed_oldest(self, crowd: dict[PendingLogin, None], reason: str) -> None:
        oldest = next(iter(crowd))
        self.remove(oldest)
        oldest.shed(reason)


@dataclass(slots=True)
class ListenerLogins:
    """The connections of one listener that have not logged in."""

    is_open: bool = False
    done: Counter[bool] = field(default_factory=Counter)
    """Connections that the broker has let in: by SASL, or without."""


class PendingLogin:
    """One connection's way to its login.  ``is_done`` once the broker has let it in."""

    __slots__ = ("_all", "held_bytes", "ip", "is_done", "leave_open", "listener", "shed", "since_s")

    def __init__(
        self,
        all_of_them: Unauthenticated,
        listener: ListenerLogins,
        ip: str,
        since_s: float,
        shed: Callable[[str], None],
    ) -> None:
        self._all, self.listener, self.ip, self.since_s, self.shed = all_of_them, listener, ip, since_s, shed
        self.held_bytes = 0
        self.is_done = False
        self.leave_open: Callable[[], None] = lambda: None
        """Called before it ends without a login, for a reason that its client does not learn at once (:class:`LeftOpen`)."""

    @property
    def request_bytes(self) -> int | None:
        """Return the largest request that it may send now; None: as all others."""
        return None if self.is_done else self._all.limits.request_bytes

    @property
    def demands_login(self) -> bool:
        """Return whether the broker is known to end a connection that asks anything before its login."""
        return not self.listener.is_open and self.listener.done[True] > 0

    def hold(self, size_bytes: int) -> None:
        """Count the bytes that wait in the gateway for this connection, in both directions; may end it, or others."""
        if not self.is_done and size_bytes != self.held_bytes:
            self._all.hold(self, size_bytes)

    def let_in(self, *, by_sasl: bool) -> None:
        """Count it as logged in: the broker has answered what it answers only after a login."""
        self.listener.done[by_sasl] += 1
        self.done()
        if self.listener.is_open is by_sasl:
            self.listener.is_open = not by_sasl
            self._all.forget_open()

    def ends(self, reason: str) -> None:
        """Note that its connection ends: it counts until it is gone, since a client may take its time (TLS's close_notify)."""
        if not self.is_done and reason not in _NOT_HELD_OPEN:
            self.leave_open()

    def done(self) -> None:
        """Count it no longer: it is let in, or gone."""
        self.is_done = True
        self._all.remove(self)


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
    """Connections that have to wait until they are begun, at most ``most`` of them.

    An address that has as many connections before their login as it may gets another one only as an older one ends.  Were it
    turned away, it would come back at once, and the clients that have logged in would pay for that.  So it waits here, where it
    costs a descriptor, and a few a second are let in.

    Addresses take turns.  Of one address the newest goes first: a client that means well logs in within milliseconds, and one
    that does not would stay in front of it for as long as it may.
    """

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
    """Sockets of clients whose connections ended, at most ``most`` of them: what they send is not read, and nothing answers.

    The waiting line helps only while fewer come than are let in.  Each that is let in costs another its place, or is refused by
    the broker; if it learnt of that, it would be back at once, and newer: as many would come as go: one login in three waited
    for as long as the attack lasted.  So while others wait, a client whose connection ends without a login learns of it a while
    later: its socket stays open, and nothing reads it.  A broker does the same for less
    (``connection.failed.authentication.delay.ms``).
    """

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
            return  # gone already, or no descriptor is left: it learns of it at once
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
