"""Producers through a gateway that is killed, to a broker that is killed: what was acknowledged is there, once (issue 9)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from tests.support.daemon import Daemon, daemon_settings
from tests.support.gateway import GatewayDaemon
from tests.support.kafka_admin import KafkaAdmin, KafkaAdminError, wait_until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.patience import patient_s

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

_KILLS = ("gateway", "broker")
_PROGRESS = 15


@dataclass(slots=True)
class Sent:
    """What one producer knows: ``acknowledged`` in order; ``unknown`` ended with an error, it may be there or not."""

    acknowledged: list[bytes] = field(default_factory=list)
    unknown: list[bytes] = field(default_factory=list)


async def produce_idempotently(settings: dict[str, Any], sent: Sent, stopping: asyncio.Event) -> None:
    """One record at a time; a producer that gives up is replaced."""
    while not stopping.is_set():
        try:
            async with AIOKafkaProducer(
                **settings, enable_idempotence=True, request_timeout_ms=60_000, metadata_max_age_ms=1000
            ) as producer:
                while not stopping.is_set():
                    value = b"%d" % (len(sent.acknowledged) + len(sent.unknown))
                    sent.unknown.append(value)
                    await producer.send_and_wait("idempotent", value, partition=0)
                    sent.unknown.remove(value)
                    sent.acknowledged.append(value)
        except KafkaError:
            await asyncio.sleep(0.2)


async def produce_in_transactions(settings: dict[str, Any], sent: Sent, stopping: asyncio.Event) -> None:
    """Transactions of two records to two partitions; ``sent`` has the names of transactions."""
    while not stopping.is_set():
        try:
            async with AIOKafkaProducer(
                **settings, transactional_id="tx", request_timeout_ms=30_000, metadata_max_age_ms=1000
            ) as producer:
                while not stopping.is_set():
                    name = b"%d" % (len(sent.acknowledged) + len(sent.unknown))
                    sent.unknown.append(name)
                    async with producer.transaction():
                        for partition in range(2):
                            await producer.send("transactional", name, partition=partition)
                    sent.unknown.remove(name)
                    sent.acknowledged.append(name)
        except KafkaError:
            await asyncio.sleep(0.2)


async def read_all(cluster: KafkaCluster, topic: str, partitions: int, isolation: str) -> list[list[bytes]]:
    """All values per partition, directly from the broker; committed ones end before open transactions."""
    found: list[list[bytes]] = []
    async with AIOKafkaConsumer(**cluster.client_settings, isolation_level=isolation) as consumer:
        for partition in range(partitions):
            one = TopicPartition(topic, partition)
            consumer.assign([one])
            consumer.seek(one, 0)
            end, values = (await consumer.end_offsets([one]))[one], list[bytes]()
            async with asyncio.timeout(patient_s(60)):
                while await consumer.position(one) < end:
                    for batch in (await consumer.getmany(timeout_ms=500)).values():
                        values += [record.value for record in batch]
            found.append(values)
    return found


async def test_what_was_acknowledged_survives_kills_of_gateway_and_broker(kafka_cluster: Any, tmp_path: Path) -> None:
    cluster: KafkaCluster = await asyncio.to_thread(kafka_cluster)
    for topic, partitions in (("idempotent", 1), ("transactional", 2)):
        await asyncio.to_thread(cluster.create_topic, topic, partitions=partitions)
    idempotent, transactional, stopping = Sent(), Sent(), asyncio.Event()
    with GatewayDaemon(tmp_path / "gateway", cluster[1]) as gateway:
        await asyncio.to_thread(gateway.wait_until_ready)
        settings: dict[str, Any] = dict(gateway.client_settings)
        async with asyncio.TaskGroup() as group:
            group.create_task(produce_idempotently(settings, idempotent, stopping))
            group.create_task(produce_in_transactions(settings, transactional, stopping))
            for victim in _KILLS:
                await _progress(idempotent, transactional)
                if victim == "gateway":
                    await asyncio.to_thread(gateway.kill9)
                    await asyncio.to_thread(gateway.start)
                else:
                    await asyncio.to_thread(cluster[1].kill9)
                    await asyncio.to_thread(cluster[1].start)
            await _progress(idempotent, transactional)
            stopping.set()
        assert gateway.metric("tiersidecar_gateway_connections_closed_total", reason="malformed") == 0
        assert gateway.metric("tiersidecar_gateway_connections_closed_total", reason="error") == 0
    (there,) = await read_all(cluster, "idempotent", 1, "read_uncommitted")
    assert len(there) == len(set(there)), "nothing is there twice"
    assert set(idempotent.acknowledged) <= set(there) <= set(idempotent.acknowledged) | set(idempotent.unknown)
    assert there == sorted(there, key=int), "in the order in which it was sent"
    first, second = await read_all(cluster, "transactional", 2, "read_committed")
    assert first == second, "a transaction is in both partitions or in none"
    assert len(first) == len(set(first))
    assert set(transactional.acknowledged) <= set(first)
    assert set(first) <= set(transactional.acknowledged) | set(transactional.unknown)


async def test_a_users_delete_holds_for_readers_after_a_crash_of_the_broker(kafka_cluster: Any, tmp_path: Path) -> None:
    """The broker writes its log start down once a minute: after the crash it begins at 0 again, and no leader's sidecar is
    there to repeat the delete."""
    cluster: KafkaCluster = await asyncio.to_thread(kafka_cluster)
    topic, deleted_to, end = "forgotten", 50, 200
    await asyncio.to_thread(cluster.create_topic, topic, configs={"retention.ms": "-1", "retention.bytes": "-1"})
    async with AIOKafkaProducer(**cluster.client_settings) as producer:
        for number in range(end):
            await producer.send_and_wait(topic, b"%d" % number, partition=0)
    with GatewayDaemon(tmp_path / "gateway", cluster[1], topics=[{"name": topic}]) as gateway:
        await asyncio.to_thread(gateway.wait_until_ready)
        through = KafkaAdmin(port=int(gateway.bootstrap_server.rpartition(":")[2]))
        with _sidecar(tmp_path / "sidecar", cluster, topic) as sidecar:
            await asyncio.to_thread(sidecar.wait_until_ready)
            assert await asyncio.to_thread(wait_until, lambda: _deleted(through, topic, deleted_to), "it is deleted")
        await asyncio.to_thread(cluster[1].kill9)
        await asyncio.to_thread(cluster[1].start)
        direct = await asyncio.to_thread(wait_until, lambda: _earliest(cluster.admin, topic), "the broker is up")
        assert direct == (0,), "it has forgotten the delete"
        await asyncio.to_thread(wait_until, lambda: _earliest(through, topic) == (deleted_to,), "the gateway has not")
        one = TopicPartition(topic, 0)
        async with AIOKafkaConsumer(**gateway.client_settings, auto_offset_reset="none") as consumer:
            consumer.assign([one])
            consumer.seek(one, deleted_to - 1)
            with pytest.raises(OffsetOutOfRangeError):
                async with asyncio.timeout(patient_s(60)):
                    await consumer.getone()
            consumer.seek(one, deleted_to)
            async with asyncio.timeout(patient_s(60)):
                assert [int((await consumer.getone()).value or b"") for _ in range(end - deleted_to)] == [
                    *range(deleted_to, end)
                ]
        async with AIOKafkaConsumer(**cluster.client_settings) as consumer:
            consumer.assign([one])
            consumer.seek(one, 0)
            async with asyncio.timeout(patient_s(60)):
                assert (await consumer.getone()).value == b"0", "who goes around the gateway reads it"


def _sidecar(directory: Path, cluster: KafkaCluster, topic: str) -> Daemon:
    """The leader's, which decides what the gateway proposes."""
    settings = daemon_settings(
        directory,
        bootstrap_servers=cluster.bootstrap_servers,
        log_dirs=list(cluster[1].log_dirs),
        topics=[{"name": topic}],
    )
    return Daemon(directory, settings, roles="tier")


def _deleted(through: KafkaAdmin, topic: str, offset: int) -> int | None:
    """None: the gateway has not met the topic yet."""
    try:
        return through.delete_records(topic, 0, offset)
    except KafkaAdminError:
        return None


def _earliest(admin: KafkaAdmin, topic: str) -> tuple[int] | None:
    try:
        return (admin.earliest_offset(topic, 0),)
    except (KafkaAdminError, OSError):
        return None


async def _progress(*all_sent: Sent) -> None:
    """Until each has acknowledged some more."""
    goals = [(sent, len(sent.acknowledged) + _PROGRESS) for sent in all_sent]
    async with asyncio.timeout(patient_s(180)):
        while any(len(sent.acknowledged) < goal for sent, goal in goals):  # noqa: ASYNC110 - producers, not events
            await asyncio.sleep(0.05)
