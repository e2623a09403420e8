"""A client of HTTP in a process of its own that throws away what it gets: its time is not the server's.

``python -m benchmarks.support.drain``: a URL a line on stdin; for each, what came, on stdout.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from benchmarks.support.bare_reads import download

Drain = Callable[[str], Awaitable[int]]
"""GET; gives the bytes with the head."""


@asynccontextmanager
async def running_drain() -> AsyncIterator[Drain]:
    """The client, ready."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.support.drain", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout
    await stdout.readline()

    async def drain(url: str) -> int:
        stdin.write(f"{url}\n".encode())
        answer = await stdout.readline()
        if not answer:
            raise RuntimeError(f"{url} did not come")
        return int(answer)

    try:
        yield drain
    finally:
        process.kill()
        await process.wait()


if __name__ == "__main__":
    print("ready", flush=True)
    for line in sys.stdin:
        print(download(line.strip()), flush=True)
