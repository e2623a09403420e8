"""By Kafka's default settings a broker makes a topic that a client asks for: ours ask so that it does not."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.protocol.admin import ApiVersionResponse_v0
from aiokafka.protocol.metadata import MetadataRequest_v5, MetadataResponse_v5
from aiokafka.protocol.transaction import InitProducerIdResponse_v0

from tiersidecar.adapters.kafka_clients import KafkaTopicClients
from tiersidecar.domain.errors import RetriableError

TOPIC = "__events"
METADATA, API_VERSIONS = MetadataResponse_v5.API_KEY, ApiVersionResponse_v0.API_KEY
PRODUCE, INIT_PRODUCER_ID = 0, InitProducerIdResponse_v0.API_KEY
UNKNOWN_TOPIC_OR_PARTITION = 3


class MissingTopicBroker:
    """Has no topic at all; ``allowed`` is what each Metadata request for a topic allowed it to create."""

    def __init__(self) -> None:
        self.port = 0
        self.allowed: list[bool] = []
        self.was_asked = asyncio.Event()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield f"127.0.0.1:{self.port}"
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                request = await reader.readexactly(size)
                api_key, _, correlation_id, client_id = struct.unpack_from(">hhih", request)
                answer = struct.pack(">i", correlation_id) + self._answer(api_key, request[10 + client_id :]).encode()
                writer.write(struct.pack(">i", len(answer)) + answer)
        writer.transport.abort()

    def _answer(self, api_key: int, body: bytes) -> Any:
        if api_key == API_VERSIONS:
            return ApiVersionResponse_v0(
                0, [(PRODUCE, 0, 7), (METADATA, 0, 5), (API_VERSIONS, 0, 0), (INIT_PRODUCER_ID, 0, 0)]
            )
        if api_key == INIT_PRODUCER_ID:
            return InitProducerIdResponse_v0(0, 0, 7, 0)
        asked = MetadataRequest_v5.decode(body)
        if asked.topics:
            self.allowed.append(asked.allow_auto_topic_creation)
            self.was_asked.set()
        missing: list[Any] = [(UNKNOWN_TOPIC_OR_PARTITION, topic, False, []) for topic in asked.topics or []]
        return MetadataResponse_v5(0, [(1, "127.0.0.1", self.port, None)], "cluster", 1, missing)


async def consume(clients: KafkaTopicClients) -> None:
    async with clients.open_consumer() as consumer:
        consumer.assign([TopicPartition(TOPIC, 0)])
        consumer.seek(TopicPartition(TOPIC, 0), 0)
        await consumer.getmany(timeout_ms=60_000)


async def produce(clients: KafkaTopicClients) -> None:
    producer = clients.producer()
    try:
        with suppress(RetriableError):
            await producer.send(TOPIC, partition=0, key=None, value=b"", timestamp_ms=0)
    finally:
        await producer.close()


@pytest.mark.parametrize("use", [consume, produce])
async def test_a_topic_that_is_gone_is_not_asked_for_so_that_it_comes_back(use: Any) -> None:
    """With auto.create.topics.enable, the default, a deleted topic came back empty, with one partition."""
    broker = MissingTopicBroker()
    async with broker.listening() as bootstrap_servers:
        using = asyncio.create_task(
            use(KafkaTopicClients(bootstrap_servers, {}, client_id="test", fetch_max_wait_ms=500))
        )
        async with asyncio.timeout(30):
            await broker.was_asked.wait()
        using.cancel()
        with suppress(asyncio.CancelledError):
            await using
    assert set(broker.allowed) == {False}
