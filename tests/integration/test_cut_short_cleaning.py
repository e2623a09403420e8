"""A real broker's cleaner that is killed within two rounds has taken tombstones, and its checkpoint says nothing of it (S-267).

Pictures and trims of compacted topics must not take that checkpoint for proof that tombstones are there.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from tests.support.compacted_topic import cleaner_offset, read_segments
from tests.support.inline_blocking import InlineBlocking
from tests.support.kafka_admin import wait_until
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_jars import KAFKA_3, KAFKA_4
from tiersidecar.adapters.pins_fs.pins import FilesystemPins
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import LocalSegment
from tiersidecar.formats.compaction.containment import is_tombstone
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import read_records

pytestmark = [pytest.mark.broker, pytest.mark.timeout(200)]

TOPIC, RETENTION_MS, SEGMENT_BYTES = "cut-short", 1000, 100_000
CONFIGS = {
    "cleanup.policy": "compact,delete",
    "retention.ms": "-1",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": str(RETENTION_MS),
    "min.compaction.lag.ms": "3600000",
}
PROPERTIES = {"log.cleaner.backoff.ms": "200", "log.cleaner.io.max.bytes.per.second": "200000"}


async def fill(client_settings: Mapping[str, Any]) -> None:
    """A value and its tombstone, and then segments of other keys."""
    draw = random.Random(1)
    async with AIOKafkaProducer(**client_settings) as producer:
        await producer.send_and_wait(TOPIC, key=b"deleted", value=b"once", partition=0)
        await producer.send_and_wait(TOPIC, key=b"deleted", value=None, partition=0)
        for number in range(150):
            await producer.send_and_wait(TOPIC, key=b"%d" % number, value=draw.randbytes(9_000), partition=0)


def tombstones(path: Path) -> int:
    log = path.read_bytes()
    batches = (log[position : position + header.size_bytes] for position, header in iter_batch_headers(log))
    return sum(is_tombstone(record) for batch in batches for record in read_records(batch))


async def first_cleaned(path: Path, stop: int) -> Offset | None:
    segment = LocalSegment(
        directory=str(path.parent),
        base_offset=Offset(0),
        next_base_offset=Offset(stop),
        size_bytes=path.stat().st_size,
        modified_ms=0,
    )
    pins = FilesystemPins([str(path.parent.parent)], blocking=InlineBlocking())
    return await pins.first_cleaned(segment, Offset(0), Offset(stop))


def cut_short(broker: KafkaBroker, path: Path) -> None:
    """Kill it once its cleaner has put another file in the place of ``path``."""
    before = path.stat().st_ino
    wait_until(lambda: path.exists() and path.stat().st_ino != before, "the first segment is replaced", 60)
    broker.kill9()


@pytest.mark.parametrize("version", [KAFKA_4, KAFKA_3])
def test_the_checkpoint_does_not_tell_of_rounds_that_were_cut_short(tmp_path: Path, version: str) -> None:
    with KafkaCluster(tmp_path, version=version, properties=PROPERTIES) as kafka:
        broker = kafka[1]
        kafka.create_topic(TOPIC, partitions=1, segment_bytes=SEGMENT_BYTES, configs=CONFIGS)
        asyncio.run(fill(kafka.client_settings))
        path = broker.partition_dir(TOPIC, 0) / f"{0:020d}.log"
        stop = read_segments(broker, TOPIC, 0)[0].next_base_offset
        assert asyncio.run(first_cleaned(path, stop)) is None
        broker.admin.alter_topic(TOPIC, {"min.compaction.lag.ms": "0"})
        for left in (1, 0):
            cut_short(broker, path)
            assert (tombstones(path), cleaner_offset(broker, TOPIC, 0) or 0) == (left, 0)
            assert asyncio.run(first_cleaned(path, stop)) == 0
            time.sleep(RETENTION_MS / 1000 + 0.5)
            broker.launch()
