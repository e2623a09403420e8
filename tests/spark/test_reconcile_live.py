"""A bucket in full use: what is copied and expired while it is listed is no finding (U12, S-042)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.daemon import Daemon, daemon_settings, wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.keep_producing import KeepProducing
from tests.support.remote_events import read_events
from tiersidecar.app.config.config import load_config
from tiersidecar.app.reconcile_parts import RunOptions
from tiersidecar.app.reconcile_run import run_reconcile
from tiersidecar.decide.reconcile_findings import Graces
from tiersidecar.domain.segments import RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.reconcile.report import read_findings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(900)]

TOPIC, METADATA = "recon-live", "__rlm_recon-live"
GRACES = Graces(finding_ms=5_000, copy_ms=120_000)
"""Nearly none: it is the two cuts that must tell what is under way."""


def test_copy_and_expiry_beside_a_run_are_no_findings(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    kafka.create_topic(
        TOPIC, partitions=2, segment_bytes=16_384, configs={"retention.ms": "-1", "retention.bytes": "-1"}
    )
    settings = daemon_settings(
        tmp_path,
        bootstrap_servers=kafka.bootstrap_servers,
        log_dirs=list(kafka.brokers[0].log_dirs),
        topics=[{"name": TOPIC, "retention.bytes": 400_000, "local.retention.bytes": 1}],
        **{"remote.log.metadata.topic.name": METADATA, "state.topic.name": "__state_recon-live"},
    )

    def count_of(state: State) -> int:
        events = read_events(kafka.client_settings, METADATA)
        return sum(isinstance(event, RemoteLogSegmentMetadataUpdate) and event.state is state for event in events)

    with (
        Daemon(tmp_path, settings) as daemon,
        KeepProducing(kafka.client_settings, TOPIC, partitions=2, bytes_per_s=60_000, batch_bytes=4_096) as producer,
    ):
        daemon.wait_until_ready()
        wait_for(lambda: count_of(State.DELETE_SEGMENT_FINISHED) > 3, "segments expire", daemon, timeout_s=180)
        copied, expired = count_of(State.COPY_SEGMENT_FINISHED), count_of(State.DELETE_SEGMENT_FINISHED)
        options = RunOptions(config_file=daemon.config_path, report=tmp_path / "report", graces=GRACES)
        summary = run_reconcile(spark, load_config(daemon.config_path, os.environ), options, lambda text: None)
        producer.raise_failure()
        assert [(row["kind"], row["key"], row["detail"]) for row in read_findings(tmp_path / "report")] == []
        assert summary.object_count > 0
        assert summary.metadata_end != summary.metadata_cut, "nothing happened while the store was listed"
        assert count_of(State.COPY_SEGMENT_FINISHED) > copied
        assert count_of(State.DELETE_SEGMENT_FINISHED) > expired
        assert daemon.stop() == 0
