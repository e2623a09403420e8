"""A cluster in full use: what is copied and expired while it is listed, by whichever leader, is no finding (U12, S-042).

``make reconcile-live``; the short form in ``make test`` is ``test_reconcile_live``, on one broker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.background_thread import BackgroundThread
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_placement import place
from tests.support.keep_producing import KeepProducing
from tests.support.remote_events import read_events
from tests.support.sidecars import Sidecars
from tiersidecar.app.config.config import load_config
from tiersidecar.app.reconcile_parts import RunOptions
from tiersidecar.app.reconcile_run import run_reconcile
from tiersidecar.decide.reconcile_findings import Graces
from tiersidecar.domain.segments import RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.reconcile.report import Summary, read_findings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.exhaustive]

TOPIC, PARTITIONS = "recon-live", 3
METADATA = "__remote_log_metadata"
GRACES = Graces(finding_ms=10_000, copy_ms=600_000)
"""Hardly any: it is the two cuts that must tell what is under way.  A deposed leader's copy is left alone for longer by the
daemons themselves."""
LONG_S, RUNS = 180.0, 4


class LeaderMoves(BackgroundThread):
    """Puts another broker in front of each partition, one every ``pause_s``, from a thread of its own."""

    def __init__(self, cluster: KafkaCluster, *, pause_s: float) -> None:
        super().__init__("move leaders", ends_within_s=120)
        self._cluster, self._pause_s, self.count = cluster, pause_s, 0

    def work(self) -> None:
        nodes = [broker.node_id for broker in self._cluster.brokers]
        while not self.stopping.wait(self._pause_s):
            partition, first = self.count % PARTITIONS, (self.count // PARTITIONS + self.count) % len(nodes)
            place(self._cluster.admin, TOPIC, partition, [*nodes[first:], *nodes[:first]])
            self.count += 1


class InUse:
    """Three brokers, a sidecar beside each, a producer; small segments, and retention that takes them soon."""

    def __init__(self, cluster: KafkaCluster, directory: Path) -> None:
        self.cluster, self.directory = cluster, directory
        cluster.create_topic(
            TOPIC, partitions=PARTITIONS, segment_bytes=16_384, configs={"retention.ms": "-1", "retention.bytes": "-1"}
        )
        self.sidecars = Sidecars(
            directory, cluster, topics=[{"name": TOPIC, "retention.bytes": 300_000, "local.retention.bytes": 1}]
        )
        self.producer = KeepProducing(
            cluster.client_settings, TOPIC, partitions=PARTITIONS, bytes_per_s=60_000, batch_bytes=4_096
        )

    def count_of(self, state: State) -> int:
        events = read_events(self.cluster.client_settings, METADATA)
        return sum(isinstance(event, RemoteLogSegmentMetadataUpdate) and event.state is state for event in events)

    def reconciled(self, spark: SparkSession, name: str) -> Summary:
        """One run, which must find nothing, although segments came and went while it looked."""
        config_file = self.sidecars[1].config_path
        options = RunOptions(config_file=config_file, report=self.directory / name, graces=GRACES)
        summary = run_reconcile(spark, load_config(config_file, os.environ), options, lambda text: None)
        self.producer.raise_failure()
        assert [(row["kind"], row["key"], row["detail"]) for row in read_findings(self.directory / name)] == []
        assert summary.object_count > 0
        assert summary.metadata_end != summary.metadata_cut, "nothing happened while the store was listed"
        return summary


@pytest.fixture
def in_use(kafka_cluster: Callable[..., KafkaCluster], tmp_path: Path) -> InUse:
    return InUse(kafka_cluster(brokers=3), tmp_path / "sidecars")


@pytest.mark.timeout(900)
def test_copies_expiry_and_a_leader_change_beside_a_run_are_no_findings(spark: SparkSession, in_use: InUse) -> None:
    with in_use.sidecars, in_use.producer:
        in_use.sidecars.wait_for(lambda: in_use.count_of(State.DELETE_SEGMENT_FINISHED) > 3, "expiry", timeout_s=240)
        copied = in_use.count_of(State.COPY_SEGMENT_FINISHED)
        with LeaderMoves(in_use.cluster, pause_s=0.5) as moves:
            in_use.reconciled(spark, "report")
        moves.raise_failure()
        assert moves.count > 0
        assert in_use.count_of(State.COPY_SEGMENT_FINISHED) > copied


@pytest.mark.timeout(1800)
def test_four_runs_in_one_session_over_three_minutes_of_use_find_nothing(spark: SparkSession, in_use: InUse) -> None:
    with in_use.sidecars, in_use.producer:
        in_use.sidecars.wait_for(lambda: in_use.count_of(State.DELETE_SEGMENT_FINISHED) > 3, "expiry", timeout_s=240)
        copied, expired = (
            in_use.count_of(State.COPY_SEGMENT_FINISHED),
            in_use.count_of(State.DELETE_SEGMENT_FINISHED),
        )
        began_s = time.monotonic()
        with LeaderMoves(in_use.cluster, pause_s=8) as moves:
            for number in range(RUNS):
                # Evenly spread, the last one at the end.
                time.sleep(max(0.0, began_s + LONG_S * number / (RUNS - 1) - time.monotonic()))
                in_use.reconciled(spark, f"report-{number}")
        moves.raise_failure()
        assert moves.count >= PARTITIONS, "each partition has changed hands"
        assert in_use.count_of(State.COPY_SEGMENT_FINISHED) > copied + 20
        assert in_use.count_of(State.DELETE_SEGMENT_FINISHED) > expired + 20
