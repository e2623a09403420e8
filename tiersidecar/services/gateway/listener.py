"""A listening socket, and the connections that came by it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog

from tiersidecar.decide.shares import total
from tiersidecar.domain.errors import ListenError
from tiersidecar.domain.taken import Taken
from tiersidecar.ports.shares import Shared, Shares
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.services.client_limits import origin_of
from tiersidecar.services.descriptors import are_few
from tiersidecar.services.gateway.audit import NO_AUDIT_TOPIC, AuditTopic
from tiersidecar.services.gateway.connection import GatewayConnection
from tiersidecar.services.gateway.conversation import ListenerShare
from tiersidecar.services.gateway.exchange import Rewrites
from tiersidecar.services.gateway.frames import ResponseMemory
from tiersidecar.services.gateway.limits import GatewayLimits
from tiersidecar.services.gateway.side import READ_BUFFER_BYTES, MakeSide, PlainSide, Side, SideEvents
from tiersidecar.services.gateway.tls_side import TlsSide
from tiersidecar.services.gateway.traffic import Traffic
from tiersidecar.services.gateway.unauthenticated import LeftOpen, ListenerLogins, Unauthenticated, Waiting, WaitingLine

log = structlog.get_logger(__name__)

_BACKLOG = 512
_SWEEP_S = 1.0
_NO_DESCRIPTOR_PAUSE_S = 0.1
_LOG_EVERY_S = 60.0
_LET_IN_SOONEST_S, _LET_IN_LATEST_S, _LATE_S = 0.005, 0.02, 0.002
"""Waiting connections are let in one at a time, 50 to 200 a second.  Each costs the event loop most of a millisecond, and
another connection its place: the later the loop is with all else, the fewer."""
_WAITING_PER_PLACE = 4
"""How many may wait for each that may be before its login: they cost a descriptor each."""
_LEFT_OPEN_PER_PLACE = 2
_LEFT_OPEN_S = 300.0
"""How long those that ended without a login in a crowd stay open: longer than any client waits that means well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """Where to listen, and the one broker behind.

    ``port`` 0 takes a free one.  ``tls`` is what clients meet, ``broker_tls`` what the broker does; None is none.
    """

    name: str
    host: str
    port: int
    broker_host: str
    broker_port: int
    tls: ssl.SSLContext | None = None
    broker_tls: ssl.SSLContext | None = None
    max_connections: int = 10_000
    max_connections_per_ip: int = 10_000
    is_one_of_several: bool = False
    """Other processes of this user listen on the same address, and the kernel gives each connection to one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayListener:
    """Where it listens; ``port`` is the real one when 0 was asked for."""

    name: str
    host: str
    port: int


@asynccontextmanager
async def serve_gateway(
    settings: ListenerSettings,
    *,
    rewrites: Rewrites,
    limits: GatewayLimits,
    memory: ResponseMemory,
    telemetry: Telemetry,
    unauthenticated: Unauthenticated | None = None,
    audit: AuditTopic = NO_AUDIT_TOPIC,
    shares: Shares | None = None,
) -> AsyncIterator[GatewayListener]:
    """Serve until left; entered means listening.  All connections are closed at the end.

    ``unauthenticated`` is shared by the listeners of a process, and the limits on connections by ``shares`` with others.

    Raises:
        ListenError: the address cannot be listened on.
    """
    listening = await listen(settings)
    unauthenticated = Unauthenticated() if unauthenticated is None else unauthenticated
    clients = _Clients(settings, rewrites, limits, memory, telemetry, unauthenticated, audit, shares)
    try:
        async with asyncio.TaskGroup() as group:
            runs = (clients.accept(listening, group), clients.let_in(group), clients.sweep())
            tasks = [group.create_task(run) for run in runs]
            try:
                yield GatewayListener(name=settings.name, host=settings.host, port=listening.getsockname()[1])
            finally:
                for task in tasks:
                    task.cancel()
                clients.close()
    finally:
        listening.close()


async def listen(settings: ListenerSettings) -> socket.socket:
    """Return a socket that listens.

    Raises:
        ListenError: the address cannot be listened on.
    """
    bound = await bind(settings)
    try:
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise _listen_error(settings, error) from error
    return bound


async def bind(settings: ListenerSettings) -> socket.socket:
    """Return a socket that is bound to the address, and does not listen yet.

    Raises:
        ListenError: the address cannot be listened on.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        bound.settimeout(0)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if settings.is_one_of_several:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise _listen_error(settings, error) from error
    return bound


def _listen_error(settings: ListenerSettings, error: OSError) -> ListenError:
    return ListenError(
        service=f"gateway {settings.name}",
        address=f"{settings.host}:{settings.port}",
        reason=(error.strerror or str(error)).lower(),
    )


def network_of(ip: str) -> str:
    """Return the network of an address: one host of IPv6 has as many addresses as it likes."""
    return origin_of(ip) or ip


async def _addresses(loop: asyncio.AbstractEventLoop, host: str, port: int) -> Sequence[tuple[Any, ...]]:
    """Look up the host as ``getaddrinfo`` does, without a thread where it is an address."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)


@dataclass(slots=True)
class _Clients:
    settings: ListenerSettings
    rewrites: Rewrites
    limits: GatewayLimits
    memory: ResponseMemory
    telemetry: Telemetry
    unauthenticated: Unauthenticated
    audit: AuditTopic
    shares: Shares | None = None
    logins: ListenerLogins = field(init=False, default_factory=ListenerLogins)
    per_ip: Counter[str] = field(init=False, default_factory=Counter)
    connections: dict[GatewayConnection, str] = field(init=False, default_factory=dict)
    connecting: set[asyncio.Task[None]] = field(init=False, default_factory=set)
    logged_s: float = field(init=False, default=float("-inf"))
    waiting: WaitingLine = field(init=False)
    left_open: LeftOpen = field(init=False)
    traffic: Traffic = field(init=False)
    make_client: MakeSide = field(init=False)
    make_broker: MakeSide = field(init=False)

    def __post_init__(self) -> None:
        self.traffic = Traffic(listener=self.settings.name)
        places = self.unauthenticated.limits.max_connections
        self.waiting, self.left_open = WaitingLine(_WAITING_PER_PLACE * places), LeftOpen(_LEFT_OPEN_PER_PLACE * places)
        settings, timeout_s, read_buffer = self.settings, self.limits.connect_timeout_s, bytearray(READ_BUFFER_BYTES)

        def maker(tls: ssl.SSLContext | None, server_hostname: str | None) -> MakeSide:
            def make(events: SideEvents) -> Side:
                if tls is None:
                    return PlainSide(events, read_buffer)
                return TlsSide(events, tls, server_hostname=server_hostname, timeout_s=timeout_s)

            return make

        self.make_client = maker(settings.tls, None)
        self.make_broker = maker(settings.broker_tls, settings.broker_host)

    async def accept(self, listening: socket.socket, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await loop.sock_accept(listening)
            except OSError as error:
                # Connections in the backlog are taken when there are descriptors again.
                self._log_failure(str(error))
                await asyncio.sleep(_NO_DESCRIPTOR_PAUSE_S)
                continue
            if are_few(client.fileno()) and not self._make_room():
                self._log_failure("the last descriptors are kept back from clients")
                self._refuse(client, "descriptors")
                await asyncio.sleep(_NO_DESCRIPTOR_PAUSE_S)
                continue
            arrived = Waiting(client, address[0], address[1], loop.time(), network_of(address[0]))
            if self.unauthenticated.is_crowded(self.logins, arrived.network):
                self.traffic.refused["unauthenticated_waiting"] += self.waiting.add(arrived)
            else:
                self._begin(arrived, group)
            # A crowd in the backlog is not taken in one go: others' bytes come in between.
            await asyncio.sleep(0)

    async def let_in(self, group: asyncio.TaskGroup) -> None:
        """Begin some of those that wait, again and again."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        while True:
            asked_s = loop.time()
            await asyncio.sleep(_LET_IN_SOONEST_S if self.waiting else _LET_IN_LATEST_S)
            now_s = loop.time()
            is_late = now_s - asked_s - _LET_IN_SOONEST_S > _LATE_S
            if is_late and now_s - begun_s < _LET_IN_LATEST_S:
                continue
            waiting = self.waiting.next()
            if waiting is not None:
                self._begin(waiting, group)
                begun_s = now_s

    def _begin(self, arrived: Waiting, group: asyncio.TaskGroup) -> None:
        if self._of_all() >= self.settings.max_connections:
            self._refuse(arrived.client, "max_connections")
        elif self._of_ip(arrived.ip) >= self.settings.max_connections_per_ip:
            self._refuse(arrived.client, "max_connections_per_ip")
        else:
            self.per_ip[arrived.ip] += 1
            self._show(arrived.ip)
            connecting = group.create_task(self._connect(arrived))
            self.connecting.add(connecting)
            connecting.add_done_callback(self.connecting.discard)

    def _of_all(self) -> int:
        return self.per_ip.total() + self._of_others(Shared.CONNECTIONS, self.settings.name)

    def _of_ip(self, ip: str) -> int:
        return self.per_ip[ip] + self._of_others(Shared.CONNECTIONS_OF_IP, self._key(ip))

    def _of_others(self, what: Shared, key: str) -> int:
        return 0 if self.shares is None else int(total(self.shares.others(what, key)))

    def _show(self, ip: str) -> None:
        if self.shares is not None:
            self.shares.show(Shared.CONNECTIONS, Taken(self.per_ip.total()), self.settings.name)
            self.shares.show(Shared.CONNECTIONS_OF_IP, Taken(self.per_ip.get(ip, 0)), self._key(ip))

    def _key(self, ip: str) -> str:
        return f"{self.settings.name} {ip}"

    async def sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_s = asyncio.get_running_loop().time()
            for connection in tuple(self.connections):
                connection.sweep(now_s)
            self.unauthenticated.sweep(now_s)
            too_long = self.waiting.close_before(now_s - self.unauthenticated.limits.login_timeout_s)
            self.traffic.refused["unauthenticated_waiting"] += too_long
            self.left_open.close_before(now_s - _LEFT_OPEN_S)
            self.traffic.connections = len(self.connections)
            self.traffic.report(self.telemetry)

    def close(self) -> None:
        self.waiting.close()
        self.left_open.close()
        for task in self.connecting:
            task.cancel()
        for connection in tuple(self.connections):
            connection.close("shutdown")
        self.traffic.report(self.telemetry)

    def _make_room(self) -> bool:
        """Free the descriptor of an idle connection."""
        if self.left_open.close_oldest():
            return True
        if self.waiting.close_oldest():
            self.traffic.refused["unauthenticated_waiting"] += 1
            return True
        return False

    def _log_failure(self, reason: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self.logged_s >= _LOG_EVERY_S:
            self.logged_s = now_s
            log.warning("gateway.accept.failed", listener=self.settings.name, reason=reason)

    def _refuse(self, client: socket.socket, reason: str) -> None:
        client.close()
        self.traffic.refused[reason] += 1

    async def _connect(self, arrived: Waiting) -> None:
        client, network = arrived.client, arrived.network
        now_s = asyncio.get_running_loop().time()
        connecting = asyncio.current_task()

        def shed(reason: str) -> None:
            connection.shed(reason)
            if connecting is not None:
                connecting.cancel()  # of no effect once it is connected

        login = self.unauthenticated.enter(self.logins, network, now_s, shed)
        login.leave_open = lambda: self._leave_open(client, network)
        connection = GatewayConnection(
            client_address=f"{arrived.ip}:{arrived.port}",
            login=login,
            share=ListenerShare(traffic=self.traffic, rewrites=self.rewrites, limits=self.limits, memory=self.memory),
            make_client=self.make_client,
            make_broker=self.make_broker,
            audit=self.audit,
            monotonic_s=asyncio.get_running_loop().time,
            when_closed=self._closed,
        )
        self.connections[connection] = arrived.ip
        reason = "handshake"
        try:
            async with asyncio.timeout(self.limits.connect_timeout_s):
                client.settimeout(0)
                await connection.client.take(client)
                reason = "broker_unreachable"
                await connection.broker.take(await self._reach_broker())
        except (OSError, TimeoutError) as error:
            log.info("gateway.connection.refused", listener=self.settings.name, reason=reason, error=str(error))
            self.traffic.refused[reason] += 1
            connection.close(reason)
            if connection.client.is_gone:
                client.close()
                self._closed(connection)
            return
        except asyncio.CancelledError:
            # In the middle of a handshake, say, which no side can end.
            connection.close("shutdown")
            connection.client.abort()
            connection.broker.abort()
            client.close()
            self._closed(connection)
            raise
        if not connection.is_closed:
            connection.connected()

    def _leave_open(self, client: socket.socket, network: str) -> None:
        if self.waiting or self.unauthenticated.is_crowded(self.logins, network):
            self.left_open.add(client, asyncio.get_running_loop().time())

    async def _reach_broker(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        host, port = self.settings.broker_host, self.settings.broker_port
        found = await _addresses(loop, host, port)
        for number, (family, kind, protocol, _, address) in enumerate(found, start=1):
            broker = socket.socket(family, kind, protocol)
            broker.settimeout(0)
            try:
                await loop.sock_connect(broker, address)
            except OSError:
                broker.close()
                if number == len(found):
                    raise
            except BaseException:
                broker.close()
                raise
            else:
                return broker
        raise AssertionError("getaddrinfo gives an address or raises")

    def _closed(self, connection: GatewayConnection) -> None:
        ip = self.connections.pop(connection, None)
        if ip is None:
            return
        connection.gone()
        self.per_ip[ip] -= 1
        if not self.per_ip[ip]:
            del self.per_ip[ip]
        self._show(ip)
