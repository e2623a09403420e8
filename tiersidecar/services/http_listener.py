"""Listen for HTTP, for every HTTP service."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import structlog
from aiohttp import web

from tiersidecar.domain.errors import ListenError
from tiersidecar.reading.reader_limits import FairPlaces
from tiersidecar.services.client_limits import Crowd, origin_of
from tiersidecar.services.descriptors import SpareDescriptors, is_used_up

log = structlog.get_logger(__name__)

MAX_CONNECTIONS = 1024
"""Limit that leaves descriptors for files and the store."""
HEAD_TIMEOUT_S = 10.0
"""Time from the connection to the first whole request, TLS included."""
IDLE_TIMEOUT_S = 75.0
"""Time between requests; longer than the usual 60 s of a proxy in front."""

_BACKLOG = 512
_BEGUN_AT_ONCE = 4
"""Requests that begin in one round of the loop: each takes a third of a millisecond, and other tasks run there, too."""
_NO_DESCRIPTOR_PAUSE_S = 0.1
_SPARE_DESCRIPTORS = 2
"""Spare descriptors of each service: health checks get in when all others are used up."""
_LOG_EVERY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpServer:
    """Address of a service; ``port`` is the real one when 0 was asked for."""

    host: str
    port: int
    scheme: str = "http"

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Number of connections, half of them at most from one address, and how long they may wait for a request."""

    most: int = MAX_CONNECTIONS
    head_timeout_s: float = HEAD_TIMEOUT_S
    idle_timeout_s: float = IDLE_TIMEOUT_S

    @property
    def most_per_origin(self) -> int:
        return max(self.most // 2, 1)


async def listen(
    runner: web.AppRunner,
    *,
    service: str,
    host: str,
    port: int,
    ssl_context: ssl.SSLContext | None = None,
    limits: ConnectionLimits | None = None,
) -> HttpServer:
    """Listen with ``runner``, which has been set up and is cleaned up by the caller; ``service`` is its name for errors.

    Raises:
        ListenError: the address cannot be listened on.
    """
    connections = _Connections(runner, service, ssl_context, limits or ConnectionLimits())
    try:
        await _Site(runner, host, port, connections).start()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ListenError(service=service, address=f"{host}:{port}", reason=reason) from error
    return HttpServer(host=host, port=runner.addresses[0][1], scheme="http" if ssl_context is None else "https")


class _Site(web.BaseSite):
    """Accepts by itself: a connection is known, with its address, before its TLS handshake, and can be ended in it."""

    def __init__(self, runner: web.AppRunner, host: str, port: int, connections: _Connections) -> None:
        super().__init__(runner)
        self._host, self._port, self._connections = host, port, connections
        self._accepting: list[asyncio.Task[None]] = []

    @property
    def name(self) -> str:
        return f"{self._host}:{self._port}"

    async def start(self) -> None:
        sockets = await _listening_sockets(self._host, self._port)
        await super().start()
        # The runner asks it for its sockets, and closes it.
        self._server = cast(asyncio.AbstractServer, _Listening(sockets))
        self._accepting = [asyncio.create_task(self._connections.accept(one)) for one in sockets]

    async def stop(self) -> None:
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        await super().stop()
        await self._connections.end_unfinished()
        self._connections.close()


class _Listening:
    """The part of a server that aiohttp's runner needs."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self.sockets = sockets

    def close(self) -> None:
        for one in self.sockets:
            one.close()


class _Connections:
    """The connections of one service."""

    def __init__(
        self, runner: web.AppRunner, service: str, tls: ssl.SSLContext | None, limits: ConnectionLimits
    ) -> None:
        assert runner.server is not None
        self._server, self._service, self._tls, self.limits = runner.server, service, tls, limits
        self._crowd: Crowd[_Connection] = Crowd(most=limits.most, most_per_origin=limits.most_per_origin)
        self._by_handler: dict[object, _Connection] = {}
        self._connecting: dict[_Connection, asyncio.Task[None]] = {}
        self._turns = FairPlaces(_BEGUN_AT_ONCE)
        self._crowd_logged_s = self._failure_logged_s = float("-inf")
        self.spare, self._is_over = SpareDescriptors(_SPARE_DESCRIPTORS), False
        self._server.request_handler = self._counted(self._server.request_handler)

    async def accept(self, listening: socket.socket) -> None:
        """Take connections until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await loop.sock_accept(listening)
            except OSError as error:
                # Connections in the backlog are taken when there are descriptors again.
                self._log_failure(error)
                if not (is_used_up(error) and self._free_one()):
                    await asyncio.sleep(_NO_DESCRIPTOR_PAUSE_S)
                continue
            self._take(client, address[0])
            # A crowd in the backlog is not taken in one go: other connections' bytes come in between.
            await asyncio.sleep(0)

    def close(self) -> None:
        """Accept no more connections."""
        self._is_over = True
        self.spare.close()

    async def end_unfinished(self) -> None:
        """End those in their handshake, which the runner does not know."""
        unfinished = list(self._connecting.values())
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)

    def made(self, connection: _Connection) -> web.RequestHandler:
        """Return the handler of ``connection``, which now has a transport."""
        handler = self._server()
        self._by_handler[handler] = connection
        return handler

    def lost(self, connection: _Connection) -> None:
        """Forget ``connection``, which has ended."""
        self._by_handler.pop(connection.handler, None)
        self._crowd.leave(connection)
        self._refill_soon()

    def _refill_soon(self) -> None:
        """Refill soon: the descriptor of a closed connection is free in the loop's next turn but one."""
        asyncio.get_running_loop().call_later(_NO_DESCRIPTOR_PAUSE_S, self._refill)

    def _refill(self) -> None:
        if not self._is_over:
            self.spare.refill()

    def paused(self, connection: _Connection) -> None:
        """Note that its client does not take what is sent."""
        self._crowd.pause(connection)

    def resumed(self, connection: _Connection) -> None:
        """Note that its client has taken it."""
        self._crowd.resume(connection)

    def cancel(self, connection: _Connection) -> None:
        """End ``connection``, which has no transport yet."""
        if task := self._connecting.get(connection):
            task.cancel()

    def _take(self, client: socket.socket, address: str) -> None:
        connection = _Connection(self, origin_of(address))
        admission = self._crowd.admit(connection, connection.origin)
        if not admission.is_admitted or admission.instead_of is not None:
            self._log_crowd(address)
        if not admission.is_admitted:
            client.close()
            return
        if admission.instead_of is not None:
            admission.instead_of.end()
        connection.wait(self.limits.head_timeout_s)
        task = asyncio.create_task(self._connect(connection, client))
        self._connecting[connection] = task
        task.add_done_callback(lambda _: self._connected(connection, client))

    async def _connect(self, connection: _Connection, client: socket.socket) -> None:
        handshake_s = None if self._tls is None else self.limits.head_timeout_s
        with suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, client, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )

    def _connected(self, connection: _Connection, client: socket.socket) -> None:
        del self._connecting[connection]
        if connection.handler is None:  # its handshake failed, or there was no time for it
            client.close()
            connection.lost()

    def _counted(
        self, handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
        async def counted(request: web.BaseRequest) -> web.StreamResponse:
            connection = self._by_handler.get(request.protocol)
            if connection is None:
                return await handle(request)
            connection.stop_waiting()
            await self._take_turn(connection.origin)
            self._crowd.begin_request(connection)
            try:
                return await handle(request)
            finally:
                self._crowd.end_request(connection)
                connection.wait(self.limits.idle_timeout_s)

        return counted

    async def _take_turn(self, origin: str) -> None:
        """Wait until a request of ``origin`` may begin: requests cost their senders nothing, and a thousand that begin in one
        round of the loop keep everything else in the process waiting.  Until then it counts as one that waits."""
        await self._turns.take(origin)
        asyncio.get_running_loop().call_soon(self._turns.give_back, origin)

    def _free_one(self) -> bool:
        """Free a descriptor for the next connection: a spare one, or that of the connection waiting longest for a request."""
        if self.spare.let_go():
            return True
        gives_way = self._crowd.give_way()
        if gives_way is not None:
            gives_way.end()
        return False  # it is closed in the loop's next turn

    def _log_failure(self, error: OSError) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._failure_logged_s >= _LOG_EVERY_S:
            self._failure_logged_s = now_s
            log.warning("http.accept.failed", service=self._service, reason=str(error))

    def _log_crowd(self, address: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._crowd_logged_s >= _LOG_EVERY_S:
            self._crowd_logged_s = now_s
            log.warning("http.crowded", service=self._service, connections=len(self._crowd), address=address)


class _Connection(asyncio.Protocol):
    """One connection: passes bytes on to aiohttp, and ends when it has waited too long for a request."""

    def __init__(self, connections: _Connections, origin: str) -> None:
        self._connections, self.origin = connections, origin
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        self.handler: web.RequestHandler | None = None

    def wait(self, timeout_s: float) -> None:
        """End in ``timeout_s``, unless a request comes."""
        self.stop_waiting()
        if not self._is_over:
            self._timer = asyncio.get_running_loop().call_later(timeout_s, self.end)

    def stop_waiting(self) -> None:
        """Stop the timeout: a request has come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """Close, dropping unsent bytes: a client that takes nothing would keep the descriptor."""
        if self._transport is not None:
            self._transport.abort()
        else:
            self._connections.cancel(self)

    def lost(self) -> None:
        """Stop the timeout: the connection is lost."""
        self._is_over = True
        self.stop_waiting()
        self._connections.lost(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.handler = self._connections.made(self)
        self.handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.handler is not None:
            self.handler.data_received(data)

    def eof_received(self) -> None:
        if self.handler is not None:
            self.handler.eof_received()

    def pause_writing(self) -> None:
        self._connections.paused(self)
        if self.handler is not None:
            self.handler.pause_writing()

    def resume_writing(self) -> None:
        self._connections.resumed(self)
        if self.handler is not None:
            self.handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.handler is not None:
            self.handler.connection_lost(exc)
        self.lost()


async def _listening_sockets(host: str, port: int) -> list[socket.socket]:
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            sockets.append(one)
            one.settimeout(0)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
            one.listen(_BACKLOG)
    except OSError:
        for one in sockets:
            with suppress(OSError):
                one.close()
        raise
    return sockets
