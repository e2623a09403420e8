"""A log on a real broker whose segments are as old as a test says: by their records' timestamps, and by their files' times."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

from tests.support.kafka_admin import wait_until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.produce import ProducedRecord

DAY_MS = 24 * 3_600_000
RECORDS_PER_SEGMENT = 10
SEGMENT_BYTES = 64 * 1024
_VALUE_BYTES = 6_000
"""Ten batches of one record fill a segment, an eleventh does not fit."""


def aged_topic(
    cluster: KafkaCluster, topic: str, ages_days: Mapping[int, float], configs: Mapping[str, str]
) -> list[ProducedRecord]:
    """Make a topic of one partition with one segment of ten records per entry, and an active one of a few records.

    ``ages_days`` has the age of each sealed segment by its number; the active segment is of now.
    """
    cluster.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=configs)
    now_ms = int(time.time() * 1000)
    times_ms = [
        now_ms - int(ages_days[number] * DAY_MS) + offset
        for number in range(len(ages_days))
        for offset in range(RECORDS_PER_SEGMENT)
    ]
    produced = asyncio.run(_produce(cluster.client_settings, topic, [*times_ms, *[now_ms] * 3]))
    directory = cluster.leader_of(topic, 0).partition_dir(topic, 0)
    bases = [RECORDS_PER_SEGMENT * number for number in range(len(ages_days) + 1)]
    wait_until(lambda: _bases(directory) == bases, f"{topic} has the segments {bases}, not {_bases(directory)}")
    for number, age_days in ages_days.items():
        modified_s = (now_ms - age_days * DAY_MS) / 1000
        os.utime(directory / f"{RECORDS_PER_SEGMENT * number:020d}.log", (modified_s, modified_s))
    return produced


def _bases(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in directory.glob("*.log"))


async def _produce(client_settings: Mapping[str, Any], topic: str, times_ms: list[int]) -> list[ProducedRecord]:
    produced = []
    async with AIOKafkaProducer(**client_settings, acks="all") as producer:
        for number, time_ms in enumerate(times_ms):
            key, value = str(number).encode(), bytes([number % 256]) * _VALUE_BYTES
            sent = await producer.send_and_wait(topic, value, key=key, partition=0, timestamp_ms=time_ms)
            produced.append(
                ProducedRecord(
                    topic=topic,
                    partition=0,
                    offset=sent.offset,
                    timestamp_ms=time_ms,
                    key=key,
                    value=value,
                    headers=(),
                    aborted=False,
                )
            )
    return produced
