"""Each kind of security that a broker can ask for, met by a client that is not ours: what later tests compare with."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError

from tests.support.certificates import CertificateAuthority
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_properties import Listener
from tests.support.unsecured_tokens import unsecured_token

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]
USERS = {"alice": "alice-secret"}


class TokenOfAlice(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka carries no types
    async def token(self) -> str:
        return unsecured_token("alice")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A broker with ACLs, where alice may do nothing yet, behind one listener of each protocol."""
    directory = tmp_path_factory.mktemp("secured")
    authority = CertificateAuthority(directory / "certificates")
    certificate = authority.issue("broker")
    authority.issue("alice")
    listeners = (
        Listener(name="OPEN", security_protocol="PLAINTEXT"),
        Listener(name="TLS", security_protocol="SSL", certificate=certificate, ssl_client_auth="required"),
        Listener(
            name="SASL", security_protocol="SASL_PLAINTEXT", sasl_mechanisms=("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER")
        ),
        Listener(
            name="BOTH", security_protocol="SASL_SSL", sasl_mechanisms=("SCRAM-SHA-512",), certificate=certificate
        ),
    )
    with KafkaCluster(directory / "kafka", listeners=listeners, users=USERS, authorizer=True) as cluster:
        yield cluster


def tls(directory: Path, *, with_certificate: bool) -> ssl.SSLContext:
    certificates = directory.parent / "certificates"
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    if with_certificate:
        context.load_cert_chain(certificates / "alice.pem", certificates / "alice.key.pem")
    return context


def sasl(mechanism: str) -> dict[str, Any]:
    if mechanism == "OAUTHBEARER":
        return {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": TokenOfAlice()}
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": USERS["alice"],
    }


def client_settings(cluster: KafkaCluster, listener: str, mechanism: str | None) -> dict[str, Any]:
    settings: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers_of(listener)}
    protocol = {"OPEN": "PLAINTEXT", "TLS": "SSL", "SASL": "SASL_PLAINTEXT", "BOTH": "SASL_SSL"}[listener]
    settings["security_protocol"] = protocol
    if "SSL" in protocol:
        settings["ssl_context"] = tls(cluster.directory, with_certificate=mechanism is None)
    return settings | (sasl(mechanism) if mechanism else {})


LISTENERS = [
    pytest.param("TLS", None, "CN=alice", id="TLS with a client certificate"),
    pytest.param("SASL", "PLAIN", "alice", id="SASL PLAIN"),
    pytest.param("SASL", "SCRAM-SHA-256", "alice", id="SASL SCRAM-SHA-256"),
    pytest.param("SASL", "OAUTHBEARER", "alice", id="SASL OAUTHBEARER with an unsecured token"),
    pytest.param("BOTH", "SCRAM-SHA-512", "alice", id="SASL SCRAM-SHA-512 over TLS"),
    pytest.param("OPEN", None, "ANONYMOUS", id="nobody in particular"),
]


@pytest.mark.parametrize(("listener", "mechanism", "principal"), LISTENERS)
async def test_a_principal_may_write_only_after_an_acl_says_so(
    secured: KafkaCluster, listener: str, mechanism: str | None, principal: str
) -> None:
    topic = secured.create_topic(f"acl-{listener}-{mechanism}")
    async with AIOKafkaProducer(**client_settings(secured, listener, mechanism), request_timeout_ms=5000) as producer:
        with pytest.raises(TopicAuthorizationFailedError):
            await producer.send_and_wait(topic, b"before")
    secured.run_tool(
        "org.apache.kafka.tools.AclCommand",
        *("--bootstrap-server", secured.bootstrap_servers, "--command-config", str(secured.command_config)),
        *("--add", "--allow-principal", f"User:{principal}", "--producer", "--topic", topic),
    )
    async with AIOKafkaProducer(**client_settings(secured, listener, mechanism), request_timeout_ms=5000) as producer:
        assert (await producer.send_and_wait(topic, b"after")).offset == 0


async def test_a_wrong_password_is_turned_away(secured: KafkaCluster) -> None:
    settings = client_settings(secured, "SASL", "PLAIN") | {"sasl_plain_password": "wrong"}
    consumer = AIOKafkaConsumer(**settings)
    with pytest.raises(KafkaError):
        await consumer.start()
    await consumer.stop()


async def test_the_admin_settings_are_those_of_the_super_user(secured: KafkaCluster) -> None:
    topic = secured.create_topic("admins")
    async with AIOKafkaProducer(**secured.client_settings) as producer:
        assert (await producer.send_and_wait(topic, b"value")).offset == 0
