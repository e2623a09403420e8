"""A client that is cancelled while it waits for its first metadata leaves a connection that only aiokafka can close: it does
so, and the log has no error."""

from __future__ import annotations

import asyncio
import gc
import io
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.protocol.admin import ApiVersionResponse_v0
from aiokafka.protocol.metadata import MetadataResponse_v1

from tests.unit.app.test_logging import lines, logging_as_before
from tiersidecar.adapters.kafka_clients import KafkaTopicClients
from tiersidecar.app.config.services import LoggingSection
from tiersidecar.app.logging import configure_logging

METADATA, API_VERSIONS = MetadataResponse_v1.API_KEY, ApiVersionResponse_v0.API_KEY
WAIT_S = 30.0

__all__ = ["logging_as_before"]


class SilentBroker:
    """Answers ApiVersions, and nothing else.  ``is_asked``: it has a Metadata request; ``is_left``: its client has hung up."""

    def __init__(self) -> None:
        self.is_asked, self.is_left = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                api_key, _, correlation_id = struct.unpack_from(">hhi", await reader.readexactly(size))
                if api_key == METADATA:
                    self.is_asked.set()
                    continue
                known = ApiVersionResponse_v0(0, [(METADATA, 1, 1), (API_VERSIONS, 0, 0)])
                answer = struct.pack(">i", correlation_id) + known.encode()
                writer.write(struct.pack(">i", len(answer)) + answer)
        self.is_left.set()
        writer.transport.abort()


async def consume(clients: KafkaTopicClients) -> None:
    async with clients.open_consumer():
        raise AssertionError("it has no metadata")


async def produce(clients: KafkaTopicClients) -> None:
    await clients.producer().send("orders", partition=0, key=None, value=b"", timestamp_ms=0)


@pytest.mark.parametrize("use", [consume, produce])
async def test_the_connection_of_a_cancelled_bootstrap_is_closed_and_not_reported(use: Any) -> None:
    out, broker = io.StringIO(), SilentBroker()
    configure_logging(LoggingSection(), out)
    async with broker.listening() as bootstrap_servers:
        clients = KafkaTopicClients(bootstrap_servers, {}, client_id="test", fetch_max_wait_ms=500)
        using = asyncio.create_task(use(clients))
        async with asyncio.timeout(WAIT_S):
            await broker.is_asked.wait()
            using.cancel()
            await asyncio.wait([using])
            del using
            gc.collect()
            await broker.is_left.wait()
    assert lines(out) == []


async def test_a_consumer_that_is_left_open_is_reported() -> None:
    out = io.StringIO()
    configure_logging(LoggingSection(), out)
    AIOKafkaConsumer(bootstrap_servers="127.0.0.1:1")
    gc.collect()
    (line,) = lines(out)
    assert line["event"].startswith("Unclosed AIOKafkaConsumer\n")
