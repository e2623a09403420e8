"""The parts of every reconcile run, on Spark or in this process: options, summary, and what the store records.

The store records which cluster owns the remote data of a topic id, and what the last reconcile run saw.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.builders.store import open_store
from tiersidecar.app.config.config import Config
from tiersidecar.app.reconcile_facts import ClusterFacts
from tiersidecar.decide.metadata_doubt import FormerLook, MetadataFacts, metadata_doubt
from tiersidecar.decide.reconcile_findings import Graces
from tiersidecar.domain.errors import ObjectNotFoundError, ObjectTooLargeError, StoreError
from tiersidecar.domain.ids import format_uuid, named_place, place_of, place_prefix
from tiersidecar.domain.own_objects import LATEST_REPORT, MOST_OWNER_BYTES, MOST_REPORT_BYTES, OWNERS, REPORTS
from tiersidecar.ports.store import BytesBody, FetchRange, Store
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.reconcile.inputs import KnownTopic, Seen
from tiersidecar.reconcile.report import SUMMARY_FILE, Summary, report_files
from tiersidecar.spark.inventory_manifest import InventoryFormat
from tiersidecar.tasks.topic_owners import read_owned_place

UNREADABLE_OWNER = "?"
"""Stands for a cluster id where the object does not say it.  It is no cluster's."""


async def read_owner(store: FetchRange, key_prefix: str, topic_id: str) -> str | None:
    """Read the id of the cluster that owns the topic id; None where the store does not say."""
    try:
        return _cluster_in(await store.fetch_object(_owner_key(key_prefix, topic_id), max_bytes=MOST_OWNER_BYTES))
    except ObjectNotFoundError:
        return None
    except ObjectTooLargeError:
        return UNREADABLE_OWNER


async def reason_of_another_place(store: FetchRange, key_prefix: str, place: str, topic_id: str) -> str:
    """Return why the store that the configuration gives ``place`` is another one's, by the topic id's owner object, which is
    this cluster's; empty where the object is of this place, does not say, or is not there."""
    key = _owner_key(place_prefix(place) or key_prefix, topic_id)
    try:
        said = read_owned_place(await store.fetch_object(key, max_bytes=MOST_OWNER_BYTES))
    except (ObjectNotFoundError, ObjectTooLargeError, ValueError):
        return ""
    if said is None or said == place:
        return ""
    return f"the store of {named_place(place)} is that of {named_place(said)}, as its {key} says: correct places"


async def read_owners(store: Store, key_prefixes: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Read all that the store says, by topic id, and why places besides the default one did not answer, by their prefixes.  Of
    several places that say something of one topic id, the first counts."""
    owners: dict[str, str] = {}
    away: dict[str, str] = {}
    for key_prefix in key_prefixes:
        try:
            owners = {**await _read_owners_at(store, key_prefix, known=owners), **owners}
        except StoreError as error:
            if not error.is_away or not place_of(key_prefix):
                raise
            away[key_prefix] = error.reason
    return owners, away


async def _read_owners_at(store: Store, key_prefix: str, *, known: Mapping[str, str]) -> dict[str, str]:
    keys = [stored.key async for stored in store.list_objects(f"{key_prefix}{OWNERS}")]
    names = [key.removeprefix(f"{key_prefix}{OWNERS}").removesuffix(".json") for key in keys]
    read = {name: await read_owner(store, key_prefix, name) for name in names if name not in known}
    return {name: owner for name, owner in read.items() if owner is not None}


async def read_former_look(store: FetchRange, config: Config, cluster_id: str) -> FormerLook | None:
    """Return what the last run that put its report saw of this cluster's metadata topic."""
    try:
        key = f"{config.store.key_prefix}{LATEST_REPORT}"
        summary = json.loads(await store.fetch_object(key, max_bytes=MOST_REPORT_BYTES))
        known = (cluster_id, config.remote_log_metadata_topic_name)
        if (summary["cluster_id"], summary["metadata_topic"]) != known:
            return None
        return FormerLook(
            run_id=str(summary["run_id"]),
            topic_id=str(summary.get("metadata_topic_id", "")),
            end={int(partition): int(end) for partition, end in summary["metadata_end"].items()},
        )
    except (ObjectNotFoundError, ObjectTooLargeError):
        return None
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
        return None


def _owner_key(key_prefix: str, topic_id: str) -> str:
    return f"{key_prefix}{OWNERS}{topic_id}.json"


def _cluster_in(data: bytes) -> str:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return UNREADABLE_OWNER
    cluster_id = document.get("cluster_id") if isinstance(document, dict) else None
    return cluster_id if isinstance(cluster_id, str) and cluster_id else UNREADABLE_OWNER


Cut = Mapping[int, int]
"""By partition of the metadata topic, an offset: exclusive where it is an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The operator's options.  ``deep_share`` 0 reads no content."""

    config_file: Path
    report: Path
    graces: Graces
    inventory: tuple[str, ...] = ()
    inventory_format: InventoryFormat = InventoryFormat.PARQUET
    inventory_columns: str = ""
    inventory_has_header: bool = False
    inventory_delimiter: str = ","
    inventory_time_ms: int | None = None
    reads_manifests: bool = True
    deep_share: float = 0.0
    puts_report: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSays:
    """The facts that the sidecars put into the store; ``owners`` are cluster ids by topic id.  ``away``: why a place did not
    answer, by its prefix."""

    former: FormerLook | None
    owners: Mapping[str, str]
    away: Mapping[str, str]


async def read_store(config: Config, cluster_id: str) -> StoreSays:
    """Ask the store.

    Raises:
        StoreError: it is away; of a place besides the default one that is reported instead.
    """
    clock, ids = SystemClock(), SystemIds()
    async with open_store(config, pace=UploadPace(None, clock), clock=clock, ids=ids, telemetry=NoTelemetry()) as store:
        former = await read_former_look(store, config, cluster_id)
        owners, away = await read_owners(store, config.key_prefixes)
        return StoreSays(former=former, owners=owners, away=away)


def known_topics(facts: ClusterFacts, owners: Mapping[str, str]) -> list[KnownTopic]:
    """Return topics that the store does not call another cluster's, and ids of former ones that it calls this cluster's."""
    ours = [one for one in facts.topics if owners.get(one.topic_id, facts.cluster_id) == facts.cluster_id]
    gone = owners.keys() - {one.topic_id for one in facts.topics}
    was_ours = sorted(topic_id for topic_id in gone if owners[topic_id] == facts.cluster_id)
    return [*ours, *(KnownTopic(topic="", topic_id=topic_id, is_gone=True) for topic_id in was_ours)]


def doubt_of_metadata(config: Config, facts: ClusterFacts, said: StoreSays, known: int, foreign: int) -> str:
    """Return why the metadata may not be all there is, or another cluster's, given the numbers of segments of known and of
    unknown topics; "" if nothing says so."""
    return metadata_doubt(
        MetadataFacts(
            topic=config.remote_log_metadata_topic_name,
            topic_id=facts.metadata.topic_id,
            begin=facts.metadata.begin,
            end=facts.metadata.end,
            former=said.former,
            segment_count=known,
            foreign_segment_count=foreign,
        )
    )


def summary_of(
    config: Config,
    options: RunOptions,
    facts: ClusterFacts,
    end: Cut,
    seen: Seen,
    counts: Mapping[str, int],
    *,
    started_ms: int,
    finished_ms: int,
) -> Summary:
    """Return the report's first page of figures; ``end`` is where the metadata topic ended after the listing."""
    return Summary(
        run_id=format_uuid(SystemIds().random_uuid()),
        cluster_id=facts.cluster_id,
        store=config.store.place,
        key_prefix=config.store.key_prefix,
        started_ms=started_ms,
        finished_ms=finished_ms,
        metadata_topic=config.remote_log_metadata_topic_name,
        metadata_topic_id=facts.metadata.topic_id,
        metadata_begin=facts.metadata.begin,
        metadata_cut=facts.metadata.end,
        metadata_end=dict(end),
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
        findings=dict(counts),
    )


async def put_report(config: Config, summary: Summary, directory: Path) -> None:
    """Put the report of ``directory`` into the store, where the daemons' metrics find it."""
    clock, ids = SystemClock(), SystemIds()
    prefix = config.store.key_prefix
    pace = UploadPace(None, clock)
    async with open_store(config, pace=pace, clock=clock, ids=ids, telemetry=NoTelemetry()) as store:
        for name in report_files(directory):
            await store.put_object(
                f"{prefix}{REPORTS}{summary.run_id}/{name}", BytesBody((directory / name).read_bytes())
            )
        await store.put_object(f"{prefix}{LATEST_REPORT}", BytesBody((directory / SUMMARY_FILE).read_bytes()))
