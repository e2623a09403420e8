"""Records erased by key from the remote log of a real broker's topic: gone from every byte, and all else as it was."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT, produce, started, wait_until_trimmed
from tests.integration.test_daemon_expiry import UNGUARDED, finished
from tests.integration.test_trash import in_trash
from tests.support.command_line import answer_of, run_command
from tests.support.daemon import wait_for
from tests.support.gateway import GatewayDaemon
from tests.support.kafka_cluster import KafkaCluster
from tests.support.produce import ProducedRecord
from tests.support.read_service import Shape, fetch_records, shape_of
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import read_records

pytestmark = pytest.mark.broker

KEY, VALUE = b"erase-this-key-0123456789abcdef#", b"and-this-value-0123456789abcdef#"
CODECS = (None, "gzip", "snappy", "lz4", "zstd")


async def plant(cluster: KafkaCluster, topic: str, *, has_keyless: bool = True) -> list[ProducedRecord]:
    """Records with the key among others: in a batch of each codec, in a committed and in an aborted transaction.  A compacted
    topic takes none without a key."""
    planted: list[ProducedRecord] = []

    async def send(producer: AIOKafkaProducer, name: bytes, *, aborted: bool = False) -> None:
        pairs = [(KEY, VALUE + name), (b"kept", b"kept " + name), (KEY, None), (None, b"no key " + name)]
        pairs = [one for one in pairs if has_keyless or one[0] is not None]
        begin_ms = int(time.time() * 1000)
        times = [begin_ms + 7 * number for number in range(len(pairs))]
        sent = [
            await producer.send(topic, value, key=key, partition=0, timestamp_ms=time_ms)
            for (key, value), time_ms in zip(pairs, times, strict=True)
        ]
        for (key, value), time_ms, one in zip(pairs, times, sent, strict=True):
            at = await one
            planted.append(
                ProducedRecord(
                    topic=topic,
                    partition=0,
                    offset=at.offset,
                    timestamp_ms=time_ms,
                    key=key,
                    value=value,
                    headers=(),
                    aborted=aborted,
                )
            )

    for codec in CODECS:
        settings: dict[str, Any] = {"compression_type": codec, "enable_idempotence": True, "linger_ms": 50}
        async with AIOKafkaProducer(**cluster.client_settings, **settings) as producer:
            await send(producer, str(codec).encode())
    settings = {"transactional_id": f"{topic}-planted", "linger_ms": 50}
    async with AIOKafkaProducer(**cluster.client_settings, **settings) as producer:
        await producer.begin_transaction()
        await send(producer, b"committed")
        await producer.commit_transaction()
        await producer.begin_transaction()
        await send(producer, b"aborted", aborted=True)
        await producer.abort_transaction()
    return planted


async def consumed(settings: dict[str, str], topic: str, stop: int, isolation: str) -> list[Shape]:
    found: list[Shape] = []
    partition = TopicPartition(topic, 0)
    async with AIOKafkaConsumer(**settings, isolation_level=isolation, enable_auto_commit=False) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        while await consumer.position(partition) < stop:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                found += [(one.offset, one.timestamp, one.key, one.value, tuple(one.headers)) for one in records]
    return [one for one in found if one[0] < stop]


def kept(produced: Iterable[ProducedRecord], stop: int, isolation: str) -> list[Shape]:
    inside = [record for record in produced if record.offset < stop and record.key != KEY]
    return [shape_of(record) for record in inside if isolation == "read_uncommitted" or not record.aborted]


def marked(root: Path) -> list[Path]:
    """Files with a mark in their bytes, or in a record: of segments, and of chunks of a cache, which hold one whole here."""

    def has_one(path: Path) -> bool:
        data = path.read_bytes()
        if KEY in data or VALUE in data:
            return True
        if ".chunk" in path.suffixes:
            data = data[:-4]  # its checksum
        elif path.suffix != ".log" or not path.name[:20].isdigit():
            return False
        batches = [data[at : at + header.size_bytes] for at, header in iter_batch_headers(data)]
        records = [record for batch in batches for record in read_records(batch)]
        return any(KEY in (one.key or b"") or VALUE in (one.value or b"") for one in records)

    while True:
        # What a cache has renamed since it was listed is there under its new name.
        with suppress(FileNotFoundError):
            return [path for path in root.rglob("*") if path.is_file() and has_one(path)]


def test_what_has_the_key_is_gone_from_every_byte_and_all_else_reads_as_before(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = "erased"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produced = produce(kafka, topic, total_bytes=150_000, seed=1)
    planted = asyncio.run(plant(kafka, topic))
    produced += planted + produce(kafka, topic, total_bytes=300_000, seed=2)
    (keys := tmp_path / "keys").write_bytes(KEY + b"\n")
    rule: dict[str, Any] = {"name": topic, "local.retention.bytes": 1}
    delays: dict[str, Any] = {**UNGUARDED, "user.delete.delay": "1h"}
    tier = started(tmp_path / "tier", kafka, topic, rule=rule, **delays)
    shared: dict[str, Any] = {
        key: tier.settings[key] for key in ("store", "remote.log.metadata.topic.name", "state.topic.name")
    }
    front = GatewayDaemon(tmp_path / "gateway", kafka.leader_of(topic, 0), topics=[rule], **delays, **shared)
    with tier as daemon, front as gateway:
        daemon.wait_until_ready()
        gateway.wait_until_ready()
        stop = wait_until_trimmed(kafka, daemon, topic)
        assert planted[-1].offset < stop
        command = (daemon.config_path, "erase", "--topic", topic, "--keys", str(keys))
        before = finished(kafka, daemon)
        assert marked(daemon.store_root), "planted in vain"

        shown = answer_of(*command)
        marks = sum(record.key == KEY for record in planted)
        assert (shown["records"], shown["done"]) == (marks, False)
        assert finished(kafka, daemon) == before

        done = answer_of(*command, "--carry-out", "--settle", "0s")
        assert (done["complete"], done["erased_records"], done["remaining"]) == (True, marks, [])
        assert all(one["read_back"] and one["sha256_before"] != one["sha256_after"] for one in done["erased"])
        for isolation in ("read_uncommitted", "read_committed"):
            expected = kept(produced, stop, isolation)
            assert list(fetch_records(daemon.read_url, topic, 0, stop=stop, isolation=isolation)) == expected
            assert asyncio.run(consumed(gateway.client_settings, topic, stop, isolation)) == expected

        assert [one["segments"] for one in in_trash(daemon) if one["kind"] == "erasure"] == [len(done["erased"])]
        refused = answer_of(daemon.config_path, "undelete", topic, "--apply", code=1)
        assert "an erasure replaced" in refused["refusal"]
        again = answer_of(*command, "--carry-out", "--settle", "0s")
        assert (again["records"], again["rewrite"], again["done"]) == (marks, 0, False)

        answer_of(daemon.config_path, "trash", "purge", topic, "--yes")
        wait_for(lambda: len(finished(kafka, daemon)) == len(before), "the old segments are deleted", daemon)
        wait_for(lambda: in_trash(daemon) == [], "the entry is done", daemon)
        assert marked(daemon.store_root) == []
        assert answer_of(*command)["records"] == 0
        assert run_command(daemon.config_path, "verify", topic).returncode == 0
        expected = kept(produced, stop, "read_committed")
        assert list(fetch_records(daemon.read_url, topic, 0, stop=stop, isolation="read_committed")) == expected
        assert (daemon.stop(), gateway.stop()) == (0, 0)
    assert marked(tmp_path) == [keys], "no pin and no state of the sidecars has one"
