"""2,000 connections that never log in, on real sockets in front of a real broker: what they cost those that have."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.support.certificates import CertificateAuthority
from tests.support.gateway import GatewayDaemon
from tests.support.kafka_admin import PlainCredentials
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_properties import ADMIN, Listener
from tests.support.loopback_ports import free_port

pytestmark = [pytest.mark.broker, pytest.mark.alone, pytest.mark.timeout(600)]

COUNT = 2000
ATTACK_S = 25.0
WORK_S = 6.0
MIB = 1024 * 1024
ARRIVAL_S = 4.0
"""Until the crowd is there: whoever comes in the middle of it waits for some seconds."""
LOGINS = 60
LOGIN_S = 5.0
TOPIC = "kept-up"
USER = PlainCredentials(username="alice", password="alice-secret")


class Gated:
    """A gateway in front of a broker with SASL: clients meet SASL_PLAINTEXT at ``plain``, SASL_SSL at ``tls``."""

    def __init__(self, gateway: GatewayDaemon, plain: int, tls: int) -> None:
        self.gateway, self.plain, self.tls = gateway, plain, tls
        self.settings = {
            "bootstrap_servers": f"127.0.0.1:{plain}",
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": USER.username,
            "sasl_plain_password": USER.password,
        }


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gated]:
    directory = tmp_path_factory.mktemp("gated")
    authority = CertificateAuthority(directory / "certificates")
    certificate = authority.issue("gateway")
    listener = Listener(name="SASL", security_protocol="SASL_PLAINTEXT", sasl_mechanisms=("PLAIN",))
    plain, tls = free_port(), free_port()
    with KafkaCluster(directory / "kafka", listeners=(listener,), users={USER.username: USER.password}) as cluster:
        broker = cluster[1]
        cluster.create_topic(TOPIC)
        behind = broker.bootstrap_server_of("SASL")
        listeners = [
            {"name": "PLAIN", "listen": f"127.0.0.1:{plain}", "broker": behind, "broker.tls": "off"},
            {
                "name": "TLS",
                "listen": f"127.0.0.1:{tls}",
                "broker": behind,
                "broker.tls": "off",
                "ssl.certificate.location": str(certificate.certificate_path),
                "ssl.key.location": str(certificate.key_path),
            },
        ]
        own = {
            "bootstrap.servers": behind,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": ADMIN.username,
            "sasl.password": ADMIN.password,
        }
        with GatewayDaemon(directory / "gateway", broker, listeners=listeners, broker_section=own) as gateway:
            gateway.wait_until_ready()
            yield Gated(gateway, plain, tls)


@contextmanager
def attackers(port: int, *more: str) -> Iterator[None]:
    """All of them have begun when it is entered."""
    command = [sys.executable, "-m", "tests.support.gateway_attackers", str(port), str(COUNT), str(ATTACK_S), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert json.loads(running.stdout.readline()) == {"begun": COUNT}
        try:
            yield
        finally:
            running.terminate()


@contextmanager
def bare_sink() -> Iterator[int]:
    """A port where connections are taken and read, in a process of its own, and nothing else."""
    program = (
        "import asyncio\n"
        "async def take(reader, writer):\n"
        "    while await reader.read(65536): pass\n"
        "async def main():\n"
        "    server = await asyncio.start_server(take, '127.0.0.1', 0, backlog=512)\n"
        "    print(server.sockets[0].getsockname()[1], flush=True)\n"
        "    await server.serve_forever()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield int(running.stdout.readline())
        finally:
            running.terminate()


async def worked(gated: Gated) -> float:
    """Records that a client that logs in writes and reads again in a second, by new connections."""
    done = 0
    began_s = time.monotonic()
    async with (
        AIOKafkaProducer(**gated.settings) as producer,
        AIOKafkaConsumer(**gated.settings, fetch_max_wait_ms=100) as consumer,
    ):
        consumer.assign([TopicPartition(TOPIC, 0)])
        while time.monotonic() - began_s < WORK_S:
            sent = await asyncio.gather(*[producer.send_and_wait(TOPIC, bytes(1000), partition=0) for _ in range(50)])
            consumer.seek(TopicPartition(TOPIC, 0), min(one.offset for one in sent))
            found = 0
            while found < len(sent):
                found += len((await consumer.getmany(timeout_ms=5000)).get(TopicPartition(TOPIC, 0), ()))
            done += len(sent)
    return done / (time.monotonic() - began_s)


async def health_ms(gated: Gated) -> list[float]:
    """Times of /healthz, about ten a second."""
    found = []
    url = f"{gated.gateway.status_url}/healthz"
    began_s = time.monotonic()
    while time.monotonic() - began_s < WORK_S:
        asked_s = time.perf_counter()
        await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read())
        found.append((time.perf_counter() - asked_s) * 1000)
        await asyncio.sleep(0.05)
    return sorted(found)


async def test_2000_connections_before_login_take_little_memory(gated: Gated) -> None:
    """600 of them took RSS from 105 to 625 MiB.  What a client that logs in loses is told beside the same attackers aimed at a
    bare sink; half of it is asked for here, since the machine is shared, 0.7 where it is quiet."""
    await worked(gated)  # warm, and the listener is known to demand a login
    before_bytes = gated.gateway.rss_bytes()
    with bare_sink() as port, attackers(port):
        await asyncio.sleep(ARRIVAL_S)
        looking = asyncio.create_task(health_ms(gated))
        beside, calm = await worked(gated), await looking
    with attackers(gated.plain):
        await asyncio.sleep(ARRIVAL_S)
        looking = asyncio.create_task(health_ms(gated))
        through, pressed = await worked(gated), await looking
        grown_bytes = gated.gateway.rss_bytes() - before_bytes
    p99, calm_p99 = pressed[int(len(pressed) * 0.99)], calm[int(len(calm) * 0.99)]
    told = f"/healthz p99 {p99:.0f} ms, beside a sink {calm_p99:.0f}; {through / beside:.2f} of the work"
    print(f"RSS +{grown_bytes / MIB:.0f} MiB; {told}")
    assert grown_bytes <= 64 * MIB
    # 50 ms where a process that only takes connections has the machine almost to itself; a slow machine needs its share more.
    assert p99 <= max(50 + calm_p99, 4 * calm_p99), told
    assert through >= 0.5 * beside, told


async def test_a_login_from_the_attackers_own_address_does_not_wait_behind_them(gated: Gated) -> None:
    """What is turned away comes back at once.  Let in by turns with those, one login in three waited for as long as the
    attack lasted."""
    await worked(gated)
    took_s = []
    with attackers(gated.plain):
        await asyncio.sleep(ARRIVAL_S)
        for _ in range(LOGINS):
            began_s = time.monotonic()
            async with AIOKafkaProducer(**gated.settings) as producer:
                await producer.partitions_for(TOPIC)
            took_s.append(time.monotonic() - began_s)
            await asyncio.sleep(0.1)
    print(f"logins took {', '.join(f'{one:.2f}' for one in took_s)} s")
    assert max(took_s) <= LOGIN_S


async def test_over_tls_they_take_no_more_than_is_told(gated: Gated) -> None:
    """Each has an SSL object and its buffers of up to half a MiB: reported, and bounded by the number let in (1,000).

    The faster the machine, the more of them are past their handshake at a time: 164 MiB where it was loaded, 330 where not.
    """
    await worked(gated)
    before_bytes = gated.gateway.rss_bytes()
    with attackers(gated.tls, "tls"):
        await worked(gated)
        grown_bytes = gated.gateway.rss_bytes() - before_bytes
    print(f"TLS: RSS +{grown_bytes / MIB:.0f} MiB")
    assert grown_bytes <= 512 * MIB
