"""What a former release uploaded beside a broker that had lost its producers' state is found and repaired, and then no reader
of committed records sees what was aborted (issue 16, rule 14)."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT, finished, wait_until_trimmed
from tests.integration.test_lost_producer_state import (
    assert_hidden,
    produce_across_a_border,
    produce_more,
    started_with_gateway,
)
from tests.support.command_line import answer_of
from tests.support.daemon import Daemon
from tests.support.kafka_cluster import KafkaCluster
from tests.support.read_service import fetch_records
from tiersidecar.app.config.config import load_config
from tiersidecar.app.data_source import TiersidecarDataSource
from tiersidecar.app.reconcile_parts import RunOptions
from tiersidecar.app.reconcile_run import run_reconcile
from tiersidecar.decide.reconcile_findings import FindingKind, Graces
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.manifest import read_manifest
from tiersidecar.reading.remote_objects import recorded_keys
from tiersidecar.reconcile.report import read_findings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(600)]

ABORTED_BY = slice(2, 10)
"""Of an entry of a transaction index: the producer id."""


def lose_the_abort(daemon: Daemon, segment: RemoteLogSegmentMetadata) -> None:
    """The index says nothing of the producer whose transaction began in the segment before."""
    keys = recorded_keys(segment)
    manifest = read_manifest((daemon.store_root / keys.manifest).read_bytes(), where=keys.manifest)
    assert manifest.indexes.transaction is not None
    path, start = daemon.store_root / keys.indexes, manifest.indexes.transaction.start
    data = bytearray(path.read_bytes())
    data[start + ABORTED_BY.start : start + ABORTED_BY.stop] = (1 << 40).to_bytes(8, "big")
    path.write_bytes(data)


def reconciled(spark: SparkSession, daemon: Daemon, report: Path) -> list[Mapping[str, Any]]:
    config = load_config(daemon.config_path, os.environ)
    graces = Graces(finding_ms=0, copy_ms=60_000)
    options = RunOptions(config_file=daemon.config_path, report=report, graces=graces, deep_share=1.0)
    run_reconcile(spark, config, options, lambda text: None)
    return list(read_findings(report))


def forget_what_was_read(daemon: Daemon) -> None:
    """Caches on disk have the index as it was before it was spoiled."""
    for path in Path(load_config(daemon.config_path, os.environ).state_dir).iterdir():
        if path.is_dir() and "cache" in path.name:
            shutil.rmtree(path)


def test_an_index_without_its_abort_is_found_and_repaired_and_hides_it_again(
    spark: SparkSession, kafka_cluster: Callable[..., KafkaCluster], tmp_path: Path
) -> None:
    cluster, topic = kafka_cluster(), "lacking"
    cluster.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produced = asyncio.run(produce_across_a_border(cluster, topic))
    produced += asyncio.run(produce_more(cluster, topic, 2 * SEGMENT_BYTES, seed=9))
    daemon, gateway = started_with_gateway(tmp_path / "daemon", cluster, topic)
    with daemon:
        daemon.wait_until_ready()
        border = wait_until_trimmed(cluster, daemon, topic)
        assert daemon.stop() == 0
    (victim,) = (one for one in finished(cluster, daemon) if not one.txn_index_empty)
    assert victim.next_offset <= border
    lose_the_abort(daemon, victim)
    forget_what_was_read(daemon)

    with daemon:
        daemon.wait_until_ready()
        shown = list(fetch_records(daemon.read_url, topic, 0, stop=border, isolation="read_committed"))
        assert len(shown) > sum(not one.aborted for one in produced if one.offset < border), "aborted records show"
        (found,) = reconciled(spark, daemon, tmp_path / "report")
        assert found["kind"] == FindingKind.LACKING_TRANSACTIONS.value
        assert found["segment_id"] in str(recorded_keys(victim).indexes)
        answer = answer_of(daemon.config_path, "repair", str(tmp_path / "report"), "--apply", "--wait", "60s")
        assert answer["recopied"] == 1
        assert victim.remote_log_segment_id not in {one.remote_log_segment_id for one in finished(cluster, daemon)}
        assert reconciled(spark, daemon, tmp_path / "second") == []
        assert_hidden(daemon, gateway, topic, produced, border)
        spark.dataSource.register(TiersidecarDataSource)
        source = spark.read.format("tiersidecar").options(
            config=str(daemon.config_path), subscribe=topic, **{"kafka.isolation.level": "read_committed"}
        )
        offsets = sorted(row["offset"] for row in source.load().select("offset").collect() if row["offset"] < border)
        assert offsets == sorted(one.offset for one in produced if one.offset < border and not one.aborted)
