"""The sidecars' own topics, as logs in memory: durable once written, read by each process with a lag of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass

from aiokafka import TopicPartition

from tests.simulation.chances import Chances
from tests.simulation.network import FaultRates, Network
from tests.simulation.virtual_time import VirtualTimeLoop
from tiersidecar.domain.errors import BrokerUnreachableError
from tiersidecar.domain.ids import Uuid

_IDLE_POLL_S = 5.0
"""Time of a poll that finds nothing: longer than aiokafka's, for each costs a turn of the loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A record with the fields of aiokafka's ConsumerRecord that are used."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    written_s: float


class SimulatedTopic:
    """All partitions of one topic, with the settings that it was made with; ``written`` is called with each record."""

    def __init__(
        self,
        name: str,
        topic_id: Uuid,
        partitions: int,
        configs: Mapping[str, str],
        written: Callable[[str, bytes | None, bytes | None], None] = lambda topic, key, value: None,
    ) -> None:
        self.written = written
        self.name, self.topic_id, self.configs = name, topic_id, dict(configs)
        self.partitions: list[list[TopicRecord]] = [[] for _ in range(partitions)]
        self.waiting: list[asyncio.Future[None]] = []

    def append(self, partition: int, *, key: bytes | None, value: bytes | None, timestamp_ms: int, now_s: float) -> int:
        """Append a record, and return its offset."""
        log = self.partitions[partition]
        log.append(TopicRecord(offset=len(log), timestamp=timestamp_ms, key=key, value=value, written_s=now_s))
        self.written(self.name, key, value)
        waiting, self.waiting = self.waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
        return len(log) - 1


@dataclass(frozen=True, slots=True)
class HeldFetch:
    """A Fetch that is out: from where on it asks, and when it is answered though there is nothing."""

    positions: Mapping[TopicPartition, int]
    ends_s: float


class SimulatedConsumer:
    """``assign``, ``seek``, ``getmany`` and ``position`` as aiokafka has them.  Records show ``lag_s`` after they were
    written.

    With ``held_s`` a Fetch for which there is nothing is held as long, and no other is sent meanwhile: what is assigned after
    it was sent waits for its end, and what is read from elsewhere by then is thrown away.  Without, a poll looks at everything
    that is assigned."""

    def __init__(
        self, topics: Mapping[str, SimulatedTopic], loop: VirtualTimeLoop, lag_s: float, held_s: float = 0.0
    ) -> None:
        self._topics, self._loop, self._lag_s, self._held_s = topics, loop, lag_s, held_s
        self._positions: dict[TopicPartition, int] = {}
        self._fetch: HeldFetch | None = None

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._positions = dict.fromkeys(partitions, 0)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._positions[partition] = offset

    async def position(self, partition: TopicPartition) -> int:
        return self._positions[partition]

    async def getmany(self, *, timeout_ms: int, max_records: int = 500) -> dict[TopicPartition, list[TopicRecord]]:
        """Return what shows by now; else what comes first, or nothing after a while."""
        if self._held_s:
            return await self._take_answers(self._loop.time() + timeout_ms / 1000, max_records)
        if found := self._visible(self._positions, max_records):
            return self._took(found)
        await self._wait_for_more(self._positions, _IDLE_POLL_S)
        return self._took(self._visible(self._positions, max_records))

    async def _take_answers(self, until_s: float, max_records: int) -> dict[TopicPartition, list[TopicRecord]]:
        """Return the first answer that is of use; nothing where none has come by ``until_s``."""
        while True:
            fetch = self._fetch or HeldFetch(dict(self._positions), self._loop.time() + self._held_s)
            self._fetch = fetch
            found, now_s = self._visible(fetch.positions, max_records), self._loop.time()
            if found or now_s >= fetch.ends_s:
                self._fetch = None
            wanted = {one: rows for one, rows in found.items() if self._positions.get(one) == fetch.positions[one]}
            if wanted or now_s >= until_s:
                return self._took(wanted)
            if self._fetch is not None:
                await self._wait_for_more(fetch.positions, min(fetch.ends_s, until_s) - now_s)

    async def _wait_for_more(self, positions: Mapping[TopicPartition, int], at_most_s: float) -> None:
        woken: asyncio.Future[None] = self._loop.create_future()
        for partition in positions:
            self._topics[partition.topic].waiting.append(woken)
        await asyncio.wait([woken], timeout=min(self._next_shows_s(positions), at_most_s))
        woken.cancel()

    def _log(self, partition: TopicPartition) -> list[TopicRecord]:
        return self._topics[partition.topic].partitions[partition.partition]

    def _visible(
        self, positions: Mapping[TopicPartition, int], max_records: int
    ) -> dict[TopicPartition, list[TopicRecord]]:
        until_s, found = self._loop.time() - self._lag_s, {}
        for partition, position in positions.items():
            log = self._log(partition)
            records = [record for record in log[position : position + max_records] if record.written_s <= until_s]
            if records:
                found[partition] = records
        return found

    def _took(self, found: dict[TopicPartition, list[TopicRecord]]) -> dict[TopicPartition, list[TopicRecord]]:
        for partition, records in found.items():
            self._positions[partition] = records[-1].offset + 1
        return found

    def _next_shows_s(self, positions: Mapping[TopicPartition, int]) -> float:
        """Return the time until the next record that is written already shows."""
        written = [log[at].written_s for part, at in positions.items() if at < len(log := self._log(part))]
        return max(min(written, default=self._loop.time() + _IDLE_POLL_S) + self._lag_s - self._loop.time(), 0.0) + 1e-6


Sends = Callable[[str, bytes | None], None]
"""Called with topic and value of each record as it leaves a process."""


class SimulatedProducer:
    """``send`` of one process: what it sends is durable when it arrives, whether the answer comes back or not."""

    def __init__(
        self,
        topics: Mapping[str, SimulatedTopic],
        network: Network,
        loop: VirtualTimeLoop,
        rates: FaultRates,
        sends: Sends,
    ) -> None:
        self._topics, self._network, self._loop, self.rates = topics, network, loop, rates
        self._sends = sends

    async def send(
        self,
        topic: str,
        *,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        sent_by_s: float | None = None,
    ) -> int:
        log = self._topics[topic]
        self._sends(topic, value)
        return await self._network.ask(
            f"produce {topic}",
            lambda: log.append(partition, key=key, value=value, timestamp_ms=timestamp_ms, now_s=self._loop.time()),
            lambda reason: BrokerUnreachableError(address="simulated", reason=reason),
            self.rates,
        )

    async def send_batch(self, topic: str, *, partition: int, values: Sequence[bytes], timestamp_ms: int) -> int:
        raise NotImplementedError("no sidecar writes in bulk")

    async def close(self) -> None:
        return None


class SimulatedClients:
    """``adapters.kafka_clients.TopicClients`` of one process.  ``held_s`` is how long a broker holds its Fetches."""

    def __init__(
        self,
        topics: Mapping[str, SimulatedTopic],
        network: Network,
        loop: VirtualTimeLoop,
        chances: Chances,
        rates: FaultRates,
        process: str,
        sends: Sends = lambda topic, value: None,
    ) -> None:
        self._topics, self._network, self._loop, self._rates = topics, network, loop, rates
        self._sends = sends
        self.held_s = 0.0
        self._lag_s = chances.choose(f"consumer lag of {process}", (0.001, 0.02, 0.3, 1.5))

    def producer(self) -> SimulatedProducer:
        return SimulatedProducer(self._topics, self._network, self._loop, self._rates, self._sends)

    @asynccontextmanager
    async def open_consumer(self) -> AsyncIterator[SimulatedConsumer]:
        yield SimulatedConsumer(self._topics, self._loop, self._lag_s, self.held_s)

    def held(self, held_s: float) -> SimulatedClients:
        """Return the same clients, of a topic whose Fetches are held as long."""
        other = copy(self)
        other.held_s = held_s
        return other
