"""On a standalone ``spark://`` cluster, whose executors are processes of their own, with a real S3 server: the data source
gives the records that were produced, and reconcile ends (issue 8; docs/spark-data-source.md, docs/reconcile.md).

The configuration file comes by ``--files``, the secret by the environment of driver and worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.daemon import Daemon, daemon_settings, wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.produce import ALL_STYLES, ProducedRecord, Style, produce_mix
from tests.support.s3_server import SECRET_KEY, running_s3_server, s3_store_section
from tests.support.spark_cluster import SparkCluster, running_spark_cluster
from tests.support.spark_submit import SMALL, submit

pytestmark = [
    *(pytest.mark.spark, pytest.mark.broker, pytest.mark.server, pytest.mark.exhaustive),
    pytest.mark.timeout(900),
]

TOPIC, METADATA, STATE = "standalone", "__rlm_standalone", "__state_standalone"
PARTITIONS = 2
KEPT = {"retention.ms": "-1", "retention.bytes": "-1"}
SECRET_IN = "TIER_S3_SECRET"
READ_JOB = Path(__file__).parents[1] / "support" / "spark_jobs" / "read_topic_job.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiered:
    """``config`` names its secret, and does not have it; ``ends`` are those of the remote data, exclusive."""

    config: Path
    produced: list[ProducedRecord]
    ends: list[int]


@pytest.fixture(scope="module")
def tiered(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiered]:
    directory = tmp_path_factory.mktemp("standalone")
    kafka.create_topic(TOPIC, partitions=PARTITIONS, segment_bytes=262_144, configs=KEPT)
    produced = asyncio.run(
        produce_mix(
            kafka.client_settings,
            TOPIC,
            partitions=PARTITIONS,
            total_bytes=3_000_000,
            batch_bytes=16_384,
            styles=(*ALL_STYLES, Style()),
            seed=11,
        )
    )
    with running_s3_server(directory / "s3") as server:
        bucket = server.directory / "kafka-tier"
        bucket.mkdir()
        store = s3_store_section(server.url, bucket.name) | {"aws.secret.access.key": {"env": SECRET_IN}}
        settings = daemon_settings(
            directory,
            bootstrap_servers=kafka.bootstrap_servers,
            log_dirs=list(kafka.brokers[0].log_dirs),
            topics=[{"name": TOPIC, "local.retention.bytes": 1}],
            **{"remote.log.metadata.topic.name": METADATA, "state.topic.name": STATE, "store": store},
        )
        with environment_of_this_process(), Daemon(directory, settings) as daemon:
            daemon.wait_until_ready()
            ends = [active_base(kafka, one) for one in range(PARTITIONS)]
            wait_for(lambda: local_starts(kafka) == ends, "what is sealed has left the broker", daemon, timeout_s=180)
            assert daemon.stop() == 0
        yield Tiered(config=daemon.config_path, produced=produced, ends=ends)


@contextmanager
def environment_of_this_process() -> Iterator[None]:
    """The daemon takes its secret from it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SECRET_IN, SECRET_KEY)
        yield


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with running_spark_cluster(
        tmp_path_factory.mktemp("spark") / "cluster", environment={SECRET_IN: SECRET_KEY}
    ) as running:
        yield running


def active_base(kafka: KafkaCluster, partition: int) -> int:
    return max(int(path.stem) for path in kafka.brokers[0].partition_dir(TOPIC, partition).glob("*.log"))


def local_starts(kafka: KafkaCluster) -> list[int]:
    return [kafka.admin.earliest_offset(TOPIC, one) for one in range(PARTITIONS)]


def settings_for(cluster: SparkCluster, tiered: Tiered) -> dict[str, str]:
    """A driver here and one executor there, and all that Spark writes down below the cluster's directory."""
    events = cluster.directory / "events"
    events.mkdir(exist_ok=True)
    return {
        **SMALL,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.cores": "1",
        "spark.executor.memory": "1g",
        "spark.files": str(tiered.config),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }


def row_of(record: ProducedRecord) -> tuple[Any, ...]:
    headers = record.headers or None
    return (record.topic, record.partition, record.offset, record.timestamp_ms, record.key, record.value, headers)


def rows_below(directory: Path) -> list[tuple[Any, ...]]:
    """What the job wrote, in the order of partitions and offsets."""
    rows = []
    for row in pq.read_table(directory).to_pylist():
        headers = row["headers"] and tuple((one["key"], one["value"]) for one in row["headers"])
        stamp = round(row["timestamp"].timestamp() * 1000)
        rows.append((row["topic"], row["partition"], row["offset"], stamp, row["key"], row["value"], headers))
    return sorted(rows, key=lambda row: row[1:3])


def files_with(text: str, directory: Path) -> list[str]:
    return [
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    ]


def test_executors_elsewhere_read_the_produced_records_from_s3(
    cluster: SparkCluster, tiered: Tiered, tmp_path: Path
) -> None:
    done = submit(
        cluster.master,
        *(tiered.config.name, TOPIC, str(tmp_path / "rows")),
        program=READ_JOB,
        settings=settings_for(cluster, tiered),
        environment={SECRET_IN: SECRET_KEY},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    expected = [
        row_of(record)
        for record in tiered.produced
        if not record.aborted and record.offset < tiered.ends[record.partition]
    ]
    assert len(expected) > 1_000
    assert rows_below(tmp_path / "rows") == expected
    # The plan, the executors' logs and the event log were all looked at, and say no secret.
    (brought,) = cluster.worker_directory.rglob(tiered.config.name)
    assert (brought.parent / "stderr").stat().st_size > 0
    assert "tiersidecar" in done.stdout
    assert SECRET_KEY not in done.stdout + done.stderr
    assert files_with(SECRET_KEY, cluster.directory) == []


def test_reconcile_lists_checks_and_ends_clean(cluster: SparkCluster, tiered: Tiered, tmp_path: Path) -> None:
    """S-307: executors list and read the store by themselves; events come by Spark's Kafka source there."""
    report = tmp_path / "report"
    done = submit(
        cluster.master,
        *("reconcile", "--config", str(tiered.config), "--report", str(report)),
        settings=settings_for(cluster, tiered),
        environment={SECRET_IN: SECRET_KEY},
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert SECRET_KEY not in done.stdout + done.stderr
    assert files_with(SECRET_KEY, cluster.directory) == []
