"""What every HTTP service needs to listen."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import cast

from aiohttp import web

from tiersidecar.domain.errors import ListenError

MAX_CONNECTIONS = 1024
"""More are closed at once: descriptors are needed elsewhere."""
IDLE_TIMEOUT_S = 75.0
"""For a connection without a whole request; longer than the usual 60 s of a proxy in front."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpServer:
    """Where a service listens; ``port`` is the real one when 0 was asked for."""

    host: str
    port: int
    scheme: str = "http"

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


async def listen(
    runner: web.AppRunner,
    *,
    service: str,
    host: str,
    port: int,
    ssl_context: ssl.SSLContext | None = None,
    max_connections: int = MAX_CONNECTIONS,
) -> HttpServer:
    """Listen with ``runner``, which has been set up and is cleaned up by the caller; ``service`` is its name for errors.

    Raises:
        ListenError: the address cannot be listened on.
    """
    try:
        await _BoundedSite(runner, host, port, ssl_context=ssl_context, max_connections=max_connections).start()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ListenError(service=service, address=f"{host}:{port}", reason=reason) from error
    return HttpServer(host=host, port=runner.addresses[0][1], scheme="http" if ssl_context is None else "https")


class _BoundedSite(web.TCPSite):
    """Takes no more connections than it may."""

    def __init__(
        self,
        runner: web.AppRunner,
        host: str,
        port: int,
        *,
        ssl_context: ssl.SSLContext | None,
        max_connections: int,
    ) -> None:
        super().__init__(runner, host, port, ssl_context=ssl_context)
        self._address, self._tls, self._max_connections = (host, port), ssl_context, max_connections

    async def start(self) -> None:
        await web.BaseSite.start(self)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, *self._address, ssl=self._tls, backlog=self._backlog)

    def _accept(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None
        return server() if len(server.connections) < self._max_connections else _Refused()


class _Refused(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()
