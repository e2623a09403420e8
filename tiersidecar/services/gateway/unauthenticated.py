"""Connections that have not logged in: what they may hold, how many there are, and how long they may take.

Anybody can make them.  So they have a budget of their own, and when it is used up the oldest of them end, and no connection
that has logged in: a login takes some milliseconds, so that new ones get through.  They are let in at a bounded rate then
(``waiting_line``), or to turn them away would cost more than to have them.

On a listener whose broker demands no login (PLAINTEXT, SSL), every connection counts as logged in.  That is learnt from what
the broker answers: as soon as it has let in one connection without SASL, the listener is known to be open; until then, and
again once it has let one in by SASL, only those count that the broker has let in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

KIB = 1024
MIB = 1024 * KIB

_LOGIN_TIMEOUT = "login_timeout"
_TOLD = frozenset({"client", "shutdown", _LOGIN_TIMEOUT})
"""Reasons of an end for which nobody is left on the line: the client knows, or may mean well."""


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
    """All connections of a process that have not logged in."""

    def __init__(self, limits: UnauthenticatedLimits | None = None) -> None:
        self.limits = limits or UnauthenticatedLimits()
        self.held_bytes = 0
        # In the order in which they came; dicts because any of them may go.
        self._all: dict[PendingLogin, None] = {}
        self._by_ip: dict[str, dict[PendingLogin, None]] = {}
        self._holding: dict[PendingLogin, None] = {}

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._all)

    def is_crowded(self, listener: ListenerLogins, ip: str) -> bool:
        """Whether one more from ``ip`` would cost another its place."""
        if listener.is_open:
            return False
        limits = self.limits
        return len(self._all) >= limits.max_connections or len(self._by_ip.get(ip, ())) >= limits.max_connections_per_ip

    def enter(self, listener: ListenerLogins, ip: str, now_s: float, shed: Callable[[str], None]) -> PendingLogin:
        """A connection from ``ip`` that is to log in; ``shed`` ends it, for a reason.  Older ones may be shed for it."""
        login = PendingLogin(self, listener, ip, now_s, shed)
        if listener.is_open:
            login.is_done = True
            return login
        of_ip = self._by_ip.setdefault(ip, {})
        self._all[login] = of_ip[login] = None
        limits = self.limits
        if len(of_ip) > limits.max_connections_per_ip:
            self._shed_oldest(of_ip, "unauthenticated_per_ip")
        elif len(self._all) > limits.max_connections:
            crowd = max(self._by_ip.values(), key=len)
            self._shed_oldest(crowd, "unauthenticated")
        return login

    def sweep(self, now_s: float) -> None:
        """End those that have taken too long."""
        while self._all and now_s - next(iter(self._all)).since_s > self.limits.login_timeout_s:
            self._shed_oldest(self._all, _LOGIN_TIMEOUT)

    def forget_open(self) -> None:
        """Those of listeners that are known to be open are none of ours."""
        for login in tuple(self._all):
            if login.listener.is_open:
                login.done()

    def hold(self, login: PendingLogin, size_bytes: int) -> None:
        """``login`` holds as much now; where that is too much, who has held something longest goes first."""
        self.held_bytes += size_bytes - login.held_bytes
        login.held_bytes = size_bytes
        if not size_bytes:
            self._holding.pop(login, None)
            return
        self._holding.setdefault(login)
        while self.held_bytes > self.limits.buffer_bytes and self._holding:
            self._shed_oldest(self._holding, "unauthenticated_bytes")

    def remove(self, login: PendingLogin) -> None:
        """It has logged in, or is gone."""
        self.held_bytes -= login.held_bytes
        login.held_bytes = 0
        self._holding.pop(login, None)
        self._all.pop(login, None)
        of_ip = self._by_ip.get(login.ip)
        if of_ip is not None:
            of_ip.pop(login, None)
            if not of_ip:
                del self._by_ip[login.ip]

    def _shed_oldest(self, crowd: dict[PendingLogin, None], reason: str) -> None:
        oldest = next(iter(crowd))
        self.remove(oldest)
        oldest.shed(reason)


@dataclass(slots=True)
class ListenerLogins:
    """What is known of one listener."""

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
        """Called before it ends without a login, for a reason that its client is not told at once (:class:`LeftOpen`)."""

    @property
    def request_bytes(self) -> int | None:
        """The largest request that it may send now; None: as all others."""
        return None if self.is_done else self._all.limits.request_bytes

    @property
    def demands_login(self) -> bool:
        """Whether the broker is known to end a connection that asks anything before its login."""
        return not self.listener.is_open and self.listener.done[True] > 0

    def hold(self, size_bytes: int) -> None:
        """What waits in the gateway for this connection, of both directions; may end it, or others."""
        if not self.is_done and size_bytes != self.held_bytes:
            self._all.hold(self, size_bytes)

    def let_in(self, *, by_sasl: bool) -> None:
        """The broker has answered what it answers only to who is logged in."""
        self.listener.done[by_sasl] += 1
        self.done()
        if self.listener.is_open is by_sasl:
            self.listener.is_open = not by_sasl
            self._all.forget_open()

    def ends(self, reason: str) -> None:
        """Its connection ends: it counts until it is gone, since a client may take its time (TLS's close_notify)."""
        if not self.is_done and reason not in _TOLD:
            self.leave_open()

    def done(self) -> None:
        """It counts no longer: it is let in, or gone."""
        self.is_done = True
        self._all.remove(self)
