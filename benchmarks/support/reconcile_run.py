"""The reconcile job on a load: its events as the files have them, or in a real topic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from aiokafka import AIOKafkaProducer

from benchmarks.support.reconcile_load import METADATA_PARTITIONS, WHEN_MS, Load
from tests.support.kafka_cluster import KafkaCluster
from tiersidecar.adapters.kafka.security import SecuritySettings
from tiersidecar.decide.reconcile_findings import Graces
from tiersidecar.reconcile.inputs import KnownTopic, ReconcileSettings
from tiersidecar.spark.events import MetadataTopic
from tiersidecar.spark.inventory import InventoryFiles, read_inventory
from tiersidecar.spark.inventory_manifest import InventoryFormat
from tiersidecar.spark.kafka_options import kafka_options
from tiersidecar.spark.reconcile_job import ReconcileInputs, Reconciler

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TOPIC = "__remote_log_metadata"
_EARLIEST, _LATEST = -2, -1


def run_on_load(spark: SparkSession, load: Load, bootstrap_servers: str = "") -> dict[str, int]:
    """How many findings there are of each kind; events come from the topic where there are ``bootstrap_servers``."""
    settings = ReconcileSettings(graces=Graces(), reads_manifests=False, is_plain=True)
    job = Reconciler(spark, settings, lambda text: None)
    events = _of_topic(spark, bootstrap_servers) if bootstrap_servers else spark.read.parquet(str(load.events))
    inputs = ReconcileInputs(
        early_events=events,
        late_events=lambda: events.limit(0),
        topics=[KnownTopic(topic=topic, topic_id=topic_id) for topic, topic_id in load.topics],
        objects=read_inventory(spark, InventoryFiles(paths=(str(load.objects),), form=InventoryFormat.PARQUET)),
        inventory_time_ms=WHEN_MS + 1,
    )
    try:
        seen = job.run(inputs, now_ms=lambda: WHEN_MS + 86_400_000)
        if seen.event_count != load.event_count:
            raise RuntimeError(f"{seen.event_count} events instead of {load.event_count}")
        return {row["kind"]: row["count"] for row in seen.findings.groupBy("kind").count().collect()}
    finally:
        job.close()


@contextmanager
def topic_of(load: Load, directory: Path) -> Iterator[str]:
    """A broker with the load's events, each in its partition; gives its bootstrap servers."""
    with KafkaCluster(directory) as kafka:
        kafka.create_topic(_TOPIC, partitions=METADATA_PARTITIONS)
        asyncio.run(_produce(load, kafka))
        yield kafka.bootstrap_servers


def _of_topic(spark: SparkSession, bootstrap_servers: str) -> DataFrame:
    topic = MetadataTopic(topic=_TOPIC, options=kafka_options(bootstrap_servers, SecuritySettings()))
    numbers = range(METADATA_PARTITIONS)
    return topic.read(spark, dict.fromkeys(numbers, _EARLIEST), dict.fromkeys(numbers, _LATEST))


async def _produce(load: Load, kafka: KafkaCluster) -> None:
    async with AIOKafkaProducer(**kafka.client_settings, acks="all") as producer:
        for path in sorted(load.events.iterdir()):
            table = pq.read_table(path).sort_by("partition")
            sent, number = [], -1
            batch = producer.create_batch()
            for partition, value in zip(table["partition"].to_pylist(), table["value"].to_pylist(), strict=True):
                if partition != number or batch.append(key=None, value=value, timestamp=None) is None:
                    if batch.record_count():
                        sent.append(await producer.send_batch(batch, _TOPIC, partition=number))
                    batch, number = producer.create_batch(), partition
                    batch.append(key=None, value=value, timestamp=None)
            sent.append(await producer.send_batch(batch, _TOPIC, partition=number))
            await asyncio.gather(*sent)
