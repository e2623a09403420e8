"""What the store itself says: which cluster a topic id's remote data belong to, and what the last reconcile run saw."""

from __future__ import annotations

import json

from tiersidecar.app.config.config import Config
from tiersidecar.decide.metadata_doubt import FormerLook
from tiersidecar.domain.errors import ObjectNotFoundError
from tiersidecar.domain.own_objects import LATEST_REPORT, OWNERS
from tiersidecar.ports.store import FetchRange, Store

UNREADABLE_OWNER = "?"
"""For a cluster id: an object is there that does not tell it.  It is no cluster's."""


async def read_owner(store: FetchRange, key_prefix: str, topic_id: str) -> str | None:
    """The id of the cluster that owns the topic id; None where the store does not say."""
    try:
        return _cluster_in(await store.fetch_object(_owner_key(key_prefix, topic_id)))
    except ObjectNotFoundError:
        return None


async def read_owners(store: Store, key_prefix: str) -> dict[str, str]:
    """By topic id, all that the store says."""
    keys = [stored.key async for stored in store.list_objects(f"{key_prefix}{OWNERS}")]
    names = [key.removeprefix(f"{key_prefix}{OWNERS}").removesuffix(".json") for key in keys]
    found = {name: await read_owner(store, key_prefix, name) for name in names}
    return {name: owner for name, owner in found.items() if owner is not None}


async def read_former_look(store: FetchRange, config: Config, cluster_id: str) -> FormerLook | None:
    """What the last run that put its report saw of this cluster's metadata topic."""
    try:
        summary = json.loads(await store.fetch_object(f"{config.store.key_prefix}{LATEST_REPORT}"))
        known = (cluster_id, config.remote_log_metadata_topic_name)
        if (summary["cluster_id"], summary["metadata_topic"]) != known:
            return None
        return FormerLook(
            run_id=str(summary["run_id"]),
            topic_id=str(summary.get("metadata_topic_id", "")),
            end={int(partition): int(end) for partition, end in summary["metadata_end"].items()},
        )
    except (ObjectNotFoundError, AttributeError, KeyError, TypeError, ValueError, RecursionError):
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
