"""A consumer ends at once, also while a broker holds its Fetch: over TLS the end of a connection takes both sides."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.protocol.admin import ApiVersionResponse_v0
from aiokafka.protocol.fetch import FetchResponse_v4
from aiokafka.protocol.metadata import MetadataResponse_v1

from tests.support.certificates import CertificateAuthority
from tiersidecar.adapters.kafka_clients import open_consumer

TOPIC = "__events"
WAIT_S = 30.0
STOP_S = 5.0
"""Less than a Fetch that is never answered, and than the time after which a stop is given up."""
FETCH, METADATA, API_VERSIONS = FetchResponse_v4.API_KEY, MetadataResponse_v1.API_KEY, ApiVersionResponse_v0.API_KEY


class HoldingBroker:
    """Leads partition 0 of ``TOPIC``, and holds each Fetch for good: it reads nothing more of a connection with one."""

    def __init__(self) -> None:
        self.port = 0
        self.holds = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def listening(self, tls: ssl.SSLContext | None) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                api_key, _, correlation_id = struct.unpack_from(">hhi", await reader.readexactly(size))
                if api_key == FETCH:
                    writer.transport.pause_reading()  # type: ignore[attr-defined]  # its reading half, too
                    self.holds.set()
                    return
                answer = struct.pack(">i", correlation_id) + self._answer(api_key).encode()
                writer.write(struct.pack(">i", len(answer)) + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.transport.abort()

    def _answer(self, api_key: int) -> Any:
        if api_key == API_VERSIONS:
            return ApiVersionResponse_v0(0, [(FETCH, 4, 4), (METADATA, 1, 1), (API_VERSIONS, 0, 0)])
        assert api_key == METADATA
        partitions = [(0, 0, 1, [1], [1])]
        return MetadataResponse_v1([(1, "localhost", self.port, None)], 1, [(0, TOPIC, False, partitions)])


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
async def test_a_consumer_is_stopped_while_its_fetch_is_held(tmp_path: Path, *, is_tls: bool) -> None:
    """Until the broker had answered, so did the stop of a daemon and the give-back of its lease."""
    served: ssl.SSLContext | None = None
    security: dict[str, Any] = {}
    if is_tls:
        authority = CertificateAuthority(tmp_path)
        issued = authority.issue("broker")
        served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        served.load_cert_chain(issued.certificate_path, issued.key_path)
        trusting = ssl.create_default_context(cafile=str(authority.authority_path))
        security = {"security_protocol": "SSL", "ssl_context": trusting}
    broker = HoldingBroker()
    async with broker.listening(served):
        opened = open_consumer(f"localhost:{broker.port}", security, client_id="test", fetch_max_wait_ms=60_000)
        consumer = await opened.__aenter__()
        consumer.assign([TopicPartition(TOPIC, 0)])
        consumer.seek(TopicPartition(TOPIC, 0), 5)
        async with asyncio.timeout(WAIT_S):
            await broker.holds.wait()
        async with asyncio.timeout(STOP_S):
            await opened.__aexit__(None, None, None)
