"""What produce_mix says it produced is what the broker has: the other tests compare against it."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.support.kafka_cluster import KafkaCluster
from tests.support.patience import patient_s
from tests.support.produce import ALL_STYLES, ProducedRecord, produce_mix

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]
Isolation = Literal["read_committed", "read_uncommitted"]


async def read_all(cluster: KafkaCluster, topic: str, partition: int, isolation: Isolation) -> list[Any]:
    at = TopicPartition(topic, partition)
    found: list[Any] = []
    async with AIOKafkaConsumer(
        **cluster.client_settings, isolation_level=isolation, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([at])
        end = await end_offset(consumer, at, cluster.admin.latest_offset(topic, partition))
        while await consumer.position(at) < end:
            for records in (await consumer.getmany(at, timeout_ms=200)).values():
                found += records
    return found


async def end_offset(consumer: AIOKafkaConsumer, at: TopicPartition, high_watermark: int) -> int:
    """The consumer's end, once no transaction is open: a broker answers EndTxn before it has written the markers."""
    async with asyncio.timeout(patient_s(60)):
        while True:
            end = int((await consumer.end_offsets([at]))[at])
            if end >= high_watermark:
                return end
            await asyncio.sleep(0.05)


def as_consumed(record: ProducedRecord) -> tuple[object, ...]:
    return record.offset, record.timestamp_ms, record.key, record.value, record.headers


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
async def test_every_record_is_where_it_says(kafka: KafkaCluster, isolation: Isolation) -> None:
    topic = kafka.create_topic(f"mix-{isolation}", partitions=2, segment_bytes=200_000)
    produced = await produce_mix(kafka.client_settings, topic, partitions=2, total_bytes=2_000_000)
    assert {record.aborted for record in produced} == {True, False}
    for partition in (0, 1):
        consumed = await read_all(kafka, topic, partition, isolation)
        wanted = [
            as_consumed(record)
            for record in produced
            if record.partition == partition and not (record.aborted and isolation == "read_committed")
        ]
        assert [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in consumed] == wanted


async def test_the_log_holds_every_codec_and_transactions(kafka: KafkaCluster) -> None:
    topic = kafka.create_topic("mix-dumped")
    await produce_mix(kafka.client_settings, topic, total_bytes=1, styles=ALL_STYLES)
    log = kafka.leader_of(topic, 0).partition_dir(topic, 0) / "00000000000000000000.log"
    dumped = kafka.run_tool("org.apache.kafka.tools.DumpLogSegments", "--files", str(log)).stdout
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        assert f"compresscodec: {codec}" in dumped
    assert "isTransactional: true" in dumped
    assert "isControl: true" in dumped
