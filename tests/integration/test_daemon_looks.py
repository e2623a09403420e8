"""What happens is noticed by what tells of it: file events, the broker's answers and both topics (issue 20, docs/design/0021).

The interval of the tasks is an hour: nothing here is found because a partition's time has come.  What the scan of everything
finds, each 30 s, and no event told of, is in the log.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.test_daemon import (
    SEGMENT_BYTES,
    STRICT,
    assert_every_sealed_segment_once,
    assert_reads_back,
    produce,
    started,
    wait_until_trimmed,
)
from tests.support.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

HOUR_MS = 3_600_000


def test_rolls_new_partitions_and_a_new_leader_epoch_wait_for_no_whole_look(
    kafka_cluster: Callable[..., KafkaCluster], tmp_path: Path
) -> None:
    cluster, topic = kafka_cluster(), "noticed"
    with started(tmp_path, cluster, topic, **{"remote.log.manager.task.interval.ms": HOUR_MS}) as daemon:
        daemon.wait_until_ready()
        cluster.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
        produced = produce(cluster, topic, seed=1)
        stop = wait_until_trimmed(cluster, daemon, topic)
        assert_reads_back(daemon, topic, produced, stop)

        produced += produce(cluster, topic, seed=2)
        assert wait_until_trimmed(cluster, daemon, topic) > stop

        cluster[1].kill9()
        cluster[1].start()
        produced += produce(cluster, topic, seed=3)
        stop = wait_until_trimmed(cluster, daemon, topic)
        assert_every_sealed_segment_once(cluster, daemon, topic)
        assert_reads_back(daemon, topic, produced, stop)
        assert daemon.events("log_dirs.watch.untold") == []
        assert daemon.stop() == 0
