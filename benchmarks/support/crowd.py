"""Many readers of one read service at once, each at one random offset after the other."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp

from benchmarks.support.our_read import partitions_of
from tests.support.memory_metadata_log import MemoryMetadataLog
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.formats.kafka.record_batches import check_batch, iter_batch_headers

READ_BYTES = 64 * 1024
CLIENT_LIMIT_S = 60


@dataclass(slots=True)
class Tally:
    """``shed`` are answers 429; ``faults`` is what must not be: other statuses, wrong bytes, broken connections."""

    reads: int = 0
    shed: int = 0
    size_bytes: int = 0
    faults: list[str] = field(default_factory=list)
    slowest_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A partition and its end offset (exclusive)."""

    partition: TopicIdPartition
    end_offset: int


def targets_in(metadata: MemoryMetadataLog) -> list[Target]:
    """All partitions that were copied."""
    return [
        Target(
            partition=partition,
            end_offset=max(segment.next_offset for segment in metadata.list_remote_log_segments(partition)),
        )
        for partition in partitions_of(metadata)
    ]


async def read_as_crowd(url: str, targets: Sequence[Target], *, readers: int, seconds: float) -> Tally:
    """``readers`` at once for ``seconds``; who is shed comes back after what ``Retry-After`` says, give or take a half."""
    tally, deadline_s = Tally(), time.perf_counter() + seconds
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        url, connector=connector, timeout=aiohttp.ClientTimeout(total=CLIENT_LIMIT_S)
    ) as session:
        await asyncio.gather(
            *(_reader(session, targets, random.Random(number), deadline_s, tally) for number in range(readers))
        )
    return tally


async def _reader(
    session: aiohttp.ClientSession, targets: Sequence[Target], lots: random.Random, deadline_s: float, tally: Tally
) -> None:
    while time.perf_counter() < deadline_s:
        target = lots.choice(targets)
        offset = lots.randrange(target.end_offset)
        path = f"/topics/{target.partition.topic}/partitions/{target.partition.partition}/batches"
        began_s = time.perf_counter()
        try:
            async with session.get(path, params={"offset": offset, "max_bytes": READ_BYTES}) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            tally.faults.append(repr(error))
            continue
        if response.status == 429:
            tally.shed += 1
            await asyncio.sleep(int(response.headers["Retry-After"]) * lots.uniform(0.5, 1.5))
            continue
        tally.slowest_s = max(tally.slowest_s, time.perf_counter() - began_s)
        tally.reads += 1
        tally.size_bytes += len(body)
        if fault := _fault_in(body, response.status, offset):
            tally.faults.append(fault)


def _fault_in(body: bytes, status: int, offset: int) -> str:
    if status != 200:
        return f"status {status}: {body[:200]!r}"
    next_offset = None
    for position, header in iter_batch_headers(body):
        check_batch(memoryview(body)[position:], header, where="body", position=position)
        if next_offset is None and not header.base_offset <= offset <= header.last_offset:
            return f"asked for {offset}, got {header.base_offset} to {header.last_offset}"
        if next_offset is not None and header.base_offset != next_offset:
            return f"a hole between {next_offset} and {header.base_offset}"
        next_offset = header.next_offset
    return "" if next_offset is not None else f"nothing at {offset}"
