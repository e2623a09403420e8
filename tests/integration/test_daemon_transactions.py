"""An open transaction holds copying back at the last stable offset (S-023); what it aborts goes with its index."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from tests.integration.test_daemon import (
    SEGMENT_BYTES,
    STRICT,
    active_base,
    assert_every_sealed_segment_once,
    assert_reads_back,
    finished,
    started,
    wait_until_trimmed,
)
from tests.support.daemon import wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.produce import ProducedRecord, Style, draw_batch, produce_mix

pytestmark = pytest.mark.broker


@asynccontextmanager
async def open_transaction(cluster: KafkaCluster, topic: str) -> AsyncIterator[list[ProducedRecord]]:
    """One batch in a transaction that is aborted at the end of the block."""
    settings = {"transactional_id": f"{topic}-tx", "transaction_timeout_ms": 600_000, "max_batch_size": 16_384}
    async with AIOKafkaProducer(**cluster.client_settings, **settings) as producer:
        await producer.begin_transaction()
        batch = draw_batch(random.Random(0), producer, topic, 0, value_bytes=1000)
        first = await (await producer.send_batch(batch.builder, topic, partition=0))
        yield [replace(record, offset=first.offset + record.offset, aborted=True) for record in batch.records]
        await producer.abort_transaction()


async def produce(cluster: KafkaCluster, topic: str, *, seed: int) -> list[ProducedRecord]:
    """Three to four segments of committed data."""
    return await produce_mix(
        cluster.client_settings,
        topic,
        total_bytes=4 * SEGMENT_BYTES,
        batch_bytes=16_384,
        styles=[Style(idempotent=True)],
        seed=seed,
    )


async def test_nothing_is_copied_past_an_open_transaction_until_it_ends(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = kafka.create_topic("open-transaction", segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produced = await produce(kafka, topic, seed=1)
    with started(tmp_path, kafka, topic) as daemon:
        async with open_transaction(kafka, topic) as undecided:
            produced += undecided + await produce(kafka, topic, seed=2)
            last_stable_offset = undecided[0].offset
            bases = [int(log.stem) for log in kafka.leader_of(topic, 0).partition_dir(topic, 0).glob("*.log")]
            border = max(base for base in bases if base <= last_stable_offset)
            assert active_base(kafka, topic) > border, "sealed segments wait behind it"

            def waits_at_the_border() -> bool:
                at_border = kafka.admin.earliest_offset(topic, 0) == border
                told = daemon.status("/status")[1]
                is_named = f"that is open from offset {last_stable_offset}, first seen" in told
                return at_border and is_named and f"last stable offset {last_stable_offset} is below" in told

            await asyncio.to_thread(wait_for, waits_at_the_border, "what lies below is remote, the rest waits", daemon)
            copied = await asyncio.to_thread(finished, kafka, daemon)
            assert copied[-1].next_offset == border <= last_stable_offset

        produced += await produce(kafka, topic, seed=3)
        stop = await asyncio.to_thread(wait_until_trimmed, kafka, daemon, topic)
        assert stop > border
        await asyncio.to_thread(assert_every_sealed_segment_once, kafka, daemon, topic)
        copied = await asyncio.to_thread(finished, kafka, daemon)
        assert [one.txn_index_empty for one in copied].count(False) == 1, "the segment with the abort marker"
        await asyncio.to_thread(assert_reads_back, daemon, topic, produced, stop)
