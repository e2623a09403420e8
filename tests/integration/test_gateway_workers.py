"""A gateway of several worker processes before a real broker: one gateway for its clients, on several cores."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaError

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT, produce, started, wait_until_trimmed
from tests.support.daemon import Daemon, wait_for
from tests.support.gateway_workers import connections_of, worker_pids
from tests.support.java_clients import JavaClients
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_tools import KafkaTools
from tests.support.loopback_ports import free_port
from tests.support.patience import patient_s
from tests.support.produce import ProducedRecord
from tests.support.reading import Access, Reading

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

Record = tuple[int, bytes | None]
WORKERS = 2


@dataclass(frozen=True, slots=True)
class Tiered:
    """A topic of which ``records`` are remote, and what it takes to start a gateway for it."""

    topic: str
    records: list[Record]
    settings: dict[str, Any]

    def gateway(self, directory: Path, **gateway: Any) -> Daemon:
        listener = {"listen": f"127.0.0.1:{free_port()}", **gateway.pop("listener", {})}
        settings = {
            **self.settings,
            "state.dir": str(directory / "state"),
            "status": {"listen": f"127.0.0.1:{free_port()}"},
            "gateway": {"workers": WORKERS, "listeners": [listener], **gateway},
        }
        return Daemon(directory, settings, roles="gateway")


@pytest.fixture(scope="module")
def tiered(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiered]:
    topic = "gateway-workers"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produced: list[ProducedRecord] = produce(kafka, topic, total_bytes=1_000_000)
    with started(tmp_path_factory.mktemp("sidecar"), kafka, topic) as sidecar:
        sidecar.wait_until_ready()
        stop = wait_until_trimmed(kafka, sidecar, topic)
        records = [(record.offset, record.value) for record in produced if record.offset < stop]
        yield Tiered(topic, records, sidecar.settings)


def servers_of(gateway: Daemon) -> str:
    return str(gateway.settings["gateway"]["listeners"][0]["listen"])


def port_of(gateway: Daemon) -> int:
    return int(servers_of(gateway).rpartition(":")[2])


async def read_all(gateway: Daemon, tiered: Tiered) -> list[Record]:
    """All records that are remote, by a consumer that has to go on where a connection ends."""
    partition, found = TopicPartition(tiered.topic, 0), dict[int, bytes | None]()
    stop = tiered.records[-1][0] + 1
    async with AIOKafkaConsumer(
        bootstrap_servers=servers_of(gateway), auto_offset_reset="none", max_partition_fetch_bytes=20_000
    ) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        async with asyncio.timeout(patient_s(120)):
            while await consumer.position(partition) < stop:
                try:
                    batches = await consumer.getmany(timeout_ms=500)
                except KafkaError as error:
                    if not error.retriable:
                        raise
                    continue
                for records in batches.values():
                    found |= {record.offset: record.value for record in records}
    return [(offset, value) for offset, value in sorted(found.items()) if offset < stop]


async def test_clients_read_what_is_remote_through_each_worker(tiered: Tiered, tmp_path: Path) -> None:
    with tiered.gateway(tmp_path / "gateway") as gateway:
        await asyncio.to_thread(gateway.wait_until_ready)
        workers, port = worker_pids(gateway), port_of(gateway)
        assert len(workers) == WORKERS

        def filled_bytes() -> float:
            return gateway.metric("tiersidecar_gateway_filled_bytes_total")

        assert await read_all(gateway, tiered) == tiered.records
        of_one = await asyncio.to_thread(wait_for, filled_bytes, "what one reader was given", gateway)
        readers = [asyncio.create_task(read_all(gateway, tiered)) for _ in range(8)]
        most = dict.fromkeys(workers, 0)
        while not all(reader.done() for reader in readers):
            for pid in workers:
                most[pid] = max(most[pid], connections_of(pid, port))
            await asyncio.sleep(0.05)
        assert [reader.result() == tiered.records for reader in readers] == [True] * 8
        assert min(most.values()) > 0, "the system has given connections to each"
        assert connections_of(gateway.pid, port) == 0, "the process that started them serves no client"

        def counted() -> bool:
            sent = gateway.metric("tiersidecar_gateway_bytes_total", direction="out")
            return min(filled_bytes(), sent) >= float(8 * of_one)

        await asyncio.to_thread(wait_for, counted, "what all workers have counted is added up", gateway)
        assert gateway.metric("tiersidecar_gateway_workers") == WORKERS
        assert gateway.metric("tiersidecar_gateway_worker_starts_total") == WORKERS
        for number in range(1, WORKERS + 1):
            assert gateway.metric("tiersidecar_gateway_worker_resident_bytes", worker=str(number)) > 50_000_000
        assert all("worker" not in event for event in gateway.events("config.warning")), "said once"


def test_kafkas_console_consumer_reads_it(tiered: Tiered, tmp_path: Path) -> None:
    offsets = [offset for offset, _ in tiered.records]
    with tiered.gateway(tmp_path / "gateway") as gateway, KafkaTools(tmp_path) as tools:
        gateway.wait_until_ready()
        reading = Reading(topic=tiered.topic, ends={0: offsets[-1] + 1}, visible={0: offsets})
        seen = JavaClients(tools, tmp_path).console(Access(servers=servers_of(gateway)), reading)
        assert [one[1] for one in seen] == offsets


def test_the_limit_on_connections_is_one_for_all_workers(tiered: Tiered, tmp_path: Path) -> None:
    most = 6
    with tiered.gateway(tmp_path / "gateway", listener={"max.connections": most}) as gateway, ExitStack() as stack:
        gateway.wait_until_ready()
        workers, port = worker_pids(gateway), port_of(gateway)

        def held() -> list[int]:
            return [connections_of(pid, port) for pid in workers]

        def connect() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=patient_s(20)))

        kept = [connect() for _ in range(most)]
        wait_for(lambda: sum(held()) == most, "all that may be are connected", gateway)
        for _ in range(12):  # to each of them some, whatever the system does
            assert connect().recv(1) == b""
        assert sum(held()) == most
        refused = "tiersidecar_gateway_connections_refused_total"
        wait_for(lambda: gateway.metric(refused, reason="max_connections") == 12, "they are counted", gateway)
        assert gateway.metric("tiersidecar_gateway_connections") == most
        kept[0].close()
        wait_for(lambda: sum(held()) == most - 1, "one has gone", gateway)
        connect()
        wait_for(lambda: sum(held()) == most, "another has come", gateway)


def kill_while_it_serves(gateway: Daemon, number: int) -> None:
    """Kill a worker that has clients, and wait until another one is in its place."""
    victim = worker_pids(gateway)[number - 1]
    wait_for(lambda: connections_of(victim, port_of(gateway)), "it serves", gateway)
    os.kill(victim, signal.SIGKILL)

    def replaced() -> bool:
        workers = worker_pids(gateway)
        return len(workers) == WORKERS and victim not in workers

    wait_for(replaced, "another one has taken its place", gateway)


async def test_a_worker_that_is_killed_costs_its_clients_a_new_connection(tiered: Tiered, tmp_path: Path) -> None:
    stopping = asyncio.Event()

    async def keep_reading() -> int:
        rounds = 0
        while not stopping.is_set():
            try:
                assert await read_all(gateway, tiered) == tiered.records
            except KafkaConnectionError:
                continue  # its first connection ended, before it knew a broker
            rounds += 1
        return rounds

    with tiered.gateway(tmp_path / "gateway") as gateway:
        await asyncio.to_thread(gateway.wait_until_ready)
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(keep_reading()) for _ in range(8)]
            counted = 0.0
            for number in range(1, WORKERS + 1):
                await asyncio.to_thread(kill_while_it_serves, gateway, number)
                now = gateway.metric("tiersidecar_gateway_requests_total")
                assert now >= counted, "what the dead one had counted stays"
                counted = now
                await asyncio.to_thread(gateway.wait_until_ready)
            stopping.set()
        assert min(reader.result() for reader in readers) > 0
        assert gateway.metric("tiersidecar_gateway_worker_starts_total", reason="ended") == WORKERS
        (first, *_) = gateway.events("gateway.worker.ended")
        assert first["how"] == "it was ended by SIGKILL"


def test_a_stop_of_all_processes_of_the_unit_is_in_order(tiered: Tiered, tmp_path: Path) -> None:
    """As systemd has it: each process gets the signal, and a worker another word of it from the one that started it."""
    with tiered.gateway(tmp_path / "gateway") as gateway:
        gateway.wait_until_ready()
        for pid in worker_pids(gateway):
            os.kill(pid, signal.SIGTERM)
        assert gateway.stop() == 0
        assert len(gateway.events("daemon.stopped")) == 1 + WORKERS


def test_it_is_told_to_reload_and_to_stop_as_one(tiered: Tiered, tmp_path: Path) -> None:
    with tiered.gateway(tmp_path / "gateway") as gateway:
        gateway.wait_until_ready()
        workers = worker_pids(gateway)
        gateway.settings["remote.log.manager.fetch.max.bytes.per.second"] = 10_000_000
        gateway.write_config()
        gateway.send_signal(signal.SIGHUP)
        wait_for(lambda: len(gateway.events("config.reloaded")) == 1 + WORKERS, "all have reloaded", gateway)
        assert {event.get("worker") for event in gateway.events("config.reloaded")} == {None, 1, 2}
        with socket.create_connection(("127.0.0.1", port_of(gateway)), timeout=patient_s(20)) as client:
            wait_for(lambda: sum(connections_of(pid, port_of(gateway)) for pid in workers) == 1, "connected", gateway)
            assert gateway.stop() == 0
            assert client.recv(1) == b""
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
        assert len(gateway.events("daemon.stopped")) == 1 + WORKERS
        assert gateway.events("daemon.stop.late") == gateway.events("gateway.worker.stop_late") == []


def test_workers_end_with_the_process_that_started_them_and_it_can_begin_anew(tiered: Tiered, tmp_path: Path) -> None:
    with tiered.gateway(tmp_path / "gateway") as gateway:
        gateway.wait_until_ready()
        workers = worker_pids(gateway)
        os.kill(workers[0], signal.SIGSTOP)  # one that hangs has to end as well
        gateway.kill9()
        gateway.start()
        gateway.wait_until_ready()
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
        assert asyncio.run(read_all(gateway, tiered)) == tiered.records


def test_a_worker_that_begins_again_has_the_configuration_of_the_others_or_none(tiered: Tiered, tmp_path: Path) -> None:
    with tiered.gateway(tmp_path / "gateway") as gateway:
        gateway.wait_until_ready()
        gateway.settings["mode"] = "observe"
        gateway.write_config()  # for the next restart, an operator thinks
        os.kill(worker_pids(gateway)[0], signal.SIGKILL)
        wait_for(lambda: "exit code 2" in gateway.status("/readyz")[1], "it does not begin", gateway)
        assert "restart that process" in gateway.log_tail(200)
        assert asyncio.run(read_all(gateway, tiered)) == tiered.records, "the other one goes on"
        gateway.settings["mode"] = "enforce"
        gateway.write_config()
        gateway.wait_until_ready()
        assert gateway.stop() == 0


def test_what_cannot_work_ends_the_process_as_without_workers(tiered: Tiered, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        with tiered.gateway(tmp_path / "taken", listener={"listen": taken}) as gateway:
            assert gateway.wait_for_exit() == 1
            assert f"cannot listen on {taken}: address already in use" in gateway.log_tail()
    listener = {"ssl.certificate.location": str(tmp_path / "none.pem")}
    with tiered.gateway(tmp_path / "certificate", listener=listener) as gateway:
        assert gateway.wait_for_exit() == 2
        assert "none.pem cannot be used" in gateway.log_tail(200)


def test_the_other_roles_of_the_process_go_on_beside_its_workers(kafka: KafkaCluster, tmp_path: Path) -> None:
    """All roles in one process: it copies and trims, and its workers serve what is remote."""
    topic, servers = "gateway-workers-beside", f"127.0.0.1:{free_port()}"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produced = produce(kafka, topic, total_bytes=400_000)
    gateway = {"workers": WORKERS, "listeners": [{"listen": servers}]}
    with started(tmp_path, kafka, topic, gateway=gateway) as daemon:
        daemon.roles = "tier,read,gateway"
        daemon.kill9()
        daemon.start()
        daemon.wait_until_ready()
        stop = wait_until_trimmed(kafka, daemon, topic)
        records = [(record.offset, record.value) for record in produced if record.offset < stop]
        tiered = Tiered(topic, records, daemon.settings)
        assert asyncio.run(read_all(daemon, tiered)) == records
        os.kill(worker_pids(daemon)[0], signal.SIGKILL)
        produced += produce(kafka, topic, total_bytes=200_000, seed=1)
        assert wait_until_trimmed(kafka, daemon, topic) > stop
        daemon.wait_until_ready()
        assert daemon.stop() == 0
