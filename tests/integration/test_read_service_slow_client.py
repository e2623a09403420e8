"""A client that does not read: the service waits, holds no more than its window, and cuts it off in the end (U22)."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from tests.support.faulty_store import FaultyStore
from tests.support.inline_blocking import InlineBlocking
from tests.support.local_batches import LocalBatch, local_batches
from tests.support.remote_builder import RemoteBuilder, SegmentSource
from tests.support.remote_runs import open_run
from tests.support.scripted_authorizer import ScriptedAuthorizer
from tests.unit.services.reader.service import RunCatalogue
from tiersidecar.formats.kafka.record_batches import read_batch_header
from tiersidecar.reading.read_path import ReadSettings
from tiersidecar.services.http_listener import HttpServer
from tiersidecar.services.reader.server import ReaderServiceSettings, serve_reader

pytestmark = pytest.mark.slow

CHUNK = 256 * 1024
COPIES = 40


def moved(batch: LocalBatch, by: int) -> LocalBatch:
    """The same batch at a later offset: the base offset is outside of its checksum."""
    data = struct.pack(">q", batch.header.base_offset + by) + batch.data[8:]
    return LocalBatch(read_batch_header(data), data)


async def large_log() -> RemoteBuilder:
    """40 MiB: more than the buffers of both sockets take."""
    one = [batch for batch in local_batches("plain1m-0") if batch.header.base_offset < 2000]
    width = one[-1].header.next_offset
    builder = RemoteBuilder(chunk_size=CHUNK, index_interval=4096)
    batches = [moved(batch, copy * width) for copy in range(COPIES) for batch in one]
    await builder.add(SegmentSource(batches=batches, start_offset=0, end_offset=COPIES * width - 1))
    return builder


@asynccontextmanager
async def serving(
    write_timeout_s: float, least_bytes_per_s: int = 0
) -> AsyncIterator[tuple[HttpServer, FaultyStore, int]]:
    builder = await large_log()
    store = FaultyStore(builder.run.store)
    size = segment_size(builder)
    settings = ReadSettings(read_ahead_bytes=4 * CHUNK, chunk_cache_bytes=8 * CHUNK)
    async with (
        open_run(builder.run, store=store, settings=settings) as path,
        serve_reader(
            path=path,
            catalogue=RunCatalogue(builder.run),
            authorize=ScriptedAuthorizer(anonymous=["built"]),
            blocking=InlineBlocking(),
            settings=ReaderServiceSettings(
                port=0, write_timeout_s=write_timeout_s, least_taken_bytes_per_s=least_bytes_per_s
            ),
        ) as server,
    ):
        yield server, store, size


def segment_size(builder: RemoteBuilder) -> int:
    return next(iter(builder.run.metadata.list_remote_log_segments(builder.partition))).segment_size_in_bytes


async def ask(server: HttpServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request by a client with small buffers, which then reads nothing by itself."""
    raw = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    raw.settimeout(0)
    await asyncio.get_running_loop().sock_connect(raw, (server.host, server.port))
    reader, writer = await asyncio.open_connection(sock=raw, limit=4096)
    writer.write(b"GET /topics/built/partitions/0/batches?offset=0 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    await writer.drain()
    return reader, writer


async def until_it_rests(store: FaultyStore) -> int:
    """Chunks fetched once no more are."""
    await store.log_fetch_begun.wait()
    before = -1
    while before != len(store.log_fetches()):
        before = len(store.log_fetches())
        await asyncio.sleep(0.3)
    return before


async def test_what_the_client_does_not_take_is_not_fetched_either() -> None:
    async with serving(write_timeout_s=30) as (server, store, size):
        reader, writer = await ask(server)
        assert await until_it_rests(store) < size // CHUNK // 2
        received = 0
        while data := await reader.read(1 << 20):
            received += len(data)
        assert received > size, "the whole body, and what HTTP adds"
        writer.close()
        await writer.wait_closed()


async def test_a_client_that_takes_nothing_is_cut_off() -> None:
    async with serving(write_timeout_s=0.5) as (server, store, size):
        reader, writer = await ask(server)
        await until_it_rests(store)
        await asyncio.sleep(0.7)
        received = b""
        try:
            while data := await reader.read(1 << 20):
                received += data
        except ConnectionResetError:
            pass
        assert len(received) < size
        assert not received.endswith(b"0\r\n\r\n"), "no end of the body: the client knows that it lacks something"
        writer.close()


async def test_a_client_that_takes_a_little_now_and_then_is_cut_off() -> None:
    """It kept its place and a chunk for as long as it liked (issue 17)."""
    with capture_logs() as logs:
        async with serving(write_timeout_s=3, least_bytes_per_s=2**40) as (server, _, size):
            reader, writer = await ask(server)
            received = 0
            try:
                while data := await reader.read(128 * 1024):
                    received += len(data)
                    await asyncio.sleep(0.02)
            except ConnectionResetError:
                pass
            assert received < size
            writer.close()
    (told,) = [log for log in logs if log["event"] == "read.cut.off"]
    assert (told["address"], told["caller"]) == ("127.0.0.1", "")
    assert "the least" in told["reason"]
