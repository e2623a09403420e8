"""What a crowd's reads are held against: ranged GETs of as many bytes at random places, bare, and behind a plain HTTP server.

``python -m benchmarks.support.crowd_peers DIRECTORY``: that server, over the files in the directory; the first line printed is
its URL.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import obstore
import uvloop
from aiohttp import web
from obstore.store import LocalStore

from benchmarks.support.bare_reads import pread_file
from benchmarks.support.crowd import CLIENT_LIMIT_S, READ_BYTES
from benchmarks.support.read_server import allow_open_files

_AT_ONCE = 110
"""As many as our pool lets run and wait."""

Objects = Sequence[tuple[str, int]]
"""Keys and sizes."""


async def obstore_reads_per_s(root: Path, objects: Objects, *, seconds: float) -> float:
    """Ranged GETs of the files themselves, no server between."""
    store, counts = LocalStore(str(root)), [0] * _AT_ONCE
    deadline_s = time.perf_counter() + seconds

    async def reader(number: int) -> None:
        lots = random.Random(number)
        while time.perf_counter() < deadline_s:
            key, start = _any_range(lots, objects)
            await obstore.get_range_async(store, key, start=start, length=READ_BYTES)
            counts[number] += 1

    await asyncio.gather(*map(reader, range(_AT_ONCE)))
    return sum(counts) / seconds


async def bare_http_reads_per_s(root: Path, objects: Objects, *, readers: int, seconds: float) -> float:
    """``readers`` of a server that preads what it is asked for, with the client that reads from ours; nothing is checked."""
    counts, deadline_s = [0] * readers, 0.0
    async with _running_bare_server(root) as url, _session(url) as session:
        deadline_s = time.perf_counter() + seconds

        async def reader(number: int) -> None:
            lots = random.Random(number)
            while time.perf_counter() < deadline_s:
                key, start = _any_range(lots, objects)
                async with session.get("/", params={"key": key, "start": start}) as response:
                    await response.read()
                counts[number] += 1

        await asyncio.gather(*map(reader, range(readers)))
    return sum(counts) / seconds


def _any_range(lots: random.Random, objects: Objects) -> tuple[str, int]:
    key, size_bytes = lots.choice(objects)
    return key, lots.randrange(size_bytes - READ_BYTES)


def _session(url: str) -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=CLIENT_LIMIT_S)
    return aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0), timeout=timeout)


@asynccontextmanager
async def _running_bare_server(root: Path) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.support.crowd_peers", str(root), stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
    finally:
        process.kill()
        await process.wait()


async def _serve(root: Path) -> None:
    async def read(request: web.Request) -> web.Response:
        path, start = root / request.query["key"], int(request.query["start"])
        return web.Response(body=await asyncio.to_thread(pread_file, path, start, READ_BYTES))

    application = web.Application()
    application.router.add_get("/", read)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    allow_open_files()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(Path(sys.argv[1])))
