"""A snapshot of the cluster's tiered topics and groups, put into the store by a command and not by a sidecar."""

from __future__ import annotations

from typing import Any

from tiersidecar.adapters.clock import SystemIds, ThreadBlocking
from tiersidecar.adapters.snapshots.cluster_shelf import StoreClusterShelf
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.builders.store import open_store
from tiersidecar.app.commands.session import open_session
from tiersidecar.app.config.config import Config
from tiersidecar.decide.cluster_snapshots import has_lost_topics
from tiersidecar.domain.errors import MountRefusedError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.tasks.cluster_snapshots import ClusterLook

_TOPICS_GONE = (
    "cluster {cluster} has no tiered topics any more; the store's snapshot of it, which stays, has {topics:,}"
)
_NO_BROKER = 0
"""Beside no broker: the name of an object has a number there."""


async def put_cluster_snapshot(config: Config) -> dict[str, Any]:
    """Put it, and return what is in it, for people.

    Raises:
        MountRefusedError: the cluster has no tiered topics any more, and the last snapshot has.
    """
    async with open_session(config, with_metadata=False) as session, ThreadBlocking(max_threads=1) as blocking:
        clock = session.clock
        cluster_id = (await session.broker.describe_cluster()).cluster_id
        look = ClusterLook(
            broker=session.broker,
            groups=session.broker.groups,
            state=session.state,
            clock=clock,
            cluster_id=cluster_id,
            broker_id=BrokerId(_NO_BROKER),
        )
        pace = UploadPace(None, clock)
        async with open_store(config, pace=pace, clock=clock, ids=SystemIds(), telemetry=NoTelemetry()) as store:
            shelf = StoreClusterShelf(store, config.store.key_prefix, blocking)
            last = await shelf.latest(cluster_id)
            taken = await look.take(last)
            if last is not None and has_lost_topics(last.topics, taken.topics):
                raise MountRefusedError(reason=_TOPICS_GONE.format(cluster=cluster_id, topics=len(last.topics)))
            await shelf.put(taken)
    return {
        "cluster": cluster_id,
        "topics": len(taken.topics),
        "groups": len(taken.groups),
        "groups_unknown": taken.groups_problem or None,
    }
