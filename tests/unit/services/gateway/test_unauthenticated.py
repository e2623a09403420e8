"""Connections before their login: what they hold together, and which of them end for it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.certificates import CertificateAuthority
from tests.support.scripted_kafka import Ends, Peer, gateway_between, request, response
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.ports.metrics.gateway import GATEWAY_CONNECTIONS_CLOSED
from tiersidecar.services.gateway import listener
from tiersidecar.services.gateway.unauthenticated import (
    ListenerLogins,
    PendingLogin,
    Unauthenticated,
    UnauthenticatedLimits,
)

LIMITS = UnauthenticatedLimits(
    buffer_bytes=100, request_bytes=50, login_timeout_s=10, max_connections=6, max_connections_per_ip=3
)


@dataclass
class Crowd:
    """Connections by name, and why they were shed."""

    all_of_them: Unauthenticated = field(default_factory=lambda: Unauthenticated(LIMITS))
    listener: ListenerLogins = field(default_factory=ListenerLogins)
    shed: dict[str, str] = field(default_factory=dict)
    now_s: float = 0.0

    def enter(self, name: str, ip: str = "a") -> PendingLogin:
        def shed(reason: str) -> None:
            self.shed[name] = reason

        return self.all_of_them.enter(self.listener, ip, self.now_s, shed)


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    crowd = Crowd()
    yield crowd
    assert crowd.all_of_them.held_bytes >= 0


def test_one_more_of_an_address_ends_its_oldest(crowd: Crowd) -> None:
    for name in "1234":
        crowd.enter(name)
    assert crowd.shed == {"1": "unauthenticated_per_ip"}
    assert crowd.all_of_them.count == 3


def test_an_address_is_crowded_when_one_more_would_cost_another_its_place(crowd: Crowd) -> None:
    def crowded(ip: str) -> bool:
        return crowd.all_of_them.is_crowded(crowd.listener, ip)

    logins = [crowd.enter(name) for name in "12"]
    assert not crowded("a")
    logins.append(crowd.enter("3"))
    assert (crowded("a"), crowded("b")) == (True, False)
    for name in "456":
        crowd.enter(name, "b")
    assert crowded("c"), "as many as there may be in all"
    logins[0].let_in(by_sasl=True)
    assert (crowded("a"), crowded("c")) == (False, False)
    crowd.listener.is_open = True
    crowd.enter("7", "a")
    assert not crowded("a"), "nobody logs in there"


def test_who_has_logged_in_does_not_count_and_is_not_shed(crowd: Crowd) -> None:
    """Users behind one address must not shut each other out."""
    for name in "123456789":
        crowd.enter(name).let_in(by_sasl=True)
    for name in "abc":
        crowd.enter(name)
    assert crowd.shed == {}
    assert crowd.all_of_them.count == 3


def test_one_more_in_all_ends_the_oldest_of_the_address_with_most(crowd: Crowd) -> None:
    crowd.enter("only of b", "b")
    crowd.enter("only of d", "d")
    for ip in "ac":
        crowd.enter(f"1 of {ip}", ip)
        crowd.enter(f"2 of {ip}", ip)
    crowd.enter("3 of c", "c")
    assert crowd.shed == {"1 of c": "unauthenticated"}


def test_too_many_bytes_end_what_has_held_some_longest(crowd: Crowd) -> None:
    first, second, third = crowd.enter("1"), crowd.enter("2"), crowd.enter("3")
    second.hold(40)
    first.hold(40)
    third.hold(20)
    assert crowd.shed == {}
    third.hold(30)
    assert crowd.shed == {"2": "unauthenticated_bytes"}
    assert crowd.all_of_them.held_bytes == 70
    first.done()
    third.hold(0)
    assert crowd.all_of_them.held_bytes == 0


def test_a_login_that_takes_too_long_ends(crowd: Crowd) -> None:
    crowd.enter("1")
    crowd.now_s = 5.0
    crowd.enter("2")
    crowd.all_of_them.sweep(10.5)
    assert crowd.shed == {"1": "login_timeout"}


def test_on_an_open_listener_every_connection_counts_as_logged_in(crowd: Crowd) -> None:
    first = crowd.enter("1")
    assert first.request_bytes == 50
    waiting = crowd.enter("2")
    first.let_in(by_sasl=False)
    assert waiting.is_done
    assert crowd.all_of_them.count == 0
    assert [crowd.enter(str(number)).request_bytes for number in range(20)] == [None] * 20
    # The broker was configured anew.
    crowd.enter("later").let_in(by_sasl=True)
    assert crowd.enter("after").request_bytes is None or crowd.listener.is_open is False


def test_only_after_a_login_by_sasl_is_it_known_that_the_broker_demands_one(crowd: Crowd) -> None:
    first = crowd.enter("1")
    assert not first.demands_login
    crowd.enter("2").let_in(by_sasl=True)
    assert first.demands_login


# On sockets

AUTHENTICATE, METADATA = ApiKey.SASL_AUTHENTICATE, ApiKey.METADATA
HANDSHAKE_BODY = struct.pack(">h", 5) + b"PLAIN"


@pytest.fixture(autouse=True)
def _sweeps_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_SWEEP_S", 0.1)


def closed(ends: Ends) -> dict[str, float]:
    return ends.telemetry.by_label(GATEWAY_CONNECTIONS_CLOSED, "reason")


async def log_in(ends: Ends) -> tuple[Peer, Peer]:
    client, broker = await ends.pair()
    client.send(request(ApiKey.SASL_HANDSHAKE, 1, 1, HANDSHAKE_BODY))
    await broker.frame()
    broker.send(response(1, struct.pack(">hi", 0, 1) + struct.pack(">h", 5) + b"PLAIN"))
    await client.frame()
    token = b"\0user\0secret"
    client.send(request(AUTHENTICATE, 0, 2, struct.pack(">i", len(token)) + token))
    await broker.frame()
    broker.send(response(2, struct.pack(">hhi", 0, -1, 0)))
    await client.frame()
    return client, broker


async def test_a_large_request_before_the_login_ends_the_connection_and_after_it_passes() -> None:
    async with gateway_between() as ends:
        safe, broker = await log_in(ends)
        client, _ = await ends.pair()
        client.send(request(12, 0, 1, bytes(70_000)))
        assert await client.ends() == b""
        safe.send(request(12, 0, 3, bytes(70_000)))
        assert len(await broker.frame()) > 70_000
    assert closed(ends)["malformed"] == 1


@pytest.mark.parametrize("api_key", [ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE])
async def test_nothing_of_the_login_itself_is_large(api_key: int) -> None:
    async with gateway_between() as ends:
        client, _ = await ends.pair()
        client.send(request(api_key, 1, 1, bytes(70_000)))
        assert await client.ends() == b""
    assert closed(ends)["malformed"] == 1


async def test_once_a_login_was_seen_nothing_else_goes_to_the_broker_before_one() -> None:
    """Nothing is parsed past the head: 18 Fetches of 128 KiB a second took /healthz from 2 to 198 ms."""
    async with gateway_between() as ends:
        await log_in(ends)
        client, broker = await ends.pair()
        client.send(request(METADATA, 4, 1, struct.pack(">ib", 0, 0)))
        assert await client.ends() == b""
        assert await broker.ends() == b""
    assert closed(ends)["malformed"] == 1


async def test_what_is_half_sent_is_shed_when_others_need_the_memory() -> None:
    limits = UnauthenticatedLimits(buffer_bytes=150_000)
    async with gateway_between(unauthenticated=Unauthenticated(limits)) as ends:
        safe, broker = await log_in(ends)
        half = struct.pack(">ihhi", 60_000, ApiKey.SASL_AUTHENTICATE, 1, 1) + bytes(50_000)
        clients = [(await ends.pair())[0] for _ in range(4)]
        for client in clients:
            client.send(half)
        done, _ = await asyncio.wait([asyncio.ensure_future(client.ends()) for client in clients], timeout=3)
        assert len(done) == 2
        safe.send(request(12, 0, 3))
        assert await broker.frame()
    assert closed(ends)["unauthenticated_bytes"] == 2


async def test_who_does_not_log_in_is_closed_in_time() -> None:
    limits = UnauthenticatedLimits(login_timeout_s=0.3)
    async with gateway_between(unauthenticated=Unauthenticated(limits)) as ends:
        client, _ = await ends.pair()
        assert await client.ends() == b""
    assert closed(ends) == {"login_timeout": 1}


@pytest.mark.parametrize(
    ("sent", "ended_as"),
    [
        pytest.param(b"", "unauthenticated_per_ip", id="shed for another"),
        pytest.param(request(12, 0, 1, bytes(70_000)), "malformed", id="refused"),
    ],
)
async def test_in_a_crowd_whose_connection_ends_is_not_told_at_once(sent: bytes, ended_as: str) -> None:
    """It would be back at once, and newer than a client that waits for its login."""
    limits = UnauthenticatedLimits(max_connections_per_ip=2)
    async with gateway_between(unauthenticated=Unauthenticated(limits)) as ends:
        await log_in(ends)
        first, second = [(await ends.pair())[0] for _ in range(2)]
        ending = second if sent else first
        ending.send(sent)
        await ends.pair()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ending.ends(), 0.3)
        assert closed(ends)[ended_as] == 1
    assert await ending.ends() == b"", "when the gateway ends"


async def test_who_is_refused_where_there_is_no_crowd_is_told_at_once() -> None:
    limits = UnauthenticatedLimits(max_connections_per_ip=2)
    async with gateway_between(unauthenticated=Unauthenticated(limits)) as ends:
        await log_in(ends)
        client, _ = await ends.pair()
        client.send(request(12, 0, 1, bytes(70_000)))
        assert await asyncio.wait_for(client.ends(), 3) == b""


async def refused_over_tls(port: int, context: ssl.SSLContext) -> socket.socket:
    """A client that has sent no request, reads nothing of what it is told, and closes nothing."""
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.settimeout(0)
    await loop.sock_connect(client, ("127.0.0.1", port))
    received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(received, to_send, server_hostname="gateway")
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            await loop.sock_sendall(client, to_send.read())
            received.write(await loop.sock_recv(client, 65_536))
    tls.write(struct.pack(">i", 16) + b"\xff" * 16)
    await loop.sock_sendall(client, to_send.read())
    return client


async def test_who_is_refused_over_tls_and_does_not_answer_counts_until_it_is_gone(tmp_path: Path) -> None:
    """A TLS connection ends once both have said so, or ten seconds later: meanwhile they were nobody's, held their SSL objects,
    and honest clients found no connection left."""
    certificate = CertificateAuthority(tmp_path).issue("gateway")
    tls, context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl._create_unverified_context()
    tls.load_cert_chain(certificate.certificate_path, certificate.key_path)
    limits = UnauthenticatedLimits(max_connections=20, max_connections_per_ip=5)
    async with gateway_between(
        tls=tls, client_tls=context, unauthenticated=Unauthenticated(limits), max_connections_per_ip=20
    ) as ends:
        with ExitStack() as held:
            for _ in range(40):
                held.enter_context(await asyncio.wait_for(refused_over_tls(ends.port, context), 5))
            await asyncio.wait_for(ends.client(), 5)
