"""One reconcile run, from the configuration to the report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.builders.security import bootstrap_servers, broker_security
from tiersidecar.app.builders.store import open_store
from tiersidecar.app.config.config import Config
from tiersidecar.app.executor_store import ExecutorKeyRing, ExecutorStore
from tiersidecar.app.reconcile_facts import ClusterFacts, read_cluster_facts, read_metadata_end
from tiersidecar.app.store_facts import read_former_look, read_owners
from tiersidecar.decide.metadata_doubt import FormerLook, MetadataFacts, metadata_doubt
from tiersidecar.decide.reconcile_findings import Graces
from tiersidecar.domain.errors import ConfigError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.own_objects import LATEST_REPORT, REPORTS
from tiersidecar.ports.store import BytesBody
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.spark.deep_check import DeepCheck
from tiersidecar.spark.inventory import manifest_at, read_inventory
from tiersidecar.spark.inventory_format import InventoryFormat
from tiersidecar.spark.kafka_options import kafka_options
from tiersidecar.spark.metadata_topic import Cut, MetadataTopic
from tiersidecar.spark.reconcile_job import (
    KnownTopic,
    Reconciled,
    ReconcileInputs,
    Reconciler,
    ReconcileSettings,
)
from tiersidecar.spark.report import REPORT_FILES, SUMMARY_FILE, Summary, write_findings, write_summary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the operator asked for.  ``deep_share`` 0 reads no content."""

    config_file: Path
    report: Path
    graces: Graces
    inventory: tuple[str, ...] = ()
    inventory_format: InventoryFormat = InventoryFormat.PARQUET
    inventory_columns: str = ""
    inventory_time_ms: int | None = None
    reads_manifests: bool = True
    deep_share: float = 0.0
    puts_report: bool = False


def run_reconcile(spark: SparkSession, config: Config, options: RunOptions, say: Callable[[str], None]) -> Summary:
    """Find, and write the report.

    Raises:
        TiersidecarError: broker or store are out of reach.
        Py4JError, PySparkException: Spark failed.
    """
    clock = SystemClock()
    started_ms = clock.now_ms()
    facts = asyncio.run(read_cluster_facts(config))
    said = asyncio.run(_read_store(config, facts.cluster_id))
    topic = MetadataTopic(
        topic=config.remote_log_metadata_topic_name,
        options=kafka_options(bootstrap_servers(config.broker), broker_security(config.broker)),
    )
    options = with_manifest(spark, options)
    cuts = _Cuts(spark, config, topic, facts)
    settings = ReconcileSettings(
        key_prefix=config.store.key_prefix,
        graces=options.graces,
        open_store=ExecutorStore(str(options.config_file.absolute())),
        reads_manifests=options.reads_manifests,
        is_plain=not (config.store.compression_enabled or config.store.encryption_key_pairs),
        deep=DeepCheck(open_key_ring=ExecutorKeyRing(str(options.config_file.absolute())), share=options.deep_share)
        if options.deep_share > 0
        else None,
    )
    job = Reconciler(spark, settings, say)
    try:
        reconciled = job.run(_inputs(spark, config, cuts, said, options), now_ms=clock.now_ms)
        say("writing the report")
        counts = write_findings(reconciled.findings, options.report)
    finally:
        job.close()
    summary = _summary(
        config, options, cuts, reconciled, dict(counts), started_ms=started_ms, finished_ms=clock.now_ms()
    )
    write_summary(summary, options.report)
    if options.puts_report:
        say("putting the report into the store")
        asyncio.run(_put_report(config, summary, options.report))
    return summary


def with_manifest(spark: SparkSession, options: RunOptions) -> RunOptions:
    """With what the inventory's manifest says, where one is named; what the operator said besides counts more.

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
            inventory_time_ms=found.begun_ms if options.inventory_time_ms is None else options.inventory_time_ms,
        )
    if options.inventory and options.inventory_time_ms is None:
        raise ConfigError(source="--inventory", faults=("needs --inventory-time: only a manifest.json says it itself",))
    return options


class _Cuts:
    """The metadata topic up to the beginning of the listing, and from there to its end."""

    def __init__(self, spark: SparkSession, config: Config, topic: MetadataTopic, facts: ClusterFacts) -> None:
        self._spark, self._config, self._topic, self.facts = spark, config, topic, facts
        self.end: Cut = facts.metadata.end

    def early(self) -> DataFrame:
        return self._topic.read(self._spark, self.facts.metadata.begin, self.facts.metadata.end)

    def late(self) -> DataFrame:
        self.end = asyncio.run(read_metadata_end(self._config))
        return self._topic.read(self._spark, self.facts.metadata.end, self.end)


def _inputs(spark: SparkSession, config: Config, cuts: _Cuts, said: _StoreSays, options: RunOptions) -> ReconcileInputs:
    objects = None
    if options.inventory:
        form = options.inventory_format
        objects = read_inventory(spark, list(options.inventory), form, options.inventory_columns)

    def doubt(known: int, foreign: int) -> str:
        return metadata_doubt(
            MetadataFacts(
                topic=config.remote_log_metadata_topic_name,
                topic_id=cuts.facts.metadata.topic_id,
                begin=cuts.facts.metadata.begin,
                end=cuts.facts.metadata.end,
                former=said.former,
                segment_count=known,
                foreign_segment_count=foreign,
            )
        )

    return ReconcileInputs(
        early_events=cuts.early(),
        late_events=cuts.late,
        topics=_topics(cuts.facts, said.owners),
        objects=objects,
        inventory_time_ms=options.inventory_time_ms,
        metadata_doubt=doubt,
    )


def _topics(facts: ClusterFacts, owners: Mapping[str, str]) -> list[KnownTopic]:
    """Topics of the cluster that the store does not call another's, and ids of former ones that it calls this cluster's."""
    ours = [one for one in facts.topics if owners.get(one.topic_id, facts.cluster_id) == facts.cluster_id]
    gone = owners.keys() - {one.topic_id for one in facts.topics}
    was_ours = sorted(topic_id for topic_id in gone if owners[topic_id] == facts.cluster_id)
    return [*ours, *(KnownTopic(topic="", topic_id=topic_id, is_gone=True) for topic_id in was_ours)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoreSays:
    """``owners`` are cluster ids by topic id."""

    former: FormerLook | None
    owners: Mapping[str, str]


async def _read_store(config: Config, cluster_id: str) -> _StoreSays:
    clock, ids = SystemClock(), SystemIds()
    async with open_store(config, pace=UploadPace(None, clock), clock=clock, ids=ids, telemetry=NoTelemetry()) as store:
        return _StoreSays(
            former=await read_former_look(store, config, cluster_id),
            owners=await read_owners(store, config.store.key_prefix),
        )


def _summary(
    config: Config,
    options: RunOptions,
    cuts: _Cuts,
    seen: Reconciled,
    counts: dict[str, int],
    *,
    started_ms: int,
    finished_ms: int,
) -> Summary:
    return Summary(
        run_id=format_uuid(SystemIds().random_uuid()),
        cluster_id=cuts.facts.cluster_id,
        store=_store_name(config),
        key_prefix=config.store.key_prefix,
        started_ms=started_ms,
        finished_ms=finished_ms,
        metadata_topic=config.remote_log_metadata_topic_name,
        metadata_topic_id=cuts.facts.metadata.topic_id,
        metadata_begin=cuts.facts.metadata.begin,
        metadata_cut=cuts.facts.metadata.end,
        metadata_end=dict(cuts.end),
        metadata_doubt=seen.metadata_doubt,
        event_count=seen.event_count,
        segment_count=seen.segment_count,
        live_segment_count=seen.live_segment_count,
        live_bytes=seen.live_bytes,
        object_count=seen.object_count,
        object_bytes=seen.object_bytes,
        orphan_count=seen.orphan_count,
        orphan_bytes=seen.orphan_bytes,
        manifests_read=options.reads_manifests,
        deep_share=options.deep_share,
        grace_ms=options.graces.finding_ms,
        copy_grace_ms=options.graces.copy_ms,
        findings=counts,
    )


def _store_name(config: Config) -> str:
    section = config.store
    return f"filesystem {section.root}" if section.type == "filesystem" else f"s3://{section.s3_bucket_name}"


async def _put_report(config: Config, summary: Summary, directory: Path) -> None:
    clock, ids = SystemClock(), SystemIds()
    prefix = config.store.key_prefix
    pace = UploadPace(None, clock)
    async with open_store(config, pace=pace, clock=clock, ids=ids, telemetry=NoTelemetry()) as store:
        for name in REPORT_FILES:
            await store.put_object(
                f"{prefix}{REPORTS}{summary.run_id}/{name}", BytesBody((directory / name).read_bytes())
            )
        await store.put_object(f"{prefix}{LATEST_REPORT}", BytesBody((directory / SUMMARY_FILE).read_bytes()))
