"""The read-only Kafka listener: accepts clients, and bounds how many there are."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import structlog

from tiersidecar.domain.errors import ListenError
from tiersidecar.ports.metrics.bucket import BUCKET_CONNECTIONS, BUCKET_CONNECTIONS_CLOSED
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.services.bucket.apis import Api
from tiersidecar.services.bucket.connection import BucketConnection, ClientLimits, EndedError, Shared
from tiersidecar.services.bucket.memory_budget import MemoryBudget
from tiersidecar.services.bucket.sasl import Mechanisms
from tiersidecar.services.bucket.users import User
from tiersidecar.services.client_limits import Crowd, origin_of
from tiersidecar.services.descriptors import are_few
from tiersidecar.services.failed_logins import FailedLogins

log = structlog.get_logger(__name__)

_BACKLOG = 512
_NO_DESCRIPTOR_PAUSE_S = 0.1
_LOG_EVERY_S = 60.0
_READ_BUFFER_BYTES = 64 * 1024


_LEAST_ARRIVING_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketListenerSettings:
    """``port`` 0 takes a free one.  Connections that have not logged in have a number of their own: a new one of these closes
    the one that has been there longest, and never one that is logged in.  One user may have half of ``max_connections``."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    max_connections: int = 1000
    max_connections_before_login: int = 200
    request_memory_bytes: int = 256 * 1024 * 1024
    limits: ClientLimits = field(default_factory=ClientLimits)


@dataclass(slots=True, eq=False)
class _Client:
    """A connection and its task.  ``user`` is set once it has logged in."""

    address: str
    task: asyncio.Task[None] | None = None
    user: User | None = None
    crowded_out: bool = False


def bind_listener(settings: BucketListenerSettings) -> socket.socket:
    """Listen.

    Raises:
        ListenError: the address cannot be listened on.
    """
    try:
        found = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.settimeout(0)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(_BACKLOG)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        address_text = f"{settings.host}:{settings.port}"
        raise ListenError(service="Kafka listener", address=address_text, reason=reason) from error
    return listening


@asynccontextmanager
async def serve_kafka(
    listening: socket.socket,
    settings: BucketListenerSettings,
    *,
    apis: Mapping[int, Api],
    mechanisms: Mechanisms,
    telemetry: Telemetry,
    failed_logins: FailedLogins | None = None,
) -> AsyncIterator[None]:
    """Serve on ``listening`` until left; all connections are closed then.  Without mechanisms no client logs in.
    ``failed_logins`` may be another listener's, too."""
    shared = Shared(
        apis=apis,
        mechanisms=mechanisms,
        limits=settings.limits,
        telemetry=telemetry,
        failed_logins=failed_logins or FailedLogins(),
        request_memory=MemoryBudget(settings.request_memory_bytes),
        arriving_memory=MemoryBudget(max(settings.request_memory_bytes // 4, _LEAST_ARRIVING_BYTES)),
    )
    clients = _Clients(settings, shared)
    accepting = asyncio.create_task(clients.accept(listening), name="kafka listener")
    try:
        yield
    finally:
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
        listening.close()
        await clients.close()


class _Clients:
    def __init__(self, settings: BucketListenerSettings, shared: Shared) -> None:
        self._settings, self._shared = settings, shared
        self._mechanisms, self._telemetry = shared.mechanisms, shared.telemetry
        most = settings.max_connections_before_login if self._mechanisms.names else settings.max_connections
        self._strangers: Crowd[_Client] = Crowd(most=most, most_per_origin=max(most // 2, 1))
        self._per_user: Counter[str] = Counter()
        self._all: set[_Client] = set()
        self._logged_s = float("-inf")

    async def accept(self, listening: socket.socket) -> None:
        """Take connections until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, address = await loop.sock_accept(listening)
            except OSError as error:
                self._log_failure(str(error))
                await asyncio.sleep(_NO_DESCRIPTOR_PAUSE_S)
                continue
            if are_few(connected.fileno()):
                connected.close()
                self._log_failure("the last descriptors are kept back from clients")
                await asyncio.sleep(_NO_DESCRIPTOR_PAUSE_S)
                continue
            self._take(connected, address[0])
            # A crowd in the backlog is not taken in one go: others' bytes come in between.
            await asyncio.sleep(0)

    async def close(self) -> None:
        """End all."""
        tasks = [client.task for client in self._all if client.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _take(self, connected: socket.socket, address: str) -> None:
        client = _Client(address)
        admission = self._strangers.admit(client, origin_of(address))
        if not admission.is_admitted:
            connected.close()
            self._closed("max_connections")
            return
        if admission.instead_of is not None and admission.instead_of.task is not None:
            admission.instead_of.crowded_out = True
            admission.instead_of.task.cancel()
        if not self._mechanisms.names:
            self._strangers.begin_request(client)  # no client logs in, so none gives way
        self._all.add(client)
        client.task = asyncio.create_task(self._serve(client, connected), name=f"kafka client {address}")

    async def _serve(self, client: _Client, connected: socket.socket) -> None:
        reason = "left"
        try:
            self._count()
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader, writer = await self._connect(connected)
            try:
                await self._connection(client, reader, writer).run()
            finally:
                await _closed(writer)
        except EndedError as error:
            reason = error.reason
            if error.detail:
                log.info("bucket.client.ended", address=client.address, reason=reason, detail=error.detail)
        except ssl.SSLError:
            reason = "handshake"
        except OSError:
            pass
        except Exception as error:
            reason = "unexpected"
            log.exception("bucket.client.unexpected", address=client.address, exc_info=error)
        finally:
            connected.close()
            self._leave(client)
            self._closed("crowded_out" if client.crowded_out else reason)

    async def _connect(self, connected: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_READ_BUFFER_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        tls = self._settings.tls
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            connected,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else self._settings.limits.login_timeout_s,
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    def _connection(
        self, client: _Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> BucketConnection:
        return BucketConnection(
            reader,
            writer,
            self._shared,
            when_logged_in=lambda user: self._log_in(client, user),
            address=client.address,
        )

    def _log_in(self, client: _Client, user: User) -> bool:
        most = self._settings.max_connections
        if self._per_user.total() >= most or self._per_user[user.name] >= max(most // 2, 1):
            return False
        self._strangers.leave(client)
        client.user = user
        self._per_user[user.name] += 1
        self._count()
        return True

    def _leave(self, client: _Client) -> None:
        self._all.discard(client)
        self._strangers.leave(client)
        if client.user is not None:
            self._per_user[client.user.name] -= 1
            if not self._per_user[client.user.name]:
                del self._per_user[client.user.name]
        self._count()

    def _count(self) -> None:
        logged_in = self._per_user.total() if self._mechanisms.names else len(self._all)
        self._telemetry.gauge(BUCKET_CONNECTIONS, logged_in, logged_in="true")
        self._telemetry.gauge(BUCKET_CONNECTIONS, len(self._all) - logged_in, logged_in="false")

    def _closed(self, reason: str) -> None:
        self._telemetry.count(BUCKET_CONNECTIONS_CLOSED, reason=reason)

    def _log_failure(self, reason: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = now_s
            log.warning("bucket.accept.failed", reason=reason)


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Close once all that was written is out, or after a second with a client that takes nothing."""
    writer.close()
    try:
        async with asyncio.timeout(1.0):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        with suppress(AttributeError):
            writer.transport.abort()
