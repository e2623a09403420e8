"""A consumer that reads all partitions in one incremental fetch session (KIP-227), as Java's does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from tests.simulation.client_connection import ClientConnection
from tests.simulation.clients import FINISH_S, Client, Servers
from tests.simulation.cluster import SimulatedPartition
from tests.simulation.environment import Environment
from tests.simulation.read_check import ReadCheck, Seen
from tests.simulation.serving import Ask, Fate, Serving, fetched_answer
from tests.simulation.wire import SessionFetch, fetch_request, key_of
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.formats.wire.fetch import (
    FETCH_SESSION_ID_NOT_FOUND,
    FULL_EPOCH,
    NO_ERROR,
    FetchedPartition,
    FetchPartition,
    FetchResponse,
    PartitionKey,
    read_fetch_response,
)
from tiersidecar.services.gateway.exchange import UpstreamClosedError

_MOST = 50_000
_MAX_WAIT_MS = 500
_VERSIONS = (7, 11, 12, 13, 17)
"""Versions of Fetch, all with sessions: by name and by id, rigid and flexible."""


class ClientSession:
    """``org.apache.kafka.clients.FetchSessionHandler``: the partitions requested so far, and those of the next Fetch."""

    def __init__(self) -> None:
        self.id, self.epoch = 0, FULL_EPOCH
        self._requested: dict[PartitionKey, FetchPartition] = {}

    def next(
        self, wanted: Mapping[PartitionKey, FetchPartition]
    ) -> tuple[dict[PartitionKey, FetchPartition], list[PartitionKey]]:
        """Return the partitions to ask for, and those to forget."""
        known, self._requested = self._requested, dict(wanted)
        if self.epoch == FULL_EPOCH:
            return dict(wanted), []
        changed = {key: asked for key, asked in wanted.items() if known.get(key) != asked}
        return changed, [key for key in known if key not in wanted]

    def answered(self, response: FetchResponse) -> str:
        """Apply an answer; return a sentence if a client cannot make sense of it, else empty."""
        if response.error_code != NO_ERROR:
            self.id = 0 if response.error_code == FETCH_SESSION_ID_NOT_FOUND else self.id
            self.epoch = FULL_EPOCH
            return ""
        keys, is_full = {row.key for row in response.partitions}, self.epoch == FULL_EPOCH
        self.id = response.session_id
        self.epoch = FULL_EPOCH if self.id == 0 else self.epoch + 1
        if len(keys) < len(response.partitions) or keys - self._requested.keys():
            return f"gets {[row.key for row in response.partitions]}, and asked for {list(self._requested)}"
        if is_full and self._requested.keys() - keys:
            return f"gets only {list(keys)} in a full answer, and asked for {list(self._requested)}"
        return ""

    def lost(self) -> None:
        """Close the session, for it is not known whether the last Fetch arrived: it is closed, and another one asked for."""
        self.epoch = FULL_EPOCH


class SessionConsumer:
    """Reads from one broker at a time, and there from every partition that it has not paused."""

    def __init__(self, world: Environment, servers: Servers, check: ReadCheck) -> None:
        self._world, self._servers, self._check = world, servers, check
        self.name = "session consumer"
        self._client = Client(world, self.name)
        self._partitions = list(world.cluster.partitions.values())
        self._version = world.chances.choose(f"{self.name} version", _VERSIONS)
        self._positions = [0 for _ in self._partitions]
        self._max_bytes = [_MOST for _ in self._partitions]
        knows_epochs = self._version >= 9 and world.chances.draw(f"{self.name} knows leader epochs") < 0.7
        self._epochs = [partition.epoch for partition in self._partitions] if knows_epochs else []
        self._paused: set[int] = set()
        self._read_committed = world.chances.draw(f"{self.name} isolation") < 0.5
        self._broker = 1
        self._session = ClientSession()
        self._served_by: tuple[Serving, ClientConnection] | None = None
        self._last = "nothing was read"

    async def consume(self) -> None:
        """Read until nothing fails any more."""
        chances = self._world.chances
        while True:
            await asyncio.sleep(chances.between(f"{self.name} pause", 0.3, 3.0))
            if chances.quiet:
                return
            self._do_something_else()
            await self._poll([at for at in range(len(self._partitions)) if at not in self._paused])

    async def finish(self) -> None:
        """Read on to the end of each log; those that are read to the end are forgotten."""
        until_s, left = self._world.loop.time() + FINISH_S, list(range(len(self._partitions)))
        for at, partition in enumerate(self._partitions):
            self._positions[at] = max(self._positions[at], partition.dropped)
            self._max_bytes[at] = _MOST
        while left := [at for at in left if not self._world.is_spoiled(self._partitions[at])]:
            leader = self._partitions[left[0]].leader
            assert leader is not None, "every process is there"
            self._go_to(leader)
            asked = [at for at in left if self._partitions[at].leader == leader]
            if await self._poll(asked):
                left = [at for at in left if at not in asked or self._positions[at] < self._end(at)]
            if left and self._world.loop.time() > until_s:
                where = ", ".join(f"{self._positions[at]} of {self._end(at)} in {at}" for at in left)
                self._world.complain(f"the {self.name} does not get past {where}: {self._last}")
                return
            await asyncio.sleep(1.0)

    def _end(self, at: int) -> int:
        """Return the end, exclusive, as the leader knows it."""
        log = self._partitions[at].history_log
        return self._partitions[at].last_stable_offset(log) if self._read_committed else log.high_watermark

    # -- what it does besides

    def _do_something_else(self) -> None:
        chances, name = self._world.chances, self.name
        lot = chances.draw(f"{name} does")
        at = int(chances.between(f"{name} does it to", 0, len(self._partitions)))
        if lot < 0.12:
            self._seek(at)
        elif lot < 0.22:
            self._paused ^= {at}
        elif lot < 0.27:
            self._go_to(chances.choose(f"{name} goes to", sorted(self._servers)))
        elif lot < 0.4:
            self._go_to(self._partitions[at].leader or self._broker)
        elif lot < 0.45:
            self._served_by = None  # the next Fetch of the session comes by another connection

    def _seek(self, at: int) -> None:
        chances, log = self._world.chances, self._partitions[at].history_log
        stop = log.log_start_offset if self._world.scenario.rereads else log.high_watermark
        self._positions[at] = int(chances.between(f"{self.name} seeks", 0, stop + 1))
        self._max_bytes[at] = chances.choose(f"{self.name} bytes", (1, 400, 1500, _MOST))

    def _go_to(self, broker: int) -> None:
        if broker != self._broker:
            self._broker, self._session, self._served_by = broker, ClientSession(), None

    # -- one Fetch

    async def _poll(self, wanted: Sequence[int]) -> bool:
        """Ask for these partitions; return whether there was an answer, and none of the partitions' was an error."""
        serving = self._servers[self._broker].serving
        if serving is None:
            self._check.outcomes["no process there"] += 1
            return False
        connection, fetch = self._connected(serving), self._fetch(wanted)
        seen = {at: self._check.begin(self._partitions[at], self._broker, serving) for at in wanted}
        positions = list(self._positions)
        body = await self._client.answer(serving, _answer(connection, fetch))
        if body is None:
            self._last = "no answer"
            self._check.outcomes["no answer"] += 1
            self._session.lost()
            self._served_by = None
            return False
        response = read_fetch_response(body, self._version)
        fault = self._session.answered(response)
        if fault:
            self._world.complain(f"the {self.name} {fault}")
            return False
        if response.error_code != NO_ERROR:
            self._last = f"session error {response.error_code}"
            self._check.outcomes["session ended"] += 1
            return False
        by_key = {key_of(self._version, self._partitions[at].topic_id_partition): at for at in wanted}
        checked = [
            await self._check_row(serving, by_key[row.key], positions, body, row, seen[by_key[row.key]])
            for row in response.partitions
        ]
        return all(checked)

    def _connected(self, serving: Serving) -> ClientConnection:
        if self._served_by is None or self._served_by[0] is not serving:
            connection = serving.connect(self.name)
            if self._world.chances.draw(f"{self.name} goes on in its session") < 0.5:
                self._session.lost()
            self._served_by = serving, connection
        return self._served_by[1]

    def _fetch(self, wanted: Sequence[int]) -> SessionFetch:
        session = self._session
        session_id, session_epoch = session.id, session.epoch
        changed, forgotten = session.next(
            {
                key_of(self._version, self._partitions[at].topic_id_partition): FetchPartition(
                    current_leader_epoch=self._epochs[at] if self._epochs else -1,
                    fetch_offset=self._positions[at],
                    max_bytes=self._max_bytes[at],
                )
                for at in wanted
            }
        )
        return SessionFetch(
            version=self._version,
            session_id=session_id,
            session_epoch=session_epoch,
            partitions=changed,
            forgotten=forgotten,
            max_wait_ms=_MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=self._world.chances.choose(f"{self.name} bytes in all", (1, 800, _MOST, _MOST)),
            read_committed=self._read_committed,
        )

    async def _check_row(
        self, serving: Serving, at: int, positions: Sequence[int], body: memoryview, row: FetchedPartition, seen: Seen
    ) -> bool:
        """Check a partition's row, and return whether it was read; it goes on from there."""
        partition, offset = self._partitions[at], positions[at]
        answer = fetched_answer(self._version, body, row, offset, read_committed=self._read_committed)
        ask = Ask(
            partition=partition.topic_id_partition,
            offset=offset,
            read_committed=self._read_committed,
            max_bytes=self._max_bytes[at],
            stop_offset=offset + _MOST,
            version=self._version,
        )
        self._last = f"{answer.fate.value} {answer.why}"
        next_offset = self._check.check(f"{self.name} of {at} at broker {self._broker}", partition, ask, answer, seen)
        self._positions[at] = max(offset, next_offset)
        if answer.fate is Fate.TRY_AGAIN and self._epochs:
            self._epochs[at] = partition.epoch  # it looks at Metadata
        if answer.fate is Fate.OUT_OF_RANGE:
            await self._reset(serving, partition, at)
        return answer.fate is Fate.READ

    async def _reset(self, serving: Serving, partition: SimulatedPartition, at: int) -> None:
        """Reset to the earliest, once the leader has said that it is out of range (KIP-392)."""
        if self._broker != partition.leader:
            self._go_to(partition.leader or self._broker)
            return
        earliest = await self._client.answer(serving, serving.earliest(partition.topic_id_partition))
        if earliest is not None:
            self._check.check_earliest(f"{self.name} at broker {self._broker}", partition, earliest)
            self._positions[at] = earliest


async def _answer(connection: ClientConnection, fetch: SessionFetch) -> memoryview | None:
    """Return the answer; None: the connection has ended."""
    try:
        return await connection.exchange(ApiKey.FETCH, fetch.version, fetch_request(fetch))
    except UpstreamClosedError:
        return None
