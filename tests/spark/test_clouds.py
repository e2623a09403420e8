"""Data source and reconcile job on Azure Blob and Google Cloud Storage, as the emulators speak them: Spark lists and reads them
through the same stores as the daemon, with no connector of Hadoop's (issue 22; S-307).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.azurite_server import azure_store_section, running_azurite
from tests.support.daemon import Daemon, daemon_settings, wait_for
from tests.support.gcs_server import gcs_store_section, running_gcs_server
from tests.support.kafka_cluster import KafkaCluster
from tests.support.produce import ProducedRecord, Style, produce_mix
from tiersidecar.app.config.config import load_config
from tiersidecar.app.data_source import TiersidecarDataSource
from tiersidecar.app.reconcile_parts import RunOptions
from tiersidecar.app.reconcile_run import ExecutorStore, run_reconcile
from tiersidecar.decide.reconcile_findings import FindingKind, Graces
from tiersidecar.reconcile.report import Summary, read_findings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.server, pytest.mark.timeout(600)]

BUCKET = "kafka-tier"
PARTITIONS = 2
KEPT = {"retention.ms": "-1", "retention.bytes": "-1"}
GRACES = Graces(finding_ms=0, copy_ms=0)


@contextmanager
def azure(directory: Path) -> Iterator[dict[str, Any]]:
    with running_azurite(directory) as server:
        server.create_container(BUCKET)
        yield azure_store_section(server, BUCKET)


@contextmanager
def gcs(directory: Path) -> Iterator[dict[str, Any]]:
    with running_gcs_server(directory) as server:
        server.create_bucket(BUCKET)
        yield gcs_store_section(server.url, BUCKET)


CLOUDS: dict[str, Callable[[Path], AbstractContextManager[dict[str, Any]]]] = {"azure": azure, "gcs": gcs}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiered:
    """A topic whose sealed segments are in the cloud, and a daemon's configuration of it; ``ends`` are exclusive."""

    topic: str
    config: Path
    produced: list[ProducedRecord]
    ends: list[int]


@pytest.fixture(scope="module", params=sorted(CLOUDS))
def tiered(
    request: pytest.FixtureRequest, kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tiered]:
    name = str(request.param)
    directory, topic = tmp_path_factory.mktemp(name), f"spark-{name}"
    kafka.create_topic(topic, partitions=PARTITIONS, segment_bytes=131_072, configs=KEPT)
    produced = asyncio.run(
        produce_mix(
            kafka.client_settings,
            topic,
            partitions=PARTITIONS,
            total_bytes=1_500_000,
            batch_bytes=16_384,
            styles=(Style(),),
            seed=22,
        )
    )
    with CLOUDS[name](directory) as section:
        settings = daemon_settings(
            directory,
            bootstrap_servers=kafka.bootstrap_servers,
            log_dirs=list(kafka.brokers[0].log_dirs),
            topics=[{"name": topic, "local.retention.bytes": 1}],
            **{"remote.log.metadata.topic.name": f"__rlm_{topic}", "state.topic.name": f"__state_{topic}"},
        )
        settings["store"] = section | {"key.prefix": "tier/", "chunk.size": 65_536}
        with Daemon(directory, settings) as daemon:
            daemon.wait_until_ready()
            ends = [active_base(kafka, topic, one) for one in range(PARTITIONS)]

            def is_remote() -> bool:
                return [kafka.admin.earliest_offset(topic, one) for one in range(PARTITIONS)] == ends

            wait_for(is_remote, "what is sealed has left the broker", daemon, timeout_s=180)
            assert daemon.stop() == 0
        yield Tiered(topic=topic, config=daemon.config_path, produced=produced, ends=ends)


def active_base(kafka: KafkaCluster, topic: str, partition: int) -> int:
    return max(int(path.stem) for path in kafka.brokers[0].partition_dir(topic, partition).glob("*.log"))


def test_the_data_source_gives_what_was_produced(spark: SparkSession, tiered: Tiered) -> None:
    spark.dataSource.register(TiersidecarDataSource)
    options = {"config": str(tiered.config), "subscribe": tiered.topic, "maxBytesPerPartition": "300k"}
    rows = spark.read.format("tiersidecar").options(**options).load().select("partition", "offset", "key", "value")
    found = sorted((row.partition, row.offset, row.key, row.value) for row in rows.collect())
    expected = sorted(
        (one.partition, one.offset, one.key, one.value)
        for one in tiered.produced
        if one.offset < tiered.ends[one.partition]
    )
    assert len(expected) > 500
    assert found == expected


def test_reconcile_finds_nothing_and_then_what_was_taken_away(
    spark: SparkSession, tiered: Tiered, tmp_path: Path
) -> None:
    clean = reconcile(spark, tiered, tmp_path / "clean")
    assert findings_in(tmp_path / "clean") == []
    assert clean.object_count >= 3 * 2 * PARTITIONS
    log, manifest = asyncio.run(take_away(tiered))
    reconcile(spark, tiered, tmp_path / "damaged")
    missing = FindingKind.MISSING_OBJECT.value
    assert findings_in(tmp_path / "damaged") == sorted([(missing, log), (missing, manifest)])


def reconcile(spark: SparkSession, tiered: Tiered, report: Path) -> Summary:
    options = RunOptions(config_file=tiered.config, report=report, graces=GRACES, deep_share=1.0, puts_report=True)
    return run_reconcile(spark, load_config(tiered.config, os.environ), options, lambda text: None)


def findings_in(report: Path) -> list[tuple[str, str]]:
    return sorted((row["kind"], row["key"]) for row in read_findings(report))


async def take_away(tiered: Tiered) -> tuple[str, str]:
    """The .log of one segment, and the manifest of another; returns their keys."""
    async with ExecutorStore(str(tiered.config))() as store:
        keys = [found.key async for found in store.list_objects("tier/")]
        taken = min(key for key in keys if key.endswith(".log")), max(key for key in keys if "rsm-manifest" in key)
        await store.delete_objects(taken)
    return taken
