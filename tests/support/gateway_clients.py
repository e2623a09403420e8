"""Real clients that read a topic from one place to its end, each by its own library, with what they saw in one form."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import confluent_kafka
import kafka
from aiokafka import AIOKafkaConsumer, TopicPartition

Seen = tuple[int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Partition, offset, timestamp, key, value, headers."""

DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where a client connects to, and as whom: nobody without a ``mechanism``."""

    servers: str
    mechanism: str = ""
    username: str = ""
    password: str = ""

    @property
    def python_settings(self) -> dict[str, Any]:
        """For aiokafka and kafka-python."""
        if not self.mechanism:
            return {"bootstrap_servers": self.servers}
        login = {"sasl_plain_username": self.username, "sasl_plain_password": self.password}
        return {
            "bootstrap_servers": self.servers,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": self.mechanism,
            **login,
        }

    @property
    def librdkafka_settings(self) -> dict[str, Any]:
        if not self.mechanism:
            return {"bootstrap.servers": self.servers}
        login = {"sasl.username": self.username, "sasl.password": self.password}
        return {
            "bootstrap.servers": self.servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": self.mechanism,
            **login,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What to read: each partition up to ``ends`` (exclusive), from the offsets of ``starts``, or from the first record that
    is not before ``since_ms``, or from what ``group`` has committed; else from the earliest, as the client finds it out."""

    topic: str
    ends: Mapping[int, int]
    starts: Mapping[int, int] | None = None
    since_ms: int | None = None
    isolation: str = "read_uncommitted"
    group: str | None = None
    max_partition_bytes: int = 1024 * 1024
    fetch_max_bytes: int = 50 * 1024 * 1024
    max_wait_ms: int = 500
    min_bytes: int = 1


Client = Callable[[Access, Reading], list[Seen]]


class Progress:
    """Which partitions have come to their ends."""

    def __init__(self, ends: Mapping[int, int]) -> None:
        self._ends, self._positions = ends, dict[int, int]()
        self._deadline_s = time.monotonic() + DEADLINE_S

    def goes_on(self, positions: Mapping[int, int]) -> bool:
        """Whether some partition is not at its end by these positions.

        Raises:
            AssertionError: it took too long.
        """
        left = {one: (positions.get(one), end) for one, end in self._ends.items() if (positions.get(one) or 0) < end}
        assert not left or time.monotonic() < self._deadline_s, f"position and end of what was not read: {left}"
        return bool(left)


def read_with_aiokafka(access: Access, reading: Reading) -> list[Seen]:
    return asyncio.run(_aiokafka(access, reading))


async def _aiokafka(access: Access, reading: Reading) -> list[Seen]:
    seen = list[Seen]()
    partitions = [TopicPartition(reading.topic, number) for number in reading.ends]
    async with AIOKafkaConsumer(
        **access.python_settings,
        group_id=reading.group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level=reading.isolation,
        max_partition_fetch_bytes=reading.max_partition_bytes,
        fetch_max_bytes=reading.fetch_max_bytes,
        fetch_max_wait_ms=reading.max_wait_ms,
        fetch_min_bytes=reading.min_bytes,
    ) as consumer:
        consumer.assign(partitions)
        starts = {TopicPartition(reading.topic, number): at for number, at in (reading.starts or {}).items()}
        if reading.since_ms is not None:
            found = await consumer.offsets_for_times(dict.fromkeys(partitions, reading.since_ms))
            starts = {one: at.offset for one, at in found.items() if at is not None}
        for one, offset in starts.items():
            consumer.seek(one, offset)
        progress, positions = Progress(reading.ends), dict[int, int]()
        while progress.goes_on(positions):
            for batch in (await consumer.getmany(timeout_ms=200)).values():
                seen += [
                    (one.partition, one.offset, one.timestamp, one.key, one.value, tuple(one.headers)) for one in batch
                ]
            positions = {one.partition: await consumer.position(one) for one in partitions}
    return in_order(seen, reading)


def read_with_confluent(access: Access, reading: Reading) -> list[Seen]:
    consumer = confluent_kafka.Consumer(
        {
            **access.librdkafka_settings,
            "group.id": reading.group or "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": reading.isolation,
            "enable.partition.eof": True,
            "log_level": 0,
            "max.partition.fetch.bytes": reading.max_partition_bytes,
            "fetch.max.bytes": max(reading.fetch_max_bytes, reading.max_partition_bytes),
            "fetch.wait.max.ms": reading.max_wait_ms,
            "fetch.min.bytes": reading.min_bytes,
            "message.max.bytes": min(reading.fetch_max_bytes, 1_000_000),
        }
    )
    starts = dict(reading.starts or {})
    if reading.since_ms is not None:
        times = [confluent_kafka.TopicPartition(reading.topic, number, reading.since_ms) for number in reading.ends]
        starts = {one.partition: one.offset for one in consumer.offsets_for_times(times, timeout=30)}
    earliest = confluent_kafka.OFFSET_STORED if reading.group else confluent_kafka.OFFSET_BEGINNING
    consumer.assign(
        [confluent_kafka.TopicPartition(reading.topic, number, starts.get(number, earliest)) for number in reading.ends]
    )
    seen, progress, positions = list[Seen](), Progress(reading.ends), dict[int, int]()
    try:
        while progress.goes_on(positions):
            messages: list[Any] = consumer.consume(500, timeout=0.2)
            for message in messages:
                error = message.error()
                if error is None:
                    seen.append(_of_confluent(message))
                    positions[message.partition()] = message.offset() + 1
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    positions[message.partition()] = message.offset()
                else:
                    raise confluent_kafka.KafkaException(error)
    finally:
        consumer.close()
    return in_order(seen, reading)


def _of_confluent(message: Any) -> Seen:
    headers = tuple((name, content) for name, content in message.headers() or ())
    return message.partition(), message.offset(), message.timestamp()[1], message.key(), message.value(), headers


def read_with_kafka_python(access: Access, reading: Reading) -> list[Seen]:
    consumer = kafka.KafkaConsumer(
        **access.python_settings,
        group_id=reading.group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level=reading.isolation,
        max_partition_fetch_bytes=reading.max_partition_bytes,
        fetch_max_bytes=reading.fetch_max_bytes,
        fetch_max_wait_ms=reading.max_wait_ms,
        fetch_min_bytes=reading.min_bytes,
    )
    partitions = [kafka.TopicPartition(reading.topic, number) for number in reading.ends]
    seen, progress, positions = list[Seen](), Progress(reading.ends), dict[int, int]()
    try:
        consumer.assign(partitions)
        starts = {kafka.TopicPartition(reading.topic, number): at for number, at in (reading.starts or {}).items()}
        if reading.since_ms is not None:
            found = consumer.offsets_for_times(dict.fromkeys(partitions, reading.since_ms))
            starts = {one: at.offset for one, at in found.items() if at is not None}
        for one, offset in starts.items():
            consumer.seek(one, offset)
        while progress.goes_on(positions):
            for batch in consumer.poll(timeout_ms=200).values():
                seen += [
                    (one.partition, one.offset, one.timestamp, one.key, one.value, tuple(map(tuple, one.headers)))
                    for one in batch
                ]
            positions = {one.partition: consumer.position(one) or 0 for one in partitions}
    finally:
        consumer.close()
    return in_order(seen, reading)


def in_order(seen: Sequence[Seen], reading: Reading) -> list[Seen]:
    """By partition, in each as they came; without what lies past the ends."""
    return sorted((one for one in seen if one[1] < reading.ends[one[0]]), key=lambda one: one[0])


CLIENTS: Mapping[str, Client] = {
    "aiokafka": read_with_aiokafka,
    "confluent-kafka": read_with_confluent,
    "kafka-python": read_with_kafka_python,
}
