"""Read a tiered topic in Spark: our data source against spark-sql-kafka, which reads the same offsets from the broker.

``benchmarks/datasource.py [--quick]``: a table, then the goals; exit code 1 if one is missed.  A real broker, filled by Kafka's
own producer, and tiered by the real daemon, which leaves the data on the broker too.  Both read in one Spark session on two
cores, taking turns, into Spark's ``noop`` sink; before that each counts and sums what it reads, which warms it up, and must be
the same.
"""

from __future__ import annotations

import os
import sys

# Not this directory: a module of it has the name of one of the standard library.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib is not there yet

import argparse  # noqa: E402
import asyncio  # noqa: E402
import json  # noqa: E402
import shutil  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Mapping  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from statistics import median  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

from benchmarks.support.report import Goal, Report  # noqa: E402
from tests.support.daemon import Daemon, daemon_settings, wait_for  # noqa: E402
from tests.support.kafka_cluster import KafkaCluster  # noqa: E402
from tests.support.recorded_telemetry import RecordedTelemetry  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEGMENT_BYTES = 32 * 1024 * 1024
PARTITIONS = 2
MB = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A topic of ``records`` records of ``record_bytes``, without keys."""

    topic: str
    record_bytes: int
    records: int
    compression: str
    batch_bytes: int = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    loads: tuple[Load, ...]
    rounds: int


FULL = Scale(
    loads=(
        Load(topic="small-lz4", record_bytes=100, records=8_000_000, compression="lz4"),
        Load(topic="large-plain", record_bytes=1_000, records=1_500_000, compression="none"),
        Load(topic="large-zstd", record_bytes=1_000, records=1_000_000, compression="zstd"),
        Load(topic="small-batches", record_bytes=200, records=2_000_000, compression="none", batch_bytes=1_000),
    ),
    rounds=5,
)
QUICK = Scale(
    loads=(
        Load(topic="small-lz4", record_bytes=100, records=1_600_000, compression="lz4"),
        Load(topic="large-plain", record_bytes=1_000, records=200_000, compression="none"),
    ),
    rounds=2,
)


class Bench:
    """One run in a scratch directory."""

    def __init__(self, kafka: KafkaCluster, scratch: Path, scale: Scale, report: Report) -> None:
        self._kafka, self._scratch, self._scale, self._report = kafka, scratch, scale, report
        self._ends: dict[str, dict[int, int]] = {}
        self._config = scratch / "sidecar" / "tiersidecar.yaml"

    def run(self) -> None:
        from tiersidecar.app.data_source import TiersidecarDataSource
        from tiersidecar.spark.session import open_session

        self._tier()
        spark = open_session(
            app_name="benchmark",
            master="local[2]",
            settings={"spark.driver.memory": "2g", "spark.local.dir": str(self._scratch / "local")},
        )
        try:
            spark.dataSource.register(TiersidecarDataSource)
            for load in self._scale.loads:
                self._compare(spark, load)
            self._prune(self._scale.loads[-1])
        finally:
            spark.stop()

    def _tier(self) -> None:
        loads = self._scale.loads
        for load in loads:
            configs = {"retention.ms": "-1", "retention.bytes": "-1"}
            self._kafka.create_topic(load.topic, partitions=PARTITIONS, segment_bytes=SEGMENT_BYTES, configs=configs)
            self._produce(load)
        settings = daemon_settings(
            self._scratch / "sidecar",
            bootstrap_servers=self._kafka.bootstrap_servers,
            log_dirs=list(self._kafka.brokers[0].log_dirs),
            topics=[{"name": load.topic} for load in loads],
        )
        self._ends = {load.topic: {one: self._active_base(load, one) for one in range(PARTITIONS)} for load in loads}
        sealed = sum(len(self._logs(load, one)) - 1 for load in loads for one in range(PARTITIONS))
        with Daemon(self._scratch / "sidecar", settings) as daemon:
            daemon.wait_until_ready()
            copied = lambda: len(list(daemon.store_root.rglob("*.rsm-manifest"))) >= sealed  # noqa: E731
            wait_for(copied, f"{sealed} segments are remote", daemon, timeout_s=300)
            finished = lambda: len(daemon.events("segment.copy.finished")) >= sealed  # noqa: E731
            wait_for(finished, f"{sealed} copies are finished", daemon, timeout_s=60)
            daemon.stop()

    def _produce(self, load: Load) -> None:
        self._kafka.run_tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", load.topic, "--num-records", str(load.records), "--record-size", str(load.record_bytes)),
            *("--throughput", "-1", "--producer-props", f"bootstrap.servers={self._kafka.bootstrap_servers}"),
            *("acks=all", f"batch.size={load.batch_bytes}", "linger.ms=5", f"compression.type={load.compression}"),
            timeout_s=300,
        )

    def _logs(self, load: Load, partition: int) -> list[Path]:
        return sorted(self._kafka.brokers[0].partition_dir(load.topic, partition).glob("*.log"))

    def _active_base(self, load: Load, partition: int) -> int:
        return int(self._logs(load, partition)[-1].stem)

    # -- side by side

    def _compare(self, spark: SparkSession, load: Load) -> None:
        ends = self._ends[load.topic]
        rows = sum(ends.values())
        frames = {"ours": self._ours(spark, load), "spark-sql-kafka": self._kafkas(spark, load)}
        sums = {name: _sums(frame) for name, frame in frames.items()}
        if sums["ours"] != sums["spark-sql-kafka"] or sums["ours"][0] != rows:
            raise SystemExit(f"{load.topic}: not the same rows: {sums}, {rows} expected")
        walls: dict[str, list[float]] = {name: [] for name in frames}
        for _ in range(self._scale.rounds):
            walls["ours"].append(_wall_s(self._ours(spark, load)))
            walls["spark-sql-kafka"].append(_wall_s(self._kafkas(spark, load)))
        for name, taken in walls.items():
            wall_s = median(taken)
            mb, millions = rows * load.record_bytes / MB / wall_s, rows / wall_s / 1e6
            every = " ".join(f"{one:.2f}" for one in taken)
            self._report.line(f"{load.topic:16}{name:18}{rows:12,}{wall_s:8.2f}{mb:10.0f}{millions:12.2f}   {every}")
        ratio = median(walls["spark-sql-kafka"]) / median(walls["ours"])
        self._report.goals.append(Goal(name=f"{load.topic}_of_kafka_source".replace("-", "_"), figure=ratio, least=1.0))

    def _ours(self, spark: SparkSession, load: Load) -> DataFrame:
        reader = spark.read.format("tiersidecar").option("config", str(self._config))
        return reader.options(**self._range(load)).load()

    def _kafkas(self, spark: SparkSession, load: Load) -> DataFrame:
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", self._kafka.bootstrap_servers)
        return reader.options(**self._range(load)).load()

    def _range(self, load: Load) -> Mapping[str, str]:
        ends = {str(partition): end for partition, end in self._ends[load.topic].items()}
        return {"subscribe": load.topic, "endingOffsets": json.dumps({load.topic: ends})}

    # -- what is fetched

    def _prune(self, load: Load) -> None:
        """A twentieth of one partition, by offsets: bytes of the store against bytes asked for and bytes there are."""
        from tiersidecar.app.data_source import parse_options, read_share
        from tiersidecar.app.data_source_planning import plan_read
        from tiersidecar.ports.metrics.reading import READ_STORE_BYTES
        from tiersidecar.spark.datasource.filters import PushedBounds

        end = self._ends[load.topic][0]
        start, stop = end // 2, end // 2 + end // 20
        ranges = {"startingOffsets": start, "endingOffsets": stop}
        given = {name: json.dumps({load.topic: {"0": offset}}) for name, offset in ranges.items()}
        assigned = {"config": str(self._config), "assign": json.dumps({load.topic: [0]})}
        options, source = parse_options({**assigned, **given})
        shares = asyncio.run(plan_read(source.load(), options, PushedBounds()))
        telemetry = RecordedTelemetry()
        rows = 0
        for share in shares:
            batches = read_share(source.load(), share, include_headers=False, telemetry=telemetry)
            rows += sum(batch.num_rows for batch in batches)
        if rows != stop - start:
            raise SystemExit(f"{rows} rows instead of {stop - start}")
        there = sum(path.stat().st_size for path in self._logs(load, 0)[:-1])
        asked = there * (stop - start) / end
        read = telemetry.value(READ_STORE_BYTES) or 0
        self._report.line(
            f"{load.topic}: a twentieth of a partition's offsets is {asked / MB:.1f} MB of {there / MB:.1f}; "
            f"read from the store: {read / MB:.1f} MB"
        )
        # Whole chunks of 4 MiB, one more at either end, and indexes.
        self._report.goals.append(
            Goal(name="pruned_read_mb", figure=read / MB, most=(asked + 3 * 4 * 1024 * 1024) / MB)
        )


def _sums(frame: DataFrame) -> tuple[int, ...]:
    from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

    row = frame.agg(F.count("*"), F.sum(F.crc32("value")), F.sum("offset")).collect()[0]
    return tuple(row)


def _wall_s(frame: DataFrame) -> float:
    began_s = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less data: under 45 seconds on a quiet machine")
    scale = QUICK if parser.parse_args().quick else FULL
    scratch = Path(tempfile.mkdtemp(prefix="tiersidecar-datasource-"))
    # Spark's workers import what is here.
    os.environ["PYTHONPATH"] = sys.path[0]
    report = Report()
    print("tiered topics in Spark on local[2], the same offsets by both\n")
    print(f"{'topic':16}{'source':18}{'rows':>12}{'s':>8}{'MB/s':>10}{'M rows/s':>12}   each round, s", flush=True)
    try:
        with KafkaCluster(scratch / "kafka") as kafka:
            Bench(kafka, scratch, scale, report).run()
        return report.end()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
