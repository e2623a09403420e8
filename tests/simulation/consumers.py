"""Clients that read all the while, through gateways and read services, and what is true of each answer they get."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from tests.simulation.clients import FINISH_S, Client, Servers
from tests.simulation.cluster import SimulatedPartition
from tests.simulation.environment import Environment
from tests.simulation.questioner import Questioner
from tests.simulation.read_check import ReadCheck
from tests.simulation.serving import Ask, Fate, Serving
from tests.simulation.session_consumer import SessionConsumer
from tests.simulation.table_reader import Source, TableReader

_MOST = 50_000
_VERSIONS = (4, 6, 8, 12, 13, 17)
"""Versions of Fetch: without sessions and with, by name and by id, rigid and flexible."""


class ReadsOn(Protocol):
    """A client that reads all the while."""

    async def consume(self) -> None:
        """Read until the end of the world."""

    async def finish(self) -> None:
        """Read on to the end of the log."""


class Consumers:
    """Two of each partition, one by Fetch and one by HTTP; and, where the scenario has them, one that has all in one
    fetch session, those that ask for offsets, and those that build tables of keys."""

    def __init__(self, world: Environment, servers: Servers) -> None:
        self.check = ReadCheck(world)
        self._all: list[ReadsOn] = [
            Consumer(world, partition, servers, self.check, by_fetch=by_fetch)
            for partition in world.cluster.partitions.values()
            for by_fetch in (True, False)
        ]
        if world.scenario.fetch_sessions:
            self._all.append(SessionConsumer(world, servers, self.check))
        if world.scenario.compacted is not None:
            self._all += [
                TableReader(world, partition, servers, self.check, source=source)
                for partition in world.cluster.partitions.values()
                for source in (Source.ARCHIVE, Source.HTTP, Source.FETCH)
            ]
        if world.scenario.questions:
            self._all += [Questioner(world, one, servers, self.check) for one in world.cluster.partitions.values()]

    def __iter__(self) -> Iterator[ReadsOn]:
        return iter(self._all)

    @property
    def outcomes(self) -> Counter[str]:
        """Return the outcomes of all reads."""
        return self.check.outcomes

    async def finish(self) -> None:
        """Finish when nothing fails any more: each gets to the end, and what it cannot reach is a breach."""
        await asyncio.gather(*(on.finish() for on in self._all))


class Consumer:
    """One client at one position: where it gets an answer, it goes on from there."""

    def __init__(
        self,
        world: Environment,
        partition: SimulatedPartition,
        servers: Servers,
        check: ReadCheck,
        *,
        by_fetch: bool,
    ) -> None:
        self._world, self._partition, self._servers, self._check = world, partition, servers, check
        self._by_fetch, self._rereads = by_fetch, world.scenario.rereads
        self.name = f"{'fetch' if by_fetch else 'http'} consumer of {partition.topic_id_partition.partition}"
        self._client = Client(world, self.name)
        self._position, self._read_committed = 0, False
        self._is_finishing = False
        self._last = "nothing was read"

    async def consume(self) -> None:
        """Read until the end of the world."""
        chances = self._world.chances
        while not self._is_finishing:
            pause_s = chances.between(f"{self.name} pause", 0.5, 5.0)
            await asyncio.sleep(pause_s / 4 if self._rereads else pause_s)
            if (await self._read() or self._rereads) and chances.draw(f"{self.name} moves") < 0.5:
                self._seek()

    async def finish(self) -> None:
        """Read on to the end of the log."""
        self._is_finishing = True
        partition, until_s = self._partition, self._world.loop.time() + FINISH_S
        self._position = max(self._position, partition.dropped)
        while not await self._read():
            if self._world.is_spoiled(partition):
                return
            if self._world.loop.time() > until_s:
                self._world.complain(
                    f"the {self.name} does not get past {self._position} of {self._end()}: {self._last}"
                )
                return
            await asyncio.sleep(1.0)

    def _end(self) -> int:
        """Return the end, exclusive, as the leader knows it."""
        partition = self._partition
        log = partition.history_log
        return partition.last_stable_offset(log) if self._read_committed else log.high_watermark

    def _seek(self) -> None:
        chances = self._world.chances
        self._read_committed = chances.draw(f"{self.name} isolation") < 0.5
        log = self._partition.history_log
        stop = log.log_start_offset if self._rereads else log.high_watermark
        self._position = int(chances.between(f"{self.name} seeks", 0, stop + 1))

    async def _read(self) -> bool:
        """Read once; return whether there is no more."""
        broker = self._broker()
        serving = None if broker is None else self._servers[broker].serving
        if broker is None or serving is None:
            self._check.outcomes["no process there"] += 1
            return False
        ask = self._ask()
        seen = self._check.begin(self._partition, broker, serving)
        answer = await self._client.answer(serving, serving.fetch(ask) if self._by_fetch else serving.stream(ask))
        if answer is None:
            self._last = "no answer"
            self._check.outcomes["no answer"] += 1
            return False
        self._last = f"{answer.fate.value} {answer.why}"
        next_offset = self._check.check(f"{self.name} at broker {broker}", self._partition, ask, answer, seen)
        self._position = max(self._position, next_offset)
        if answer.fate is Fate.OUT_OF_RANGE:
            await self._reset(broker, serving)
            return False
        return answer.fate is Fate.READ and self._position >= self._end()

    async def _reset(self, broker: int, serving: Serving) -> None:
        """Reset as ``auto.offset.reset`` to the earliest, or a seek."""
        if broker != self._partition.leader:
            return  # KIP-392: a client asks the leader whether it is so
        topic_id_partition = self._partition.topic_id_partition
        earliest = await self._client.answer(
            serving,
            serving.earliest(topic_id_partition) if self._by_fetch else serving.first_offset(topic_id_partition),
        )
        if earliest is None:
            return
        self._check.check_earliest(f"{self.name} at broker {broker}", self._partition, earliest)
        self._position = earliest

    def _broker(self) -> int | None:
        """Choose a broker: the leader, mostly; now and then a replica that is nearer."""
        chances, leader = self._world.chances, self._partition.leader
        if not self._is_finishing and chances.draw(f"{self.name} goes elsewhere") < 0.15:
            return chances.choose(f"{self.name} goes to", sorted(self._servers))
        return leader

    def _ask(self) -> Ask:
        chances = self._world.chances
        return Ask(
            partition=self._partition.topic_id_partition,
            offset=self._position,
            read_committed=self._read_committed,
            max_bytes=_MOST if self._is_finishing else chances.choose(f"{self.name} bytes", (1, 400, 1500, _MOST)),
            stop_offset=self._position
            + (_MOST if self._is_finishing else chances.choose(f"{self.name} records", (1, 10, 40, _MOST))),
            version=chances.choose(f"{self.name} version", _VERSIONS),
        )
