"""Reads of the same objects by bare clients, and the same file by sendfile: what ours is held against."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aioboto3
import obstore
from aiohttp import web
from crc32c import crc32c

from benchmarks.support.measure import MIB
from benchmarks.support.s3_clients import obstore_client
from tests.support.s3_server import S3Server
from tiersidecar.adapters.stores.s3_settings import S3Settings

CHUNK_BYTES = 4 * MIB
FetchRange = Callable[[str, int, int], Awaitable[int]]
"""Key, first byte, number of bytes; gives how many came."""


async def read_ranges(fetch: FetchRange, lanes: Iterable[Sequence[tuple[str, int]]]) -> None:
    """Each lane's objects (key, size) from front to back, a chunk at a time; the lanes at once."""

    async def lane(objects: Sequence[tuple[str, int]]) -> None:
        for key, size_bytes in objects:
            for start in range(0, size_bytes, CHUNK_BYTES):
                await fetch(key, start, min(CHUNK_BYTES, size_bytes - start))

    await asyncio.gather(*map(lane, lanes))


def by_pread(root: Path) -> FetchRange:
    """open, pread and close in a thread, as a client of a directory of objects has to."""

    async def fetch(key: str, start: int, size_bytes: int) -> int:
        return len(await asyncio.to_thread(pread_file, root / key, start, size_bytes))

    return fetch


def by_checked_pread(root: Path) -> FetchRange:
    """As :func:`by_pread`, and a CRC32C over all of it: whoever must not pass on damaged bytes cannot be quicker."""

    def read(key: str, start: int, size_bytes: int) -> int:
        data = pread_file(root / key, start, size_bytes)
        crc32c(data)
        return len(data)

    async def fetch(key: str, start: int, size_bytes: int) -> int:
        return await asyncio.to_thread(read, key, start, size_bytes)

    return fetch


@asynccontextmanager
async def plain_http(root: Path, objects: Sequence[tuple[str, int]]) -> AsyncIterator[str]:
    """The URL at which a plain aiohttp server streams the objects, a chunk after the other: what the hop itself costs."""

    async def read(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for key, size_bytes in objects:
            for start in range(0, size_bytes, CHUNK_BYTES):
                count = min(CHUNK_BYTES, size_bytes - start)
                await response.write(await asyncio.to_thread(pread_file, root / key, start, count))
        await response.write_eof()
        return response

    application = web.Application()
    application.router.add_get("/", read)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


def pread_file(path: Path, start: int, size_bytes: int) -> bytes:
    """One range of a file."""
    fileno = os.open(path, os.O_RDONLY)
    try:
        return os.pread(fileno, size_bytes, start)
    finally:
        os.close(fileno)


def by_obstore(settings: S3Settings, server: S3Server) -> FetchRange:
    """``get_range_async``: Rust underneath."""
    store = obstore_client(settings, server)

    async def fetch(key: str, start: int, size_bytes: int) -> int:
        return len(await obstore.get_range_async(store, key, start=start, length=size_bytes))

    return fetch


async def with_aioboto3(settings: S3Settings, work: Callable[[FetchRange], Awaitable[None]]) -> None:
    """``work`` with ``get_object`` and its ``Range``."""
    async with aioboto3.Session().client("s3", **settings.client_arguments()) as client:

        async def fetch(key: str, start: int, size_bytes: int) -> int:
            answer = await client.get_object(
                Bucket=settings.bucket, Key=key, Range=f"bytes={start}-{start + size_bytes - 1}"
            )
            async with answer["Body"] as body:
                return len(await body.read())

        await work(fetch)


def send_files(paths: Iterable[Path]) -> None:
    """``sendfile`` of whole files into a loopback connection that somebody drains."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        drain = threading.Thread(target=_connect_and_drain, args=(listener.getsockname(),))
        drain.start()
        connection, _ = listener.accept()
        with connection:
            for path in paths:
                with path.open("rb") as file:
                    connection.sendfile(file)
        drain.join()


def download(url: str) -> int:
    """GET over a raw connection, drained as :func:`send_files` is; gives the bytes with the head.

    Raises:
        RuntimeError: the answer is not 200.
    """
    target = urlsplit(url)
    with socket.create_connection((target.hostname or "", target.port or 80)) as connection:
        request = f"GET {target.path}?{target.query} HTTP/1.1\r\nHost: {target.netloc}\r\nConnection: close\r\n\r\n"
        connection.sendall(request.encode())
        head = connection.recv(15)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{url}: {head!r}")
        return len(head) + _drain(connection)


def _connect_and_drain(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as connection:
        _drain(connection)


def _drain(connection: socket.socket) -> int:
    buffer, total = bytearray(MIB), 0
    while count := connection.recv_into(buffer):
        total += count
    return total
