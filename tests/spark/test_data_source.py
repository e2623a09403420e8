"""``spark.read.format("tiersidecar")`` gives what Spark's own Kafka source gave before the topic was tiered (issue 8)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from tests.support.daemon import Daemon, daemon_settings, wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.produce import ALL_STYLES, Style, produce_mix
from tiersidecar.app.data_source import TiersidecarDataSource
from tiersidecar.app.read_topic import read_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(600)]

TOPIC, METADATA = "source", "__rlm_source"
PARTITIONS = 3
LEVELS = ("read_uncommitted", "read_committed")
KEPT = {"retention.ms": "-1", "retention.bytes": "-1"}

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiered:
    """A topic whose sealed segments have left the broker, and what Spark's Kafka source read of it before.

    ``ends`` is the end (exclusive) of each partition's remote data.
    """

    config: Path
    keys: Mapping[str, str]
    """What the file says of broker, store and topics, as options."""
    before: Mapping[str, Rows]
    ends: Mapping[int, int]
    times: Mapping[str, str]
    """Options that choose a part in the middle by timestamps; ``timed`` are its rows by Spark's Kafka source."""
    timed: Rows

    def expected(self, level: str, *, remote_only: bool = True) -> Rows:
        """What Spark's Kafka source gave, below the ends."""
        return [row for row in self.before[level] if not remote_only or row[4] < self.ends[row[3]]]


@pytest.fixture(scope="module")
def tiered(
    spark: SparkSession, kafka: KafkaCluster, rsa_key_files: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Tiered:
    """Encrypted and compressed in the store, in chunks much smaller than a segment."""
    directory = tmp_path_factory.mktemp("data-source")
    kafka.create_topic(TOPIC, partitions=PARTITIONS, segment_bytes=262_144, configs=KEPT)
    produced = asyncio.run(
        produce_mix(
            kafka.client_settings,
            TOPIC,
            partitions=PARTITIONS,
            total_bytes=6_000_000,
            batch_bytes=16_384,
            styles=(*ALL_STYLES, Style()),
            seed=5,
        )
    )
    before = {level: rows_of(kafka_source(spark, kafka, {"kafka.isolation.level": level})) for level in LEVELS}
    by_time = sorted(record.timestamp_ms for record in produced)
    times = {"startingTimestamp": str(by_time[len(by_time) // 4]), "endingTimestamp": str(by_time[len(by_time) // 2])}
    timed = rows_of(kafka_source(spark, kafka, times))
    settings = daemon_settings(
        directory,
        bootstrap_servers=kafka.bootstrap_servers,
        log_dirs=list(kafka.brokers[0].log_dirs),
        topics=[{"name": TOPIC, "local.retention.bytes": 1}],
        **{"remote.log.metadata.topic.name": METADATA, "state.topic.name": "__state_source"},
    )
    settings["store"] |= {
        "chunk.size": 65_536,
        "compression.enabled": True,
        "encryption.enabled": True,
        "encryption.key.pair.id": "k1",
        "encryption.key.pairs": {"k1": rsa_key_files},
    }
    with Daemon(directory, settings) as daemon:
        daemon.wait_until_ready()
        active = [active_base(kafka, one) for one in range(PARTITIONS)]
        wait_for(lambda: local_starts(kafka) == active, "all that is sealed has left the broker", daemon, timeout_s=180)
        assert daemon.stop() == 0
    return Tiered(
        config=daemon.config_path,
        keys={
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "remote.log.metadata.topic.name": METADATA,
            "remote.log.metadata.topic.num.partitions": "5",
            "state.topic.name": "__state_source",
            "store.type": "filesystem",
            "store.root": str(daemon.store_root),
            "store.encryption.key.pairs": json.dumps({"k1": rsa_key_files}),
        },
        before=before,
        ends=dict(enumerate(active)),
        times=times,
        timed=timed,
    )


def active_base(kafka: KafkaCluster, partition: int) -> int:
    return max(int(path.stem) for path in kafka.brokers[0].partition_dir(TOPIC, partition).glob("*.log"))


def local_starts(kafka: KafkaCluster) -> list[int]:
    return [kafka.admin.earliest_offset(TOPIC, one) for one in range(PARTITIONS)]


def kafka_source(spark: SparkSession, kafka: KafkaCluster, options: Mapping[str, str]) -> DataFrame:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    return reader.options(**{"subscribe": TOPIC, "includeHeaders": "true", **options}).load()


def source(spark: SparkSession, tiered: Tiered, options: Mapping[str, str]) -> DataFrame:
    spark.dataSource.register(TiersidecarDataSource)
    return spark.read.format("tiersidecar").options(config=str(tiered.config), **options).load()


def rows_of(frame: DataFrame) -> Rows:
    """In the order of partitions and offsets, comparable."""
    return sorted((_plain(row) for row in frame.collect()), key=lambda row: row[3:5])


def _plain(row: Row) -> tuple[Any, ...]:
    return tuple(bytes(one) if isinstance(one, bytearray) else _headers(one) for one in row)


def _headers(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return tuple((one["key"], None if one["value"] is None else bytes(one["value"])) for one in value)


@pytest.mark.parametrize("level", LEVELS)
def test_rows_are_those_of_sparks_kafka_source(spark: SparkSession, tiered: Tiered, level: str) -> None:
    options = {"subscribe": TOPIC, "includeHeaders": "true", "isolation.level": level, "maxBytesPerPartition": "600k"}
    frame = source(spark, tiered, options)
    expected = tiered.expected(level)
    assert len(expected) > 3_000
    assert rows_of(frame) == expected


def test_offsets_given_by_partition_and_filters_choose_rows(spark: SparkSession, tiered: Tiered) -> None:
    start, end = tiered.ends[0] // 3, tiered.ends[0] - 7
    options = {
        "assign": json.dumps({TOPIC: [0, 2]}),
        "startingOffsets": json.dumps({TOPIC: {"0": start, "2": -2}}),
        "endingOffsets": json.dumps({TOPIC: {"0": end, "2": -1}}),
    }
    wanted = [
        row[:7]
        for row in tiered.expected("read_uncommitted")
        if (row[3] == 0 and start <= row[4] < end) or (row[3] == 2 and row[4] <= 500)
    ]
    rows = source(spark, tiered, options).where("partition = 0 or offset <= 500")
    assert rows_of(rows) == wanted
    by_filter = source(spark, tiered, {"subscribePattern": "sou.*"}).where(
        "partition = 0 and offset >= 5 and offset < 90"
    )
    assert [row[4] for row in rows_of(by_filter)] == [
        row[4] for row in tiered.expected("read_uncommitted") if row[3] == 0 and 5 <= row[4] < 90
    ]


def test_timestamps_choose_the_rows_that_they_choose_in_sparks_kafka_source(
    spark: SparkSession, tiered: Tiered
) -> None:
    options = {"subscribe": TOPIC, "includeHeaders": "true", **tiered.times}
    assert 0 < len(tiered.timed) < len(tiered.before["read_uncommitted"])
    assert rows_of(source(spark, tiered, options)) == tiered.timed


def test_with_the_local_tail_every_record_is_there_once(spark: SparkSession, tiered: Tiered) -> None:
    options = {"subscribe": TOPIC, "includeHeaders": "true", "isolation.level": "read_committed"}
    frame = read_topic(spark, config=str(tiered.config), **options)
    assert tiered.expected("read_committed") != tiered.before["read_committed"], "nothing is only local"
    assert rows_of(frame) == tiered.before["read_committed"]


def test_the_configuration_may_be_options_and_filters_need_not_be_pushed_down(
    spark: SparkSession, tiered: Tiered
) -> None:
    """Where Spark pushes no filters down, its default, it refuses readers that would take them."""
    spark.dataSource.register(TiersidecarDataSource)
    pushdown = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(pushdown)
    spark.conf.set(pushdown, "false")
    try:
        options = {**tiered.keys, "subscribe": TOPIC, "startingOffsets": "earliest"}
        rows = spark.read.format("tiersidecar").options(**options).load().where("offset < 20").select("partition")
        assert sorted(row.partition for row in rows.collect()) == [
            row[3] for row in tiered.expected("read_uncommitted") if row[4] < 20
        ]
    finally:
        spark.conf.set(pushdown, before or "false")


def test_bad_options_and_offsets_that_are_gone_are_named(spark: SparkSession, tiered: Tiered) -> None:
    with pytest.raises(PySparkException, match="startingOffsets: latest is not allowed"):
        source(spark, tiered, {"subscribe": TOPIC, "startingOffsets": "latest"})
    beyond = {"assign": json.dumps({TOPIC: [1]}), "endingOffsets": json.dumps({TOPIC: {"1": tiered.ends[1] + 1}})}
    with pytest.raises(PySparkException, match="is outside"):
        source(spark, tiered, beyond).count()
