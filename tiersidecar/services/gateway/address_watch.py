"""Brokers that clients cannot find through the gateway, because the configuration names no gateway for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from tiersidecar.domain.errors import RetriableError
from tiersidecar.ports.broker import DescribeCluster
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.gateway import GATEWAY_UNMAPPED_BROKERS
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.services.gateway.advertised import AdvertisedAddresses

log = structlog.get_logger(__name__)

_WHAT_TO_DO = "set gateway.listeners advertised.pattern, or an entry of advertised.nodes for each"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvertisedListener:
    """``configured`` is False where neither key of advertised addresses is set, so that only the local broker has one."""

    advertised: AdvertisedAddresses
    configured: bool


class AddressWatch:
    """Compares the brokers of the cluster with the addresses that clients get, listener by listener."""

    def __init__(
        self,
        *,
        listeners: Mapping[str, AdvertisedListener],
        broker: DescribeCluster,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._listeners, self._broker, self._clock, self._telemetry = listeners, broker, clock, telemetry
        self._unmapped: dict[str, Sequence[int]] = {}

    async def run(self, interval_s: float) -> None:
        """Look, until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(interval_s)

    async def look(self) -> None:
        """Ask the broker for its cluster; one that does not answer changes nothing."""
        try:
            brokers = (await self._broker.describe_cluster()).brokers
        except RetriableError:
            return
        for name, listener in self._listeners.items():
            self._note(name, sorted(node for node in brokers if not listener.advertised.is_mapped(node)))

    def reason_not_ready(self) -> str:
        """Return the reason; empty unless a listener has no advertised address at all in a cluster of several brokers.

        One entry that is missing beside others is for the metric and its alert: a broker that joins a cluster must not take
        all its gateways out of their load balancer at once.
        """
        return "; ".join(
            f"gateway listener {name}: clients get no address for brokers {_listed(nodes)}: {_WHAT_TO_DO}"
            for name, nodes in self._unmapped.items()
            if nodes and not self._listeners[name].configured
        )

    def _note(self, name: str, nodes: Sequence[int]) -> None:
        self._telemetry.gauge(GATEWAY_UNMAPPED_BROKERS, len(nodes), listener=name)
        before = self._unmapped.get(name, ())
        self._unmapped[name] = nodes
        if nodes and nodes != before:
            log.warning("gateway.brokers.unmapped", listener=name, brokers=_listed(nodes), remedy=_WHAT_TO_DO)
        elif before and not nodes:
            log.info("gateway.brokers.mapped", listener=name)


def _listed(nodes: Sequence[int]) -> str:
    return ", ".join(str(node) for node in nodes)
