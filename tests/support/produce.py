"""Real records in all the forms that a segment can hold, and what was produced, for comparison.

Every record has a key, value, headers and timestamp of its own; some keys and values are null or empty.  Batches are
built whole and sent whole, which makes 15 to 30 MB/s on one core.
"""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from aiokafka import AIOKafkaProducer
from aiokafka.structs import RecordMetadata

Compression = Literal["gzip", "snappy", "lz4", "zstd"]
Outcome = Literal["committed", "aborted"]
Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedRecord:
    """A record as the broker took it; ``timestamp_ms`` is CreateTime; ``aborted``: read_committed must not show it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    aborted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a producer sends: codec, idempotence, and transactions that end with ``outcome`` (None: no transactions)."""

    compression: Compression | None = None
    idempotent: bool = False
    outcome: Outcome | None = None


ALL_STYLES = (
    Style(),
    Style(compression="gzip"),
    Style(compression="snappy", idempotent=True),
    Style(compression="lz4", idempotent=True),
    Style(compression="zstd", idempotent=True),
    Style(compression="zstd", outcome="committed"),
    Style(outcome="aborted"),
)
IDEMPOTENT_STYLES = tuple(style for style in ALL_STYLES if style.idempotent or style.outcome is not None)
"""For partitions whose leader changes: what is sent again, because the answer to it was lost, is not written twice."""


async def produce_mix(
    client_settings: Mapping[str, Any],
    topic: str,
    *,
    partitions: int = 1,
    total_bytes: int = 1_000_000,
    value_bytes: int = 1_000,
    batch_bytes: int = 32_768,
    styles: Sequence[Style] = ALL_STYLES,
    seed: int = 0,
    on_progress: Callable[[int], None] | None = None,
) -> list[ProducedRecord]:
    """Send at least ``total_bytes`` of values to partitions 0 to ``partitions - 1``, the styles taking turns.

    ``batch_bytes`` bounds a batch before compression, and must stay below the topic's segment size.  ``on_progress``
    gets the bytes of values sent so far.  The same seed gives the same keys, values and headers.  The result is in
    order of partition and offset.  Records that were acknowledged stay: every style waits for all in-sync replicas.

    Raises:
        AssertionError: the brokers acknowledged an offset twice.
    """
    draw = random.Random(seed)
    produced: list[ProducedRecord] = []
    sent_bytes = 0
    async with AsyncExitStack() as stack:
        senders = [
            await stack.enter_async_context(open_sender(client_settings, style, batch_bytes)) for style in styles
        ]
        while sent_bytes < total_bytes:
            for style, producer in zip(styles, senders, strict=True):
                batches = [draw_batch(draw, producer, topic, partition, value_bytes) for partition in range(partitions)]
                for records in await _send(producer, style, batches):
                    produced += records
                    sent_bytes += sum(len(record.value or b"") for record in records)
            if on_progress is not None:
                on_progress(sent_bytes)
    _assert_distinct(produced)
    return sorted(produced, key=lambda record: (record.partition, record.offset))


def _assert_distinct(produced: list[ProducedRecord]) -> None:
    """Check the log.  One that lost acknowledged records gives their offsets to others, and no read can agree with both."""
    for (partition, offset), times in Counter((record.partition, record.offset) for record in produced).items():
        assert times == 1, f"{produced[0].topic}-{partition}: offset {offset} was acknowledged {times} times"


@asynccontextmanager
async def open_sender(
    client_settings: Mapping[str, Any], style: Style, batch_bytes: int
) -> AsyncIterator[AIOKafkaProducer]:
    # Not acks=1, aiokafka's default: a leader that has not heard yet that it leads no more says yes, and truncates.
    settings: dict[str, Any] = {"acks": "all", "compression_type": style.compression, "max_batch_size": batch_bytes}
    if style.outcome is not None:
        settings["transactional_id"] = f"produce-mix-{style.outcome}-{uuid.uuid4()}"
    elif style.idempotent:
        settings["enable_idempotence"] = True
    async with AIOKafkaProducer(**client_settings, **settings) as producer:
        yield producer


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnBatch:
    """A closed batch of aiokafka's and the records in it, their offsets counted from 0."""

    partition: int
    builder: Any
    records: list[ProducedRecord]


async def _send(producer: AIOKafkaProducer, style: Style, batches: list[DrawnBatch]) -> list[list[ProducedRecord]]:
    """Send one batch per partition, in one transaction if the style has them; the records with their offsets."""
    if style.outcome is not None:
        await producer.begin_transaction()
    topic = batches[0].records[0].topic
    sent = [await producer.send_batch(batch.builder, topic, partition=batch.partition) for batch in batches]
    acknowledged: list[RecordMetadata] = [await future for future in sent]
    if style.outcome == "committed":
        await producer.commit_transaction()
    elif style.outcome == "aborted":
        await producer.abort_transaction()
    return [
        [
            replace(record, offset=first.offset + record.offset, aborted=style.outcome == "aborted")
            for record in batch.records
        ]
        for batch, first in zip(batches, acknowledged, strict=True)
    ]


def draw_batch(
    draw: random.Random, producer: AIOKafkaProducer, topic: str, partition: int, value_bytes: int
) -> DrawnBatch:
    """Return a closed batch of records of all shapes, as many as ``producer`` lets into one."""
    builder = producer.create_batch()
    records: list[ProducedRecord] = []
    now_ms = time.time_ns() // 1_000_000
    while True:
        key, value, headers = _draw_key(draw), _draw_value(draw, value_bytes), _draw_headers(draw)
        # Producers' clocks differ: timestamps need not ascend with the offsets.
        timestamp_ms = now_ms + len(records) - draw.randrange(3)
        taken = builder.append(timestamp=timestamp_ms, key=key, value=value, headers=headers)
        if taken is None:
            break
        records.append(
            ProducedRecord(
                topic=topic,
                partition=partition,
                offset=len(records),
                timestamp_ms=timestamp_ms,
                key=key,
                value=value,
                headers=tuple(headers),
                aborted=False,
            )
        )
    builder.close()
    return DrawnBatch(partition=partition, builder=builder, records=records)


def _draw_key(draw: random.Random) -> bytes | None:
    chance = draw.random()
    if chance < 0.1:
        return None
    return b"" if chance < 0.12 else b"key-%d" % draw.randrange(100_000)


def _draw_value(draw: random.Random, value_bytes: int) -> bytes | None:
    """Return half noise, half text, so that each codec finds something to do; now and then null or empty."""
    chance = draw.random()
    if chance < 0.02:
        return None
    if chance < 0.03:
        return b""
    size = draw.randrange(value_bytes // 2, value_bytes * 3 // 2)
    return draw.randbytes(size // 2) + (b'{"event": "tiered", "amount": %d}' % size * size)[: size - size // 2]


def _draw_headers(draw: random.Random) -> list[Header]:
    if draw.random() < 0.7:
        return []
    headers: list[Header] = [("trace", draw.randbytes(16)), ("Überschrift", "ä€𝄞".encode())]
    # Kafka takes the same name twice, and null values.
    return [*headers, ("trace", b""), ("none", None)] if draw.random() < 0.5 else headers
