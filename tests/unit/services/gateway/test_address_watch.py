"""A gateway says which brokers its clients cannot find."""

from __future__ import annotations

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.recorded_telemetry import RecordedTelemetry
from tiersidecar.domain.errors import BrokerUnreachableError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.ports.broker import ClusterDescription
from tiersidecar.ports.metrics.gateway import GATEWAY_UNMAPPED_BROKERS
from tiersidecar.services.gateway.address_watch import AddressWatch, AdvertisedListener
from tiersidecar.services.gateway.advertised import AdvertisedAddresses

ONLY_LOCAL = AdvertisedListener(advertised=AdvertisedAddresses(nodes={0: ("here", 9192)}), configured=False)
TWO_NODES = AdvertisedListener(advertised=AdvertisedAddresses(nodes={0: ("a", 9192), 1: ("b", 9192)}), configured=True)
BY_PATTERN = AdvertisedListener(advertised=AdvertisedAddresses(pattern="kafka-{node.id}:9192"), configured=True)


class Cluster:
    def __init__(self, *brokers: int) -> None:
        self.brokers: tuple[int, ...] | None = brokers

    async def describe_cluster(self) -> ClusterDescription:
        if self.brokers is None:
            raise BrokerUnreachableError(address="h:1", reason="away")
        return ClusterDescription(cluster_id="c", brokers={BrokerId(node): f"h:{node}" for node in self.brokers})


def watch_of(listener: AdvertisedListener, cluster: Cluster) -> tuple[AddressWatch, RecordedTelemetry]:
    telemetry = RecordedTelemetry()
    return (
        AddressWatch(listeners={"CLIENTS": listener}, broker=cluster, clock=ManualClock(), telemetry=telemetry),
        telemetry,
    )


@pytest.mark.parametrize(
    ("listener", "brokers", "unmapped", "ready"),
    [
        pytest.param(ONLY_LOCAL, (0,), 0, True, id="a single broker needs no advertised addresses"),
        pytest.param(ONLY_LOCAL, (0, 1, 2), 2, False, id="several brokers, and nobody said where their gateways are"),
        pytest.param(TWO_NODES, (0, 1), 0, True, id="an entry for each broker"),
        pytest.param(TWO_NODES, (0, 1, 2), 1, True, id="a broker that joined: told, but no gateway goes for it"),
        pytest.param(BY_PATTERN, (0, 7, 1000), 0, True, id="a pattern has an address for every broker"),
    ],
)
async def test_brokers_without_an_address(
    listener: AdvertisedListener, brokers: tuple[int, ...], unmapped: int, ready: bool
) -> None:
    watch, telemetry = watch_of(listener, Cluster(*brokers))
    await watch.look()
    assert telemetry.value(GATEWAY_UNMAPPED_BROKERS, listener="CLIENTS") == unmapped
    assert (watch.reason_not_ready() == "") is ready


async def test_the_reason_names_listener_brokers_and_what_to_set() -> None:
    watch, _ = watch_of(ONLY_LOCAL, Cluster(0, 2, 1))
    await watch.look()
    reason = watch.reason_not_ready()
    assert "CLIENTS" in reason
    assert "brokers 1, 2" in reason
    assert "advertised.pattern" in reason


async def test_it_is_ready_again_once_only_the_local_broker_is_left() -> None:
    cluster = Cluster(0, 1)
    watch, _ = watch_of(ONLY_LOCAL, cluster)
    await watch.look()
    cluster.brokers = (0,)
    await watch.look()
    assert watch.reason_not_ready() == ""


async def test_a_broker_that_is_away_changes_nothing() -> None:
    cluster = Cluster(0, 1)
    watch, telemetry = watch_of(ONLY_LOCAL, cluster)
    await watch.look()
    cluster.brokers = None
    await watch.look()
    assert watch.reason_not_ready() != ""
    assert telemetry.value(GATEWAY_UNMAPPED_BROKERS, listener="CLIENTS") == 1
