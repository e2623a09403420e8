"""Open logged-in connections, and keep them while they are in use."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from weakref import WeakValueDictionary

from tiersidecar.adapters.kafka.connection import BrokerConnection, ConnectionLimits, open_socket
from tiersidecar.adapters.kafka.sasl import log_in
from tiersidecar.adapters.kafka.security import SecuritySettings
from tiersidecar.adapters.kafka.tokens import Tokens, open_tokens

_NEW_LOGIN_AT = 0.85
"""Part of a session's lifetime after which it is not used for new requests (Java clients: 85 to 95 %)."""


class Connector:
    """Makes connections; it holds no state but the given token cache and TLS context."""

    def __init__(
        self,
        settings: SecuritySettings,
        *,
        client_id: str,
        tls: ssl.SSLContext | None = None,
        tokens: Tokens | None = None,
        limits: ConnectionLimits | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._client_id = client_id
        self._tls = tls
        self._tokens = tokens
        self._monotonic_s = monotonic_s
        self.limits = limits or ConnectionLimits()

    async def connect(self, address: str, settings: SecuritySettings | None = None) -> BrokerConnection:
        """Return a new connection to ``host:port``, logged in with our settings, or with ``settings`` with the same TLS, say.

        Raises:
            BrokerUnreachableError: no broker there, or no token for it.
            BrokerRefusedError: the broker does not let us in.
        """
        connection = await open_socket(address, client_id=self._client_id, tls=self._tls, limits=self.limits)
        try:
            source = None if settings is None else settings.oauth_token_source
            tokens = self._tokens if source is None else open_tokens(source)
            lifetime_s = await log_in(connection, settings or self._settings, tokens)
        except BaseException:
            await connection.close()
            raise
        if lifetime_s is not None:
            connection.usable_until_s = self._monotonic_s() + lifetime_s * _NEW_LOGIN_AT
        return connection

    def is_usable(self, connection: BrokerConnection) -> bool:
        """Return whether new requests may go over it."""
        return connection.is_open and self._monotonic_s() < connection.usable_until_s


class ConnectionPool:
    """One connection per key, made at its first use, and made again when it is gone or its login ends.

    With ``max_connections`` the one that was used longest ago makes room.
    """

    def __init__(self, *, is_usable: Callable[[BrokerConnection], bool], max_connections: int | None = None) -> None:
        self._is_usable = is_usable
        self._max_connections = max_connections
        self._connections: OrderedDict[Hashable, BrokerConnection] = OrderedDict()
        self._retired: list[BrokerConnection] = []
        # A lock lives as long as a caller waits for its key.
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    def live_connection(self, key: Hashable) -> BrokerConnection | None:
        """Return the connection of ``key`` if there is a usable one now."""
        connection = self._connections.get(key)
        if connection is None or not self._is_usable(connection):
            return None
        self._connections.move_to_end(key)
        return connection

    async def connection(self, key: Hashable, connect: Callable[[], Awaitable[BrokerConnection]]) -> BrokerConnection:
        """Return a usable connection of ``key``; of many callers at once, one connects.  Raise what ``connect`` raises."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            connection = self.live_connection(key)
            if connection is None:
                await self._retire_unusable()
                connection = self._connections[key] = await connect()
                self._make_room()
            return connection

    async def close(self) -> None:
        """Close all; requests in flight fail."""
        connections = [*self._retired, *self._connections.values()]
        self._retired.clear()
        self._connections.clear()
        await asyncio.gather(*(connection.close() for connection in connections))

    def _make_room(self) -> None:
        while self._max_connections is not None and len(self._connections) > self._max_connections:
            _, oldest = self._connections.popitem(last=False)
            self._retired.append(oldest)

    async def _retire_unusable(self) -> None:
        # A login that ends soon still has requests in flight: its connection is closed when they are answered, at the
        # latest the next time that a connection is replaced.
        for key in [key for key, connection in self._connections.items() if not self._is_usable(connection)]:
            self._retired.append(self._connections.pop(key))
        finished = [connection for connection in self._retired if connection.is_idle]
        self._retired = [connection for connection in self._retired if not connection.is_idle]
        await asyncio.gather(*(connection.close() for connection in finished))
