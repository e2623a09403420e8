"""ACLs taken away in the middle of long reads: nothing is served later than the next look at them (issue 17; rule 7).

Through the gateway each Fetch is authorised by the broker anew.  A body over HTTP goes on for as long as its client takes
it, and ``read.recheck.ms`` says how often the broker is asked meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from tests.support.daemon import Daemon, daemon_settings
from tests.support.gateway_attacker import FETCH, Attacker, fetch_frame, read_answer
from tests.support.kafka_admin import KafkaAdminError, PlainCredentials, wait_until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_properties import ADMIN, Listener
from tests.support.loopback_ports import free_port

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

USERS = {"alice": "alice-secret", "bob": "bob-secret"}
TOPIC = "confidential"
RECHECK_S = 1.0
LATE_S = 1.5
"""For the broker to take the change in, and for what is on its way."""
VALUE_BYTES = 64 * 1024
RECORDS = 384
FETCHES, STREAMS, OTHERS = 50, 50, 5
_RECEIVE_BYTES = 32 * 1024
TOPIC_AUTHORIZATION_FAILED = 29


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """``confidential`` is remote (24 MiB), and alice and bob may read it."""

    cluster: KafkaCluster
    daemon: Daemon
    gateway_port: int

    @property
    def http_port(self) -> int:
        return int(str(self.daemon.settings["read"]["listen"]).rpartition(":")[2])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory, port = tmp_path_factory.mktemp("guarded"), free_port()
    listeners = (Listener(name="SASL", security_protocol="SASL_PLAINTEXT", sasl_mechanisms=("PLAIN",)),)
    with ExitStack() as stack:
        cluster = stack.enter_context(
            KafkaCluster(directory / "kafka", listeners=listeners, users=USERS, authorizer=True)
        )
        cluster.create_topic(TOPIC, segment_bytes=4 << 20, configs={"retention.ms": "-1", "retention.bytes": "-1"})
        for user in USERS:
            change_acl(cluster, "--add", user)
        asyncio.run(_fill(cluster))
        daemon = stack.enter_context(_daemon(directory / "daemon", cluster, port))
        daemon.wait_until_ready()
        wait_until(lambda: _local_start(cluster) > RECORDS // 2, "most of it is remote", 120)
        yield Guarded(cluster=cluster, daemon=daemon, gateway_port=port)


def _daemon(directory: Path, cluster: KafkaCluster, port: int) -> Daemon:
    broker = cluster[1]
    own = {
        "bootstrap.servers": broker.bootstrap_server,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": ADMIN.username,
        "sasl.password": ADMIN.password,
    }
    listener = {"listen": f"127.0.0.1:{port}", "broker": broker.bootstrap_server_of("SASL"), "broker.tls": "off"}
    read = {
        "listen": f"127.0.0.1:{free_port()}",
        "authorization.bootstrap.servers": broker.bootstrap_server_of("SASL"),
        "recheck.ms": int(RECHECK_S * 1000),
        "max.requests": 2 * (STREAMS + OTHERS),
    }
    settings = daemon_settings(
        directory,
        bootstrap_servers=broker.bootstrap_server,
        log_dirs=list(broker.log_dirs),
        topics=[{"name": TOPIC, "local.retention.bytes": 1}],
        gateway={"listeners": [listener]},
        read=read,
    )
    settings["broker"] = own
    return Daemon(directory, settings, roles="tier,read,gateway")


async def _fill(cluster: KafkaCluster) -> None:
    async with AIOKafkaProducer(**cluster.client_settings, max_request_size=4 * VALUE_BYTES) as producer:
        for number in range(RECORDS):
            await producer.send_and_wait(TOPIC, number.to_bytes(4) * (VALUE_BYTES // 4), partition=0)


def _local_start(cluster: KafkaCluster) -> int:
    try:
        return cluster.admin.earliest_offset(TOPIC, 0)
    except KafkaAdminError:
        return 0


def change_acl(cluster: KafkaCluster, action: str, user: str) -> None:
    """Returns when the broker has been told."""
    cluster.run_tool(
        "org.apache.kafka.tools.AclCommand",
        *("--bootstrap-server", cluster.bootstrap_servers, "--command-config", str(cluster.command_config)),
        *(action, "--allow-principal", f"User:{user}", "--operation", "read", "--topic", TOPIC),
        *(("--force",) if action == "--remove" else ()),
    )


class Fetching(threading.Thread):
    """Fetches what is remote on many connections in turn, without a rest."""

    def __init__(self, port: int, user: str, count: int) -> None:
        super().__init__(daemon=True)
        self._port, self._count, self._stopping = port, count, threading.Event()
        self._credentials = PlainCredentials(username=user, password=USERS[user])
        self.served_s = list[float]()
        """When each of the answers with records had been asked for."""
        self.refused = set[int]()
        self.trouble: BaseException | None = None

    def run(self) -> None:
        try:
            with ExitStack() as stack:
                clients = [stack.enter_context(Attacker(self._port)) for _ in range(self._count)]
                for client in clients:
                    client.login(self._credentials)
                while not self._stopping.is_set():
                    self._round(clients)
        except BaseException as error:  # noqa: BLE001 - the test tells it
            self.trouble = error

    def _round(self, clients: list[Attacker]) -> None:
        for number, client in enumerate(clients):
            asked_s = time.monotonic()
            client.send(fetch_frame(TOPIC, offset=number % 16, max_bytes=VALUE_BYTES))
            frame = client.frame()
            assert frame is not None
            for row in read_answer(FETCH, 11, frame).responses[0].partitions:
                if row.records:
                    self.served_s.append(asked_s)
                elif row.error_code == TOPIC_AUTHORIZATION_FAILED:
                    self.refused.add(number)

    def stop(self) -> None:
        self._stopping.set()
        self.join(60)
        assert self.trouble is None, repr(self.trouble)


@dataclass(slots=True)
class Stream:
    """One body of all batches, taken slowly until ``hurry`` is set, then at once."""

    received: int = 0
    is_whole: bool = False

    async def run(self, port: int, user: str, hurry: asyncio.Event, begun: asyncio.Semaphore) -> None:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        sock.settimeout(0)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=_RECEIVE_BYTES)
        login = base64.b64encode(f"{user}:{USERS[user]}".encode()).decode()
        wanted = f"GET /topics/{TOPIC}/partitions/0/batches?offset=0 HTTP/1.1"
        writer.write(f"{wanted}\r\nHost: x\r\nAuthorization: Basic {login}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head.splitlines()[0], head
        begun.release()
        last = b""
        try:
            while part := await reader.read(_RECEIVE_BYTES):
                self.received += len(part)
                last = (last + part)[-5:]
                if last == b"0\r\n\r\n":
                    self.is_whole = True
                    break
                if not hurry.is_set():
                    await asyncio.wait((asyncio.ensure_future(hurry.wait()),), timeout=0.2)
        except ConnectionResetError:
            pass
        writer.close()


async def _streams_while_taken(guarded: Guarded, fetching: Fetching) -> tuple[list[Stream], list[Stream], float]:
    """Alice's and bob's streams, and when alice's right had been taken."""
    hurry, begun = asyncio.Event(), asyncio.Semaphore(0)
    alices, bobs = [Stream() for _ in range(STREAMS)], [Stream() for _ in range(OTHERS)]
    port = guarded.http_port
    async with asyncio.timeout(200), asyncio.TaskGroup() as group:
        for user, streams in (("alice", alices), ("bob", bobs)):
            for stream in streams:
                group.create_task(stream.run(port, user, hurry, begun))
        for _ in range(STREAMS + OTHERS):
            await begun.acquire()
        while len(fetching.served_s) < 2 * FETCHES:
            assert fetching.trouble is None
            await asyncio.sleep(0.05)
        await asyncio.to_thread(change_acl, guarded.cluster, "--remove", "alice")
        taken_s = time.monotonic()
        await asyncio.sleep(RECHECK_S + LATE_S)  # nothing to wait for: this time is what is promised
        # What a stream may still bring now has been in the kernel's buffers: one that had not been ended would come whole.
        hurry.set()
    return alices, bobs, taken_s


def test_nothing_is_served_once_the_right_is_gone(guarded: Guarded) -> None:
    fetching, others = Fetching(guarded.gateway_port, "alice", FETCHES), Fetching(guarded.gateway_port, "bob", OTHERS)
    fetching.start()
    others.start()
    try:
        alices, bobs, taken_s = asyncio.run(_streams_while_taken(guarded, fetching))
    finally:
        fetching.stop()
        others.stop()
    late_s = [asked_s - taken_s for asked_s in fetching.served_s if asked_s > taken_s + LATE_S]
    assert late_s == [], "fetches through the gateway"
    assert len(fetching.refused) == FETCHES, "each of its connections was told"
    assert max(others.served_s) > taken_s + RECHECK_S, "who may still read is not disturbed"
    whole_bytes = {stream.received for stream in bobs}
    assert all(stream.is_whole for stream in bobs)
    assert min(whole_bytes) > RECORDS * VALUE_BYTES
    assert not any(stream.is_whole for stream in alices)
    assert max(stream.received for stream in alices) < RECORDS * VALUE_BYTES // 2
