"""Where a suite's tests connect: brokers without tiering, or gateways before brokers whose topics are tiered and trimmed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_properties import ADMIN, Listener
from tests.support.loopback_ports import free_port
from tests.support.sidecars import Sidecars

CLIENTS, SASL = "CLIENTS", "SASL"
USERS = {"test": "test"}
"""Known to PLAIN and SCRAM on the SASL listener: aiokafka's tests have this one in their text."""

# Segments roll by time: whatever a test writes is sealed, copied and trimmed while it goes on.
BROKER = {
    "log.roll.ms": "1000",
    # No larger batch fits: one of franz-go's tests writes 5 MiB at once.
    "log.segment.bytes": "16777216",
    "log.retention.ms": "-1",
    "log.retention.bytes": "-1",
    "log.segment.delete.delay.ms": "0",
    # On a busy machine the controller missed its own broker's heartbeats: no partition had a leader for nine seconds.
    "broker.session.timeout.ms": "60000",
    # Some tests make ACLs, all others need none.
    "allow.everyone.if.no.acl.found": "true",
}
OWN_LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": ADMIN.username,
    "sasl.password": ADMIN.password,
}
READY_TIMEOUT_S = 300
"""A busy machine may take minutes to import all that a sidecar is, and the tests take longer still."""
TRIMMED, FILLED = "tiersidecar_trimmed_bytes_total", 'tiersidecar_gateway_fills_total{outcome="filled"}'
_TOLD = (TRIMMED, "tiersidecar_gateway_fills_total")
_TOPIC = re.compile(r'\{topic="[^"]*"\}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """Comma-separated addresses, plaintext and with SASL, and what the sidecars have counted so far."""

    name: str
    bootstrap_servers: str
    sasl_bootstrap_servers: str
    remote: Callable[[], Mapping[str, float]]


@contextmanager
def directly(directory: Path, *, brokers: int, properties: Mapping[str, str]) -> Iterator[Stand]:
    """Brokers without tiering."""
    with _cluster(directory, brokers, properties) as cluster:
        yield Stand(
            name="directly",
            bootstrap_servers=cluster.bootstrap_servers_of(CLIENTS),
            sasl_bootstrap_servers=cluster.bootstrap_servers_of(SASL),
            remote=dict,
        )


@contextmanager
def through(directory: Path, *, brokers: int, properties: Mapping[str, str], trims: bool = True) -> Iterator[Stand]:
    """The same brokers, each with a sidecar and a gateway; every topic is tiered, and with ``trims`` trimmed as soon as it can
    be."""
    rule = {"pattern": ".*", **({"local.retention.bytes": 1} if trims else {})}
    with _cluster(directory, brokers, properties) as cluster:
        ports = {name: {broker.node_id: free_port() for broker in cluster.brokers} for name in (CLIENTS, SASL)}
        sidecars = Sidecars(directory, cluster, topics=[rule])
        for node_id, daemon in sidecars.by_node.items():
            daemon.roles = "tier,gateway"
            daemon.settings["broker"] |= OWN_LOGIN
            daemon.settings["gateway"] = {
                "listeners": [_listener(name, cluster[node_id], at) for name, at in ports.items()]
            }
        with sidecars:
            for daemon in sidecars.by_node.values():
                daemon.wait_until_ready(READY_TIMEOUT_S)
            yield Stand(
                name="through the gateway",
                bootstrap_servers=_addresses(ports[CLIENTS]),
                sasl_bootstrap_servers=_addresses(ports[SASL]),
                remote=lambda: _told(sidecars),
            )


def _cluster(directory: Path, brokers: int, properties: Mapping[str, str]) -> KafkaCluster:
    return KafkaCluster(
        directory,
        brokers=brokers,
        properties={**BROKER, **properties},
        listeners=[
            Listener(name=CLIENTS, security_protocol="PLAINTEXT"),
            Listener(name=SASL, security_protocol="SASL_PLAINTEXT", sasl_mechanisms=("PLAIN", "SCRAM-SHA-256")),
        ],
        users=USERS,
        authorizer=True,
    )


def _listener(name: str, broker: KafkaBroker, ports: Mapping[int, int]) -> dict[str, Any]:
    return {
        "name": name,
        "listen": f"127.0.0.1:{ports[broker.node_id]}",
        "broker": broker.bootstrap_server_of(name),
        "advertised.nodes": {node_id: f"127.0.0.1:{port}" for node_id, port in ports.items()},
    }


def _addresses(ports: Mapping[int, int]) -> str:
    return ",".join(f"127.0.0.1:{port}" for port in ports.values())


def _told(sidecars: Sidecars) -> dict[str, float]:
    """Sums of all sidecars and topics, by metric and outcome."""
    sums: defaultdict[str, float] = defaultdict(float)
    for daemon in sidecars.by_node.values():
        for line in daemon.status("/metrics")[1].splitlines():
            if line.startswith(_TOLD):
                name, _, value = line.rpartition(" ")
                sums[_TOPIC.sub("", name)] += float(value)
    return dict(sums)
