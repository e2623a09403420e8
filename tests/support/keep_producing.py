"""A producer that goes on while brokers die: idempotent, acks=all, one batch at a time per partition."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace

from aiokafka import AIOKafkaProducer

from tests.support.background_thread import BackgroundThread
from tests.support.produce import ProducedRecord, draw_batch

DELIVERY_TIMEOUT_MS = 60_000


class KeepProducing(BackgroundThread):
    """Sends to partitions 0 to ``partitions - 1`` from a thread of its own until it is stopped.

    What was acknowledged is all that was written: a batch whose fate is not known ends the thread, and
    :meth:`raise_failure` says so.  ``bytes_per_s`` is of values, over all partitions.
    """

    def __init__(
        self,
        client_settings: Mapping[str, str],
        topic: str,
        *,
        partitions: int,
        bytes_per_s: int,
        batch_bytes: int = 8_192,
        value_bytes: int = 700,
        seed: int = 0,
        timeout_ms: int = DELIVERY_TIMEOUT_MS,
    ) -> None:
        super().__init__(f"keep producing to {topic}", ends_within_s=timeout_ms / 1000 + 20)
        self._timeout_ms = timeout_ms
        self._client_settings, self._topic = client_settings, topic
        self._batch_bytes, self._value_bytes, self._seed = batch_bytes, value_bytes, seed
        self._pause_s = partitions * batch_bytes / bytes_per_s
        self._acknowledged: list[list[ProducedRecord]] = [[] for _ in range(partitions)]

    def acknowledged(self, partition: int) -> list[ProducedRecord]:
        """Return all that the brokers took so far, ascending without a hole from offset 0."""
        return self._acknowledged[partition][:]

    def end_offset(self, partition: int) -> int:
        """Return the offset after the last one acknowledged."""
        return len(self._acknowledged[partition])

    def work(self) -> None:
        asyncio.run(self._produce())

    async def _produce(self) -> None:
        producer = AIOKafkaProducer(
            **self._client_settings,
            enable_idempotence=True,
            max_batch_size=self._batch_bytes,
            request_timeout_ms=self._timeout_ms,
            metadata_max_age_ms=1_000,
        )
        async with producer, asyncio.TaskGroup() as group:
            for partition in range(len(self._acknowledged)):
                group.create_task(self._produce_to(producer, partition))

    async def _produce_to(self, producer: AIOKafkaProducer, partition: int) -> None:
        draw = random.Random(self._seed * 1_000 + partition)
        known = self._acknowledged[partition]
        while not self.stopping.is_set():
            batch = draw_batch(draw, producer, self._topic, partition, self._value_bytes)
            sent = await (await producer.send_batch(batch.builder, self._topic, partition=partition))
            if sent.offset != len(known):
                raise AssertionError(f"{self._topic}-{partition}: acknowledged at {sent.offset}, not {len(known)}")
            known += [replace(record, offset=sent.offset + record.offset) for record in batch.records]
            await asyncio.sleep(self._pause_s)
