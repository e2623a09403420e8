"""Logins and rights through the gateway are the broker's business: it must come out as without the gateway (issue 9)."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import (
    AuthenticationFailedError,
    KafkaConnectionError,
    KafkaError,
    TopicAuthorizationFailedError,
)
from kio.schema.metadata.v12.request import MetadataRequest

from tests.support.certificates import CertificateAuthority
from tests.support.gateway import GatewayDaemon
from tests.support.kafka_admin import KafkaAdmin, PlainCredentials
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_properties import ADMIN, Listener
from tests.support.loopback_ports import free_port
from tests.support.unsecured_tokens import unsecured_token

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

USERS = {"alice": "alice-secret", "bob": "bob-secret"}
TOPIC = "alices"
ASK = MetadataRequest(topics=(), include_topic_authorized_operations=False)


class TokenOfAlice(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka carries no types
    async def token(self) -> str:
        return unsecured_token("alice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured:
    """A broker with ACLs, and a gateway in front of its listeners SASL and BOTH."""

    cluster: KafkaCluster
    gateway: GatewayDaemon
    certificates: Path
    ports: dict[str, int]

    def servers(self, listener: str, *, through: bool) -> str:
        if through:
            return f"127.0.0.1:{self.ports[listener]}"
        return self.cluster.bootstrap_servers_of(listener)

    def settings(self, listener: str, mechanism: str, *, through: bool, **others: Any) -> dict[str, Any]:
        found: dict[str, Any] = {
            "bootstrap_servers": self.servers(listener, through=through),
            "security_protocol": "SASL_SSL" if listener == "BOTH" else "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
            "request_timeout_ms": 10_000,
        }
        if listener == "BOTH":
            found["ssl_context"] = ssl.create_default_context(cafile=str(self.certificates / "ca.pem"))
        if mechanism == "OAUTHBEARER":
            return found | {"sasl_oauth_token_provider": TokenOfAlice()} | others
        return found | {"sasl_plain_username": "alice", "sasl_plain_password": USERS["alice"]} | others


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    certificates = directory / "certificates"
    authority = CertificateAuthority(certificates)
    of_broker, of_gateway = authority.issue("broker"), authority.issue("gateway")
    listeners = (
        Listener(
            name="SASL",
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanisms=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
        ),
        Listener(
            name="BOTH",
            security_protocol="SASL_SSL",
            sasl_mechanisms=("PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"),
            certificate=of_broker,
        ),
        Listener(name="BRIEF", security_protocol="SASL_PLAINTEXT", sasl_mechanisms=("PLAIN",)),
    )
    ports = {name: free_port() for name in ("SASL", "BOTH", "BRIEF")}
    with KafkaCluster(
        directory / "kafka",
        listeners=listeners,
        users=USERS,
        authorizer=True,
        properties={"listener.name.brief.plain.connections.max.reauth.ms": "3000"},
    ) as cluster:
        broker = cluster[1]
        cluster.create_topic(TOPIC)
        for operation in ("read", "write", "describe"):
            _allow(cluster, "alice", operation)
        _allow(cluster, "bob", "describe")
        served = [
            {
                "name": "SASL",
                "listen": f"127.0.0.1:{ports['SASL']}",
                "broker": broker.bootstrap_server_of("SASL"),
                "broker.tls": "off",
            },
            {
                "name": "BRIEF",
                "listen": f"127.0.0.1:{ports['BRIEF']}",
                "broker": broker.bootstrap_server_of("BRIEF"),
                "broker.tls": "off",
            },
            {
                "name": "BOTH",
                "listen": f"127.0.0.1:{ports['BOTH']}",
                "broker": broker.bootstrap_server_of("BOTH"),
                "broker.tls": "on",
                "ssl.certificate.location": str(of_gateway.certificate_path),
                "ssl.key.location": str(of_gateway.key_path),
            },
        ]
        own = {
            "bootstrap.servers": broker.bootstrap_server_of("BOTH"),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": ADMIN.username,
            "sasl.password": ADMIN.password,
            "ssl.ca.location": str(authority.authority_path),
        }
        with GatewayDaemon(directory / "gateway", broker, listeners=served, broker_section=own) as gateway:
            gateway.wait_until_ready()
            yield Secured(cluster=cluster, gateway=gateway, certificates=certificates, ports=ports)


def _allow(cluster: KafkaCluster, user: str, operation: str) -> None:
    cluster.run_tool(
        "org.apache.kafka.tools.AclCommand",
        *("--bootstrap-server", cluster.bootstrap_servers, "--command-config", str(cluster.command_config)),
        *("--add", "--allow-principal", f"User:{user}", "--operation", operation, "--topic", TOPIC),
    )


async def record_and_back(settings: dict[str, Any], value: bytes) -> bytes:
    async with AIOKafkaProducer(**settings) as producer:
        sent = await producer.send_and_wait(TOPIC, value, partition=0)
    async with AIOKafkaConsumer(**settings) as consumer:
        partition = TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        consumer.seek(partition, sent.offset)
        found: bytes = (await consumer.getone()).value
        return found


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [
        ("SASL", "PLAIN"),
        ("SASL", "SCRAM-SHA-256"),
        ("SASL", "SCRAM-SHA-512"),
        ("SASL", "OAUTHBEARER"),
        ("BOTH", "PLAIN"),
        ("BOTH", "SCRAM-SHA-512"),
        ("BOTH", "OAUTHBEARER"),
    ],
)
async def test_every_login_passes(secured: Secured, listener: str, mechanism: str) -> None:
    """SASL untouched; TLS ends at the gateway, which has a certificate of its own, and begins again to the broker."""
    value = f"{listener} {mechanism}".encode()
    assert await record_and_back(secured.settings(listener, mechanism, through=True), value) == value


@pytest.mark.parametrize("through", [False, True], ids=["direct", "through"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_a_wrong_password_is_refused_alike(secured: Secured, mechanism: str, through: bool) -> None:
    settings = secured.settings("SASL", mechanism, through=through, sasl_plain_password="not-hers")
    producer = AIOKafkaProducer(**settings)
    try:
        with pytest.raises((AuthenticationFailedError, KafkaConnectionError)):
            await producer.start()
    finally:
        await producer.stop()


@pytest.mark.parametrize("through", [False, True], ids=["direct", "through"])
async def test_who_may_not_is_told_so_alike(secured: Secured, through: bool) -> None:
    """S-301; Bob may describe, and neither write nor read: no path around the broker's ACLs."""
    bob = {"sasl_plain_username": "bob", "sasl_plain_password": USERS["bob"]}
    settings = secured.settings("SASL", "PLAIN", through=through, **bob)
    async with AIOKafkaProducer(**settings) as producer:
        with pytest.raises(TopicAuthorizationFailedError):
            await producer.send_and_wait(TOPIC, b"no", partition=0)
    async with AIOKafkaConsumer(**settings) as consumer:
        consumer.assign([TopicPartition(TOPIC, 0)])
        consumer.seek(TopicPartition(TOPIC, 0), 0)
        with pytest.raises(TopicAuthorizationFailedError):
            await asyncio.wait_for(consumer.getone(), 60)


@pytest.mark.parametrize("through", [False, True], ids=["direct", "through"])
def test_a_login_lasts_as_long_as_it_is_renewed(secured: Secured, through: bool) -> None:
    """KIP-368: the broker ends the connection of who has not logged in again in time, and of nobody else."""
    port = int(secured.servers("BRIEF", through=through).rpartition(":")[2])
    alice = PlainCredentials(username="alice", password=USERS["alice"])
    admin = KafkaAdmin(port=port, credentials=alice)
    with admin.connected() as renewed, admin.connected() as lapsing:

        def lapse() -> None:
            for _ in range(20):
                time.sleep(1.2)  # more than once a second the broker takes no login
                renewed.authenticate(alice)
                lapsing.call(ASK)

        with pytest.raises(ConnectionError):
            lapse()
        assert renewed.call(ASK)


async def test_a_client_that_distrusts_the_gateways_certificate_does_not_log_in(
    secured: Secured, tmp_path: Path
) -> None:
    stranger = CertificateAuthority(tmp_path, name="stranger")
    context = ssl.create_default_context(cafile=str(stranger.authority_path))
    producer = AIOKafkaProducer(**secured.settings("BOTH", "PLAIN", through=True, ssl_context=context))
    try:
        with pytest.raises(KafkaError):
            await producer.start()
    finally:
        await producer.stop()


def test_the_java_tools_log_in_by_scram_over_tls(secured: Secured, tmp_path: Path) -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    client = tmp_path / "client.properties"
    client.write_text(
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={module} required username="alice" password="{USERS["alice"]}";\n'
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={secured.certificates / 'ca.pem'}\n"
    )
    told = secured.cluster.run_tool(
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", secured.servers("BOTH", through=True), "--command-config", str(client), "--list"),
    ).stdout
    assert told.split() == [TOPIC]
