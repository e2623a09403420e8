"""Copying a 1 GiB segment keeps the daemon below 200 MiB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_daemon import STRICT, started
from tests.support.daemon import wait_for

pytestmark = [pytest.mark.broker, pytest.mark.alone]

GIB = 1024**3


@pytest.mark.timeout(300)
def test_a_segment_of_1_gib(kafka_cluster: Any, tmp_path: Path) -> None:
    cluster, topic = kafka_cluster(), "huge"
    cluster.create_topic(topic, segment_bytes=GIB, configs=STRICT)
    cluster.run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", "110000", "--record-size", "10240", "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={cluster.bootstrap_servers}", "batch.size=262144", "linger.ms=5"),
        timeout_s=200,
    )
    with started(tmp_path, cluster, topic) as daemon:
        wait_for(lambda: daemon.events("log.trimmed"), "copied, read back and trimmed", daemon, timeout_s=120)
        copied = daemon.events("segment.copy.finished")[0]
        assert copied["bytes"] > 0.99 * GIB
        peak_bytes = daemon.peak_rss_bytes()
    print(f"peak RSS {peak_bytes / 2**20:.0f} MiB for a segment of {copied['bytes'] / 2**20:.0f} MiB")
    assert peak_bytes < 200 * 2**20
