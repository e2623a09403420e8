"""What brokers take and clients rarely send reads the same after tiering as before, byte for byte (S-005, S-027, S-149, U17).

Everything that Fetch and ListOffsets say of a topic is taken down from the broker before a sidecar exists; then the topic is
tiered and trimmed, and gateway and read service are asked the same.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from tests.integration.test_daemon import STRICT, wait_until_trimmed
from tests.support.batches import batch_bytes, record_bytes
from tests.support.daemon import Daemon, daemon_settings
from tests.support.kafka_admin import KafkaAdmin
from tests.support.kafka_cluster import KafkaCluster
from tests.support.loopback_ports import free_port
from tests.support.odd_records import odd_batches
from tests.support.raw_log import RawLog, offset_for, offsets_of, read_raw_log, send_batch
from tests.support.read_service import Shape, fetch_records
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import read_records

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

SEGMENT_BYTES = 32 * 1024
CONFIGS = {**STRICT, "message.timestamp.after.max.ms": str(2**63 - 1)}
APPEND_TIME = "append-time"
LONG_NAME = "odd." + "long_name-" * 19 + "x"
DELETED = "deleted-before"
TRANSACTIONS = "transactions-over-crashes"
TOO_LONG_NAME = "t" * 249
THEMES = [*odd_batches(), APPEND_TIME, LONG_NAME, DELETED, TRANSACTIONS]
SPECS = (EARLIEST := -2, LATEST := -1, MAX_TIMESTAMP := -3)


@dataclass(frozen=True, slots=True, kw_only=True)
class OddWorld:
    """Topics that are tiered and trimmed, and what the broker said of them before; ``starts`` are their first offsets."""

    kafka: KafkaCluster
    daemon: Daemon
    gateway: KafkaAdmin
    before: dict[str, RawLog]
    starts: dict[str, int]
    ends: dict[str, int]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OddWorld]:
    directory = tmp_path_factory.mktemp("odd-data")
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaCluster(directory / "kafka"))
        _fill(kafka)
        starts = {topic: kafka.admin.earliest_offset(topic, 0) for topic in THEMES}
        ends = {topic: kafka.admin.latest_offset(topic, 0) for topic in THEMES}
        before = {topic: _read(kafka.admin, topic, starts, ends) for topic in THEMES}
        port = free_port()
        daemon = stack.enter_context(_sidecar(directory / "sidecar", kafka, port))
        daemon.wait_until_ready()
        for topic in THEMES:
            wait_until_trimmed(kafka, daemon, topic)
        yield OddWorld(
            kafka=kafka, daemon=daemon, gateway=KafkaAdmin(port=port), before=before, starts=starts, ends=ends
        )


def _fill(kafka: KafkaCluster) -> None:
    batches = odd_batches()
    themes = {
        **batches,
        APPEND_TIME: batches["timestamps"],
        LONG_NAME: batches["headers"],
        DELETED: batches["sizes"],
        TOO_LONG_NAME: batches["sizes"],
    }
    for topic in (*THEMES, TOO_LONG_NAME):
        append_time = {"message.timestamp.type": "LogAppendTime"} if topic == APPEND_TIME else {}
        kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs={**CONFIGS, **append_time})
    with kafka.admin.connected() as connection:
        for topic, theme in themes.items():
            for batch in theme:
                send_batch(connection, topic, batch)
    _delete_within_a_segment(kafka)
    asyncio.run(_transact_over_crashes(kafka))


def _delete_within_a_segment(kafka: KafkaCluster) -> None:
    directory = kafka.brokers[0].partition_dir(DELETED, 0)
    bases = sorted(int(log.stem) for log in directory.glob("*.log"))
    kafka.admin.delete_records(DELETED, 0, (bases[1] + bases[2]) // 2)


async def _transact_over_crashes(kafka: KafkaCluster) -> None:
    """Transactions that begin in one segment and end in another, with a clean restart and a crash of the broker between."""
    disturbances: list[Callable[[], None]] = [lambda: None, kafka[1].restart, kafka[1].kill9, lambda: None]
    for number, disturb in enumerate(disturbances):
        ending = ["commit", "abort"] if number % 2 else ["abort", "commit"]
        producers = [
            AIOKafkaProducer(
                **kafka.client_settings, transactional_id=f"odd-{number}-{end}", transaction_timeout_ms=300_000
            )
            for end in ending
        ]
        for producer in producers:
            await producer.start()
        try:
            for producer in producers:
                await producer.begin_transaction()
                await producer.send_and_wait(TRANSACTIONS, b"undecided" * 100, partition=0)
            await asyncio.to_thread(_fill_segments, kafka)
            await asyncio.to_thread(disturb)
            if not kafka[1].is_running:
                await asyncio.to_thread(kafka[1].start)
            for producer, end in zip(producers, ending, strict=True):
                await producer.send_and_wait(TRANSACTIONS, f"then {end}".encode() * 50, partition=0)
                await (producer.commit_transaction() if end == "commit" else producer.abort_transaction())
            await asyncio.to_thread(_fill_segments, kafka)
        finally:
            for producer in producers:
                await producer.stop()


def _fill_segments(kafka: KafkaCluster) -> None:
    batch = batch_bytes(0, record_bytes(0, None, b"filler" * 500), base_timestamp=1_790_000_000_000)
    with kafka.admin.connected() as connection:
        for _ in range(24):
            send_batch(connection, TRANSACTIONS, batch)


def _sidecar(directory: Path, kafka: KafkaCluster, port: int) -> Daemon:
    settings = daemon_settings(
        directory,
        bootstrap_servers=kafka.bootstrap_servers,
        log_dirs=list(kafka.brokers[0].log_dirs),
        topics=[{"name": topic, "local.retention.bytes": 1} for topic in (*THEMES, TOO_LONG_NAME)],
        gateway={"listeners": [{"listen": f"127.0.0.1:{port}"}]},
    )
    return Daemon(directory, settings, roles="tier,read,gateway")


def _read(admin: KafkaAdmin, topic: str, starts: dict[str, int], ends: dict[str, int]) -> RawLog:
    read = read_raw_log(admin, topic, start=starts[topic], stop=ends[topic], timestamps=SPECS)
    with admin.connected(timeout_s=60) as connection:
        times = {time: offset_for(connection, topic, time) for time in _times_in(read.batches["read_uncommitted"])}
    return replace(read, offsets={**read.offsets, **times})


def _times_in(batches: bytes) -> list[int]:
    """The largest timestamps of some batches, and the milliseconds beside them."""
    largest = sorted({header.max_timestamp for _, header in iter_batch_headers(memoryview(batches))})
    some = {*largest[:: max(len(largest) // 20, 1)], largest[-1]}
    return sorted({time + near for time in some for near in (-1, 0, 1) if time + near >= 0})


@pytest.mark.parametrize("topic", THEMES)
@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_fetch_through_the_gateway_gives_the_same_bytes(world: OddWorld, topic: str, level: str) -> None:
    after = _read(world.gateway, topic, world.starts, world.ends)
    assert offsets_of(after.batches[level]) == offsets_of(world.before[topic].batches[level])
    assert after.batches[level] == world.before[topic].batches[level]


@pytest.mark.parametrize("topic", THEMES)
def test_list_offsets_through_the_gateway_answers_the_same(world: OddWorld, topic: str) -> None:
    """Times as the broker answered them are those of an untiered copy: the first record at or after each, and none."""
    after, before = _read(world.gateway, topic, world.starts, world.ends), dict(world.before[topic].offsets)
    timestamp_ms, offset = before[MAX_TIMESTAMP]
    # Asked for the largest timestamp, a broker names a deleted record too: it does not look at its log start for that.
    before[MAX_TIMESTAMP] = (timestamp_ms, max(offset, world.starts[topic]))
    assert after.offsets == before


@pytest.mark.parametrize("topic", THEMES)
def test_the_read_service_gives_the_same_bytes(world: OddWorld, topic: str) -> None:
    query = f"offset={world.starts[topic]}&stop_offset={world.ends[topic]}"
    with urllib.request.urlopen(f"{world.daemon.read_url}/topics/{topic}/partitions/0/batches?{query}") as answer:
        assert answer.read() == world.before[topic].batches["read_uncommitted"]


@pytest.mark.parametrize("topic", THEMES)
@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_the_read_service_gives_the_same_records_as_lines(world: OddWorld, topic: str, level: str) -> None:
    """What is committed is told by the broker's own list of aborted transactions."""
    before = world.before[topic]
    found = fetch_records(
        world.daemon.read_url, topic, 0, offset=world.starts[topic], stop=world.ends[topic], isolation=level
    )
    assert list(found) == list(_records_of(before, level, world.starts[topic]))


def _records_of(log: RawLog, level: str, start: int) -> Iterator[Shape]:
    """The records of ``batches`` that a consumer shows by the aborted transactions that the broker told it."""
    batches, waiting = memoryview(log.batches[level]), sorted(log.aborted, key=lambda one: one[1])
    aborting = set[int]()
    for position, header in iter_batch_headers(batches):
        while waiting and waiting[0][1] <= header.last_offset:
            aborting.add(waiting.pop(0)[0])
        if header.is_control:
            aborting.discard(header.producer_id)
            continue
        if level == "read_committed" and header.is_transactional and header.producer_id in aborting:
            continue
        for record in read_records(batches[position : position + header.size_bytes]):
            if record.offset >= start:
                yield record.offset, record.timestamp_ms, record.key, record.value, record.headers


def test_a_topic_whose_name_the_store_cannot_hold_is_refused_and_stops_no_other(world: OddWorld) -> None:
    """The longest name that brokers take, on a file system: before, each of its copies closed the store for all topics."""
    refused = world.daemon.events("topic.refused")
    assert [event["topic"] for event in refused] == [TOO_LONG_NAME]
    assert "use an S3 store" in refused[0]["reason"]
    assert not world.daemon.events("store.away")
    assert world.kafka.admin.earliest_offset(TOO_LONG_NAME, 0) == 0
