"""What a client may not read or delete stays where it is, in whatever order its frames come (issue 17; rules 7 and 13).

A client with Read on one group and one topic of its own had the broker answer ILLEGAL_SASL_STATE to a second SaslHandshake of
version 0.  The gateway began to pass tokens without headers all the same, dropped those that had no answer yet, and from then
on took each answer for that of a later request: one to SyncGroup, whose bytes the client chooses, for one to Fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from tests.support.daemon import Daemon, daemon_settings
from tests.support.gateway import GatewayDaemon
from tests.support.gateway_attacker import (
    DELETE_RECORDS,
    FETCH,
    METADATA,
    Attacker,
    assignment_like_a_delete_answer,
    assignment_like_a_fetch_answer,
    delete_frame,
    fetch_frame,
    handshake_frame,
    join_frame,
    metadata_frame,
    read_answer,
    records_bytes,
)
from tests.support.kafka_admin import KafkaAdminError, PlainCredentials, wait_until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_properties import ADMIN, Listener
from tests.support.loopback_ports import free_port

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

USERS = {"mallory": "mallory-secret", "nobody": "nobody-secret"}
MALLORY = PlainCredentials(username="mallory", password=USERS["mallory"])
NOBODY = PlainCredentials(username="nobody", password=USERS["nobody"])
SECRET, OWN = "secret", "own"
MARK = b"nobody but alice reads this"
END = 400
LISTENERS = ("SASL", "BRIEF")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacked:
    """A broker with ACLs, and before it a sidecar with its gateway, and a gateway that lets tokens without headers pass;
    ``secret`` is remote up to its active segment."""

    cluster: KafkaCluster
    daemon: Daemon
    raw: Daemon
    ports: dict[str, int]

    def gateway_at(self, listener: str) -> Daemon:
        return self.raw if listener == "RAW" else self.daemon


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    directory = tmp_path_factory.mktemp("attacked")
    listeners = (
        Listener(name="SASL", security_protocol="SASL_PLAINTEXT", sasl_mechanisms=("PLAIN", "SCRAM-SHA-512")),
        Listener(name="BRIEF", security_protocol="SASL_PLAINTEXT", sasl_mechanisms=("PLAIN", "SCRAM-SHA-512")),
    )
    ports = {name: free_port() for name in (*LISTENERS, "RAW")}
    with ExitStack() as stack:
        cluster = stack.enter_context(
            KafkaCluster(
                directory / "kafka",
                listeners=listeners,
                users=USERS,
                authorizer=True,
                properties={"listener.name.brief.plain.connections.max.reauth.ms": "60000"},
            )
        )
        cluster.create_topic(SECRET, segment_bytes=16 * 1024, configs={"retention.ms": "-1", "retention.bytes": "-1"})
        cluster.create_topic(OWN)
        for resource in ("group", "topic"):
            cluster.run_tool(
                "org.apache.kafka.tools.AclCommand",
                *("--bootstrap-server", cluster.bootstrap_servers, "--command-config", str(cluster.command_config)),
                *(
                    "--add",
                    "--allow-principal",
                    "User:mallory",
                    "--operation",
                    "read",
                    f"--{resource}",
                    OWN,
                    "--resource-pattern-type",
                    "prefixed",
                ),
            )
        asyncio.run(_fill(cluster))
        daemon = stack.enter_context(_daemon(directory / "daemon", cluster, ports, LISTENERS, raw_tokens=False))
        raw = stack.enter_context(_daemon(directory / "raw", cluster, ports, ("RAW",), raw_tokens=True))
        for one in (daemon, raw):
            one.wait_until_ready()
        logs = cluster[1].partition_dir(SECRET, 0)
        wait_until(lambda: _is_trimmed(cluster, logs), "the secret is remote", 120)
        yield Attacked(cluster=cluster, daemon=daemon, raw=raw, ports=ports)


def _daemon(
    directory: Path, cluster: KafkaCluster, ports: dict[str, int], names: tuple[str, ...], *, raw_tokens: bool
) -> Daemon:
    broker = cluster[1]
    served = [
        {
            "name": name,
            "listen": f"127.0.0.1:{ports[name]}",
            "broker": broker.bootstrap_server_of("SASL" if name == "RAW" else name),
            "broker.tls": "off",
        }
        for name in names
    ]
    own = {
        "bootstrap.servers": broker.bootstrap_server,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": ADMIN.username,
        "sasl.password": ADMIN.password,
    }
    topics = [{"name": SECRET, "local.retention.bytes": 1}]
    store = {"type": "filesystem", "root": str(directory.parent / "store")}
    if raw_tokens:
        return GatewayDaemon(
            directory,
            broker,
            listeners=served,
            topics=topics,
            broker_section=own,
            store=store,
            gateway={},
        )
    settings = daemon_settings(
        directory,
        bootstrap_servers=broker.bootstrap_server,
        log_dirs=list(broker.log_dirs),
        topics=topics,
        gateway={"listeners": served},
        store=store,
    )
    Path(store["root"]).mkdir(parents=True, exist_ok=True)
    settings["broker"] = own
    return Daemon(directory, settings, roles="tier,gateway")


async def _fill(cluster: KafkaCluster) -> None:
    async with AIOKafkaProducer(**cluster.client_settings) as producer:
        for number in range(END):
            await producer.send_and_wait(SECRET, MARK + b" %d" % number + bytes(200), partition=0)


def _is_trimmed(cluster: KafkaCluster, logs: Path) -> bool:
    """Whether only its active segment is local."""
    left = [int(log.stem) for log in logs.glob("*.log")]
    return left == [_local_start(cluster)] and left[0] > 0


def _local_start(cluster: KafkaCluster) -> int:
    try:
        return cluster.admin.earliest_offset(SECRET, 0)
    except KafkaAdminError:
        return 0


def refusals(daemon: Daemon, address: str) -> list[str]:
    """The principals of the audit events of this address."""
    found = [event for event in daemon.events("gateway.audit.refused") if event["client"] == address]
    return [event["principal"] for event in found]


def log_in_again(client: Attacker) -> None:
    """On a listener whose logins end, within whose first second after the broker takes no other."""
    client.login(MALLORY)


def shifting_frames(first: str, weapon: bytes, slow: bytes, request: bytes) -> tuple[bytes, ...]:
    """Behind a handshake of version 0: a "token", two where the mechanism has two; a handshake for a mechanism whose
    tokens are not counted; the weapon, something that takes its time, and the request whose answer the weapon is to be."""
    tokens = [metadata_frame()] * (2 if first.startswith("SCRAM") else 1)
    return *tokens, handshake_frame("GSSAPI"), weapon, slow, request


@pytest.mark.parametrize("what", ["read", "delete"])
@pytest.mark.parametrize("first", ["PLAIN", "SCRAM-SHA-512", "GSSAPI"])
@pytest.mark.parametrize("listener", ["SASL", "BRIEF", "RAW"])
def test_answers_are_not_taken_for_those_of_other_requests(
    attacked: Attacked, listener: str, first: str, what: str
) -> None:
    gateway = attacked.gateway_at(listener)
    start, group = _local_start(attacked.cluster), f"{OWN}-{listener}-{first}-{what}"
    with Attacker(attacked.ports[listener]) as client:
        client.login(MALLORY)
        if what == "read":
            weapon = client.join(group, assignment_like_a_fetch_answer(SECRET))
            request = fetch_frame(SECRET)
        else:
            weapon = client.join(group, assignment_like_a_delete_answer(SECRET, END))
            request = delete_frame(SECRET, END)
        if listener == "BRIEF":
            log_in_again(client)
        client.send(handshake_frame(first))
        frames = [] if (answer := client.frame()) is None else [answer]
        if frames:
            client.send(*shifting_frames(first, weapon, join_frame(group), request))
            frames += _all_that_comes(client)
        assert not any(MARK in frame for frame in frames), "the gateway has read it out"
        assert _local_start(attacked.cluster) == start
        assert not gateway.events("gateway.records.deleted")
        assert client.frames_until_the_end() == []
        wait_until(lambda: refusals(gateway, client.address), "the refusal is in the log")
        assert set(refusals(gateway, client.address)) == {"User:mallory"}


def _all_that_comes(client: Attacker) -> list[bytes]:
    """Until the end, or until nothing comes for some seconds."""
    found = list[bytes]()
    client.socket.settimeout(5)
    try:
        while (frame := client.frame()) is not None:
            found.append(frame)
    except TimeoutError:
        pass
    return found


@pytest.mark.parametrize("credentials", [MALLORY, NOBODY, None], ids=["mallory", "without any right", "not logged in"])
@pytest.mark.parametrize("listener", ["SASL", "RAW"])
def test_metadata_sent_as_a_token_do_not_tell_where_the_broker_is(
    attacked: Attacked, listener: str, credentials: PlainCredentials | None
) -> None:
    gateway = attacked.gateway_at(listener)
    with Attacker(attacked.ports[listener]) as client:
        if credentials is not None:
            client.login(credentials)
        client.send(handshake_frame("PLAIN"))
        frames = [] if (answer := client.frame()) is None else [answer]
        if frames:
            client.send(metadata_frame())
            frames += [] if (answer := client.frame()) is None else [answer]
        port = attacked.cluster[1].ports[listener if listener != "RAW" else "SASL"]
        assert not any(port.to_bytes(4, "big") in frame for frame in frames), "the broker's own port"
        assert client.frames_until_the_end() == []
        if credentials is not None or listener != "RAW":  # the broker itself ends a login that fails
            wait_until(lambda: refusals(gateway, client.address), "the refusal is in the log")
            expected = "User:ANONYMOUS" if credentials is None else f"User:{credentials.username}"
            assert set(refusals(gateway, client.address)) == {expected}


@pytest.mark.parametrize("credentials", [MALLORY, NOBODY], ids=["mallory", "without any right"])
def test_who_asks_honestly_is_refused_by_the_broker_and_audited_by_nobody(
    attacked: Attacked, credentials: PlainCredentials
) -> None:
    """29 is TOPIC_AUTHORIZATION_FAILED.  And Metadata name the gateway."""
    with Attacker(attacked.ports["SASL"]) as client:
        client.login(credentials)
        client.send(fetch_frame(SECRET), metadata_frame())
        frame = client.frame()
        assert frame is not None
        answer = read_answer(FETCH, 11, frame)
        assert [row.error_code for topic in answer.responses for row in topic.partitions] == [29]
        assert records_bytes(answer) == 0
        frame = client.frame()
        assert frame is not None
        told = read_answer(METADATA, 1, frame)
        assert [broker.port for broker in told.brokers] == [attacked.ports["SASL"]]
        client.send(delete_frame(SECRET, END))
        frame = client.frame()
        assert frame is not None
        deleted = read_answer(DELETE_RECORDS, 1, frame)
        assert [row.error_code for topic in deleted.topics for row in topic.partitions] == [29]
        assert refusals(attacked.daemon, client.address) == []
