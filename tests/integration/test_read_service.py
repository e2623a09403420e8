"""The read service beside a real broker: its ACLs decide, over TLS, from real files and with real threads (rule 7)."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import ssl
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.support.certificates import CertificateAuthority
from tests.support.golden import AIVEN_OBJECTS
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_properties import Listener
from tests.support.local_batches import batches_between, consumed_records
from tests.support.patience import patient_s
from tests.support.remote_runs import load_run, open_run
from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
from tiersidecar.adapters.kafka.authorizer import CallerListener, open_authorizer
from tiersidecar.adapters.kafka.security import SaslMechanism, SecurityProtocol
from tiersidecar.adapters.stores.filesystem import open_filesystem_store
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.reading.read_path import ReadSettings
from tiersidecar.services.reader.server import ReaderServiceSettings, serve_reader

pytestmark = pytest.mark.broker

USERS = {"alice": "alice-secret", "bob": "bob-secret"}
ALICE, BOB = "alice:alice-secret", "bob:bob-secret"
CLIENT = Listener(name="CLIENT", security_protocol="SASL_PLAINTEXT", sasl_mechanisms=("SCRAM-SHA-512",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """``PartitionCatalogue``."""

    known: Collection[TopicIdPartition]

    def partitions(self) -> Collection[TopicIdPartition]:
        return self.known


@asynccontextmanager
async def service(cluster: KafkaCluster, directory: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """The read service over the plugin's encrypted objects, as they lie in a real directory."""
    authority = CertificateAuthority(directory / "ca")
    certificate = authority.issue("localhost")
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(certificate.certificate_path, certificate.key_path)
    client_tls = ssl.create_default_context(cafile=str(authority.authority_path))
    shutil.copytree(AIVEN_OBJECTS / "encrypted", directory / "store", copy_function=shutil.copyfile)
    callers = CallerListener(
        bootstrap_servers=cluster.bootstrap_servers_of("CLIENT"),
        security_protocol=SecurityProtocol.SASL_PLAINTEXT,
        sasl_mechanism=SaslMechanism.SCRAM_SHA_512,
    )
    run = await load_run("encrypted")
    async with AsyncExitStack() as stack:
        clock, ids = SystemClock(), SystemIds()
        blocking = await stack.enter_async_context(ThreadBlocking(max_threads=4))
        store = await stack.enter_async_context(
            open_filesystem_store(root=str(directory / "store"), blocking=blocking, clock=clock, ids=ids)
        )
        settings = ReadSettings(reader_threads=2, reader_max_pending_tasks=200, chunk_cache_bytes=50_000)
        path = await stack.enter_async_context(
            open_run(run, store=store, clock=clock, blocking=blocking, settings=settings)
        )
        server = await stack.enter_async_context(
            serve_reader(
                path=path,
                catalogue=Fixed(known=run.partitions),
                authorize=await stack.enter_async_context(open_authorizer(callers, connection_ttl_s=0.0)),
                blocking=blocking,
                settings=ReaderServiceSettings(port=0, ssl_context=server_tls),
            )
        )
        assert server.url.startswith("https://")
        connector = aiohttp.TCPConnector(ssl=client_tls)
        yield await stack.enter_async_context(aiohttp.ClientSession(server.url, connector=connector))


async def get(client: aiohttp.ClientSession, path: str, login: str | None) -> tuple[int, bytes]:
    headers = {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()} if login else {}
    async with client.get(path, headers=headers) as response:
        return response.status, await response.read()


def acl(cluster: KafkaCluster, change: str, user: str, topic: str) -> None:
    cluster.run_tool(
        "org.apache.kafka.tools.AclCommand",
        *("--bootstrap-server", cluster.bootstrap_servers, "--command-config", str(cluster.command_config)),
        *(change, "--force", "--allow-principal", f"User:{user}", "--operation", "Read", "--topic", topic),
    )


async def until_status(client: aiohttp.ClientSession, path: str, login: str, status: int) -> None:
    """Wait for what the broker does after it has answered."""
    async with asyncio.timeout(patient_s(20)):
        while True:
            if (await get(client, path, login))[0] == status:
                return
            await asyncio.sleep(0.05)


async def test_the_broker_decides_who_reads_what(kafka_cluster: Callable[..., KafkaCluster], tmp_path: Path) -> None:
    cluster = await asyncio.to_thread(kafka_cluster, listeners=(CLIENT,), users=USERS, authorizer=True)
    for topic in ("plain", "transactions"):
        await asyncio.to_thread(cluster.create_topic, topic)
    await asyncio.to_thread(acl, cluster, "--add", "alice", "plain")
    batches = "/topics/plain/partitions/0/batches?offset=33"
    async with service(cluster, tmp_path) as client:
        await until_status(client, batches, ALICE, 200)
        assert await get(client, batches, ALICE) == (200, batches_between("plain-0", 33, 245))
        status, body = await get(client, "/topics", ALICE)
        assert (status, [load["topic"] for load in json.loads(body)["topics"]]) == (200, ["plain"])
        assert (await get(client, "/topics/transactions/partitions", ALICE))[0] == 403
        assert (await get(client, batches, BOB))[0] == 403
        assert (await get(client, batches, "alice:not-hers"))[0] == 401
        assert (await get(client, batches, None))[0] == 401
        await asyncio.to_thread(acl, cluster, "--remove", "alice", "plain")
        await until_status(client, batches, ALICE, 403)
        await asyncio.to_thread(cluster[1].stop)
        status, body = await get(client, batches, ALICE)
        assert (status, b"plain" in body) == (503, False)


async def test_many_readers_at_random_offsets_get_their_records_or_are_shed(
    kafka_cluster: Callable[..., KafkaCluster], tmp_path: Path
) -> None:
    """S-140: with a pool of two and a cache that holds three chunks."""
    cluster = await asyncio.to_thread(kafka_cluster, listeners=(CLIENT,), users=USERS, authorizer=True)
    await asyncio.to_thread(cluster.create_topic, "plain", partitions=2)
    await asyncio.to_thread(acl, cluster, "--add", "alice", "plain")
    expected = consumed_records("plain-0", "read_uncommitted")
    shed = 0
    async with service(cluster, tmp_path) as client:
        await until_status(client, "/topics/plain/partitions", ALICE, 200)
        answers = await asyncio.gather(
            *(
                get(client, f"/topics/plain/partitions/0/records?offset={n * 37 % 245}&limit=20", ALICE)
                for n in range(400)
            )
        )
    for number, (status, body) in enumerate(answers):
        if status == 429:
            shed += 1
            continue
        assert status == 200
        first = number * 37 % 245
        found = [json.loads(line)["offset"] for line in body.splitlines()]
        assert found == [offset for offset in expected if first <= offset < min(first + 20, 245)]
    assert shed < len(answers)
