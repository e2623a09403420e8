"""A topic and its copy: the same records at the same offsets with the same timestamps, so that one can be tiered and not the
other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.support.background_thread import LastingThread
from tests.support.kafka_admin import wait_until
from tests.support.patience import patient_s
from tests.support.produce import ALL_STYLES, DrawnBatch, ProducedRecord, Style, draw_batch, open_sender

_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Twins:
    """A topic, and what has the same records."""

    topic: str
    copy: str

    @property
    def both(self) -> tuple[str, str]:
        return self.topic, self.copy


async def produce_twins(
    client_settings: Mapping[str, Any], twins: Twins, *, partitions: int, total_bytes: int, batch_bytes: int = 16_384
) -> list[ProducedRecord]:
    """Produce as :func:`produce_mix` does, in every style, into both; return what is in either, by partition and offset.

    Raises:
        AssertionError: the offsets of the two are not the same.
    """
    draw, produced, sent_bytes = random.Random(9), list[ProducedRecord](), 0
    async with AIOKafkaConsumer(**client_settings, isolation_level="read_committed") as stable:
        senders = [open_sender(client_settings, style, batch_bytes) for style in ALL_STYLES]
        producers = [await sender.__aenter__() for sender in senders]
        try:
            while sent_bytes < total_bytes:
                for style, producer in zip(ALL_STYLES, producers, strict=True):
                    batches = [
                        draw_batch(draw, producer, twins.topic, partition, 1_000) for partition in range(partitions)
                    ]
                    records = await _send_to_both(producer, style, twins, batches)
                    produced += records
                    sent_bytes += sum(len(record.value or b"") for record in records)
                    if style.outcome is not None:
                        # Markers are written after the answer: the next batch must not come before one of them.
                        await _wait_for_markers(stable, twins, records)
        finally:
            for sender in senders:
                await sender.__aexit__(None, None, None)
    return sorted(produced, key=lambda record: (record.partition, record.offset))


async def _send_to_both(
    producer: AIOKafkaProducer, style: Style, twins: Twins, batches: Sequence[DrawnBatch]
) -> list[ProducedRecord]:
    if style.outcome is not None:
        await producer.begin_transaction()
    sent = [
        await producer.send_batch(_again(producer, batch), topic, partition=batch.partition)
        for topic in twins.both
        for batch in batches
    ]
    offsets = [(await future).offset for future in sent]
    assert offsets[: len(batches)] == offsets[len(batches) :], f"{twins}: {offsets}"
    if style.outcome == "committed":
        await producer.commit_transaction()
    elif style.outcome == "aborted":
        await producer.abort_transaction()
    return [
        replace(record, offset=first + record.offset, aborted=style.outcome == "aborted")
        for batch, first in zip(batches, offsets, strict=False)
        for record in batch.records
    ]


def _again(producer: AIOKafkaProducer, batch: DrawnBatch) -> Any:
    """Return a new builder: one can be sent once."""
    builder = producer.create_batch()
    for record in batch.records:
        taken = builder.append(
            timestamp=record.timestamp_ms, key=record.key, value=record.value, headers=list(record.headers)
        )
        assert taken is not None
    builder.close()
    return builder


async def _wait_for_markers(stable: AIOKafkaConsumer, twins: Twins, records: Sequence[ProducedRecord]) -> None:
    ends = {record.partition: record.offset + 2 for record in records}
    wanted = {TopicPartition(topic, number): end for topic in twins.both for number, end in ends.items()}
    async with asyncio.timeout(patient_s(60)):
        while await stable.end_offsets(list(wanted)) != wanted:  # noqa: ASYNC110 - the broker has no event for it
            await asyncio.sleep(0.005)


class MovingTwins(LastingThread):
    """One partition of each grows until left: a transaction at a time, every third of which is aborted, or without them.

    While leaders change, a marker may be written twice, and then the two have no longer the same offsets.
    """

    def __init__(self, client_settings: Mapping[str, Any], twins: Twins, *, in_transactions: bool) -> None:
        super().__init__(f"keep producing to {twins.topic}", ends_within_s=90)
        self._client_settings, self._twins, self._in_transactions = client_settings, twins, in_transactions
        self.end_offset = 0
        """Where both are known to reach, exclusive."""

    def wait_for_end(self, offset: int) -> None:
        """Read until it has come to ``offset``, exclusive."""

        def there() -> bool:
            self.raise_failure()
            return self.end_offset >= offset

        wait_until(there, f"{self._twins.topic} has come to {offset}", 60)

    def work(self) -> None:
        asyncio.run(self._produce())

    async def _produce(self) -> None:
        draw, turn = random.Random(11), 0
        # By one producer: its next transaction begins when the markers of the one before are written.
        styles = [Style(idempotent=True)]
        if self._in_transactions:
            styles = [Style(outcome="committed"), Style(outcome="committed"), Style(outcome="aborted")]
        async with open_sender(self._client_settings, styles[0], 8_192) as producer:
            while not self.stopping.is_set():
                batch = draw_batch(draw, producer, self._twins.topic, 0, 700)
                records = await _send_to_both(producer, styles[turn % len(styles)], self._twins, [batch])
                turn += 1
                self.end_offset = records[-1].offset + 1
                await asyncio.sleep(_PAUSE_S)
