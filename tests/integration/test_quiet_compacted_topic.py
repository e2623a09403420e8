"""A quiet topic with ``compact,delete`` in race mode beside a real broker: what its retention rolls and deletes in one step is
copied all the same (issue 23)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from tests.support.daemon import Daemon, daemon_settings, wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.read_service import fetch_records

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

TOPIC, RETENTION_MS, RECORDS = "quiet", 15_000, 20
CONFIGS = {"cleanup.policy": "compact,delete", "retention.ms": str(RETENTION_MS), "min.cleanable.dirty.ratio": "0.01"}


async def write(client_settings: Mapping[str, Any], wave: int) -> None:
    producer = AIOKafkaProducer(**client_settings)
    await producer.start()
    try:
        for number in range(RECORDS):
            await producer.send_and_wait(TOPIC, key=b"key-%d" % number, value=b"of wave %d" % wave, partition=0)
    finally:
        await producer.stop()


def test_the_active_segment_that_retention_deletes_is_in_the_remote_log(tmp_path: Path) -> None:
    """Twice: the second time there are remote segments, and another quiet segment, before it."""
    with KafkaCluster(tmp_path / "kafka", properties={"log.cleaner.backoff.ms": "200"}) as kafka:
        kafka.create_topic(TOPIC, partitions=1, configs=CONFIGS)
        settings = daemon_settings(
            tmp_path / "sidecar",
            bootstrap_servers=kafka.bootstrap_servers,
            log_dirs=list(kafka.brokers[0].log_dirs),
            topics=[{"name": TOPIC, "mode": "race", "retention.ms": "365d"}],
            **{"compaction.enabled": True},
        )
        with Daemon(tmp_path / "sidecar", settings, roles="tier,read") as daemon:
            daemon.wait_until_ready()
            for wave in (1, 2):
                asyncio.run(write(kafka.client_settings, wave))
                end = wave * RECORDS
                wait_for(lambda end=end: kafka.admin.earliest_offset(TOPIC, 0) == end, "retention took it", daemon, 90)
                wait_for(
                    lambda end=end: [one["stop_offset"] for one in daemon.events("picture.taken")][-1:] == [end],
                    "it is pinned",
                    daemon,
                    60,
                )
            wait_for(lambda: len(daemon.events("segment.copy.finished")) == 2, "both are remote", daemon)
            records = list(fetch_records(daemon.read_url, TOPIC, 0, stop=2 * RECORDS, isolation="read_committed"))
        found = {key: value for _, _, key, value, _ in records}
    assert found == {b"key-%d" % number: b"of wave 2" for number in range(RECORDS)}
