"""Batches of some kilobytes that open to a GiB, written by whoever may write a topic: lookups and reads of 20 at once are
right, in little memory, and other clients hardly notice (issue 17)."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from tests.integration.test_daemon import STRICT, wait_until_trimmed
from tests.support.batches import batch_bytes, record_bytes
from tests.support.daemon import Daemon, daemon_settings
from tests.support.kafka_admin import KafkaAdmin, wait_until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.loopback_ports import free_port
from tests.support.opened_bombs import BASE_MS, bomb
from tests.support.raw_log import offset_for, offset_row, send_batch

pytestmark = [pytest.mark.broker, pytest.mark.alone, pytest.mark.timeout(400)]

BOMBS, CALM = "bombs", "calm"
CODECS = ("gzip", "lz4", "zstd", "zstd with a window of 128 MiB")
SHAPE, RECORDS = "1,000 records of 1 MiB", 1000
AT_ONCE = 20
TRIES = 5
CALM_MS, CALM_BATCHES = BASE_MS + len(CODECS) * RECORDS, 200
MOST_BYTES = 288 * 1024 * 1024
"""It takes 244 to 253 MiB: what malloc keeps beside it is not the same each time."""
FLOOR_MS = 20.0
"""Below it a doubled p95 is the machine's."""
CALM_S = 6.0


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[tuple[Daemon, KafkaAdmin]]:
    """A sidecar with all roles, and a client by its gateway: both topics are remote but for their active segments."""
    properties = {"message.max.bytes": "20000000", "log.message.timestamp.after.max.ms": "9223372036854775807"}
    with KafkaCluster(tmp_path / "kafka", properties=properties) as kafka:
        for topic, segment_bytes in ((BOMBS, 5_000_000), (CALM, 65_536)):
            configs = {**STRICT, "max.message.bytes": "20000000"}
            kafka.create_topic(topic, segment_bytes=segment_bytes, configs=configs)
        with kafka.admin.connected(timeout_s=120) as connection:
            for number, codec in enumerate(CODECS):
                send_batch(connection, BOMBS, bomb(codec, SHAPE, base_timestamp=BASE_MS + number * RECORDS))
            for topic, value_bytes in ((BOMBS, 60_000), (CALM, 1000)):
                for number in range(CALM_BATCHES):
                    record = record_bytes(0, None, bytes(value_bytes))
                    send_batch(connection, topic, batch_bytes(0, record, base_timestamp=CALM_MS + number))
        port = free_port()
        settings = daemon_settings(
            tmp_path / "sidecar",
            bootstrap_servers=kafka.bootstrap_servers,
            log_dirs=list(kafka.brokers[0].log_dirs),
            topics=[{"name": topic, "local.retention.bytes": 1} for topic in (BOMBS, CALM)],
            gateway={"listeners": [{"listen": f"127.0.0.1:{port}"}]},
        )
        with Daemon(tmp_path / "sidecar", settings, roles="tier,read,gateway") as daemon:
            daemon.wait_until_ready()
            for topic in (BOMBS, CALM):
                wait_until_trimmed(kafka, daemon, topic)
            client = KafkaAdmin(port=port)
            wait_until(lambda: client.earliest_offset(BOMBS, 0) == 0, "the gateway knows what is remote")
            yield daemon, client


def looked_up(client: KafkaAdmin, number: int) -> bool:
    """Whether the last record of bomb ``number`` is found by its time."""
    timestamp = BASE_MS + (number + 1) * RECORDS - 1
    with client.connected(timeout_s=120) as connection:
        found = offset_row(connection, BOMBS, timestamp)
        for _ in range(TRIES - 1):
            if found.error_code is not ErrorCode.request_timed_out:
                break
            found = offset_row(connection, BOMBS, timestamp)  # told after 30 s, and asked again by every client
    return (found.error_code, found.timestamp, found.offset) == (ErrorCode.none, timestamp, (number + 1) * RECORDS - 1)


def read_as_lines(daemon: Daemon, number: int) -> bool:
    """Whether the last two records of bomb ``number`` come as lines."""
    first = (number + 1) * RECORDS - 2
    url = f"{daemon.read_url}/topics/{BOMBS}/partitions/0/records?offset={first}&limit=2"
    with urllib.request.urlopen(url, timeout=120) as answer:
        return [json.loads(line)["offset"] for line in answer.read().splitlines()] == [first, first + 1]


def read_as_stored(daemon: Daemon, number: int) -> None:
    url = f"{daemon.read_url}/topics/{BOMBS}/partitions/0/batches?offset={number * RECORDS}&stop_offset={number * RECORDS + 1}"
    with urllib.request.urlopen(url, timeout=120) as answer:
        answer.read()


def calm_ms(client: KafkaAdmin, until: threading.Event) -> list[float]:
    """Times of another client's lookups in the remote tier, ascending."""
    found = []
    with client.connected(timeout_s=60) as connection:
        for turn in range(1_000_000):
            if until.is_set():
                break
            asked_s = time.perf_counter()
            offset_for(connection, CALM, CALM_MS + turn * 7 % (CALM_BATCHES // 2))
            found.append((time.perf_counter() - asked_s) * 1000)
            time.sleep(0.01)
    return sorted(found)


@contextmanager
def calm_client(client: KafkaAdmin) -> Iterator[list[float]]:
    """Its times are there once it is left."""
    found, ended = list[float](), threading.Event()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(calm_ms, client, ended)
        try:
            yield found
        finally:
            ended.set()
        found += running.result()


def p95(found: list[float]) -> float:
    """Of the slowest of a hundred, the scheduler decides where two cores are full."""
    return found[int(len(found) * 0.95)]


def test_20_at_once_are_right_in_little_memory_and_others_hardly_wait(tiered: tuple[Daemon, KafkaAdmin]) -> None:
    """Six lookups took 2.6 GB.  With room for them, but in the threads that all else runs in, another client's p99 went from
    13 to 125 ms, and some answers were refusals."""
    daemon, client = tiered
    with calm_client(client) as before_ms:
        time.sleep(CALM_S)
    with ThreadPoolExecutor(AT_ONCE) as threads:  # what it takes to read them as they are stored is no bomb's
        list(threads.map(lambda turn: read_as_stored(daemon, turn % len(CODECS)), range(AT_ONCE)))
    before_bytes = daemon.rss_bytes()
    with calm_client(client) as beside_ms, ThreadPoolExecutor(AT_ONCE) as threads:
        began_s = time.monotonic()
        lookups = [threads.submit(looked_up, client, turn % len(CODECS)) for turn in range(AT_ONCE // 2)]
        lines = [threads.submit(read_as_lines, daemon, turn % len(CODECS)) for turn in range(AT_ONCE // 2)]
        right = [one.result() for one in (*lookups, *lines)]
        took_s = time.monotonic() - began_s
    grown_bytes = daemon.peak_rss_bytes() - before_bytes
    told = f"{took_s:.1f} s, +{grown_bytes / 2**20:.0f} MiB, p95 {p95(before_ms):.1f} -> {p95(beside_ms):.1f} ms"
    print(told)
    assert right == [True] * AT_ONCE
    assert grown_bytes <= MOST_BYTES, told
    assert p95(beside_ms) <= 2 * max(p95(before_ms), FLOOR_MS), told
    one_callers_lookups_delay_anothers_read_by_a_turn(daemon, client)


def one_callers_lookups_delay_anothers_read_by_a_turn(daemon: Daemon, client: KafkaAdmin) -> None:
    """With twenty of them always waiting, in the order of asking a read of 0.3 s took 2.9 s; by turns 0.5 s."""
    number = CODECS.index("gzip")
    began_s = time.monotonic()
    assert read_as_lines(daemon, number)
    alone_s = time.monotonic() - began_s
    ended = threading.Event()

    def ask_again_and_again(turn: int) -> None:
        while not ended.is_set():
            assert looked_up(client, turn % len(CODECS))

    with ThreadPoolExecutor(AT_ONCE) as threads:  # by the gateway: another caller than those of HTTP
        asking = [threads.submit(ask_again_and_again, turn) for turn in range(AT_ONCE)]
        try:
            time.sleep(3)
            began_s = time.monotonic()
            assert read_as_lines(daemon, number)
            beside_s = time.monotonic() - began_s
        finally:
            ended.set()
        for one in asking:
            one.result()
    told = f"{alone_s:.1f} s alone, {beside_s:.1f} s beside {AT_ONCE} lookups"
    print(told)
    assert beside_s <= 3 * alone_s + 1, told
