"""Pins of what an unclean election has cut off, beside a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_daemon import produce
from tests.integration.test_pins import Pinned, are_pinned_below
from tests.support.daemon import wait_for
from tests.support.kafka_admin import wait_until
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_placement import elect_uncleanly

pytestmark = pytest.mark.broker


def test_pins_above_a_truncation_go_before_the_epoch_that_cut_them_off_is_fetched(
    kafka_cluster: Any, tmp_path: Path
) -> None:
    """They would be copied as the partition's history otherwise, once the leader has deleted the beginning of that epoch: the
    follower goes on above it then, and becomes the leader."""
    pinned = Pinned(kafka_cluster(brokers=3), tmp_path)
    cluster, short, long, topic = pinned.cluster, pinned.leader, pinned.follower, pinned.topic
    with pinned.daemon:
        wait_for(lambda: pinned.daemon.events("store.not_writable"), "the store is away", pinned.daemon)
        produce(cluster, topic, total_bytes=150_000)
        wait_until(pinned.is_in_sync, "both have it")
        short.stop()
        wait_until(lambda: cluster.leader_of(topic, 0) is long, "the other one leads", timeout_s=30)
        produce(cluster, topic, total_bytes=500_000, seed=1)
        sealed = max(int(log.stem) for log in long.partition_dir(topic, 0).glob("*.log"))
        wait_for(lambda: are_pinned_below(long, topic, sealed), "all that is sealed is pinned", pinned.daemon)

        long.stop()
        short.start()
        elect_uncleanly(short.admin, topic, 0, short.node_id)
        cut = short.admin.latest_offset(topic, 0)
        assert cut < sealed
        long.start()
        wait_until(pinned.is_in_sync, "its log is cut", timeout_s=60)
        epochs = (long.partition_dir(topic, 0) / "leader-epoch-checkpoint").read_text()
        assert epochs.split() == ["0", "1", "0", "0"], "no later epoch is known here"
        wait_for(lambda: max(bases_of_pins(long)) < cut, "nothing that was cut off is pinned", pinned.daemon)
        assert min(bases_of_pins(long)) == 0


def bases_of_pins(broker: KafkaBroker) -> list[int]:
    pins = Path(f"{broker.log_dirs[0]}.tiersidecar-pins").glob("*.log")
    return [int(pin.stem.rpartition(".")[2]) for pin in pins]
