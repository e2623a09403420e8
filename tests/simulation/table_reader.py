"""Readers of a compacted partition that go from its beginning to its end, again and again, and build the table of its keys.

Whatever cleaners take away meanwhile, one that gets there within ``delete.retention.ms`` has for each key the value that
counts, and no key that is gone.
"""

from __future__ import annotations

import asyncio
from enum import Enum

from tests.simulation.clients import FINISH_S, Client, Servers
from tests.simulation.cluster import SimulatedPartition
from tests.simulation.compacted_history import Table, table_of
from tests.simulation.environment import Environment
from tests.simulation.read_check import COMPARED, ReadCheck
from tests.simulation.records import open_transactions
from tests.simulation.serving import Answer, Ask, Fate, Serving
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import Record, read_records

_MOST = 50_000
_VERSION = 13
_SHARE = 0.5
"""Of ``delete.retention.ms``: a round takes its time, and a tombstone's counts from its beginning."""


class Source(Enum):
    """``ARCHIVE`` is what is remote, and nothing else.  Over HTTP the remote log is read as far as it goes, through a gateway
    only what the broker has no more."""

    ARCHIVE = "the archive"
    HTTP = "the log over HTTP"
    FETCH = "the log through a gateway"


class TableReader:
    """Reads from one source."""

    def __init__(
        self,
        world: Environment,
        partition: SimulatedPartition,
        servers: Servers,
        check: ReadCheck,
        *,
        source: Source,
    ) -> None:
        assert world.scenario.compacted is not None
        assert world.compaction is not None
        self._world, self._partition, self._servers = world, partition, servers
        self._check, self._rules = check, world.compaction
        self._source = source
        self._within_ms = world.scenario.compacted.delete_retention_ms * _SHARE
        self.name = f"reader of {source.value} of {partition.topic_id_partition.partition}"
        self._client = Client(world, self.name)
        self._is_finishing = False
        self._tables = self._passes = 0
        self._begin()

    def _begin(self) -> None:
        self._began_ms, self._position = self._world.clock.true_ms(), 0
        self._records: list[Record] = []
        self._asks_for_all = False
        self._passes += 1

    async def consume(self) -> None:
        """Read until the end of the world."""
        while not self._is_finishing:
            await asyncio.sleep(self._world.chances.between(f"{self.name} pause", 0.2, 3.0))
            await self._read()

    async def finish(self) -> None:
        """Read once more from the beginning to the end."""
        self._is_finishing = True
        self._begin()
        until_s, tables = self._world.loop.time() + FINISH_S, self._tables
        while self._tables == tables:
            await self._read()
            if self._world.loop.time() > until_s:
                self._world.complain(f"the {self.name} does not get past {self._position}")
                return
            await asyncio.sleep(0.2)

    async def _read(self) -> None:
        broker = self._partition.leader
        server = None if broker is None else self._servers.get(broker)
        serving = None if server is None else server.serving
        if serving is None:
            return
        passes = self._passes
        answer = await self._client.answer(serving, self._ask(serving))
        if answer is None or passes != self._passes:
            return
        self._check.outcomes[answer.fate.value] += 1
        if answer.fate in (Fate.TRY_AGAIN, Fate.DAMAGED):
            return
        if answer.fate is Fate.OUT_OF_RANGE:
            self._tables += not self._rules.chain(self._partition.topic_id_partition)
            self._begin()  # nothing is remote, or what was read lies below a new start
        elif answer.data:
            self._take(answer)
        elif self._asks_for_all and self._is_at_end():
            self._compare()
            self._begin()
        else:
            self._asks_for_all = True  # a cleaner may have left nothing of what was asked for

    async def _ask(self, serving: Serving) -> Answer:
        chances, start = self._world.chances, self._position
        self._asks_for_all = self._asks_for_all or self._is_finishing
        length = _MOST if self._asks_for_all else chances.choose(f"{self.name} records", (10, 40, 200))
        ask = Ask(
            partition=self._partition.topic_id_partition,
            offset=start,
            read_committed=True,
            max_bytes=_MOST if self._is_finishing else chances.choose(f"{self.name} bytes", (400, 2_000, _MOST)),
            stop_offset=start + length,
            version=_VERSION,
        )
        match self._source:
            case Source.ARCHIVE:
                return await serving.archive(ask)
            case Source.HTTP:
                return await serving.stream(ask)
            case Source.FETCH:
                return await serving.fetch(ask)

    def _is_at_end(self) -> bool:
        """Return whether nothing follows for now: a gateway may answer before it has got what is remote."""
        partition = self._partition
        return self._source is Source.ARCHIVE or self._position >= partition.last_stable_offset(partition.history_log)

    def _take(self, answer: Answer) -> None:
        history = self._rules.history(self._partition)
        shown = set(answer.shown or ())
        for at, header in iter_batch_headers(answer.data):
            records = read_records(memoryview(answer.data)[at : at + header.size_bytes])
            if fault := history.difference(header, records):
                self._world.complain(f"the {self.name} gets another log than was written: {fault}")
            seen = [one for one in records if one.offset in shown and not header.is_control]
            self._records += seen
            self._position, self._asks_for_all = max(self._position, header.next_offset), False
            wrong = [one.offset for one in seen if not history.records[one.offset].is_committed]
            if wrong:
                self._world.complain(f"the {self.name} is shown {wrong[:3]}, which are not committed")

    def _compare(self) -> None:
        """Compare with what was written below the reader's position, unless it has taken so long that it may have missed a
        tombstone."""
        self._tables += 1
        if self._source is Source.ARCHIVE and self._may_end_within_a_transaction():
            return  # what follows is remote, and cleaners have gone by it, but it is not shown before its marker is remote too
        if not self._is_finishing and self._world.clock.true_ms() - self._began_ms > self._within_ms:
            return
        expected = self._rules.history(self._partition).table(self._position)
        found = table_of(self._records)
        self._check.outcomes[COMPARED] += len(found)
        self._world.note(f"the {self.name} has {len(found)} keys at {self._position}")
        if found != expected:
            self._world.complain(f"the {self.name} comes to {self._position} with {_parted(found, expected)}")

    def _may_end_within_a_transaction(self) -> bool:
        """Return whether a transaction begins where the reader has stopped, or later, and reaches beyond what was remote then:
        something from there to the end that is remote now."""
        chain = self._rules.chain(self._partition.topic_id_partition)
        ends = (segment.next_offset for _, segment in chain if segment.end_offset >= self._position)
        batches = self._partition.history_log.batches
        return any(first >= self._position for end in ends for first in open_transactions(batches, end).values())


def _parted(found: Table, expected: Table) -> str:
    lacking = {key: row[0] for key, row in expected.items() if key not in found}
    more = {key: row[0] for key, row in found.items() if key not in expected}
    other = {key: (row[0], found[key][0]) for key, row in expected.items() if key in found and found[key] != row}
    return f"no value of {lacking}, values of {more} that are gone, and others of {other} (should be, is)"
