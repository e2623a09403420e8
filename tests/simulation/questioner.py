"""A client that asks for offsets: by timestamp, of the log's ends and tiers, and where a leader epoch ends (KIP-320)."""

from __future__ import annotations

import asyncio

from tests.simulation.clients import FINISH_S, Client, Servers
from tests.simulation.cluster import SimulatedPartition
from tests.simulation.environment import Environment
from tests.simulation.offset_check import OffsetCheck
from tests.simulation.offset_wire import OffsetQuestion
from tests.simulation.read_check import ReadCheck
from tests.simulation.serving import ask_offset
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.ports.broker import OffsetSpec

_BY_TIMESTAMP, _BY_EPOCH = 0, -100
_ASKED = (
    *(_BY_TIMESTAMP,) * 3,
    *(_BY_EPOCH,) * 3,
    OffsetSpec.MAX_TIMESTAMP,
    OffsetSpec.EARLIEST,
    OffsetSpec.LATEST,
    OffsetSpec.LATEST_TIERED,
    OffsetSpec.EARLIEST_PENDING_UPLOAD,
)
_AT_LAST = (_BY_TIMESTAMP, _BY_EPOCH, OffsetSpec.MAX_TIMESTAMP, OffsetSpec.EARLIEST, OffsetSpec.LATEST_TIERED)
_FIRST_VERSION = {OffsetSpec.MAX_TIMESTAMP: 7, OffsetSpec.LATEST_TIERED: 9, OffsetSpec.EARLIEST_PENDING_UPLOAD: 11}


class Questioner:
    """Asks about one partition."""

    def __init__(self, world: Environment, partition: SimulatedPartition, servers: Servers, reads: ReadCheck) -> None:
        self._world, self._partition, self._servers, self._outcomes = world, partition, servers, reads.outcomes
        self.name = f"questioner of {partition.topic_id_partition.partition}"
        self._client, self._check = Client(world, self.name), OffsetCheck(world, reads, self.name)

    async def consume(self) -> None:
        """Ask until nothing fails any more."""
        chances = self._world.chances
        while True:
            await asyncio.sleep(chances.between(f"{self.name} pause", 0.5, 5.0))
            if chances.quiet:
                return
            await self._ask(chances.choose(f"{self.name} asks for", _ASKED))

    async def finish(self) -> None:
        """Finish when nothing fails any more: each question is answered."""
        partition, until_s = self._partition, self._world.loop.time() + FINISH_S
        for asked in _AT_LAST:
            while not await self._ask(asked):
                if self._world.is_spoiled(partition):
                    return
                if self._world.loop.time() > until_s:
                    self._world.complain(f"the {self.name} gets no answer to {asked!r}")
                    return
                await asyncio.sleep(1.0)

    async def _ask(self, asked: int) -> bool:
        """Ask, and return whether there is an answer."""
        chances, leader = self._world.chances, self._partition.leader
        goes_elsewhere = not chances.quiet and chances.draw(f"{self.name} goes elsewhere") < 0.1
        broker = chances.choose(f"{self.name} goes to", sorted(self._servers)) if goes_elsewhere else leader
        serving = None if broker is None else self._servers[broker].serving
        if serving is None:
            self._outcomes["no process there"] += 1
            return False
        question, seen = self._question(asked), self._check.begin(self._partition)
        reply = await self._client.answer(
            serving, ask_offset(serving.connect(self.name), self._partition.topic_id_partition, question)
        )
        self._outcomes["no offset" if reply is None else "an offset"] += 1
        if reply is not None:
            self._check.check(self._partition, question, reply, seen)
        return reply is not None

    def _question(self, asked: int) -> OffsetQuestion:
        chances, partition = self._world.chances, self._partition
        knows_epoch = chances.draw(f"{self.name} knows the leader epoch") < 0.5
        current_epoch = partition.epoch if knows_epoch else -1
        if asked == _BY_EPOCH:
            return OffsetQuestion(
                api_key=ApiKey.OFFSET_FOR_LEADER_EPOCH,
                version=chances.choose(f"{self.name} epochs version", (2, 3, 4)),
                subject=int(chances.between(f"{self.name} epoch", 0, partition.epoch + 1.5)),
                current_epoch=current_epoch,
            )
        first = _FIRST_VERSION.get(OffsetSpec(asked), 2) if asked < 0 else 2
        return OffsetQuestion(
            api_key=ApiKey.LIST_OFFSETS,
            version=chances.choose(f"{self.name} version", [one for one in (2, 4, 7, 9, 11) if one >= first]),
            subject=self._timestamp_ms() if asked == _BY_TIMESTAMP else asked,
            current_epoch=current_epoch,
            read_committed=chances.draw(f"{self.name} isolation") < 0.5,
        )

    def _timestamp_ms(self) -> int:
        """Return the time of some record, or a little beside it; rarely after all of them."""
        chances, batches = self._world.chances, self._partition.history_log.batches
        if not batches:
            return self._world.clock.true_ms()
        timestamp_ms = chances.choose(f"{self.name} batch", batches).timestamp_ms
        return timestamp_ms + chances.choose(f"{self.name} beside it by", (0, 0, 0, 1, -1, 700, 60_000))
