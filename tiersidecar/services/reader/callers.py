"""Who asks, and what the broker lets them read (DESIGN.md section 4, rule 7)."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Collection

from aiohttp import web

from tiersidecar.ports.broker import AuthorizeRead, Credentials
from tiersidecar.services.reader.problems import forbidden, unauthenticated

ANONYMOUS = Credentials()
_AT_ONCE = 16


class Callers:
    """Takes the credentials off a request and asks the broker; keeps none of them."""

    def __init__(self, authorize: AuthorizeRead, *, requires_credentials: bool) -> None:
        self._authorize = authorize
        self._requires_credentials = requires_credentials

    async def require_read(self, request: web.Request, topic: str) -> None:
        """Let pass who may READ ``topic``.

        Raises:
            ProblemError: 401, 403.
            CallerNotAuthenticatedError: the broker refused the credentials.
        """
        if not await self._authorize.may_read(self.credentials(request), topic):
            raise forbidden(topic)

    async def readable(self, request: web.Request, topics: Collection[str]) -> list[str]:
        """Those of ``topics`` that the caller may READ, in their order.

        Raises:
            As :meth:`require_read`, but for 403.
        """
        credentials, places = self.credentials(request), asyncio.Semaphore(_AT_ONCE)

        async def may_read(topic: str) -> bool:
            async with places:
                return await self._authorize.may_read(credentials, topic)

        verdicts = await asyncio.gather(*map(may_read, topics))
        return [topic for topic, is_readable in zip(topics, verdicts, strict=True) if is_readable]

    def credentials(self, request: web.Request) -> Credentials:
        """What the request carries; ANONYMOUS if nothing, where that is allowed.

        Raises:
            ProblemError: 401.
        """
        header = request.headers.get("Authorization")
        if header is not None:
            return read_basic_credentials(header)
        if self._requires_credentials:
            raise unauthenticated()
        return ANONYMOUS


def read_basic_credentials(header: str) -> Credentials:
    """Credentials of an ``Authorization: Basic`` header (RFC 7617), UTF-8.

    Raises:
        ProblemError: 401 for another scheme, or what is not such a header.
    """
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        raise unauthenticated()
    try:
        username, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise unauthenticated() from error
    if not colon or not username or "\0" in username + password:
        # SASL/PLAIN parts its fields by NUL.
        raise unauthenticated()
    return Credentials(username=username, password=password)
