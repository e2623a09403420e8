"""The store away for a minute under a running daemon: it keeps still, holds what is at stake, and catches up (S-151)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration.test_daemon import STRICT, started
from tests.integration.test_s3_faults import (
    IMPATIENT_MS,
    PARTITIONS,
    assert_all_is_there,
    assert_all_reads_back,
    produce,
    reader_beside,
    wait_until_trimmed,
)
from tests.support.daemon import Daemon, wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.remote_events import object_keys_in, read_events
from tests.support.s3_server import s3_store_section
from tests.support.s3_troubles import FOR_EVER, Trouble, running_troubled_s3

pytestmark = [pytest.mark.broker, pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(300)]

SEGMENT_BYTES = 64 * 1024
HANGS = Trouble(name="server stopped", requests=FOR_EVER, at_most_s=30, is_stopped=True)
IS_GONE = Trouble(name="connections refused", requests=FOR_EVER, at_most_s=30, is_refused=True)
MEMORY_GROWTH_BYTES = 24 * 1024**2


def test_a_minute_without_the_store(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Half of it the server takes requests and answers none, half of it nobody is there; producers go on all the time."""
    topic = "store-outage"
    kafka.create_topic(topic, partitions=PARTITIONS, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    with running_troubled_s3(tmp_path) as s3:
        bucket = s3.server.directory / "kafka-tier"
        bucket.mkdir()
        store = {**s3_store_section(s3.url, bucket.name), **IMPATIENT_MS}
        with started(tmp_path, kafka, topic, store=store) as daemon:
            daemon.store_root = bucket
            produced = produce(kafka, topic, SEGMENT_BYTES)
            wait_until_all_trimmed(kafka, daemon, topic)
            rss_bytes, events = daemon.rss_bytes(), count_events(kafka, daemon)

            for trouble in (HANGS, IS_GONE):
                until_s = time.monotonic() + trouble.at_most_s
                with s3.troubled_by(trouble):
                    while time.monotonic() < until_s:
                        produced += produce(kafka, topic, SEGMENT_BYTES, seed=len(produced))
                        time.sleep(2)
                    assert_keeps_still(daemon)
                    grown_bytes, more_events = daemon.rss_bytes() - rss_bytes, count_events(kafka, daemon) - events
                    print(f"{trouble.name}: {grown_bytes / 2**20:+.1f} MiB of memory, {more_events} events")
                    assert grown_bytes < MEMORY_GROWTH_BYTES
                    # What was under way when the store went: begun, and its deletion begun.  Twice, for it came back between.
                    assert more_events <= 2 * 2 * PARTITIONS

            wait_until_all_trimmed(kafka, daemon, topic)
            wait_for(lambda: daemon.status("/readyz")[0] == 200, "ready again", daemon)
            assert_all_is_there(
                kafka, daemon, topic, s3, daemon.store_root.name, lambda: object_keys_in(daemon.store_root)
            )
            assert daemon.stop() == 0
            assert_all_reads_back(kafka, reader_beside(daemon, {"s3.endpoint.url": s3.server.url}), topic, produced)


def assert_keeps_still(daemon: Daemon) -> None:
    """It runs, says what is wrong, and holds the sealed segments that wait."""
    code, said = daemon.status("/readyz")
    assert code == 503
    assert "store" in said or "probe" in said, said
    assert daemon.metric("tiersidecar_pins_segments") > PARTITIONS


def wait_until_all_trimmed(cluster: KafkaCluster, daemon: Daemon, topic: str) -> None:
    for partition in range(PARTITIONS):
        wait_until_trimmed(cluster, daemon, topic, partition)


def count_events(cluster: KafkaCluster, daemon: Daemon) -> int:
    return len(read_events(cluster.client_settings, daemon.settings["remote.log.metadata.topic.name"]))
