"""The clients that the gateway is tested with; each reads by its own library and gives what it saw."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import kafka
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.support.confluent_client import read_with_confluent
from tests.support.franz_client import read_with_franz
from tests.support.reading import Access, Client, Deadline, Progress, Reading, Seen, in_order


def read_with_aiokafka(access: Access, reading: Reading) -> list[Seen]:
    return asyncio.run(_aiokafka(access, reading))


async def _aiokafka(access: Access, reading: Reading) -> list[Seen]:
    async with AIOKafkaConsumer(
        **access.python_settings,
        group_id=reading.group or None,
        enable_auto_commit=False,
        auto_offset_reset=reading.reset,
        isolation_level=reading.isolation,
        max_partition_fetch_bytes=reading.max_partition_bytes,
        fetch_max_bytes=reading.fetch_max_bytes,
        fetch_max_wait_ms=reading.max_wait_ms,
    ) as consumer:
        partitions = [TopicPartition(reading.topic, number) for number in reading.ends]
        deadline = Deadline()
        if reading.membership == "assigned":
            consumer.assign([TopicPartition(topic, number) for topic in reading.topics for number in reading.ends])
        else:
            consumer.subscribe([reading.topic])
            while reading.start in ("timestamp", "hops") and not consumer.assignment():
                deadline.check("an assignment")
                await consumer.getmany(timeout_ms=50)  # what comes is read again from its place
        if reading.start == "timestamp":
            for one, at in (await consumer.offsets_for_times(dict.fromkeys(partitions, reading.since_ms))).items():
                consumer.seek(one, reading.ends[one.partition] if at is None else at.offset)
        seen = list[Seen]()
        if not reading.is_by_count:
            progress, positions = Progress(reading.ends), dict[int, int]()
            while progress.goes_on(positions):
                seen += _shown(await consumer.getmany(timeout_ms=200), reading)
                placed = [one for one in consumer.assignment() if one.topic == reading.topic]
                positions = {one.partition: await consumer.position(one) for one in placed}
            if reading.commits:
                await consumer.commit({one: reading.ends[one.partition] for one in partitions})
            return in_order(seen, reading)
        for hop in reading.hops or (None,):
            if hop is not None:
                consumer.seek(partitions[0], hop)
            for _ in range(reading.count):
                seen.append(_of_python(await asyncio.wait_for(consumer.getone(), 60)))
    return in_order(seen, reading)


def read_with_kafka_python(access: Access, reading: Reading) -> list[Seen]:
    consumer = kafka.KafkaConsumer(
        **access.python_settings,
        group_id=reading.group or None,
        enable_auto_commit=False,
        auto_offset_reset=reading.reset,
        isolation_level=reading.isolation,
        max_partition_fetch_bytes=reading.max_partition_bytes,
        fetch_max_bytes=reading.fetch_max_bytes,
        fetch_max_wait_ms=reading.max_wait_ms,
    )
    try:
        return in_order(_kafka_python(consumer, reading), reading)
    finally:
        consumer.close()


def _kafka_python(consumer: Any, reading: Reading) -> list[Seen]:
    partitions = [kafka.TopicPartition(reading.topic, number) for number in reading.ends]
    deadline = Deadline()
    if reading.membership == "assigned":
        consumer.assign([kafka.TopicPartition(topic, number) for topic in reading.topics for number in reading.ends])
    else:
        # Else a member that is quicker in its group than with its metadata assigns nothing, and stays with that.
        consumer.partitions_for_topic(reading.topic)
        consumer.subscribe([reading.topic])
        while reading.start in ("timestamp", "hops") and not consumer.assignment():
            deadline.check("an assignment")
            consumer.poll(timeout_ms=50)
    if reading.start == "timestamp":
        for one, at in consumer.offsets_for_times(dict.fromkeys(partitions, reading.since_ms)).items():
            consumer.seek(one, reading.ends[one.partition] if at is None else at.offset)
    seen = list[Seen]()
    if not reading.is_by_count:
        progress, positions = Progress(reading.ends), dict[int, int]()
        while progress.goes_on(positions):
            seen += _shown(consumer.poll(timeout_ms=200), reading)
            placed = [one for one in consumer.assignment() if one.topic == reading.topic]
            positions = {one.partition: consumer.position(one) or 0 for one in placed}
        return seen
    for hop in reading.hops or (None,):
        if hop is not None:
            consumer.seek(partitions[0], hop)
        found = list[Seen]()
        while len(found) < reading.count:
            deadline.check("a hop", hop, len(found))
            found += _shown(consumer.poll(timeout_ms=200), reading)
        seen += found[: reading.count]
    return seen


def _shown(batches: Mapping[Any, Sequence[Any]], reading: Reading) -> list[Seen]:
    return [_of_python(one) for batch in batches.values() for one in batch if one.topic == reading.topic]


def _of_python(one: Any) -> Seen:
    return one.partition, one.offset, one.timestamp, one.key, one.value, tuple(map(tuple, one.headers))


CLIENTS: Mapping[str, Client] = {
    "aiokafka": read_with_aiokafka,
    "confluent-kafka": read_with_confluent,
    "kafka-python": read_with_kafka_python,
    "franz-go": read_with_franz,
}
"""But for Kafka's own, which need a JVM: :class:`tests.support.java_clients.JavaClients`."""
