"""Connections for requests that a broker answers only when something has happened, DeleteRecords above all.

A broker works on one request of a connection at a time.  DeleteRecords waits there for every follower to trim as well, half a
second as a rule, and for its whole timeout once the leadership moves meanwhile: whatever came behind it on the same connection
(who leads now, may I still trim) would wait as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from tiersidecar.adapters.kafka.connection import BrokerConnection
from tiersidecar.adapters.kafka.connector import ConnectionPool


class AsideConnections:
    """At most ``width`` per address, each for one request at a time; those that were used last are used first."""

    def __init__(
        self, pool: ConnectionPool, connect: Callable[[str], Awaitable[BrokerConnection]], *, width: int = 4
    ) -> None:
        self._pool, self._connect, self._width = pool, connect, width
        self._free: dict[str, asyncio.LifoQueue[int]] = {}

    @asynccontextmanager
    async def connection(self, address: str) -> AsyncIterator[BrokerConnection]:
        """One that nothing else is sent over until the block ends.

        Raises:
            BrokerUnreachableError: the broker does not answer.
            BrokerRefusedError: it does not let us in.
        """
        free = self._free_at(address)
        slot = await free.get()
        try:
            connection = await self._pool.connection((address, slot), lambda: self._connect(address))
            try:
                yield connection
            finally:
                if not connection.is_idle:  # cancelled: the broker still waits, and so would the next request
                    await connection.close()
        finally:
            free.put_nowait(slot)

    def _free_at(self, address: str) -> asyncio.LifoQueue[int]:
        if address not in self._free:
            free: asyncio.LifoQueue[int] = asyncio.LifoQueue()
            for slot in reversed(range(self._width)):
                free.put_nowait(slot)
            self._free[address] = free
        return self._free[address]
