"""This process's identity: node id and cluster id of the log dirs, compared with the broker's before anything is written."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
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
from tiersidecar.ports.broker import ClusterDescription, DescribeCluster
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.log_dirs import LogDirIdentity

T = TypeVar("T")

log = structlog.get_logger(__name__)

_RETRY_FIRST_S, _RETRY_LAST_S = 0.5, 10.0
_RESOLVE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The broker beside us."""

    cluster_id: str
    broker_id: BrokerId
    instance: str = ""
    """The id of our state.dir."""

    incarnation: str = ""
    """One life of this process, beginning with the instance."""

    host_name: str = ""
    """Return this machine's name as others resolve it; empty where it was not looked up."""


def identity_of(log_dirs: tuple[LogDirIdentity, ...]) -> Identity:
    """Return what all log dirs agree on.

    Raises:
        WrongClusterError: they do not.
    """
    found = {(one.cluster_id, one.node_id) for one in log_dirs}
    if len(found) != 1:
        nodes = ", ".join(f"{one.log_dir} is of node {one.node_id} of cluster {one.cluster_id}" for one in log_dirs)
        raise WrongClusterError(reason=f"log.dirs belong to different brokers: {nodes}")
    cluster_id, node_id = found.pop()
    return Identity(cluster_id=cluster_id, broker_id=BrokerId(node_id))


Resolve = Callable[[str], Awaitable[frozenset[str]]]
"""Returns the addresses of a host name; none where they are unknown."""


async def confirm_cluster(
    broker: DescribeCluster,
    identity: Identity,
    clock: Clock,
    *,
    bootstrap: Sequence[str] = (),
    resolve: Resolve | None = None,
) -> None:
    """Wait for the broker, and compare what it says with the log dirs: cluster id and node.

    ``bootstrap`` are the addresses of bootstrap.servers.  A name that leads to several brokers, or that the cluster does not
    know its brokers by, proves nothing and is let pass.

    Raises:
        WrongClusterError: bootstrap.servers lead to another cluster, or only to other brokers of this one.
    """
    described = await patiently(broker.describe_cluster, clock)
    if described.cluster_id != identity.cluster_id:
        raise WrongClusterError(
            reason=f"bootstrap.servers lead to cluster {described.cluster_id}, but log.dirs are of {identity.cluster_id}"
        )
    others = await _only_others(bootstrap, described, identity.broker_id, resolve or resolve_host)
    if others:
        led_to = ", ".join(f"{address} is broker {others[address]}" for address in bootstrap)
        raise WrongClusterError(
            reason=f"bootstrap.servers lead to another broker than log.dirs: {led_to}; log.dirs are of node "
            f"{identity.broker_id}"
        )


async def _only_others(
    bootstrap: Sequence[str], described: ClusterDescription, broker_id: BrokerId, resolve: Resolve
) -> dict[str, BrokerId]:
    """Return the broker at each address, where all are known for others than ``broker_id``; empty where one may be that one."""
    ours = described.brokers.get(broker_id)
    if ours in bootstrap:
        return {}
    places = {name: await _places(name, resolve) for name in {*bootstrap, *described.brokers.values()}}
    found: dict[str, BrokerId] = {}
    for address in bootstrap:
        at = [node for node, advertised in described.brokers.items() if places[address] & places[advertised]]
        if not at or broker_id in at:
            return {}
        found[address] = at[0]
    return found


async def _places(address: str, resolve: Resolve) -> frozenset[str]:
    """Return where ``address`` leads, and ``address`` itself."""
    host, _, port = address.rpartition(":")
    found = await resolve(host.strip("[]"))
    return frozenset({address, *(f"{one}:{port}" for one in found)})


async def resolve_host(host: str) -> frozenset[str]:
    """Resolve by the system's resolver, within a few seconds."""
    try:
        async with asyncio.timeout(_RESOLVE_S):
            rows = await asyncio.get_running_loop().getaddrinfo(host, None)
    except (OSError, TimeoutError, UnicodeError):
        return frozenset()
    return frozenset(str(address[0]) for *_, address in rows)


async def own_host_name() -> str:
    """Return this machine's name as others resolve it, where the system knows a longer one: in a StatefulSet's pod,
    ``hostname`` alone means nothing to other pods."""
    name = socket.gethostname()
    try:
        async with asyncio.timeout(_RESOLVE_S):
            rows = await asyncio.get_running_loop().getaddrinfo(name, None, flags=socket.AI_CANONNAME)
    except (OSError, TimeoutError, UnicodeError):
        return name
    return longer_name(name, rows[0][3] if rows else "")


def longer_name(name: str, canonical: str) -> str:
    """Return ``canonical`` if it is ``name`` with a domain; machines that have it in /etc/hosts as localhost keep their own."""
    return canonical if canonical.partition(".")[0] == name.partition(".")[0] and len(canonical) > len(name) else name


async def patiently(ask: Callable[[], Awaitable[T]], clock: Clock) -> T:
    """Return the answer of ``ask``, asked again without end: a broker may start after us, format its log dirs then, and recover
    for an hour."""
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
