"""Every way of proving who we are, against real brokers: over connections of ours, and through aiokafka (S-303)."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from aiohttp import web
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.support.certificates import CertificateAuthority
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_jars import KAFKA_3, KAFKA_4
from tests.support.kafka_properties import Listener
from tests.support.kafka_properties import SaslMechanism as BrokerSaslMechanism
from tiersidecar.adapters.kafka.aiokafka_settings import aiokafka_kwargs
from tiersidecar.adapters.kafka.authorizer import CallerListener, open_authorizer
from tiersidecar.adapters.kafka.broker import open_broker
from tiersidecar.adapters.kafka.connection import ConnectionLimits
from tiersidecar.adapters.kafka.security import (
    ClientCredentials,
    SaslMechanism,
    SecurityProtocol,
    SecuritySettings,
    TokenFile,
)
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError
from tiersidecar.ports.broker import CallerNotAuthenticatedError, Credentials

pytestmark = pytest.mark.broker

LIMITS = ConnectionLimits(connect_timeout_s=10, request_timeout_s=10)
USER, PASSWORD = "alice", "alice-secret"
SASL_LISTENERS = {SecurityProtocol.SASL_PLAINTEXT: "OPENSASL", SecurityProtocol.SASL_SSL: "TLSSASL"}
PASSWORD_MECHANISMS = [mechanism for mechanism in SaslMechanism if mechanism is not SaslMechanism.OAUTHBEARER]
SESSION_MS = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured:
    """One broker with a listener for each protocol, and settings that get in."""

    cluster: KafkaCluster
    authority: CertificateAuthority
    token_path: Path
    topic: str

    @property
    def tls(self) -> SecuritySettings:
        return SecuritySettings(security_protocol=SecurityProtocol.SSL, ssl_ca_file=str(self.authority.authority_path))

    @property
    def mutual_tls(self) -> SecuritySettings:
        issued = self.authority.issue("client")
        files = {"ssl_certificate_file": str(issued.certificate_path), "ssl_key_file": str(issued.key_path)}
        return replace(self.tls, **files)  # type: ignore[arg-type]

    def sasl(self, protocol: SecurityProtocol, mechanism: SaslMechanism, password: str = PASSWORD) -> SecuritySettings:
        bearer = mechanism is SaslMechanism.OAUTHBEARER
        return SecuritySettings(
            security_protocol=protocol,
            sasl_mechanism=mechanism,
            username=None if bearer else USER,
            password=None if bearer else password,
            oauth_token_source=TokenFile(path=str(self.token_path)) if bearer else None,
            ssl_ca_file=str(self.authority.authority_path),
        )

    async def get_in(self, listener: str, settings: SecuritySettings) -> None:
        """By our own connection, and by aiokafka's for a record there and back."""
        servers = self.cluster.bootstrap_servers_of(listener)
        async with open_broker(servers, settings, limits=LIMITS) as broker:
            assert (await broker.describe_cluster()).cluster_id == self.cluster.cluster_id
        assert await _record_and_back(self.topic, servers, settings) == servers.encode()


async def _record_and_back(topic: str, servers: str, settings: SecuritySettings) -> bytes | None:
    producer = AIOKafkaProducer(bootstrap_servers=servers, request_timeout_ms=10_000, **aiokafka_kwargs(settings))
    await producer.start()
    try:
        sent = await producer.send_and_wait(topic, servers.encode(), partition=0)
    finally:
        await producer.stop()
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, request_timeout_ms=10_000, **aiokafka_kwargs(settings))
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), sent.offset)
        value: bytes | None = (await consumer.getone()).value
    finally:
        await consumer.stop()
    return value


def unsecured_token(principal: str, *, lifetime_s: int = 600) -> str:
    """A JWT without a signature (RFC 7515 appendix A.5), which Kafka's default validator takes."""
    now_s = int(time.time())
    parts = ({"alg": "none"}, {"sub": principal, "iat": now_s, "exp": now_s + lifetime_s})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


@pytest.fixture(scope="module", params=[KAFKA_4, KAFKA_3])
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    authority = CertificateAuthority(directory / "ca")
    certificate = authority.issue("broker")
    token_path = directory / "token"
    token_path.write_text(unsecured_token("tiersidecar"))
    mechanisms: tuple[BrokerSaslMechanism, ...] = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
    listeners = (
        Listener(name="TLS", security_protocol="SSL", certificate=certificate),
        Listener(name="MUTUAL", security_protocol="SSL", certificate=certificate, ssl_client_auth="required"),
        Listener(name="OPENSASL", security_protocol="SASL_PLAINTEXT", sasl_mechanisms=mechanisms),
        Listener(name="TLSSASL", security_protocol="SASL_SSL", sasl_mechanisms=mechanisms, certificate=certificate),
        Listener(name="SHORT", security_protocol="SASL_PLAINTEXT", sasl_mechanisms=("PLAIN",)),
    )
    cluster = KafkaCluster(
        directory / "kafka",
        version=request.param,
        listeners=listeners,
        users={USER: PASSWORD},
        properties={"listener.name.short.plain.connections.max.reauth.ms": str(SESSION_MS)},
    )
    with cluster:
        topic = cluster.create_topic("secured")
        yield Secured(cluster=cluster, authority=authority, token_path=token_path, topic=topic)


async def test_plaintext(secured: Secured) -> None:
    await secured.get_in("INTERNAL", SecuritySettings())


async def test_tls(secured: Secured) -> None:
    await secured.get_in("TLS", secured.tls)


async def test_tls_with_a_client_certificate(secured: Secured) -> None:
    await secured.get_in("MUTUAL", secured.mutual_tls)


@pytest.mark.parametrize("protocol", SASL_LISTENERS)
@pytest.mark.parametrize("mechanism", SaslMechanism)
async def test_sasl(secured: Secured, protocol: SecurityProtocol, mechanism: SaslMechanism) -> None:
    await secured.get_in(SASL_LISTENERS[protocol], secured.sasl(protocol, mechanism))


async def test_a_token_from_an_endpoint(secured: Secured) -> None:
    """The client credentials grant, as sasl.oauthbearer.token.endpoint.url."""
    async with token_endpoint(unsecured_token("from-endpoint")) as source:
        settings = secured.sasl(SecurityProtocol.SASL_PLAINTEXT, SaslMechanism.OAUTHBEARER)
        await secured.get_in("OPENSASL", replace(settings, oauth_token_source=source))


@asynccontextmanager
async def token_endpoint(token: str) -> AsyncIterator[ClientCredentials]:
    """An identity provider on loopback with one token to give."""

    async def give(_: web.Request) -> web.Response:
        return web.json_response({"access_token": token, "expires_in": 600})

    application = web.Application()
    application.router.add_post("/token", give)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        host, port = runner.addresses[0][:2]
        yield ClientCredentials(token_endpoint_url=f"http://{host}:{port}/token", client_id="me", client_secret="s")
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
async def test_a_wrong_password_is_refused_and_not_repeated_in_the_message(
    secured: Secured, mechanism: SaslMechanism
) -> None:
    settings = secured.sasl(SecurityProtocol.SASL_PLAINTEXT, mechanism, password="not-hers")
    async with open_broker(secured.cluster.bootstrap_servers_of("OPENSASL"), settings, limits=LIMITS) as broker:
        with pytest.raises(BrokerRefusedError, match=r"alice.*SASL_AUTHENTICATION_FAILED") as refusal:
            await broker.describe_cluster()
    assert "not-hers" not in str(refusal.value)


async def test_an_expired_token_is_refused_and_the_renewed_one_taken(secured: Secured, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(unsecured_token("tiersidecar", lifetime_s=-60))
    settings = secured.sasl(SecurityProtocol.SASL_PLAINTEXT, SaslMechanism.OAUTHBEARER)
    settings = replace(settings, oauth_token_source=TokenFile(path=str(path)))
    async with open_broker(secured.cluster.bootstrap_servers_of("OPENSASL"), settings, limits=LIMITS) as broker:
        with pytest.raises(BrokerRefusedError, match="SASL_AUTHENTICATION_FAILED"):
            await broker.describe_cluster()
        path.write_text(unsecured_token("tiersidecar"))
        assert (await broker.describe_cluster()).cluster_id == secured.cluster.cluster_id


async def test_a_login_that_ends_is_renewed_in_time(secured: Secured) -> None:
    """KIP-368: after connections.max.reauth.ms the broker closes a connection that speaks without a new login."""
    settings = secured.sasl(SecurityProtocol.SASL_PLAINTEXT, SaslMechanism.PLAIN)
    async with open_broker(secured.cluster.bootstrap_servers_of("SHORT"), settings, limits=LIMITS) as broker:
        ends = time.monotonic() + 2.5 * SESSION_MS / 1000
        while time.monotonic() < ends:
            await broker.describe_cluster()
            await asyncio.sleep(0.05)


async def test_a_broker_whose_authority_we_do_not_trust_is_no_broker(secured: Secured, tmp_path: Path) -> None:
    stranger = CertificateAuthority(tmp_path, name="stranger")
    settings = replace(secured.tls, ssl_ca_file=str(stranger.authority_path))
    async with open_broker(secured.cluster.bootstrap_servers_of("TLS"), settings, limits=LIMITS) as broker:
        with pytest.raises(BrokerUnreachableError, match="certificate verify failed"):
            await broker.describe_cluster()


MISTAKES: dict[str, tuple[str, Callable[[Secured], SecuritySettings]]] = {
    "TLS to a listener without": ("INTERNAL", lambda secured: secured.tls),
    "no TLS to a listener with": ("TLS", lambda secured: SecuritySettings()),
    "no client certificate where one is demanded": ("MUTUAL", lambda secured: secured.tls),
    "no login where one is demanded": ("OPENSASL", lambda secured: SecuritySettings()),
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_the_wrong_protocol_is_an_unreachable_broker_not_a_crash(secured: Secured, mistake: str) -> None:
    listener, settings_of = MISTAKES[mistake]
    servers = secured.cluster.bootstrap_servers_of(listener)
    limits = ConnectionLimits(connect_timeout_s=2, request_timeout_s=2)
    async with open_broker(servers, settings_of(secured), limits=limits) as broker:
        with pytest.raises(BrokerUnreachableError, match=servers):
            await broker.describe_cluster()


async def test_without_an_authorizer_whoever_gets_in_may_read(secured: Secured) -> None:
    """DESIGN section 4, rule 7: the broker decides, and this one lets all."""
    caller = Credentials(username=USER, password=PASSWORD)
    for protocol, listener in SASL_LISTENERS.items():
        for mechanism in PASSWORD_MECHANISMS:
            callers = CallerListener(
                bootstrap_servers=secured.cluster.bootstrap_servers_of(listener),
                security_protocol=protocol,
                sasl_mechanism=mechanism,
                ssl_ca_file=str(secured.authority.authority_path),
            )
            async with open_authorizer(callers, limits=LIMITS) as authorizer:
                assert await authorizer.may_read(caller, secured.topic)
                assert not await authorizer.may_read(caller, "no-such-topic")
                with pytest.raises(CallerNotAuthenticatedError):
                    await authorizer.may_read(replace(caller, password="not-hers"), secured.topic)
                with pytest.raises(CallerNotAuthenticatedError):
                    await authorizer.may_read(Credentials(), secured.topic)


async def test_a_callers_bearer_token_is_the_brokers_to_judge(secured: Secured) -> None:
    for protocol, listener in SASL_LISTENERS.items():
        callers = CallerListener(
            bootstrap_servers=secured.cluster.bootstrap_servers_of(listener),
            security_protocol=protocol,
            sasl_mechanism=SaslMechanism.OAUTHBEARER,
            ssl_ca_file=str(secured.authority.authority_path),
        )
        async with open_authorizer(callers, limits=LIMITS) as authorizer:
            assert await authorizer.may_read(Credentials(token=unsecured_token("carol")), secured.topic)
            for refused in (unsecured_token("carol", lifetime_s=-60), "no-token-of-theirs"):
                with pytest.raises(CallerNotAuthenticatedError):
                    await authorizer.may_read(Credentials(token=refused), secured.topic)


async def test_anonymous_callers_are_never_lent_our_certificate(secured: Secured) -> None:
    for listener, protocol in (("INTERNAL", SecurityProtocol.PLAINTEXT), ("TLS", SecurityProtocol.SSL)):
        callers = CallerListener(
            bootstrap_servers=secured.cluster.bootstrap_servers_of(listener),
            security_protocol=protocol,
            ssl_ca_file=str(secured.authority.authority_path),
        )
        async with open_authorizer(callers, limits=LIMITS) as authorizer:
            assert await authorizer.may_read(Credentials(), secured.topic)
    callers = CallerListener(
        bootstrap_servers=secured.cluster.bootstrap_servers_of("MUTUAL"),
        security_protocol=SecurityProtocol.SSL,
        ssl_ca_file=str(secured.authority.authority_path),
    )
    async with open_authorizer(callers, limits=LIMITS) as authorizer:
        with pytest.raises(CallerNotAuthenticatedError, match="client certificate"):
            await authorizer.may_read(Credentials(), secured.topic)
