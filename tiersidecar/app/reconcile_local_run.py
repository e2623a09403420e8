"""Run reconcile in this process, from the configuration to the report: for small stores, without Spark."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import TYPE_CHECKING

from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.adapters.kafka.aiokafka_settings import aiokafka_kwargs
from tiersidecar.adapters.kafka_clients import open_consumer, translated
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.builders.security import bootstrap_servers, broker_security
from tiersidecar.app.builders.store import open_key_ring, open_store
from tiersidecar.app.config.config import Config
from tiersidecar.app.reconcile_facts import read_cluster_facts, read_metadata_end
from tiersidecar.app.reconcile_parts import (
    Cut,
    RunOptions,
    doubt_of_metadata,
    known_topics,
    put_report,
    read_store,
    summary_of,
)
from tiersidecar.ports.store import Store
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.reconcile.deep_check import DeepCheck
from tiersidecar.reconcile.inputs import ReconcileSettings
from tiersidecar.reconcile.local import LocalInputs, RawEvent, reconcile_locally
from tiersidecar.reconcile.report import Summary, finding_document, write_findings, write_summary

if TYPE_CHECKING:
    from aiokafka import AIOKafkaConsumer, TopicPartition

_POLL_MS = 500


async def run_local_reconcile(config: Config, options: RunOptions, say: Callable[[str], None]) -> Summary:
    """Find, and write the report.  ``options`` with an inventory are Spark's.

    Raises:
        TiersidecarError: broker or store are out of reach; there is no report then.
    """
    clock = SystemClock()
    started_ms = clock.now_ms()
    facts = await read_cluster_facts(config)
    said = await read_store(config, facts.cluster_id)
    end = facts.metadata.end

    async def late() -> AsyncIterator[Sequence[RawEvent]]:
        nonlocal end
        begin, end = end, await read_metadata_end(config)
        async for events in _events(config, begin, end):
            yield events

    settings = ReconcileSettings(
        key_prefix=config.store.key_prefix,
        place_prefixes=config.key_prefixes[1:],
        away=said.away,
        graces=options.graces,
        reads_manifests=options.reads_manifests,
        is_plain=config.store.is_plain,
        deep=DeepCheck(open_key_ring=cache(partial(open_key_ring, config)), share=options.deep_share)
        if options.deep_share > 0
        else None,
    )
    inputs = LocalInputs(
        early_events=_events(config, facts.metadata.begin, end),
        late_events=late,
        topics=known_topics(facts, said.owners),
        metadata_doubt=partial(doubt_of_metadata, config, facts, said),
    )
    async with _store(config) as store:
        reconciled = await reconcile_locally(store, settings, inputs, say, now_ms=clock.now_ms)
    say("writing the report")
    counts = write_findings(map(finding_document, reconciled.findings), options.report)
    summary = summary_of(
        config, options, facts, end, reconciled, counts, started_ms=started_ms, finished_ms=clock.now_ms()
    )
    write_summary(summary, options.report)
    if options.puts_report:
        say("putting the report into the store")
        await put_report(config, summary, options.report)
    return summary


@asynccontextmanager
async def _store(config: Config) -> AsyncIterator[Store]:
    clock = SystemClock()
    pace = UploadPace(None, clock)
    async with open_store(config, pace=pace, clock=clock, ids=SystemIds(), telemetry=NoTelemetry()) as store:
        yield store


async def _events(config: Config, begin: Cut, end: Cut) -> AsyncIterator[Sequence[RawEvent]]:
    """Yield records of the metadata topic from ``begin`` up to, not including, ``end``.

    Raises:
        BrokerUnreachableError, BrokerRefusedError: they could not be read, or are not there any more.
    """
    from aiokafka import TopicPartition

    topic, servers = config.remote_log_metadata_topic_name, bootstrap_servers(config.broker)
    wanted = {TopicPartition(topic, number): stop for number, stop in end.items() if begin.get(number, 0) < stop}
    security = aiokafka_kwargs(broker_security(config.broker))
    async with open_consumer(servers, security, client_id=f"{config.broker.client_id}-reconcile") as consumer:
        with translated("Fetch", topic, servers):
            consumer.assign(list(wanted))
            for partition in wanted:
                consumer.seek(partition, begin.get(partition.partition, 0))
            while await _unread(consumer, wanted):
                batches = await consumer.getmany(timeout_ms=_POLL_MS)
                for partition, records in batches.items():
                    yield [
                        (partition.partition, record.offset, record.value)
                        for record in records
                        if record.offset < wanted[partition]
                    ]


async def _unread(consumer: AIOKafkaConsumer, wanted: dict[TopicPartition, int]) -> bool:
    """Return whether anything is left; what has been read to its end is asked for no more."""
    left = {partition for partition, stop in wanted.items() if await consumer.position(partition) < stop}
    if done := wanted.keys() - left:
        consumer.pause(*done)
    return bool(left)
