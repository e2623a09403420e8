"""Reads of a plain Kafka client through the gateways, in the form that the read service gives it back in."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.support.read_service import Shape


def read_through_gateway(
    bootstrap_servers: str, topic: str, partition: int, *, offset: int, stop: int, isolation: str, timeout_s: float
) -> list[Shape]:
    """Return records from ``offset`` up to, not including, ``stop``.

    Raises:
        OffsetOutOfRangeError: the cluster says that there is none at ``offset``.
        KafkaError: as the client raises it.
        TimeoutError: not within ``timeout_s``.
    """
    return asyncio.run(
        asyncio.wait_for(_read(bootstrap_servers, TopicPartition(topic, partition), offset, stop, isolation), timeout_s)
    )


async def _read(
    bootstrap_servers: str, partition: TopicPartition, offset: int, stop: int, isolation: str
) -> list[Shape]:
    found: list[Shape] = []
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level=isolation,
        metadata_max_age_ms=1_000,
        request_timeout_ms=10_000,
    )
    try:
        await consumer.start()
        consumer.assign([partition])
        consumer.seek(partition, offset)
        while await consumer.position(partition) < stop:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found += [
                    (record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
                    for record in records
                    if record.offset < stop
                ]
    finally:
        await _stop(consumer)  # also of one that could not start
    return found


async def _stop(consumer: AIOKafkaConsumer) -> None:
    try:
        await consumer.stop()
    except asyncio.CancelledError:
        # It waits for its own tasks that it has cancelled: one that rested after an error of its broker says so.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
