"""What each cleanup policy gives of the local log, on real brokers of Kafka 4 and 3.9 whose cleaners run hard (issue 23).

``compact``: brokers refuse DeleteRecords, and the local log stays whole.  ``compact,delete`` without retention at the broker:
the sidecar trims, and a consumer through the gateway builds the whole table (S-266, S-268, S-282).
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from tests.support.command_line import answer_of
from tests.support.compacted_topic import cleaner_offset
from tests.support.daemon import Daemon, daemon_settings, wait_for
from tests.support.kafka_admin import KafkaAdminError, wait_until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_jars import KAFKA_3, KAFKA_4
from tests.support.loopback_ports import free_port

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

TRIMMED, KEPT = "deleted-and-compacted", "compacted-alone"
SEGMENT_BYTES, DELETE_RETENTION_MS = 16 * 1024, 12_000
CONFIGS = {
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": str(DELETE_RETENTION_MS),
}
KEYS, PER_WAVE, MOST_WAVES = 60, 150, 150

Table = dict[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """``tables`` are those of what was written, of a consumer through the gateway, and of one at the broker, of the topic that
    is trimmed; ``starts`` the brokers' log starts; ``says`` the explanation of each topic's first offset."""

    refused: str
    starts: Mapping[str, int]
    written: Table
    of_gateway: Table
    of_broker: Table
    files: int
    says: Mapping[str, str]
    held_back: Mapping[str, str | None]
    events: tuple[dict[str, Any], ...]


async def write(client_settings: Mapping[str, Any], topic: str, wave: int, table: Table) -> None:
    """Values and tombstones of a few keys, some of them in transactions; then what seals it all."""
    draw = random.Random(wave)
    producer = AIOKafkaProducer(**client_settings, transactional_id=f"writer-of-{topic}", compression_type="lz4")
    await producer.start()
    try:
        for begun in range(0, PER_WAVE, 10):
            found: dict[bytes, bytes | None] = {}
            await producer.begin_transaction()
            for number in range(10):
                key = b"key-%d" % draw.randrange(KEYS)
                value = None if draw.random() < 0.2 else b"%d-%d-" % (wave, begun + number) + draw.randbytes(60)
                await producer.send(topic, key=key, value=value, partition=0)
                found[key] = value
            if draw.random() < 0.2:
                await producer.abort_transaction()
                continue
            await producer.commit_transaction()
            for key, value in found.items():
                table.pop(key, None)
                if value is not None:
                    table[key] = value
        async with producer.transaction():
            for number in range(3):
                # Keys of their own: else the cleaner would merge all into one segment, which always has a young tombstone.
                key, value = b"filler-%d-%d" % (wave, number), draw.randbytes(6000)
                await producer.send_and_wait(topic, key=key, value=value, partition=0)
                table[key] = value
    finally:
        await producer.stop()


@pytest.fixture(scope="module", autouse=True)
def emptied_markers_are_endured() -> Iterator[None]:
    """Cleaners, Kafka's too, keep a control batch without its record for a producer's state.  Kafka's own consumer passes it
    by, aiokafka's takes it for an error."""
    contains = PartitionRecords._contains_abort_marker

    def contains_or_is_empty(records: PartitionRecords, batch: Any) -> bool:
        try:
            return bool(contains(records, batch))
        except KafkaError:
            return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartitionRecords, "_contains_abort_marker", contains_or_is_empty)
        yield


async def consumed(client_settings: Mapping[str, Any], topic: str, stop: int, start: int = 0) -> Table:
    """Return what a read_committed consumer builds of offsets below ``stop``."""
    place = TopicPartition(topic, 0)
    consumer = AIOKafkaConsumer(
        **client_settings, isolation_level="read_committed", enable_auto_commit=False, auto_offset_reset="none"
    )
    await consumer.start()
    found: dict[bytes, bytes | None] = {}
    try:
        consumer.assign([place])
        consumer.seek(place, start)
        while await consumer.position(place) < stop:
            for records in (await consumer.getmany(place, timeout_ms=500)).values():
                found.update((one.key, one.value) for one in records if one.key is not None)
    finally:
        await consumer.stop()
    return {key: value for key, value in found.items() if value is not None}


def consumed_of_broker(kafka: KafkaCluster, stop: int) -> Table:
    """Return what is in its log, from the start of the moment."""
    while True:
        start = kafka[1].admin.earliest_offset(TRIMMED, 0)
        try:
            return asyncio.run(consumed(kafka.client_settings, TRIMMED, stop, start))
        except OffsetOutOfRangeError:
            continue  # it was trimmed since


@pytest.fixture(scope="module", params=[KAFKA_4, KAFKA_3])
def seen(
    request: pytest.FixtureRequest, emptied_markers_are_endured: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seen]:
    directory, gateway = tmp_path_factory.mktemp("trims"), f"127.0.0.1:{free_port()}"
    properties = {"log.cleaner.backoff.ms": "200", "log.retention.check.interval.ms": "500"}
    with KafkaCluster(tmp_path_factory.mktemp("kafka"), version=request.param, properties=properties) as kafka:
        for topic, policy in ((TRIMMED, "compact,delete"), (KEPT, "compact")):
            kafka.create_topic(
                topic, partitions=1, segment_bytes=SEGMENT_BYTES, configs={**CONFIGS, "cleanup.policy": policy}
            )
        settings = daemon_settings(
            directory,
            bootstrap_servers=kafka.bootstrap_servers,
            log_dirs=list(kafka.brokers[0].log_dirs),
            topics=[{"name": topic, "local.retention.bytes": 0} for topic in (TRIMMED, KEPT)],
            **{
                "compaction.enabled": True,
                "compaction.trim.enabled": True,
                "compaction.interval.ms": 300,
                "gateway": {"listeners": [{"listen": gateway}]},
            },
        )
        tables: dict[str, Table] = {TRIMMED: {}, KEPT: {}}
        with Daemon(directory, settings, roles="tier,read,gateway") as daemon:
            daemon.wait_until_ready()
            admin = kafka[1].admin
            for wave in range(3):
                for topic, table in tables.items():
                    asyncio.run(write(kafka.client_settings, topic, wave, table))
            first = admin.latest_offset(TRIMMED, 0)
            waves = 3
            while admin.earliest_offset(TRIMMED, 0) < first * 2 // 3 and waves < MOST_WAVES:
                asyncio.run(write(kafka.client_settings, TRIMMED, waves, tables[TRIMMED]))
                waves += 1

                def is_cleaned() -> bool:
                    return (cleaner_offset(kafka[1], TRIMMED, 0) or 0) > first

                wait_until(is_cleaned, "the broker's cleaner was there", 60)
            try:
                admin.delete_records(KEPT, 0, 1)
                refused = ""
            except KafkaAdminError as error:
                refused = error.error_code.name
            stop = admin.latest_offset(TRIMMED, 0)
            through = {**kafka.client_settings, "bootstrap_servers": gateway}
            explained = {}
            for topic in (TRIMMED, KEPT):
                wait_for(lambda: daemon.events("segment.copy.finished"), "something is remote", daemon, 60)
                # What a round has replaced may still hold the offset, and has an account of its own.
                accounts = answer_of(daemon.config_path, "explain", f"{topic}/0", "0")["accounts"]
                explained[topic] = " ".join(one["says"] for account in accounts for one in account["findings"])
            of_gateway = asyncio.run(consumed(through, TRIMMED, stop))
            rows = json.loads(daemon.status("/status")[1])["partitions"]
            partitions = {row["topic"]: row for row in rows if row["topic"] == KEPT}
            yield Seen(
                refused=refused,
                starts={topic: admin.earliest_offset(topic, 0) for topic in (TRIMMED, KEPT)},
                written=tables[TRIMMED],
                of_gateway=of_gateway,
                of_broker=consumed_of_broker(kafka, stop),
                files=len(list(kafka[1].partition_dir(TRIMMED, 0).glob("*.log"))),
                says=explained,
                held_back={topic: row["held_back_reason"] for topic, row in partitions.items()},
                events=tuple(daemon.events()),
            )


def test_brokers_refuse_it_of_what_is_compacted_alone(seen: Seen) -> None:
    assert (seen.refused, seen.starts[KEPT]) == ("policy_violation", 0)
    assert "brokers refuse DeleteRecords" in seen.says[KEPT]


def test_that_is_no_alarm(seen: Seen) -> None:
    assert [
        one for one in seen.events if one["event"] in {"lane.halted", "trim.refused", "trim.read_back.failed"}
    ] == []
    assert seen.held_back == {KEPT: None}


def test_what_is_deleted_from_as_well_is_trimmed(seen: Seen) -> None:
    assert seen.starts[TRIMMED] > 0
    assert [one for one in seen.events if one["event"] == "log.trimmed" and one["topic"] == TRIMMED]


def test_through_the_gateway_it_is_the_table_that_was_written(seen: Seen) -> None:
    """No key that was deleted is back, and none has an older value."""
    wrong = {
        key for key in seen.written.keys() | seen.of_gateway.keys() if seen.written.get(key) != seen.of_gateway.get(key)
    }
    assert wrong == set()


def test_the_broker_alone_has_but_a_part_of_it(seen: Seen) -> None:
    """Or nothing was shown."""
    assert seen.of_broker.items() <= seen.written.items()
