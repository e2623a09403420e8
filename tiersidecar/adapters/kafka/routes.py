"""Route requests: to any bootstrap server, to one broker, or to the leaders of partitions.

A broker works on one request of a connection at a time.  DeleteRecords waits for every follower to trim, usually half a second,
and for its whole timeout if the leadership moves meanwhile.  It has dedicated connections, so that other requests (which broker
leads now, may this trim continue) do not wait behind it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13 import MetadataResponse

from tiersidecar.adapters.kafka import apis
from tiersidecar.adapters.kafka.connection import BrokerConnection, refused
from tiersidecar.adapters.kafka.connector import ConnectionPool, Connector
from tiersidecar.adapters.kafka.leaders import Leaders
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.offsets import NO_EPOCH, LeaderEpoch
from tiersidecar.formats.wire.metadata_digests import metadata_digest


class DedicatedConnections:
    """At most ``width`` per address, each for one request at a time; those that were used last are used first."""

    def __init__(
        self, pool: ConnectionPool, connect: Callable[[str], Awaitable[BrokerConnection]], *, width: int = 4
    ) -> None:
        self._pool, self._connect, self._width = pool, connect, width
        self._free: dict[str, asyncio.LifoQueue[int]] = {}

    @asynccontextmanager
    async def connection(self, address: str) -> AsyncIterator[BrokerConnection]:
        """Yield a connection over which nothing else is sent until the block ends.

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


A = TypeVar("A")
Rows = dict[tuple[str, int], A]
"""One leader's answers by topic and partition."""
AskLeader = Callable[[BrokerConnection, Sequence[TopicIdPartition]], Awaitable[Rows[A]]]


def addresses(bootstrap_servers: str | Sequence[str]) -> tuple[str, ...]:
    """Return ``bootstrap.servers`` as single addresses, in their order.

    Raises:
        ValueError: there is none.
    """
    text = bootstrap_servers if isinstance(bootstrap_servers, str) else ",".join(bootstrap_servers)
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise ValueError("no bootstrap servers")
    return found


class Routes:
    """Connections by purpose.  ``bootstrap`` are addresses, the local broker's first."""

    def __init__(
        self,
        connector: Connector,
        bootstrap: tuple[str, ...],
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connector = connector
        self._pool = ConnectionPool(is_usable=connector.is_usable)
        self._dedicated = DedicatedConnections(self._pool, connector.connect)
        self._bootstrap = bootstrap
        self._monotonic_s = monotonic_s
        self._leaders = Leaders()

    async def any(self) -> BrokerConnection:
        """Return the first bootstrap server that we are connected to, else the first that answers.

        Raises:
            BrokerUnreachableError: none does; the reason has each one's.
            BrokerRefusedError: one does not let us in.
        """
        for address in self._bootstrap:
            if (connection := self._pool.live_connection(address)) is not None:
                return connection
        failures: list[BrokerUnreachableError] = []
        for address in self._bootstrap:
            try:
                return await self._connect(address)
            except BrokerUnreachableError as error:
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        reason = "; ".join(f"{failure.address}: {failure.reason}" for failure in failures)
        raise BrokerUnreachableError(address=",".join(self._bootstrap), reason=reason) from failures[0]

    async def broker(self, broker_id: BrokerId) -> BrokerConnection:
        """Return one broker, at the address that the cluster gives for the listener we come through.

        Raises:
            BrokerUnreachableError: it does not answer, or is not among the live brokers.
        """
        return await self._connect(await self._address(broker_id))

    async def metadata(self, topics: Sequence[str] | None) -> MetadataResponse:
        """Ask for ``topics`` (None: all, empty: only the brokers), and remember their leaders.

        Raises:
            BrokerRefusedError: REBOOTSTRAP_REQUIRED above all (KIP-1102); the next request connects anew.
        """
        connection = await self.any()
        response = await connection.ask(apis.METADATA, lambda version: apis.metadata(version, topics))
        _require_no_error(connection, response)
        self._leaders.learn(response, now_s=self._monotonic_s(), whole_cluster=topics is None)
        return response

    async def metadata_of_all(self, known: bytes) -> tuple[bytes, MetadataResponse | None]:
        """Ask for all topics; return what :meth:`metadata` does, and its digest.  An answer whose digest is ``known`` is not
        decoded, and None, unless the leaders were learnt from another one since: two of these may be under way.

        Raises:
            BrokerRefusedError: as :meth:`metadata`.
        """
        connection, digest = await self.any(), b""

        def is_known(payload: bytes, version: int) -> bool:
            nonlocal digest
            digest = metadata_digest(payload, version)
            return digest == known == self._leaders.digest

        response = await connection.ask_unless_known(
            apis.METADATA, lambda version: apis.metadata(version, None), is_known
        )
        if response is None:
            self._leaders.learn_again(now_s=self._monotonic_s())
        else:
            _require_no_error(connection, response)
            self._leaders.learn(response, now_s=self._monotonic_s(), whole_cluster=True, digest=digest)
        return digest, response

    async def ask_leaders(
        self,
        partitions: Iterable[TopicIdPartition],
        ask: AskLeader[A],
        without: Callable[[str], A],
        *,
        max_age_s: float,
        dedicated: bool = False,
        leader_epochs: Mapping[TopicIdPartition, LeaderEpoch] | None = None,
    ) -> dict[TopicIdPartition, A]:
        """Ask each partition's leader, all leaders at once, by what was learnt within ``max_age_s``.

        ``dedicated`` is for requests that a broker answers late: nothing else has to wait for them
        (:class:`DedicatedConnections`).  ``leader_epochs``: a partition that is led in another epoch than this is not asked
        (FENCED_LEADER_EPOCH).  ``without`` makes the answer of a partition that got none, from Kafka's name of the error.

        Raises:
            BrokerUnreachableError: no leader answered at all, or no broker knows the leaders.
            BrokerRefusedError: a leader did not let us in.
        """
        wanted = list(partitions)
        await self._look_up((key.topic for key in wanted), max_age_s)
        answers: dict[TopicIdPartition, A] = {}
        groups: defaultdict[BrokerId, list[TopicIdPartition]] = defaultdict(list)
        for key in wanted:
            leader = self._leaders.leader(key, (leader_epochs or {}).get(key, NO_EPOCH))
            if isinstance(leader, str):
                answers[key] = without(leader)
            else:
                groups[leader].append(key)
        async with asyncio.TaskGroup() as tasks:
            outcomes = [
                (group, tasks.create_task(self._ask_one(leader, group, ask, dedicated=dedicated)))
                for leader, group in groups.items()
            ]
        results = [(group, task.result()) for group, task in outcomes]
        _raise_if_hopeless([result for _, result in results])
        for group, rows in results:
            answers.update(_answers(group, rows, without))
        return answers

    def forget(self, topics: Iterable[str]) -> None:
        """Forget the leaders of ``topics``: they are looked up before the next request."""
        self._leaders.forget(topics)

    async def close(self) -> None:
        """Close all connections; requests in flight fail."""
        await self._pool.close()

    async def _address(self, broker_id: BrokerId) -> str:
        address = self._leaders.address(broker_id)
        if address is None:
            await self.metadata(())
            address = self._leaders.address(broker_id)
        if address is None:
            raise BrokerUnreachableError(address=f"broker {broker_id}", reason="not among the brokers of the cluster")
        return address

    async def _connect(self, address: str) -> BrokerConnection:
        return await self._pool.connection(address, lambda: self._connector.connect(address))

    async def _ask_one(
        self, leader: BrokerId, group: Sequence[TopicIdPartition], ask: AskLeader[A], *, dedicated: bool
    ) -> Rows[A] | BrokerUnreachableError | BrokerRefusedError:
        try:
            address = await self._address(leader)
            if not dedicated:
                return await ask(await self._connect(address), group)
            async with self._dedicated.connection(address) as connection:
                return await ask(connection, group)
        except (BrokerUnreachableError, BrokerRefusedError) as error:
            self._leaders.forget(key.topic for key in group)
            return error

    async def _look_up(self, topics: Iterable[str], max_age_s: float) -> None:
        stale = self._leaders.stale(topics, now_s=self._monotonic_s(), max_age_s=max_age_s)
        if stale:
            self._leaders.forget(stale)
            await self.metadata(stale)


def _require_no_error(connection: BrokerConnection, response: MetadataResponse) -> None:
    error_code = getattr(response, "error_code", ErrorCode.none)  # from version 13 on
    if error_code is not ErrorCode.none:
        connection.usable_until_s = -math.inf
        raise refused(apis.METADATA, connection.address, error_code)


def _raise_if_hopeless(outcomes: Sequence[object]) -> None:
    unreachable = [outcome for outcome in outcomes if isinstance(outcome, BrokerUnreachableError)]
    if unreachable and len(unreachable) == len(outcomes):
        raise unreachable[0]
    for outcome in outcomes:
        if isinstance(outcome, BrokerRefusedError):
            raise outcome


def _answers(
    group: Sequence[TopicIdPartition],
    rows: Rows[A] | BrokerUnreachableError | BrokerRefusedError,
    without: Callable[[str], A],
) -> dict[TopicIdPartition, A]:
    if not isinstance(rows, dict):
        return {key: without("BROKER_NOT_AVAILABLE") for key in group}
    silent = without("UNKNOWN_SERVER_ERROR")
    return {key: rows.get((key.topic, key.partition), silent) for key in group}
