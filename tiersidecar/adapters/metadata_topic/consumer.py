"""The two consumers of the metadata topic: the main one never stops, the side one replays for newcomers (S-094, T-70)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from tiersidecar.adapters.internal_topics import TopicBroker, ensure_topic
from tiersidecar.adapters.kafka_clients import TopicClients, translated
from tiersidecar.adapters.metadata_topic.partition_replica import Record
from tiersidecar.adapters.metadata_topic.replica import MetadataReplica
from tiersidecar.adapters.metadata_topic.settings import MetadataTopicSettings
from tiersidecar.adapters.sessions import run_until_one_ends
from tiersidecar.domain.errors import BrokerRefusedError, RetriableError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import NO_EPOCH
from tiersidecar.ports.broker import OffsetSpec
from tiersidecar.ports.clock import Clock

_log = structlog.get_logger(__name__)

_POLL_MS = 200
_NOTHING_READ_S = 1.0
"""How often those are looked through that are kept, thousands of them, while nothing comes."""
_MAX_RECORDS = 2_000
"""About 5 ms of folding between two looks at the loop."""
_ADDED_S = 1.0
"""How often partitions are added.  Each time another consumer begins: the broker holds the Fetch of the one before for seconds,
and a consumer sends no other meanwhile."""


@dataclass(slots=True)
class _Reading:
    """Position of a consumer in each metadata partition that it reads."""

    positions: dict[int, int] = field(default_factory=dict)


class MetadataConsumers:
    """Feeds a :class:`MetadataReplica` from the topic, as long as the broker is there."""

    def __init__(
        self,
        settings: MetadataTopicSettings,
        replica: MetadataReplica,
        *,
        broker: TopicBroker,
        clients: TopicClients,
        clock: Clock,
    ) -> None:
        self._settings, self._replica, self._broker, self._clock = settings, replica, broker, clock
        self._clients = clients
        self._newcomers = asyncio.Event()
        self._added_s = -math.inf

    async def connect(self) -> str | None:
        """Make sure of the topic.  Returns why what was read before does not come from it, else None.

        Raises:
            PartitionCountError: it has another number of partitions than configured.
            RetriableError: broker or topic are out of reach.
        """
        try:
            facts = await ensure_topic(
                self._broker, self._settings.required_topic, may_create=not self._replica.is_known
            )
        except BrokerRefusedError as error:
            if error.error == "UNKNOWN_TOPIC_OR_PARTITION" and self._replica.is_known:
                self._replica.topic_is_missing()
            raise
        return self._replica.begin_session(facts)

    async def run(self) -> None:
        """Read until the broker is lost, or a leader of the topic changed: then connect again.

        Raises:
                RetriableError: broker or topic are out of reach.
        """
        await run_until_one_ends(
            {
                "metadata topic": self._read_live(),
                "metadata topic, replay": self._read_separately(),
                "metadata topic, watch": self._watch_topic(),
            }
        )

    async def _read_live(self) -> None:
        """Read with one consumer after another; each is kept until the next one is open, for bootstrap servers may be away."""
        async with AsyncExitStack() as current:
            consumer = await current.enter_async_context(self._consumer())
            while True:
                await self._read_until_added(consumer)
                opened = AsyncExitStack()
                try:
                    consumer = await opened.enter_async_context(self._consumer())
                except RetriableError as error:
                    _log.info("metadata_topic.consumer.kept", error=str(error))
                    continue
                former = current.pop_all()
                current.push_async_exit(opened)
                await former.aclose()

    async def _read_until_added(self, consumer: AIOKafkaConsumer) -> None:
        """Return once a metadata partition is to be read that ``consumer`` does not read already, or at another position: it
        would wait for the fetch that the broker holds."""
        reading, was_at, applied_s = _Reading(), dict[int, int](), -math.inf
        while True:
            await self._learn_bounds()
            if self._replica.side_positions():
                self._newcomers.set()
            wanted, now_s = self._replica.live_positions(), self._clock.monotonic_s()
            if was_at and not wanted.items() <= was_at.items():
                if now_s - self._added_s >= _ADDED_S:
                    self._added_s = now_s
                    return
                wanted = dict(wanted.items() & was_at.items())
            is_due = now_s - applied_s >= _NOTHING_READ_S
            batches, reached = await self._read_from(consumer, reading, wanted, is_thorough=is_due)
            was_at = reached or was_at
            if not batches and reached == wanted and not is_due:
                continue
            applied_s = self._clock.monotonic_s()
            for number, position in reached.items():
                partition = self._replica.partitions[number]
                partition.apply_live(batches.get(number, []), read_from=wanted[number], position=position)
            self._replica.report()

    async def _read_separately(self) -> None:
        while True:
            await self._newcomers.wait()
            self._newcomers.clear()
            async with self._consumer() as consumer:
                reading = _Reading()
                while wanted := self._replica.side_positions():
                    batches, reached = await self._read_from(consumer, reading, wanted)
                    for number, position in reached.items():
                        partition = self._replica.partitions[number]
                        partition.apply_side(batches.get(number, []), read_from=wanted[number], position=position)

    async def _read_from(
        self,
        consumer: AIOKafkaConsumer,
        reading: _Reading,
        wanted: Mapping[int, int],
        *,
        is_thorough: bool = True,
    ) -> tuple[dict[int, list[Record]], dict[int, int]]:
        """Return records of the ``wanted`` partitions, and where the consumer is then, which is in ``reading`` as well.

        Positions rather than last records show how far it came: control batches have no records for us.  Unless
        ``is_thorough``, what gave no records is taken to stand where it stood.
        """
        if not wanted:
            reading.positions = {}
            await self._clock.sleep(_POLL_MS / 1000)
            return {}, {}
        await asyncio.sleep(0)  # a long replay always has more at hand, and must let others run
        with translated("Fetch", self._settings.topic, self._settings.bootstrap_servers):
            self._assign(consumer, reading, wanted)
            found = await self._poll(consumer)
            if found or is_thorough:
                reading.positions = {
                    number: await consumer.position(self._partition(number)) for number in reading.positions
                }
        return {partition.partition: records for partition, records in found.items()}, dict(reading.positions)

    def _assign(self, consumer: AIOKafkaConsumer, reading: _Reading, wanted: Mapping[int, int]) -> None:
        """Make ``consumer`` read what is ``wanted``."""
        if wanted == reading.positions:
            return
        reading.positions = dict(wanted)
        consumer.assign([self._partition(number) for number in wanted])
        for number, position in wanted.items():
            consumer.seek(self._partition(number), position)

    async def _poll(self, consumer: AIOKafkaConsumer) -> dict[TopicPartition, list[Record]]:
        try:
            found: dict[TopicPartition, list[Record]] = await consumer.getmany(
                timeout_ms=_POLL_MS, max_records=_MAX_RECORDS
            )
        except OffsetOutOfRangeError as error:
            # The log no longer holds the position: its bounds will say on which side.
            for partition in error.args[0]:
                self._replica.partitions[partition.partition].is_bounded = False
            return {}
        return found

    async def _learn_bounds(self) -> None:
        facts, numbers = self._replica.facts, self._replica.unbounded()
        if facts is None or not numbers:
            return
        asked = {
            TopicIdPartition(topic_id=facts.topic_id, topic=self._settings.topic, partition=number): NO_EPOCH
            for number in numbers
        }
        begins = await self._broker.list_offsets(asked, OffsetSpec.EARLIEST)
        ends = await self._broker.list_offsets(asked, OffsetSpec.LATEST)
        failures = [answer.error for answer in (*begins.values(), *ends.values()) if answer.error is not None]
        for partition in asked:
            begin, end = begins[partition], ends[partition]
            if begin.error is None and end.error is None:
                self._replica.partitions[partition.partition].learn_bounds(begin.offset, end.offset)
        if failures:  # leaders are being elected; those that answered go on meanwhile
            _log.info("metadata.bounds.waiting", partitions=len(failures), error=failures[0])
            await self._clock.sleep(_POLL_MS / 1000)

    async def _watch_topic(self) -> None:
        """Look at the topic now and then; what changed makes a new session."""
        while True:
            await self._clock.sleep(self._settings.watch_interval_ms / 1000)
            before = self._replica.facts
            facts = await ensure_topic(self._broker, self._settings.required_topic, may_create=False)
            if before is None or (facts.topic_id, facts.leader_epochs) != (before.topic_id, before.leader_epochs):
                raise BrokerRefusedError(api="Metadata", subject=self._settings.topic, error="leaders changed")
            self._replica.facts = facts

    def _consumer(self) -> AbstractAsyncContextManager[Any]:
        return self._clients.open_consumer()

    def _partition(self, number: int) -> TopicPartition:
        return TopicPartition(self._settings.topic, number)
