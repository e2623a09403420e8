"""A cluster with ACLs, a sidecar with its gateway beside each broker, and tiered topics with untiered copies of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.certificates import CertificateAuthority
from tests.support.daemon import Daemon, daemon_settings, wait_for
from tests.support.java_clients import JavaClients
from tests.support.kafka_admin import KafkaAdminError, wait_until
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_properties import ADMIN, Listener
from tests.support.kafka_tools import KafkaTools
from tests.support.loopback_ports import free_port
from tests.support.produce import ProducedRecord
from tests.support.reading import Access
from tests.support.twin_topics import MovingTwins, Twins, produce_twins

ORDERS = Twins(topic="orders", copy="orders-untiered")
MOVING = Twins(topic="moving", copy="moving-untiered")
PARTITIONS = (0, 1)
USERS = {"alice": "alice-secret", "bob": "bob-secret"}
LISTENERS = {"PLAIN": "CLIENT", "SCRAM": "CLIENT", "TLS": "SECURE"}
"""By how one logs in."""
MECHANISMS = {"PLAIN": "PLAIN", "SCRAM": "SCRAM-SHA-512", "TLS": "SCRAM-SHA-512"}
_BY_RACK = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_SEGMENT_BYTES = 64 * 1024
_STRICT = {"retention.ms": "-1", "retention.bytes": "-1"}


REMOTE_LOG_DIR = "remote://tier"
"""A log dir that the gateways add (``gateway.remote.log.dir``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredWorld:
    """``orders`` stands still, of which only the active segments are local, from ``local_starts`` on; ``moving`` goes on, and
    so does its border.  ``produced`` is what is in either of ``orders`` and its copy."""

    kafka: KafkaCluster
    daemons: Mapping[int, Daemon]
    ports: Mapping[str, Mapping[int, int]]
    authority_path: Path
    tools: KafkaTools
    java: JavaClients
    produced: Sequence[ProducedRecord]
    ends: Mapping[int, int]
    local_starts: dict[int, int]
    moving: MovingTwins

    def servers(self, login: str, *, through: bool) -> str:
        """Return the bootstrap servers of the gateways, or of the brokers."""
        if through:
            return ",".join(f"127.0.0.1:{port}" for port in self.ports[LISTENERS[login]].values())
        return self.kafka.bootstrap_servers_of(LISTENERS[login])

    def access(self, login: str = "PLAIN", *, through: bool = True, user: str = "alice") -> Access:
        return Access(
            servers=self.servers(login, through=through),
            mechanism=MECHANISMS[login],
            username=user,
            password=USERS[user],
            authority=str(self.authority_path) if login == "TLS" else "",
        )

    def visible(self, isolation: str) -> dict[int, list[int]]:
        """Return the offsets of ``orders`` whose records a client of this isolation level sees."""
        found: dict[int, list[int]] = {partition: [] for partition in PARTITIONS}
        for record in self.produced:
            if isolation == "read_uncommitted" or not record.aborted:
                found[record.partition].append(record.offset)
        return found

    def border(self, topic: str, partition: int) -> int:
        """Return where its local log begins."""

        def asked() -> tuple[int] | None:
            try:
                return (self.kafka.admin_of_leader(topic, partition).earliest_offset(topic, partition),)
            except KafkaAdminError:  # it leads no more
                return None

        return wait_until(asked, f"the leader of {topic}-{partition} says where its log starts", 60)[0]

    def wait_until_moved(self) -> None:
        """Wait until the border of ``moving`` has left the start."""
        daemon = next(iter(self.daemons.values()))
        wait_for(lambda: self.border(MOVING.topic, 0), "the border moves", daemon, timeout_s=120)

    def metrics(self, name: str, **labels: str) -> dict[int, float]:
        """Return the metric of each broker's sidecar."""
        return {node: daemon.metric(name, **labels) for node, daemon in self.daemons.items()}

    def wait_until_trimmed(self, topic: str, partition: int, broker: KafkaBroker | None = None) -> int:
        """Wait until only the active segment is left on the disk of ``broker``, by default the leader; return where it
        begins."""
        broker = broker or self.kafka.leader_of(topic, partition)
        logs = broker.partition_dir(topic, partition)

        def trimmed() -> int | None:
            left = [int(log.stem) for log in logs.glob("*.log")]
            return left[0] if len(left) == 1 and left[0] > 0 else None

        daemon = self.daemons[broker.node_id]
        return int(wait_for(trimmed, f"{topic}-{partition} is trimmed on {broker.node_id}", daemon, timeout_s=120))


@contextmanager
def open_tiered_world(directory: Path, *, brokers: int, topics: Sequence[str] = ()) -> Iterator[TieredWorld]:
    """Ready, and ``orders`` trimmed; ``topics`` are further tiered ones, empty.  Broker n is in ``rack-n``, and consumers are
    sent to the replica in theirs (KIP-392)."""
    certificates = CertificateAuthority(directory / "certificates")
    certificate = certificates.issue("broker")
    listeners = (
        Listener(name="CLIENT", security_protocol="SASL_PLAINTEXT", sasl_mechanisms=("PLAIN", "SCRAM-SHA-512")),
        Listener(
            name="SECURE",
            security_protocol="SASL_SSL",
            sasl_mechanisms=("PLAIN", "SCRAM-SHA-512"),
            certificate=certificate,
        ),
    )
    with ExitStack() as stack:
        tools = stack.enter_context(KafkaTools(_made(directory / "tools")))
        kafka = KafkaCluster(
            directory / "kafka",
            brokers=brokers,
            listeners=listeners,
            users=USERS,
            authorizer=True,
            properties={"replica.selector.class": _BY_RACK},
        )
        for broker in kafka.brokers:
            broker.set_properties({"broker.rack": f"rack-{broker.node_id}"})
        stack.enter_context(kafka)
        for twins, partitions in ((ORDERS, len(PARTITIONS)), (MOVING, 1)):
            for topic in twins.both:
                kafka.create_topic(topic, partitions=partitions, segment_bytes=_SEGMENT_BYTES, configs=_STRICT)
        for topic in topics:
            kafka.create_topic(topic, segment_bytes=_SEGMENT_BYTES, configs=_STRICT)
        _allow(tools, kafka)
        produced = asyncio.run(
            produce_twins(kafka.client_settings, ORDERS, partitions=len(PARTITIONS), total_bytes=1_500_000)
        )
        ports = {name: {broker.node_id: free_port() for broker in kafka.brokers} for name in ("CLIENT", "SECURE")}
        tiered, certificate = (ORDERS.topic, MOVING.topic, *topics), certificates.issue("gateway")
        daemons = {
            broker.node_id: _daemon(directory, kafka, broker.node_id, ports, tiered=tiered, certificate=certificate)
            for broker in kafka.brokers
        }
        for daemon in daemons.values():
            stack.enter_context(daemon)
        moving = stack.enter_context(MovingTwins(kafka.client_settings, MOVING, in_transactions=brokers == 1))
        world = TieredWorld(
            kafka=kafka,
            daemons=daemons,
            ports=ports,
            authority_path=certificates.authority_path,
            tools=tools,
            java=JavaClients(tools, _made(directory / "clients")),
            produced=produced,
            ends={
                partition: kafka.admin_of_leader(ORDERS.topic, partition).latest_offset(ORDERS.topic, partition)
                for partition in PARTITIONS
            },
            local_starts={},
            moving=moving,
        )
        for daemon in daemons.values():
            daemon.wait_until_ready()
        for partition in PARTITIONS:
            world.local_starts[partition] = world.wait_until_trimmed(ORDERS.topic, partition)
        yield world


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory


def _allow(tools: KafkaTools, kafka: KafkaCluster) -> None:
    """alice may do all that clients and tools of these tests do; bob may see that there are topics, and be in groups."""
    for user, resource, operations in (
        ("alice", ("--topic", "*"), ("Read", "Write", "Describe", "Delete", "DescribeConfigs")),
        ("alice", ("--group", "*"), ("Read", "Describe", "Delete")),
        ("alice", ("--cluster",), ("Describe",)),
        ("bob", ("--group", "*"), ("Read",)),
        ("bob", ("--topic", "*"), ("Describe",)),
    ):
        tools.run(
            "org.apache.kafka.tools.AclCommand",
            *("--bootstrap-server", kafka.bootstrap_servers, "--command-config", str(kafka.command_config)),
            *("--add", "--force", "--allow-principal", f"User:{user}", *resource),
            *(part for operation in operations for part in ("--operation", operation)),
        )


def _daemon(
    directory: Path,
    kafka: KafkaCluster,
    node_id: int,
    ports: Mapping[str, Mapping[int, int]],
    *,
    tiered: Sequence[str],
    certificate: Any,
) -> Daemon:
    broker, home = kafka[node_id], directory / f"daemon-{node_id}"
    store = directory / "store"
    store.mkdir(exist_ok=True)
    listeners = [
        {
            "name": name,
            "listen": f"127.0.0.1:{ports[name][node_id]}",
            "broker": broker.bootstrap_server_of(name),
            "broker.tls": "on" if name == "SECURE" else "off",
            "advertised.nodes": {node: f"127.0.0.1:{port}" for node, port in ports[name].items()},
        }
        for name in ("CLIENT", "SECURE")
    ]
    listeners[1] |= {
        "ssl.certificate.location": str(certificate.certificate_path),
        "ssl.key.location": str(certificate.key_path),
    }
    settings = daemon_settings(
        home,
        bootstrap_servers=broker.bootstrap_server_of("SECURE"),
        log_dirs=list(broker.log_dirs),
        topics=[{"name": topic, "local.retention.bytes": 1} for topic in tiered],
        gateway={"listeners": listeners, "remote.log.dir": REMOTE_LOG_DIR},
    )
    settings["store"]["root"] = str(store)
    settings["remote.log.metadata.topic.replication.factor"] = len(kafka.brokers)
    settings["remote.log.metadata.topic.min.isr"] = min(len(kafka.brokers), 2)
    settings["broker"] |= {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": ADMIN.username,
        "sasl.password": ADMIN.password,
        "ssl.ca.location": str(certificate.authority_path),
    }
    return Daemon(home, settings, roles="tier,gateway")
