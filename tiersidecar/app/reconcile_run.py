"""Run reconcile on Spark, from the configuration to the report.

Executors open store and keys from the configuration file on their machine, with its secrets.  Only the file's path is sent to
them; ``spark-submit --files`` may provide the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tiersidecar.adapters.clock import SystemClock
from tiersidecar.adapters.ending_loop import run_to_end
from tiersidecar.app.builders.security import bootstrap_servers, broker_security
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.store_azure import AzureStore
from tiersidecar.app.reconcile_facts import ClusterFacts, read_cluster_facts, read_metadata_end
from tiersidecar.app.reconcile_parts import (
    RunOptions,
    StoreSays,
    doubt_of_metadata,
    known_topics,
    put_report,
    read_store,
    summary_of,
)
from tiersidecar.domain.errors import ConfigError
from tiersidecar.reconcile.deep_check import DeepCheck
from tiersidecar.reconcile.inputs import ReconcileSettings
from tiersidecar.reconcile.report import Summary, write_findings, write_summary
from tiersidecar.spark.events import Cut, MetadataTopic
from tiersidecar.spark.inventory import InventoryFiles, manifest_at, read_inventory
from tiersidecar.spark.kafka_options import kafka_options
from tiersidecar.spark.reconcile_job import ReconcileInputs, Reconciler

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.builders.store import open_key_ring, open_store
from tiersidecar.app.config.config import load_config
from tiersidecar.formats.aiven.key_ring import DataKeys
from tiersidecar.ports.store import Store
from tiersidecar.ports.telemetry import NoTelemetry


@dataclass(frozen=True, slots=True)
class ExecutorStore:
    """A :data:`tiersidecar.spark.objects_by_segment.StoreOpener`."""

    config_file: str

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Store]:
        clock, config = SystemClock(), executor_config(self.config_file)
        pace = UploadPace(config.store.upload_rate_limit_bytes_per_second, clock)
        async with open_store(config, pace=pace, clock=clock, ids=SystemIds(), telemetry=NoTelemetry()) as store:
            yield store


@dataclass(frozen=True, slots=True)
class ExecutorKeyRing:
    """A :data:`tiersidecar.reconcile.deep_check.KeyRingOpener`."""

    config_file: str

    def __call__(self) -> DataKeys | None:
        return _key_ring(self.config_file)


@cache
def executor_config(config_file: str) -> Config:
    """Return the configuration by the file on this executor's machine, or the one that ``spark-submit --files`` brought."""
    path = Path(config_file)
    if not path.exists():
        from pyspark import SparkFiles

        path = Path(SparkFiles.get(path.name))
    return load_config(path, os.environ)


@cache
def _key_ring(config_file: str) -> DataKeys | None:
    return open_key_ring(executor_config(config_file))


def run_reconcile(spark: SparkSession, config: Config, options: RunOptions, say: Callable[[str], None]) -> Summary:
    """Find, and write the report.

    Raises:
        TiersidecarError: broker or store are out of reach.
        Py4JError, PySparkException: Spark failed.
    """
    clock = SystemClock()
    started_ms = clock.now_ms()
    facts = run_to_end(read_cluster_facts(config))
    said = run_to_end(read_store(config, facts.cluster_id))
    topic = MetadataTopic(
        topic=config.remote_log_metadata_topic_name,
        options=kafka_options(bootstrap_servers(config.broker), broker_security(config.broker)),
    )
    if options.inventory:
        config.require_one_place("an inventory")
    options = with_manifest(spark, options)
    cuts = _Cuts(spark, config, topic, facts)
    settings = ReconcileSettings(
        key_prefix=config.store.key_prefix,
        place_prefixes=config.key_prefixes[1:],
        away=said.away,
        graces=options.graces,
        open_store=ExecutorStore(str(options.config_file.absolute())),
        reads_manifests=options.reads_manifests,
        is_plain=config.store.is_plain,
        deep=DeepCheck(open_key_ring=ExecutorKeyRing(str(options.config_file.absolute())), share=options.deep_share)
        if options.deep_share > 0
        else None,
    )
    job = Reconciler(spark, settings, say)
    try:
        reconciled = job.run(_inputs(spark, config, cuts, said, options), now_ms=clock.now_ms)
        say("writing the report")
        counts = write_findings(_rows(reconciled.findings), options.report)
    finally:
        job.close()
    summary = summary_of(
        config, options, facts, cuts.end, reconciled, counts, started_ms=started_ms, finished_ms=clock.now_ms()
    )
    write_summary(summary, options.report)
    if options.puts_report:
        say("putting the report into the store")
        run_to_end(put_report(config, summary, options.report))
    return summary


def with_manifest(spark: SparkSession, options: RunOptions) -> RunOptions:
    """Add what the inventory's manifest says, where one is named; the operator's own options count more.

    Raises:
        ConfigError: the manifest is of no use, or nothing says when the inventory was begun.
    """
    found = manifest_at(spark, list(options.inventory))
    if found is not None:
        options = replace(
            options,
            inventory=found.paths,
            inventory_format=found.form,
            inventory_columns=options.inventory_columns or found.csv_columns,
            inventory_has_header=found.csv_has_header,
            inventory_delimiter=found.csv_delimiter,
            inventory_time_ms=found.begun_ms if options.inventory_time_ms is None else options.inventory_time_ms,
        )
    if options.inventory and options.inventory_time_ms is None:
        raise ConfigError(source="--inventory", faults=("needs --inventory-time: only a manifest.json says it itself",))
    return options


def _rows(findings: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield rows, one partition at a time in the driver, so that a bucket which is lost altogether can be reported too."""
    return (row.asDict() for row in findings.toLocalIterator(prefetchPartitions=True))


class _Cuts:
    """The metadata topic up to the beginning of the listing, and from there to its end."""

    def __init__(self, spark: SparkSession, config: Config, topic: MetadataTopic, facts: ClusterFacts) -> None:
        self._spark, self._config, self._topic, self.facts = spark, config, topic, facts
        self.end: Cut = facts.metadata.end

    def early(self) -> DataFrame:
        return self._topic.read(self._spark, self.facts.metadata.begin, self.facts.metadata.end)

    def late(self) -> DataFrame:
        self.end = run_to_end(read_metadata_end(self._config))
        return self._topic.read(self._spark, self.facts.metadata.end, self.end)


def _inputs(spark: SparkSession, config: Config, cuts: _Cuts, said: StoreSays, options: RunOptions) -> ReconcileInputs:
    objects = None
    if options.inventory:
        store = config.store
        files = InventoryFiles(
            paths=options.inventory,
            form=options.inventory_format,
            csv_columns=options.inventory_columns,
            csv_has_header=options.inventory_has_header,
            csv_delimiter=options.inventory_delimiter,
            container=store.azure_container_name if isinstance(store, AzureStore) else "",
        )
        objects = read_inventory(spark, files)

    return ReconcileInputs(
        early_events=cuts.early(),
        late_events=cuts.late,
        topics=known_topics(cuts.facts, said.owners),
        objects=objects,
        inventory_time_ms=options.inventory_time_ms,
        metadata_doubt=partial(doubt_of_metadata, config, cuts.facts, said),
    )
