"""Try credentials that the broker has not admitted yet, separately from everything else and a few at a time.

Any client can send wrong passwords, and a broker answers each after a tenth of a second or more.  So logins wait here and take
no place of known callers.  Credentials that were admitted lately pass at once; those refused lately are refused again without a
request, for twice as long each time.  Clients that guess are slowed (:mod:`tiersidecar.services.failed_logins`).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from weakref import WeakValueDictionary

from tiersidecar.domain.errors import QuotaExceededError
from tiersidecar.ports.broker import AuthorizeRead, CallerNotAuthenticatedError, Credentials
from tiersidecar.reading.reader_limits import FairPlaces
from tiersidecar.services.client_limits import origin_of
from tiersidecar.services.failed_logins import FailedLogins, remember


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginLimits:
    """Logins tried ``at_once``, ``at_once_per_caller`` of one address and user; ``waiting`` may wait from one address, or as
    many shared evenly by the addresses with waiting logins.

    Admitted credentials count as known for ``known_s``; refused ones are refused for ``refused_s``, twice as long after each
    further time, up to ``most_refused_s``.
    """

    at_once: int = 4
    at_once_per_caller: int = 2
    waiting: int = 256
    known_s: float = 300.0
    refused_s: float = 1.0
    most_refused_s: float = 60.0


class Logins:
    """Try credentials, and remember the results by a keyed hash; keep none of them."""

    def __init__(
        self,
        authorize: AuthorizeRead,
        *,
        monotonic_s: Callable[[], float],
        limits: LoginLimits | None = None,
        failed: FailedLogins | None = None,
    ) -> None:
        self._authorize, self._monotonic_s, self._limits = authorize, monotonic_s, limits or LoginLimits()
        self._failed = failed or FailedLogins(monotonic_s=monotonic_s)
        self._key = secrets.token_bytes(32)
        self._places = FairPlaces(self._limits.at_once)
        # A turn lives as long as a login waits for it.
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Semaphore] = WeakValueDictionary()
        self._waiting: Counter[str] = Counter()
        self._known: OrderedDict[bytes, float] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, float]] = OrderedDict()
        """End and length of the refusal."""

    async def check(self, address: str, credentials: Credentials, connection: object = None) -> None:
        """Return when the broker has admitted ``credentials``, now or lately.  ``connection`` is the one they came by.

        Raises:
            CallerNotAuthenticatedError: it has not.
            QuotaExceededError: too many wait.
            BrokerUnreachableError, BrokerRefusedError: it could not be asked.
        """
        digest = self._digest(credentials)
        refusal: CallerNotAuthenticatedError | None = None
        try:
            if not self._is_known(digest):
                await self._try(origin_of(address), digest, credentials)
        except CallerNotAuthenticatedError as error:
            refusal = error  # also after a recent refusal: else each would be asked twice, to know at once
        if credentials.username is not None:  # tokens are not guessed; known credentials may have been
            await self._failed.settle(address, credentials.username, is_right=refusal is None, connection=connection)
        if refusal is not None:
            raise refusal
        self._refused.pop(digest, None)
        if not self._is_known(digest):
            remember(self._known, digest, self._monotonic_s() + self._limits.known_s)

    def forget(self, credentials: Credentials) -> None:
        """Forget credentials that the broker has refused after admitting them."""
        self._known.pop(self._digest(credentials), None)

    async def _try(self, origin: str, digest: bytes, credentials: Credentials) -> None:
        self._check_not_refused(digest)
        async with self._place(origin, credentials.username or ""):
            self._check_not_refused(digest)
            if self._is_known(digest):
                return
            try:
                await self._authorize.log_in(credentials)
            except CallerNotAuthenticatedError:
                self._refuse(digest)
                raise

    def _is_known(self, digest: bytes) -> bool:
        return self._known.get(digest, 0.0) > self._monotonic_s()

    def _check_not_refused(self, digest: bytes) -> None:
        until_s, _ = self._refused.get(digest, (0.0, 0.0))
        if until_s > self._monotonic_s():
            raise CallerNotAuthenticatedError("refused a moment ago")

    def _refuse(self, digest: bytes) -> None:
        _, lasted_s = self._refused.get(digest, (0.0, 0.0))
        lasts_s = min(max(2 * lasted_s, self._limits.refused_s), self._limits.most_refused_s)
        remember(self._refused, digest, (self._monotonic_s() + lasts_s, lasts_s))

    @asynccontextmanager
    async def _place(self, origin: str, user: str) -> AsyncIterator[None]:
        """Hold a turn of this caller's, then one of all: a crowd of one address and user waits behind itself, and one of an
        address behind its own, whatever names it makes up."""
        origins = len(self._waiting.keys() | {origin})
        if self._waiting[origin] >= max(self._limits.waiting // origins, 1):
            raise QuotaExceededError(what="the number of logins at once", retry_after_ms=1000)
        turn = self._turns.setdefault((origin, user), asyncio.Semaphore(self._limits.at_once_per_caller))
        self._waiting[origin] += 1
        try:
            async with turn:
                await self._places.take(origin)
                try:
                    yield
                finally:
                    self._places.give_back(origin)
        finally:
            self._waiting[origin] -= 1
            if not self._waiting[origin]:
                del self._waiting[origin]

    def _digest(self, credentials: Credentials) -> bytes:
        fields = (credentials.username, credentials.password, credentials.token)
        text = b"".join(b"\0" if field is None else b"\1%d:" % len(field) + field.encode() for field in fields)
        return hmac.digest(self._key, text, hashlib.sha256)
