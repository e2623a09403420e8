"""A send that was given up is not written when the broker is back: meanwhile its caller has answered otherwise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.support.kafka_cluster import KafkaCluster
from tests.support.patience import patient_s
from tiersidecar.adapters.clock import SystemClock
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


@pytest.mark.parametrize(
    "place",
    ["before aiokafka has it", "before a request is made of it", "right before it is sent", "while it connects anew"],
)
def test_nor_is_one_whose_time_passed_while_the_process_was_stopped(
    kafka_cluster: Callable[[], KafkaCluster], place: str
) -> None:
    """No timer runs in a process that is stopped: when it goes on, its sender comes first.  Another process may have taken over
    meanwhile, and what it has done must not be undone."""
    cluster = kafka_cluster()
    cluster.create_topic(_TOPIC)
    producer = KafkaTopicClients(cluster.bootstrap_servers, {}, client_id="stopped", fetch_max_wait_ms=500).producer()

    async def send(value: bytes, until_s: float | None = None) -> None:
        now_ms = time.time_ns() // 1_000_000
        await producer.send(_TOPIC, partition=0, key=None, value=value, timestamp_ms=now_ms, until_s=until_s)

    async def story() -> list[bytes]:
        await send(b"before", SystemClock().monotonic_s() + 60)
        assert producer._producer is not None
        inner = producer._producer
        match place:
            case "before aiokafka has it":
                inner.send = _stopped_once(inner.send)
            case "before a request is made of it":
                inner._sender._send_produce_req = _stopped_once(inner._sender._send_produce_req)
            case "right before it is sent":
                inner.client.ready = _stopped_once(inner.client.ready)
            case _:
                inner.client.ready = _not_ready_and_then_stopped(inner.client.ready)
        with pytest.raises(BrokerUnreachableError, match="given up"):
            await send(b"late", SystemClock().monotonic_s() + 0.5)
        await send(b"after", SystemClock().monotonic_s() + 60)
        values = await _values(cluster)
        await producer.close()
        return values

    async def story_in_time() -> list[bytes]:
        async with asyncio.timeout(patient_s(45)):
            return await story()

    assert asyncio.run(story_in_time()) == [b"before", b"after"]


def _not_ready_and_then_stopped(ready: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``ready``, which first gets no connection, and then one after a second in which the process stands still."""
    stopped = _stopped_once(ready)
    answers = iter([False])

    async def asked(*args: Any, **options: Any) -> Any:
        return next(answers, None) is not False and await stopped(*args, **options)

    return asked


def _stopped_once(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``call``, before which the whole process stands still for a second; but not a second time."""
    stops = iter([1.0])

    async def stopped(*args: Any, **options: Any) -> Any:
        time.sleep(next(stops, 0.0))  # noqa: ASYNC251 - nor do the loop's timers run
        return await call(*args, **options)

    return stopped
