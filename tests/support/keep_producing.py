"""A producer that goes on while brokers die: idempotent, acks=all, one batch at a time per partition."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Self

from aiokafka import AIOKafkaProducer

from tests.support.produce import ProducedRecord, draw_batch

DELIVERY_TIMEOUT_MS = 60_000


class KeepProducing:
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
        self._timeout_ms = timeout_ms
        self._client_settings, self._topic = client_settings, topic
        self._batch_bytes, self._value_bytes, self._seed = batch_bytes, value_bytes, seed
        self._pause_s = partitions * batch_bytes / bytes_per_s
        self._acknowledged: list[list[ProducedRecord]] = [[] for _ in range(partitions)]
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"keep producing to {topic}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(self._timeout_ms / 1000 + 20)

    def stop(self) -> None:
        """Send no more, and wait for what is under way."""
        self._stopping.set()
        self._thread.join(self._timeout_ms / 1000 + 20)
        assert not self._thread.is_alive(), "the producer does not end"
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raises:
        AssertionError: the producer has given up, or the broker acknowledged offsets that do not follow each other.
        """
        if self._failure is not None:
            raise AssertionError(f"the producer gave up: {self._failure!r}") from self._failure

    def acknowledged(self, partition: int) -> list[ProducedRecord]:
        """All that the brokers took so far, ascending without a hole from offset 0."""
        return self._acknowledged[partition][:]

    def end_offset(self, partition: int) -> int:
        """The offset after the last one acknowledged."""
        return len(self._acknowledged[partition])

    def _run(self) -> None:
        try:
            asyncio.run(self._produce())
        except BaseException as error:  # noqa: BLE001 - told by raise_failure, in the test's own thread
            self._failure = error

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
        while not self._stopping.is_set():
            batch = draw_batch(draw, producer, self._topic, partition, self._value_bytes)
            sent = await (await producer.send_batch(batch.builder, self._topic, partition=partition))
            if sent.offset != len(known):
                raise AssertionError(f"{self._topic}-{partition}: acknowledged at {sent.offset}, not {len(known)}")
            known += [replace(record, offset=sent.offset + record.offset) for record in batch.records]
            await asyncio.sleep(self._pause_s)
