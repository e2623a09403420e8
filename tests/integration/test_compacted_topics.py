"""A compacted topic beside a real broker whose own cleaner runs hard: the sidecar copies pictures of it, and cleans (issue 23).

What the remote log holds, folded by key, is what a consumer of the broker's own log builds; read from the bucket without any
broker, over HTTP, and through the gateway (S-240, S-241, S-242, S-256, S-258, S-263, S-279, S-282).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.support.bucket_server import BucketServer
from tests.support.compacted_topic import cleaner_offset, write_at_random
from tests.support.daemon import Daemon, daemon_settings, wait_for
from tests.support.kafka_admin import wait_until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.loopback_ports import free_port
from tests.support.read_service import fetch_records
from tests.support.remote_events import fold, in_state, read_events
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

TOPIC, SEGMENT_BYTES = "compacted", 16 * 1024
DELETE_RETENTION_MS = 90_000
"""A sidecar that is killed is back within four fifths of it, also on a busy machine."""
CONFIGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": str(DELETE_RETENTION_MS),
}
KEYS, STEPS, WAVES = 40, 120, 3

Table = dict[bytes, bytes]
"""Key to its last value; without tombstones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """After one wave of writing: what a consumer of the broker's own log built, and one over HTTP, up to ``stop``; ``twice``
    are keys of which the latter was shown more than one record."""

    stop: int
    brokers: Table
    over_http: Table
    twice: frozenset[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All waves; then the tables of readers of the bucket alone and of the gateway, and what the sidecar told."""

    waves: tuple[Wave, ...]
    of_bucket: Table
    of_gateway: Table
    whole: Table
    events: tuple[dict[str, Any], ...]
    copied: tuple[RemoteLogSegmentMetadata, ...]
    brokers_cleaner: int


class Run:
    """One broker, one sidecar."""

    def __init__(self, directory: Path, kafka: KafkaCluster) -> None:
        self.directory, self.kafka = directory, kafka
        self.gateway = f"127.0.0.1:{free_port()}"
        self.daemon = Daemon(
            directory,
            daemon_settings(
                directory,
                bootstrap_servers=kafka.bootstrap_servers,
                log_dirs=list(kafka.brokers[0].log_dirs),
                topics=[{"name": TOPIC}],
                **{
                    "compaction.enabled": True,
                    "compaction.interval.ms": 300,
                    "gateway": {"listeners": [{"listen": self.gateway}]},
                },
            ),
            roles="tier,read,gateway",
        )

    def write(self, seed: int) -> None:
        draw = random.Random(seed)
        asyncio.run(write_at_random(self.kafka.client_settings, TOPIC, 0, draw, steps=STEPS, keys=KEYS, null_keys=0))
        asyncio.run(abort_and_commit(self.kafka.client_settings, seed))
        self.roll(seed)

    def roll(self, seed: int) -> None:
        """Seal what was written: all markers with it."""
        asyncio.run(fill(self.kafka.client_settings, seed))

    @property
    def active_base(self) -> int:
        return max(int(path.stem) for path in self.kafka[1].partition_dir(TOPIC, 0).glob("*.log"))

    def finished(self) -> list[RemoteLogSegmentMetadata]:
        name = self.daemon.settings.get("remote.log.metadata.topic.name", "__remote_log_metadata")
        return in_state(fold(read_events(self.kafka.client_settings, name)), State.COPY_SEGMENT_FINISHED)

    def wait_until_copied_and_cleaned(self) -> int:
        """Return the end of the remote log."""
        stop = self.active_base

        def is_done() -> bool:
            told = [one["cleaner_offset"] for one in self.daemon.events("partition.cleaned")]
            ends = [one.next_offset for one in self.finished()]
            return bool(told) and max(told) == stop and max(ends) == stop

        wait_for(is_done, f"all up to {stop} is copied and cleaned", self.daemon, 90)
        return stop

    def wave(self, seed: int) -> Wave:
        """In the second one the sidecar is killed while it is at work."""
        self.write(seed)
        if seed == 1:
            self.daemon.kill9()
            self.daemon.start()
            self.daemon.wait_until_ready()
        stop = self.wait_until_copied_and_cleaned()
        records = self.over_http(stop)
        counts = Counter(key for key, _ in records)
        return Wave(
            stop=stop,
            brokers=self.consumed(stop),
            over_http=live(dict(records)),
            twice=frozenset(key for key, count in counts.items() if count > 1),
        )

    def over_http(self, stop: int) -> list[tuple[bytes, bytes | None]]:
        """Keys and values of what is remote, in their order."""
        records = fetch_records(self.daemon.read_url, TOPIC, 0, stop=stop, isolation="read_committed", tier="remote")
        return [(key, value) for _, _, key, value, _ in records if key is not None]

    def consumed(self, stop: int) -> Table:
        return asyncio.run(consumed(self.kafka.client_settings, stop))


async def fill(client_settings: Mapping[str, Any], seed: int) -> None:
    producer = AIOKafkaProducer(**client_settings)
    await producer.start()
    try:
        for number in range(6):
            await producer.send_and_wait(TOPIC, key=b"filler-%d-%d" % (seed, number), value=bytes(6000), partition=0)
    finally:
        await producer.stop()


async def abort_and_commit(client_settings: Mapping[str, Any], seed: int) -> None:
    """One producer id in all waves.  It ends each with an abort, and begins the next with a tombstone and a value that are
    committed: they count, though the abort ended below what is dirty then."""
    producer = AIOKafkaProducer(**client_settings, transactional_id="in-all-waves")
    await producer.start()
    try:
        async with producer.transaction():
            for number in range(10):
                await producer.send(TOPIC, key=b"in-turns-%d" % number, value=seed.to_bytes(4), partition=0)
            await producer.send(TOPIC, key=b"of-one-wave", value=None if seed % 2 else b"of one wave", partition=0)
        await producer.begin_transaction()
        await producer.send_and_wait(TOPIC, key=b"in-turns-0", value=b"aborted", partition=0)
        await producer.abort_transaction()
    finally:
        await producer.stop()


async def consumed(client_settings: Mapping[str, Any], stop: int) -> Table:
    """What a read_committed consumer builds of offsets below ``stop``."""
    place = TopicPartition(TOPIC, 0)
    consumer = AIOKafkaConsumer(
        **client_settings, isolation_level="read_committed", enable_auto_commit=False, auto_offset_reset="earliest"
    )
    await consumer.start()
    found: dict[bytes, bytes | None] = {}
    try:
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        while await consumer.position(place) < stop:
            for records in (await consumer.getmany(place, timeout_ms=500)).values():
                for record in records:
                    if record.offset < stop and record.key is not None:
                        found[record.key] = record.value
    finally:
        await consumer.stop()
    return live(found)


def differing(one: Table, other: Table) -> dict[bytes, tuple[bytes | None, bytes | None]]:
    """The keys in which both differ, so that a failure names them."""
    values = {key: (one.get(key), other.get(key)) for key in one.keys() | other.keys()}
    return {key: pair for key, pair in values.items() if pair[0] != pair[1]}


def live(found: Mapping[bytes, bytes | None]) -> Table:
    return {key: value for key, value in found.items() if value is not None}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    directory = tmp_path_factory.mktemp("compacted")
    with KafkaCluster(tmp_path_factory.mktemp("kafka"), properties={"log.cleaner.backoff.ms": "200"}) as kafka:
        kafka.create_topic(TOPIC, partitions=1, segment_bytes=SEGMENT_BYTES, configs=CONFIGS)
        run = Run(directory / "sidecar", kafka)
        run.write(100)  # it was there before: cleaned by the broker, more than once
        wait_until(lambda: (cleaner_offset(kafka[1], TOPIC, 0) or 0) > 0, "the broker's cleaner was there", 60)
        with run.daemon as daemon:
            daemon.wait_until_ready()
            waves = tuple(run.wave(seed) for seed in range(WAVES))
            of_gateway = asyncio.run(
                consumed({**kafka.client_settings, "bootstrap_servers": run.gateway}, waves[-1].stop)
            )
            copied = tuple(run.finished())
            events = tuple(daemon.events())
            with BucketServer(directory / "serve", Path(daemon.settings["store"]["root"])) as server:
                server.wait_until_ready()
                of_bucket = asyncio.run(consumed({"bootstrap_servers": server.access().servers}, waves[-1].stop))
        yield Seen(
            waves=waves,
            of_bucket=of_bucket,
            of_gateway=of_gateway,
            whole=waves[-1].brokers,
            events=events,
            copied=copied,
            brokers_cleaner=cleaner_offset(kafka[1], TOPIC, 0) or 0,
        )


@pytest.mark.parametrize("number", range(WAVES))
def test_over_http_it_is_the_table_of_the_brokers_own_log_after_each_wave(seen: Seen, number: int) -> None:
    assert differing(seen.waves[number].over_http, seen.waves[number].brokers) == {}


@pytest.mark.parametrize("number", range(WAVES))
def test_each_key_has_one_record_once_all_is_cleaned(seen: Seen, number: int) -> None:
    """What stays beside a tombstone would be the key's value again when that has gone."""
    assert seen.waves[number].twice == frozenset()


def test_from_the_bucket_alone_it_is_the_same_table(seen: Seen) -> None:
    assert differing(seen.of_bucket, seen.whole) == {}


def test_through_the_gateway_it_is_the_same_table(seen: Seen) -> None:
    assert differing(seen.of_gateway, seen.whole) == {}


def test_the_remote_log_is_whole_from_its_start_and_was_cleaned(seen: Seen) -> None:
    spans = sorted({(one.start_offset, one.next_offset) for one in seen.copied})
    assert spans[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(spans)), "end to end"
    assert spans[-1][1] == seen.waves[-1].stop
    assert [one for one in seen.events if one["event"] == "segment.cleaned"]
    assert [one for one in seen.events if one["event"] == "picture.taken"]
    assert [one for one in seen.events if one["event"] in {"lane.halted", "segment.gap"}] == []


def test_the_brokers_cleaner_was_at_work_meanwhile(seen: Seen) -> None:
    """Or the comparison would say little."""
    assert seen.brokers_cleaner > seen.waves[0].stop
    assert len(seen.whole) > KEYS / 2
