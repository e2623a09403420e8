"""server.properties of the brokers that tests run: fast to start, small, and otherwise Kafka's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.support.certificates import IssuedCertificate
from tests.support.kafka_admin import PlainCredentials

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

INTERNAL = "INTERNAL"
CONTROLLER = "CONTROLLER"
ADMIN = PlainCredentials(username="admin", password="admin-secret")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One more listener of each broker, with its security.

    OAUTHBEARER takes unsecured tokens (RFC 7515 appendix A.5), as Kafka's own default does.
    """

    name: str
    security_protocol: SecurityProtocol
    sasl_mechanisms: tuple[SaslMechanism, ...] = ()
    certificate: IssuedCertificate | None = None
    ssl_client_auth: Literal["none", "requested", "required"] = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """Where one node listens: its ports by listener name."""

    node_id: int
    ports: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """The settings that the brokers of one cluster have in common."""

    version: str
    cluster_id: str
    nodes: tuple[NodeAddress, ...]
    listeners: tuple[Listener, ...]
    users: Mapping[str, str]
    authorizer: bool
    properties: Mapping[str, str]


def server_properties(plan: ClusterPlan, node: NodeAddress, log_dirs: tuple[Path, ...]) -> dict[str, str]:
    """Return all properties of one combined broker and controller; ``plan.properties`` win."""
    return {
        **_identity(plan, node, log_dirs),
        **_fast_and_small(len(plan.nodes)),
        **_security(plan),
        **plan.properties,
    }


def _identity(plan: ClusterPlan, node: NodeAddress, log_dirs: tuple[Path, ...]) -> dict[str, str]:
    protocols = {INTERNAL: _internal_protocol(plan), CONTROLLER: _internal_protocol(plan)}
    protocols |= {listener.name: listener.security_protocol for listener in plan.listeners}
    voters = (f"{peer.node_id}@127.0.0.1:{peer.ports[CONTROLLER]}" for peer in plan.nodes)
    addresses = {name: f"{name}://127.0.0.1:{port}" for name, port in node.ports.items()}
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.node_id),
        "controller.quorum.voters": ",".join(voters),
        "controller.listener.names": CONTROLLER,
        "inter.broker.listener.name": INTERNAL,
        "listeners": ",".join(addresses.values()),
        "advertised.listeners": ",".join(at for name, at in addresses.items() if name != CONTROLLER),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "log.dirs": ",".join(str(path) for path in log_dirs),
    }


def _fast_and_small(brokers: int) -> dict[str, str]:
    replicas = str(min(brokers, 3))
    return {
        # A test names its topics: one that appears by itself would hide a fault.
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": str(min(brokers, 2)),
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": str(min(brokers, 2)),
        "group.initial.rebalance.delay.ms": "0",
        "log.initial.task.delay.ms": "500",
        "log.retention.check.interval.ms": "1000",
        "log.segment.delete.delay.ms": "1000",
        "log.cleaner.dedupe.buffer.size": "4194304",
        "num.network.threads": "2",
        "num.io.threads": "4",
        # A killed broker comes back, and its partitions move, only when its session is over.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
    }


def _security(plan: ClusterPlan) -> dict[str, str]:
    found: dict[str, str] = {}
    if plan.authorizer:
        found["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        found["super.users"] = f"User:{ADMIN.username}"
        found["sasl.mechanism.inter.broker.protocol"] = "PLAIN"
        found["sasl.mechanism.controller.protocol"] = "PLAIN"
        for name in (INTERNAL, CONTROLLER):
            found |= _sasl_listener(name, ("PLAIN",), {})
    for listener in plan.listeners:
        found |= _sasl_listener(listener.name, listener.sasl_mechanisms, plan.users)
        found |= _ssl_listener(listener)
    return found


def _internal_protocol(plan: ClusterPlan) -> SecurityProtocol:
    """Return the brokers' own protocol: with ACLs they need a user, so that ANONYMOUS can stay without rights."""
    return "SASL_PLAINTEXT" if plan.authorizer else "PLAINTEXT"


def _sasl_listener(name: str, mechanisms: tuple[SaslMechanism, ...], users: Mapping[str, str]) -> dict[str, str]:
    if not mechanisms:
        return {}
    prefix = f"listener.name.{name.lower()}"
    found = {f"{prefix}.sasl.enabled.mechanisms": ",".join(mechanisms)}
    for mechanism in mechanisms:
        found[f"{prefix}.{mechanism.lower()}.sasl.jaas.config"] = _jaas(mechanism, users)
    return found


def _jaas(mechanism: SaslMechanism, users: Mapping[str, str]) -> str:
    modules = "org.apache.kafka.common.security"
    if mechanism == "PLAIN":
        known = {ADMIN.username: ADMIN.password, **users}
        entries = " ".join(f'user_{name}="{password}"' for name, password in known.items())
        login = f'username="{ADMIN.username}" password="{ADMIN.password}"'
        return f"{modules}.plain.PlainLoginModule required {login} {entries};"
    if mechanism == "OAUTHBEARER":
        return f'{modules}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
    return f"{modules}.scram.ScramLoginModule required;"


def _ssl_listener(listener: Listener) -> dict[str, str]:
    if listener.certificate is None:
        return {}
    prefix = f"listener.name.{listener.name.lower()}.ssl"
    return {
        f"{prefix}.keystore.type": "PEM",
        f"{prefix}.keystore.location": str(listener.certificate.keystore_path),
        f"{prefix}.truststore.type": "PEM",
        f"{prefix}.truststore.location": str(listener.certificate.authority_path),
        f"{prefix}.client.auth": listener.ssl_client_auth,
    }


def render_properties(properties: Mapping[str, str]) -> str:
    """Java's properties format; backslashes are the only thing in our values that needs escaping."""
    return "".join(f"{key}={value}\n".replace("\\", "\\\\") for key, value in properties.items())
