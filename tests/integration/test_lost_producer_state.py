"""read_committed where a broker has lost its producers' state, and wrote no abort entry for what began before (rule 14)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT, active_base, finished, started, wait_until_trimmed
from tests.integration.test_daemon_transactions import open_transaction
from tests.support.chaos.gateway_reads import read_through_gateway
from tests.support.daemon import Daemon, wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_placement import move_replica
from tests.support.loopback_ports import free_port
from tests.support.produce import ProducedRecord, Style, produce_mix
from tests.support.read_service import fetch_records, shape_of

pytestmark = pytest.mark.broker

Blow = Callable[[KafkaCluster, Daemon, str], None]


def move_to_the_other_log_dir(cluster: KafkaCluster, daemon: Daemon, topic: str) -> None:
    """The new log begins at the log start, without producers' state."""
    broker = cluster.brokers[0]
    target = next(path for path in broker.log_dirs if path != broker.partition_dir(topic, 0).parent)
    move_replica(broker.admin, topic, 0, target)
    wait_for(lambda: broker.partition_dir(topic, 0).parent == target, "the replica has moved", daemon)


def stop_cleanly_and_crash(cluster: KafkaCluster, daemon: Daemon, topic: str) -> None:
    """A clean start deletes the snapshot at the log start; after the crash, recovery has no state to begin with."""
    broker = cluster.brokers[0]
    broker.restart()
    cluster.admin_of_leader(topic, 0)
    broker.kill9()
    broker.start()
    cluster.admin_of_leader(topic, 0)


async def produce_more(cluster: KafkaCluster, topic: str, total_bytes: int, *, seed: int) -> list[ProducedRecord]:
    style = Style(idempotent=True)
    return await produce_mix(
        cluster.client_settings, topic, total_bytes=total_bytes, batch_bytes=16_384, styles=[style], seed=seed
    )


async def produce_across_a_border(cluster: KafkaCluster, topic: str) -> list[ProducedRecord]:
    """A transaction in the first segment, whose abort marker is in the second, the active one."""
    produced = await produce_more(cluster, topic, 1, seed=1)
    async with open_transaction(cluster, topic) as undecided:
        produced += undecided
        while not await asyncio.to_thread(active_base, cluster, topic):
            produced += await produce_more(cluster, topic, 1, seed=len(produced))
    return produced


def started_with_gateway(directory: Path, cluster: KafkaCluster, topic: str) -> tuple[Daemon, str]:
    listen = f"127.0.0.1:{free_port()}"
    daemon = started(directory, cluster, topic, gateway={"listeners": [{"listen": listen}]})
    daemon.roles = "tier,read,gateway"
    return daemon, listen


def assert_hidden(daemon: Daemon, gateway: str, topic: str, produced: list[ProducedRecord], stop: int) -> None:
    """What was aborted, from both services, by whoever reads committed records from the start up to ``stop``."""
    expected = [shape_of(record) for record in produced if record.offset < stop and not record.aborted]
    assert list(fetch_records(daemon.read_url, topic, 0, stop=stop, isolation="read_committed")) == expected
    read = read_through_gateway(gateway, topic, 0, offset=0, stop=stop, isolation="read_committed", timeout_s=60)
    assert read == expected


@pytest.mark.parametrize("blow", [move_to_the_other_log_dir, stop_cleanly_and_crash])
def test_what_was_aborted_stays_hidden_when_the_broker_has_lost_its_producers(
    kafka_cluster: Callable[..., KafkaCluster], tmp_path: Path, blow: Blow
) -> None:
    """Before the marker's segment is remote, and after."""
    cluster, topic = kafka_cluster(log_dirs=2), "lost-producers"
    cluster.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produced = asyncio.run(produce_across_a_border(cluster, topic))
    assert any(record.aborted for record in produced)
    end = cluster.admin.latest_offset(topic, 0)
    daemon, gateway = started_with_gateway(tmp_path / "daemon", cluster, topic)
    with daemon:
        daemon.wait_until_ready()
        border = wait_until_trimmed(cluster, daemon, topic)
        assert max(record.offset for record in produced if record.aborted) < border < end
        assert_hidden(daemon, gateway, topic, produced, end - 1)
        blow(cluster, daemon, topic)
        wait_for(lambda: daemon.status("/readyz")[0] == 200, "the sidecar has found its broker again", daemon)
        assert_hidden(daemon, gateway, topic, produced, end - 1)

        produced += asyncio.run(produce_more(cluster, topic, 2 * SEGMENT_BYTES, seed=9))
        wait_for(lambda: wait_until_trimmed(cluster, daemon, topic) > border, "the marker's segment is remote", daemon)
        segments = finished(cluster, daemon)
        assert [segment.txn_index_empty for segment in segments].count(False) == 1, "the segment with the abort marker"
        assert_hidden(daemon, gateway, topic, produced, segments[-1].next_offset)
