"""Identify callers, and ask the broker what they may read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection

from aiohttp import web

from tiersidecar.domain.readable import cut_text
from tiersidecar.ports.broker import AuthorizeRead, Credentials
from tiersidecar.ports.store import Buffer
from tiersidecar.services.http_crowd import origin_of
from tiersidecar.services.reader.presented import KnownCallers, client_certificate, read_authorization
from tiersidecar.services.reader.problems import ProblemError, forbidden, unauthenticated
from tiersidecar.services.reader.streams import pieces

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
