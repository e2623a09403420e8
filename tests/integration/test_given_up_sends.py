"""A send that was given up is not written when the broker is back: meanwhile its caller has answered otherwise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.support.kafka_cluster import KafkaCluster
from tests.support.patience import patient_s
from tiersidecar.adapters.kafka_clients import KafkaTopicClients
from tiersidecar.domain.errors import BrokerUnreachableError

pytestmark = pytest.mark.broker

_TOPIC = "given-up"


async def _values(cluster: KafkaCluster) -> list[bytes]:
    async with AIOKafkaConsumer(**cluster.client_settings, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(_TOPIC, 0)])
        await consumer.seek_to_beginning()
        end = (await consumer.end_offsets([TopicPartition(_TOPIC, 0)]))[TopicPartition(_TOPIC, 0)]
        values: list[bytes] = []
        while len(values) < end:
            values += [one.value for batch in (await consumer.getmany(timeout_ms=1000)).values() for one in batch]
        return values


def test_a_send_that_was_given_up_is_not_written_later(kafka_cluster: Callable[[], KafkaCluster]) -> None:
    """S-090: an idempotent producer would keep it until the broker is back, and write it before what is sent next."""
    cluster = kafka_cluster()
    cluster.create_topic(_TOPIC)
    broker = cluster.brokers[0]
    producer = KafkaTopicClients(cluster.bootstrap_servers, {}, client_id="given-up", fetch_max_wait_ms=500).producer()

    async def send(value: bytes) -> None:
        await producer.send(_TOPIC, partition=0, key=None, value=value, timestamp_ms=time.time_ns() // 1_000_000)

    async def send_in_time(value: bytes) -> None:
        async with asyncio.timeout(2):
            await send(value)

    async def story() -> list[bytes]:
        await send(b"before")
        broker.kill9()
        outcomes = await asyncio.gather(send_in_time(b"given up"), send(b"beside it"), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [TimeoutError, BrokerUnreachableError]
        await asyncio.to_thread(broker.start)
        await send(b"after")
        values = await _values(cluster)
        await producer.close()
        return values

    async def story_in_time() -> list[bytes]:
        async with asyncio.timeout(patient_s(45)):
            return await story()

    assert asyncio.run(story_in_time()) == [b"before", b"after"]


def test_a_send_that_comes_too_late_is_not_written(kafka_cluster: Callable[[], KafkaCluster]) -> None:
    """S-090: the process was stopped after it had begun.  When it goes on, what is to be sent comes before what is over."""
    cluster = kafka_cluster()
    cluster.create_topic(_TOPIC)
    producer = KafkaTopicClients(cluster.bootstrap_servers, {}, client_id="late", fetch_max_wait_ms=500).producer()

    async def send(value: bytes, sent_by_s: float | None = None) -> None:
        now_ms = time.time_ns() // 1_000_000
        await producer.send(_TOPIC, partition=0, key=None, value=value, timestamp_ms=now_ms, sent_by_s=sent_by_s)

    async def send_stopped(value: bytes) -> None:
        async with asyncio.timeout(0.2):
            sending = asyncio.ensure_future(send(value, time.monotonic() + 0.2))
            await asyncio.sleep(0)  # it is begun, and not on its way
            time.sleep(0.5)  # noqa: ASYNC251 - the whole process stands still
            await sending

    async def story() -> list[bytes]:
        await send(b"before", time.monotonic() + 10)
        outcomes = await asyncio.gather(send_stopped(b"too late"), send(b"beside it"), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [TimeoutError, BrokerUnreachableError]
        await send(b"after")
        values = await _values(cluster)
        await producer.close()
        return values

    async def story_in_time() -> list[bytes]:
        async with asyncio.timeout(patient_s(45)):
            return await story()

    assert asyncio.run(story_in_time()) == [b"before", b"after"]
