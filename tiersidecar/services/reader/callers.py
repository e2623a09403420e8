"""Identify callers by their credentials (Basic, Bearer, a client certificate), and ask the broker what they may read."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator, Collection, Iterable
from dataclasses import dataclass, field

from aiohttp import web
from cryptography import x509

from tiersidecar.domain.readable import cut_text
from tiersidecar.ports.broker import AuthorizeRead, Credentials
from tiersidecar.ports.store import Buffer
from tiersidecar.services.client_limits import origin_of
from tiersidecar.services.reader.problems import ProblemError, forbidden, unauthenticated
from tiersidecar.services.reader.streams import pieces

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)
"""RFC 6750, section 2.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCaller:
    """The owner of a token, or of a client certificate with this subject (RFC 4514), with its Kafka username and password: the
    broker is asked as that principal."""

    credentials: Credentials
    token: str | None = field(default=None, repr=False)
    subject: str | None = None


class KnownCallers:
    """The operator's list.  It grants nothing: the broker decides about the principal that an entry names.

    Raises:
        ValueError: a subject that is no distinguished name.
    """

    def __init__(self, callers: Iterable[KnownCaller] = ()) -> None:
        callers = tuple(callers)
        # By digest, so that the time of a look-up does not show how much of a token was right.
        self._by_token = {_digest(caller.token): caller.credentials for caller in callers if caller.token is not None}
        self._by_subject = {
            _name(x509.Name.from_rfc4514_string(caller.subject)): caller.credentials
            for caller in callers
            if caller.subject is not None
        }

    def credentials_of(self, presented: Credentials) -> Credentials:
        """Return the credentials of a listed token's owner; else the presented ones, for the broker to check."""
        if presented.token is None:
            return presented
        return self._by_token.get(_digest(presented.token), presented)

    def owner_of(self, certificate: bytes) -> Credentials | None:
        """Return the credentials of the owner of a certificate (DER) whose chain the TLS handshake has verified; None if it is
        not listed."""
        if not self._by_subject:
            return None
        return self._by_subject.get(_name(x509.load_der_x509_certificate(certificate).subject))


def client_certificate(request: web.Request) -> bytes | None:
    """Return the client's certificate (DER), if the connection has one: the TLS context accepted only one it could verify."""
    tls = None if request.transport is None else request.transport.get_extra_info("ssl_object")
    certificate: bytes | None = None if tls is None else tls.getpeercert(binary_form=True)
    return certificate


def read_authorization(header: str) -> Credentials:
    """Return the credentials of an ``Authorization`` header, ``Basic`` (RFC 7617, UTF-8) or ``Bearer`` (RFC 6750).

    Raises:
        ProblemError: 401 for another scheme, or a malformed header.
    """
    scheme, _, rest = header.partition(" ")
    match scheme.lower():
        case "basic":
            return _read_basic(rest.strip())
        case "bearer" if _TOKEN.fullmatch(rest.strip()):
            return Credentials(token=rest.strip())
        case _:
            raise unauthenticated()


def _read_basic(encoded: str) -> Credentials:
    try:
        username, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except ValueError as error:  # also for letters outside ASCII
        raise unauthenticated() from error
    if not colon or not username or "\0" in username + password:
        # SASL/PLAIN separates its fields by NUL.
        raise unauthenticated()
    return Credentials(username=username, password=password)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _name(name: x509.Name) -> str:
    """Return one spelling of equal names, whatever string types the authority has used."""
    return name.rfc4514_string()


ANONYMOUS = Credentials()
_AT_ONCE = 16


class Callers:
    """Take the credentials from a request and ask the broker; keep none of a caller's."""

    def __init__(
        self, authorize: AuthorizeRead, *, known: KnownCallers, requires_credentials: bool, recheck_s: float = 60.0
    ) -> None:
        self._authorize = authorize
        self._recheck_s = recheck_s
        self._known = known
        self._requires_credentials = requires_credentials

    async def require_read(self, request: web.Request, topic: str) -> None:
        """Return only if the caller may READ ``topic``.

        Raises:
            ProblemError: 401, 403.
            CallerNotAuthenticatedError: the broker refused the credentials.
        """
        if not await self._authorize.may_read(self.credentials(request), topic):
            raise forbidden(topic)

    async def while_allowed(
        self, request: web.Request, topic: str, first: Buffer | None, parts: AsyncIterator[Buffer]
    ) -> AsyncIterator[Buffer]:
        """Yield a body of ``first`` and ``parts`` in pieces, as long as the caller may read the topic: the broker is asked
        again every ``recheck_s``, before the next piece goes out.  A slow client takes long for one part.

        Raises:
            ProblemError: 403, as :meth:`require_read`.
            CallerNotAuthenticatedError: the broker no longer accepts the credentials.
            BrokerUnreachableError, BrokerRefusedError: it could not be asked.
        """
        now_s = asyncio.get_running_loop().time
        checked_s = now_s()
        is_first = True
        async for piece in _pieces(first, parts):
            if not is_first and now_s() - checked_s >= self._recheck_s:
                await self.require_read(request, topic)
                checked_s = now_s()
            is_first = False
            yield piece

    async def readable(self, request: web.Request, topics: Collection[str]) -> list[str]:
        """Return those of ``topics`` that the caller may READ, in their order.

        Raises:
            As :meth:`require_read`, but for 403.
        """
        credentials, places = self.credentials(request), asyncio.Semaphore(_AT_ONCE)

        async def may_read(topic: str) -> bool:
            async with places:
                return await self._authorize.may_read(credentials, topic)

        asking = [asyncio.create_task(may_read(topic)) for topic in topics]
        try:
            verdicts = await asyncio.gather(*asking)
        finally:
            # After the first refusal, stop: a wrong password must not be tried once for each topic.
            for one in asking:
                one.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        return [topic for topic, is_readable in zip(topics, verdicts, strict=True) if is_readable]

    def share_of(self, request: web.Request) -> str:
        """Return the name under which requests count as one caller's: a user, a token, else an address; empty for an anonymous
        caller of this machine, which may be a proxy."""
        try:
            credentials = self.credentials(request)
        except ProblemError:
            credentials = ANONYMOUS
        if credentials == ANONYMOUS:
            origin = origin_of(request.remote or "")
            return f"address {origin}" if origin else ""
        return f"user {credentials.username}" if credentials.username else f"token {hash(credentials.token)}"

    def principal_of(self, request: web.Request) -> str:
        """Return the principal of ``request``, as the gateway has it: `User:ANONYMOUS` without credentials, `User:?` where they
        are a token, which does not show its name."""
        try:
            credentials = self.credentials(request)
        except ProblemError:
            credentials = ANONYMOUS
        name = credentials.username or ("ANONYMOUS" if credentials == ANONYMOUS else "?")
        return f"User:{name}"

    def name_of(self, request: web.Request) -> str:
        """Return the user of ``request``; empty where it names none."""
        try:
            return cut_text(self.credentials(request).username or "")
        except ProblemError:
            return ""

    def credentials(self, request: web.Request) -> Credentials:
        """Return the credentials for the broker: the request's own, else those of the owner of the client certificate, else
        ANONYMOUS, where that is allowed.

        Raises:
            ProblemError: 401.
        """
        header = request.headers.get("Authorization")
        if header is not None:
            return self._known.credentials_of(read_authorization(header))
        certificate = client_certificate(request)
        owner = None if certificate is None else self._known.owner_of(certificate)
        if owner is None and self._requires_credentials:
            raise unauthenticated()
        return owner or ANONYMOUS


async def _pieces(first: Buffer | None, parts: AsyncIterator[Buffer]) -> AsyncIterator[Buffer]:
    if first is not None:
        for piece in pieces(first):
            yield piece
    async for part in parts:
        for piece in pieces(part):
            yield piece
