"""A gateway with a thousand connections, most of them silent: what each costs, and whether the busy ones are served alike."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from tiersidecar.adapters.kafka import apis
from tiersidecar.formats.wire.framing import write_request

_FETCH_VERSION = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """``least`` and ``most`` are the round trips of the slowest and the fastest busy connection, beside ``median``."""

    idle: int
    busy: int
    bytes_per_connection: float
    least: int
    median: int
    most: int


def crowd(
    servers: str, topic_id: bytes, *, idle: int, busy: int, seconds: float, rss_bytes: Callable[[], int]
) -> Crowd:
    """``idle`` connections that have said one thing, and ``busy`` that fetch a small record again and again."""
    return asyncio.run(_crowd(servers, topic_id, idle, busy, seconds, rss_bytes))


async def _crowd(
    servers: str, topic_id: bytes, idle: int, busy: int, seconds: float, rss_bytes: Callable[[], int]
) -> Crowd:
    host, _, port = servers.rpartition(":")
    fetch = write_request(
        apis.fetch(_FETCH_VERSION, topic_id, 0, 0, max_bytes=1, read_committed=False), correlation_id=1, client_id="one"
    )
    before = rss_bytes()
    opened = [await asyncio.open_connection(host, int(port)) for _ in range(idle + busy)]
    try:
        for peer in opened:
            await _round_trip(*peer, fetch)
        used = rss_bytes() - before
        until = time.monotonic() + seconds
        counts = sorted(await asyncio.gather(*(_keep_asking(*peer, fetch, until) for peer in opened[:busy])))
    finally:
        for _, writer in opened:
            writer.close()
    return Crowd(
        idle=idle,
        busy=busy,
        bytes_per_connection=used / len(opened),
        least=counts[0],
        median=counts[len(counts) // 2],
        most=counts[-1],
    )


async def _keep_asking(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame: bytes, until: float) -> int:
    number = 0
    while time.monotonic() < until:
        await _round_trip(reader, writer, frame)
        number += 1
    return number


async def _round_trip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(frame)
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    await reader.readexactly(size)
