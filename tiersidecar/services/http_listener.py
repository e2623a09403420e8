"""What every HTTP service needs to listen."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from aiohttp import web

from tiersidecar.domain.errors import ListenError


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
    runner: web.AppRunner, *, service: str, host: str, port: int, ssl_context: ssl.SSLContext | None = None
) -> HttpServer:
    """Listen with ``runner``, which has been set up and is cleaned up by the caller; ``service`` is its name for errors.

    Raises:
        ListenError: the address cannot be listened on.
    """
    try:
        await web.TCPSite(runner, host, port, ssl_context=ssl_context).start()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ListenError(service=service, address=f"{host}:{port}", reason=reason) from error
    return HttpServer(host=host, port=runner.addresses[0][1], scheme="http" if ssl_context is None else "https")
