"""Who we are: node id and cluster id of the log dirs, compared with what the broker says before anything is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from tiersidecar.domain.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    UnformattedLogDirError,
    WrongClusterError,
)
from tiersidecar.domain.ids import BrokerId
from tiersidecar.ports.broker import DescribeCluster
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.log_dirs import LogDirIdentity

T = TypeVar("T")

log = structlog.get_logger(__name__)

_RETRY_FIRST_S, _RETRY_LAST_S = 0.5, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The broker beside us."""

    cluster_id: str
    broker_id: BrokerId


def identity_of(log_dirs: tuple[LogDirIdentity, ...]) -> Identity:
    """What all log dirs agree on.

    Raises:
        WrongClusterError: they do not.
    """
    found = {(one.cluster_id, one.node_id) for one in log_dirs}
    if len(found) != 1:
        told = ", ".join(f"{one.log_dir} is of node {one.node_id} of cluster {one.cluster_id}" for one in log_dirs)
        raise WrongClusterError(reason=f"log.dirs belong to different brokers: {told}")
    cluster_id, node_id = found.pop()
    return Identity(cluster_id=cluster_id, broker_id=BrokerId(node_id))


async def confirm_cluster(broker: DescribeCluster, identity: Identity, clock: Clock) -> None:
    """Wait for the broker and compare cluster ids.

    Raises:
        WrongClusterError: bootstrap.servers lead to another cluster.
    """
    described = await patiently(broker.describe_cluster, clock)
    if described.cluster_id != identity.cluster_id:
        raise WrongClusterError(
            reason=f"bootstrap.servers lead to cluster {described.cluster_id}, but log.dirs are of {identity.cluster_id}"
        )


async def patiently(ask: Callable[[], Awaitable[T]], clock: Clock) -> T:
    """The answer of ``ask``, asked again without end: a broker may start after us, format its log dirs then, and recover for an
    hour."""
    delay_s = _RETRY_FIRST_S
    while True:
        try:
            return await ask()
        except (BrokerUnreachableError, BrokerRefusedError) as error:
            log.warning("broker.awaited", error=str(error), retry_ms=int(delay_s * 1000))
        except UnformattedLogDirError as error:
            log.warning("log_dirs.awaited", error=str(error), retry_ms=int(delay_s * 1000))
        await clock.sleep(delay_s)
        delay_s = min(delay_s * 2, _RETRY_LAST_S)
