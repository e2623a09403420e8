"""Slow down callers that guess passwords: a budget of failed logins by address and user, and another by user.

No user is locked out.  Where a budget is used up, each login's outcome is held back for a while, a right one's like a wrong
one's: a caller that does not wait learns nothing, and each wrong password has counted before the wait.  Failures from one
address delay neither another user on that address nor the same user elsewhere: the budget by user only counts failures that an
address is not slowed for, which are many together only where many addresses guess.  An address from which the user has logged
in lately does not wait for the failures of others.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar
from weakref import WeakKeyDictionary

import structlog

from tiersidecar.domain.errors import QuotaExceededError
from tiersidecar.domain.readable import cut_text
from tiersidecar.services.client_limits import origin_of

log = structlog.get_logger(__name__)

K = TypeVar("K")
V = TypeVar("V")

_MOST_REMEMBERED = 10_000
_MOST_DOUBLINGS = 6
_LOG_EVERY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """``free`` failures are not slowed; each is forgotten after ``forgotten_s``, one after the other."""

    free: int
    forgotten_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedLoginLimits:
    """The first outcome over a budget is held back for ``first_delay_s``, each further one twice as long, up to
    ``most_delay_s``.  ``held_back`` are held back at once, shared evenly by their addresses; further ones are turned away.
    An address from which a user has logged in is known for ``known_s``."""

    by_address: Budget = Budget(free=5, forgotten_s=10.0)
    by_user: Budget = Budget(free=50, forgotten_s=1.0)
    first_delay_s: float = 0.25
    most_delay_s: float = 5.0
    held_back: int = 128
    known_s: float = 86_400.0


class FailedLogins:
    """Count failed logins, and hold outcomes back; remember addresses and users by a keyed hash."""

    def __init__(
        self,
        *,
        limits: FailedLoginLimits | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._monotonic_s, self._sleep = monotonic_s, sleep
        self.limits = limits or FailedLoginLimits()
        self._key = secrets.token_bytes(32)
        self._by_address = _Failures(self.limits.by_address)
        self._by_user = _Failures(self.limits.by_user)
        self._known: OrderedDict[bytes, float] = OrderedDict()
        """End of the time for which it is known."""
        self._connections: WeakKeyDictionary[object, bytes] = WeakKeyDictionary()
        """Connections with a right login: they do not wait again."""
        self._held_back: Counter[str] = Counter()
        self._logged_s = float("-inf")

    async def settle(self, address: str, user: str, *, is_right: bool, connection: object = None) -> None:
        """Count a login, and return when its outcome may be sent.  On a ``connection`` on which a login of ``user`` was right
        before, a right one is sent at once.

        Raises:
            QuotaExceededError: too many are held back; the outcome must not be sent.
        """
        origin = origin_of(address)
        at_address, of_user = self._digests(origin, user)
        if is_right and connection is not None and self._connections.get(connection) == at_address:
            return
        delay_s = self._delay_s(at_address, of_user)
        if not is_right:
            self._count(at_address, of_user)
        if delay_s:
            self._log_slowed(address, user)
            await self._hold_back(origin, delay_s)
        if is_right:
            remember(self._known, at_address, self._monotonic_s() + self.limits.known_s)
            if connection is not None:
                self._connections[connection] = at_address

    def _digests(self, origin: str, user: str) -> tuple[bytes, bytes]:
        """Return digests of the names, which come from unknown callers and may be long."""
        of_user = hmac.digest(self._key, user.encode(), hashlib.sha256)
        return hmac.digest(self._key, of_user + origin.encode(), hashlib.sha256), of_user

    def _count(self, at_address: bytes, of_user: bytes) -> None:
        now_s = self._monotonic_s()
        if not self._by_address.over(at_address, now_s):
            self._by_user.count(of_user, now_s)
        self._by_address.count(at_address, now_s)

    def _delay_s(self, at_address: bytes, of_user: bytes) -> float:
        now_s = self._monotonic_s()
        over = self._by_address.over(at_address, now_s)
        if not over and self._known.get(at_address, 0.0) <= now_s:
            over = self._by_user.over(of_user, now_s)
        if not over:
            return 0.0
        return min(self.limits.first_delay_s * 2.0 ** (over - 1), self.limits.most_delay_s)

    async def _hold_back(self, origin: str, delay_s: float) -> None:
        origins = len(self._held_back.keys() | {origin})
        if self._held_back[origin] >= max(self.limits.held_back // origins, 1):
            raise QuotaExceededError(what="the number of logins at once", retry_after_ms=1000)
        self._held_back[origin] += 1
        try:
            await self._sleep(delay_s)
        finally:
            self._held_back[origin] -= 1
            if not self._held_back[origin]:
                del self._held_back[origin]

    def _log_slowed(self, address: str, user: str) -> None:
        now_s = self._monotonic_s()
        if now_s - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = now_s
            log.warning("logins.slowed", address=address, user=cut_text(user))


@dataclass(slots=True)
class _Failures:
    """Failures by key, forgotten one after the other."""

    budget: Budget
    _levels: OrderedDict[bytes, tuple[float, float]] = field(default_factory=OrderedDict)
    """Number of failures, and its time."""

    def over(self, key: bytes, now_s: float) -> int:
        """Return the number of those over the budget, the next one included: 0 while that is free."""
        return max(math.ceil(self._level(key, now_s)) + 1 - self.budget.free, 0)

    def count(self, key: bytes, now_s: float) -> None:
        """Count one more; only as many are kept as slow a caller to the limit."""
        level = min(self._level(key, now_s) + 1, self.budget.free + _MOST_DOUBLINGS)
        remember(self._levels, key, (level, now_s))

    def _level(self, key: bytes, now_s: float) -> float:
        level, at_s = self._levels.get(key, (0.0, now_s))
        return max(level - (now_s - at_s) / self.budget.forgotten_s, 0.0)


def remember(remembered: OrderedDict[K, V], key: K, value: V) -> None:
    """Keep ``value``, and of all only the latest 10,000."""
    remembered[key] = value
    remembered.move_to_end(key)
    while len(remembered) > _MOST_REMEMBERED:
        remembered.popitem(last=False)
