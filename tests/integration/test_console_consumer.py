"""What has been tiered reads as the Java console consumer read it before: same records, offsets and timestamps."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT, produce, started, wait_until_trimmed
from tests.support.kafka_cluster import KafkaCluster
from tests.support.read_service import Shape, fetch_records

pytestmark = pytest.mark.broker

TOPIC = "as-before"
_BYTES = "org.apache.kafka.common.serialization.BytesDeserializer"
ISOLATIONS = ("read_uncommitted", "read_committed")


def consumed(cluster: KafkaCluster, isolation: str) -> list[str]:
    """The lines of the console consumer, from offset 0: bytes escaped, so that each record is one line."""
    options = [
        *("print.timestamp=true", "print.offset=true", "print.headers=true", "print.key=true"),
        *(f"{part}.deserializer={_BYTES}" for part in ("key", "value", "headers")),
    ]
    printed = cluster.run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *(
            "--bootstrap-server",
            cluster.bootstrap_servers,
            "--topic",
            TOPIC,
            "--partition",
            "0",
            "--offset",
            "earliest",
        ),
        *("--isolation-level", isolation, "--timeout-ms", "5000"),
        *(argument for option in options for argument in ("--formatter-property", option)),
    ).stdout
    return printed.splitlines()


def as_printed(record: Shape) -> str:
    """A record of ours as the console consumer prints it."""
    offset, timestamp_ms, key, value, headers = record
    told = ",".join(f"{name}:{_escaped(content)}" for name, content in headers) or "NO_HEADERS"
    return "\t".join([f"CreateTime:{timestamp_ms}", f"Offset:{offset}", told, _escaped(key), _escaped(value)])


def _escaped(data: bytes | None) -> str:
    """``org.apache.kafka.common.utils.Bytes.toString``."""
    if data is None:
        return "null"
    return "".join(chr(one) if 0x20 <= one <= 0x7E and one != 0x5C else f"\\x{one:02X}" for one in data)


def offset_of(line: str) -> int:
    return int(line.split("\t", 2)[1].removeprefix("Offset:"))


async def offsets_by_time(cluster: KafkaCluster, timestamps: Iterable[int]) -> dict[int, int | None]:
    """What the broker answers."""
    partition = TopicPartition(TOPIC, 0)
    answers: dict[int, int | None] = {}
    async with AIOKafkaConsumer(**cluster.client_settings) as consumer:
        for timestamp_ms in timestamps:
            found = (await consumer.offsets_for_times({partition: timestamp_ms}))[partition]
            answers[timestamp_ms] = None if found is None else found.offset
    return answers


def found_by_time(read_url: str, timestamp_ms: int) -> int | None:
    url = f"{read_url}/topics/{TOPIC}/partitions/0/offsets?timestamp={timestamp_ms}"
    with urllib.request.urlopen(url, timeout=30) as response:
        document: dict[str, Any] = json.load(response)
    offset: int | None = document["offset"]
    return offset


def test_a_tiered_topic_reads_as_the_console_consumer_read_it_before(kafka: KafkaCluster, tmp_path: Path) -> None:
    """From every offset and for every timestamp, at both isolation levels."""
    kafka.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produced = produce(kafka, TOPIC, total_bytes=600_000)
    before = {isolation: consumed(kafka, isolation) for isolation in ISOLATIONS}
    assert len(before["read_uncommitted"]) == len(produced) > len(before["read_committed"]) > 0
    stamps = {record.timestamp_ms + change for record in produced for change in (0, 1)}
    by_time = asyncio.run(offsets_by_time(kafka, sorted(stamps)))
    with started(tmp_path, kafka, TOPIC) as daemon:
        daemon.wait_until_ready()
        stop = wait_until_trimmed(kafka, daemon, TOPIC)
        for isolation in ISOLATIONS:
            lines = {offset_of(line): line for line in before[isolation] if offset_of(line) < stop}
            assert len(lines) > 300
            offsets = sorted(lines)
            everything = fetch_records(daemon.read_url, TOPIC, 0, stop=stop, isolation=isolation)
            assert [as_printed(record) for record in everything] == [lines[offset] for offset in offsets]
            for start in range(stop):
                window = min(start + 40, stop)
                found = fetch_records(daemon.read_url, TOPIC, 0, offset=start, stop=window, isolation=isolation)
                expected = [lines[offset] for offset in offsets if start <= offset < window]
                assert [as_printed(record) for record in found if record[0] < window] == expected, start
        end = kafka.admin.latest_offset(TOPIC, 0)
        assert stop < end, "the active segment is local"
        for isolation in ISOLATIONS:
            found = fetch_records(daemon.read_url, TOPIC, 0, stop=end, isolation=isolation)
            assert [as_printed(record) for record in found] == before[isolation], "both tiers as one log"
        for timestamp_ms, offset in by_time.items():
            assert found_by_time(daemon.read_url, timestamp_ms) == offset, timestamp_ms
