"""The gateway as a process of its own between real clients and real brokers: nothing changes but addresses (issue 9)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.support.daemon import wait_for
from tests.support.gateway import GatewayDaemon
from tests.support.kafka_admin import KafkaAdmin
from tests.support.kafka_cluster import KafkaCluster
from tests.support.loopback_ports import free_port
from tests.support.patience import patient_s
from tests.support.produce import produce_mix

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

TOPIC = "through-the-gateway"
_BYTES = "org.apache.kafka.common.serialization.BytesDeserializer"


@pytest.fixture(scope="module")
def gateway(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayDaemon]:
    kafka.create_topic(TOPIC, partitions=3)
    names: dict[str, Any] = {"remote.log.metadata.topic.name": "__rlm_gateway", "state.topic.name": "__state_gateway"}
    with GatewayDaemon(tmp_path_factory.mktemp("gateway"), kafka[1], **names) as daemon:
        daemon.wait_until_ready()
        asyncio.run(produce_mix(daemon.client_settings, TOPIC, partitions=3, total_bytes=1_200_000, batch_bytes=16_384))
        yield daemon


def console(kafka: KafkaCluster, servers: str, isolation: str, partition: int) -> list[str]:
    """What the Java console consumer prints: bytes escaped, a line per record."""
    options = [
        *("print.timestamp=true", "print.offset=true", "print.partition=true", "print.headers=true", "print.key=true"),
        *(f"{part}.deserializer={_BYTES}" for part in ("key", "value", "headers")),
    ]
    where = ("--topic", TOPIC, "--partition", str(partition), "--offset", "earliest")
    printed = kafka.run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", servers, *where, "--isolation-level", isolation, "--timeout-ms", "5000"),
        *(argument for option in options for argument in ("--formatter-property", option)),
    ).stdout
    return printed.splitlines()


def test_the_java_console_consumer_prints_the_same(kafka: KafkaCluster, gateway: GatewayDaemon) -> None:
    through = console(kafka, gateway.bootstrap_server, "read_committed", 1)
    assert len(through) > 100
    assert through == console(kafka, kafka.bootstrap_servers, "read_committed", 1)


def test_the_java_perf_tools_send_and_get_all(kafka: KafkaCluster, gateway: GatewayDaemon) -> None:
    kafka.create_topic("perf", partitions=2)
    kafka.run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", "perf", "--num-records", "20000", "--record-size", "500", "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={gateway.bootstrap_server}", "acks=all"),
    )
    assert sum(kafka.admin.latest_offset("perf", partition) for partition in range(2)) == 20_000
    told = kafka.run_tool(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", gateway.bootstrap_server, "--topic", "perf", "--num-records", "20000"),
        *("--group", "perf", "--timeout", "30000"),
    ).stdout
    assert told.splitlines()[-1].split(", ")[4] == "20000"


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
async def test_an_aiokafka_group_reads_the_same(kafka: KafkaCluster, gateway: GatewayDaemon, isolation: str) -> None:
    read = [
        await _read_by_group(settings, f"{name}-{isolation}", isolation)
        for name, settings in (("direct", kafka.client_settings), ("through", gateway.client_settings))
    ]
    assert len(read[0]) > 900
    assert read[0] == read[1]


async def _read_by_group(settings: dict[str, str], group: str, isolation: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    async with AIOKafkaConsumer(
        TOPIC, group_id=group, isolation_level=isolation, auto_offset_reset="earliest", **settings
    ) as consumer:
        while not consumer.assignment():  # noqa: ASYNC110 - aiokafka has no event for it
            await asyncio.sleep(0.05)
        ends = await consumer.end_offsets(list(consumer.assignment()))
        while any([await consumer.position(one) < end for one, end in ends.items()]):
            for batch in (await consumer.getmany(timeout_ms=500)).values():
                found += [(r.partition, r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]
        await consumer.commit()
        committed = {one: await consumer.committed(one) for one in ends}
    assert committed == ends
    return sorted(found)


def test_clients_are_told_of_gateways_only(kafka: KafkaCluster, gateway: GatewayDaemon) -> None:
    port = int(gateway.bootstrap_server.rpartition(":")[2])
    brokers = KafkaAdmin(port=port, credentials=None).describe_cluster().brokers
    assert [(broker.host, broker.port) for broker in brokers] == [("127.0.0.1", port)]
    told = kafka.run_tool(
        "org.apache.kafka.tools.BrokerApiVersionsCommand", "--bootstrap-server", gateway.bootstrap_server
    ).stdout
    assert told.startswith(f"127.0.0.1:{port} (id: 1 ")
    assert kafka.brokers[0].bootstrap_server not in told
    quorum = kafka.run_tool(
        "org.apache.kafka.tools.MetadataQuorumCommand",
        *("--bootstrap-server", gateway.bootstrap_server, "describe", "--status"),
    ).stdout
    assert str(port) in quorum
    assert str(kafka.brokers[0].ports["CONTROLLER"]) not in quorum


def test_the_gateway_counts_what_it_does(gateway: GatewayDaemon) -> None:
    assert gateway.metric("tiersidecar_gateway_requests_total", listener="GATEWAY") > 10
    assert gateway.metric("tiersidecar_gateway_bytes_total", direction="in") > 1_000_000
    assert gateway.metric("tiersidecar_gateway_connections_closed_total", reason="malformed") == 0
    assert gateway.metric("tiersidecar_gateway_connections_closed_total", reason="error") == 0


def assert_not_ready_without_addresses(directory: Path, cluster: KafkaCluster) -> None:
    """Its clients would be told names of ``not-mapped.invalid`` for two brokers of three."""
    with GatewayDaemon(directory, cluster[1]) as gateway:

        def told() -> bool:
            status, body = gateway.status("/readyz")
            return status == 503 and "get no address for brokers" in body

        wait_for(told, "the gateway says what it lacks", gateway)
        assert gateway.metric("tiersidecar_gateway_unmapped_brokers") == 2


async def test_a_broker_that_restarts_ends_the_connections_of_its_clients_and_no_others(
    kafka_cluster: Any, tmp_path: Path
) -> None:
    """Three brokers, a listener in front of each; the producer goes on where leaders are."""
    cluster: KafkaCluster = await asyncio.to_thread(kafka_cluster, brokers=3)
    await asyncio.to_thread(cluster.create_topic, "moves", partitions=6)
    ports = {broker.node_id: free_port() for broker in cluster.brokers}
    nodes = {node_id: f"127.0.0.1:{port}" for node_id, port in ports.items()}
    listeners = [
        {
            "name": f"B{broker.node_id}",
            "listen": nodes[broker.node_id],
            "broker": broker.bootstrap_server,
            "advertised.nodes": nodes,
        }
        for broker in cluster.brokers
    ]
    await asyncio.to_thread(assert_not_ready_without_addresses, tmp_path / "unmapped", cluster)
    with GatewayDaemon(tmp_path / "gateway", cluster[1], listeners=listeners) as daemon:
        await asyncio.to_thread(daemon.wait_until_ready)
        settings = {"bootstrap_servers": ",".join(nodes.values())}
        acknowledged: list[bytes] = []
        async with AIOKafkaProducer(
            **settings, enable_idempotence=True, request_timeout_ms=60_000, metadata_max_age_ms=1000
        ) as producer:
            stopping = asyncio.Event()

            async def keep_producing() -> None:
                while not stopping.is_set():
                    value = json.dumps(len(acknowledged)).encode()
                    await producer.send_and_wait("moves", value, partition=len(acknowledged) % 6)
                    acknowledged.append(value)

            producing = asyncio.create_task(keep_producing())
            await _until(lambda: len(acknowledged) > 50, producing)
            before = {name: _lost_broker(daemon, name) for name in ("B1", "B2", "B3")}
            await asyncio.to_thread(cluster[2].restart)
            at_restart = len(acknowledged)
            await _until(lambda: len(acknowledged) > at_restart + 100, producing)
            stopping.set()
            await producing
        lost = {name: _lost_broker(daemon, name) - before[name] for name in before}
        assert lost["B2"] > 0
        assert (lost["B1"], lost["B3"]) == (0, 0)
        async with AIOKafkaConsumer(**settings) as consumer:
            partitions = [TopicPartition("moves", partition) for partition in range(6)]
            consumer.assign(partitions)
            await consumer.seek_to_beginning()
            values: list[bytes] = []
            async with asyncio.timeout(patient_s(60)):
                while len(values) < len(acknowledged):
                    for batch in (await consumer.getmany(timeout_ms=500)).values():
                        values += [record.value for record in batch]
        assert sorted(values) == sorted(acknowledged)


def _lost_broker(daemon: GatewayDaemon, listener: str) -> float:
    return daemon.metric("tiersidecar_gateway_connections_closed_total", listener=listener, reason="broker")


async def _until(condition: Any, working: asyncio.Task[None]) -> None:
    async with asyncio.timeout(patient_s(90)):
        while not condition():
            if working.done():
                working.result()
            await asyncio.sleep(0.05)
