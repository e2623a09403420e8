"""What reading costs: ours against bare ranged GETs and sendfile, of the same objects in one run.

``benchmarks/read.py [--quick]``: a table, then the goals; exit code 1 if one is missed.  *cold* is a chunk cache of the
default size, empty at first, *warm* one that holds all; the store's files are in the page cache for everybody.
"""

from __future__ import annotations

import os
import sys

# Not this directory: a module of it has the name of one of the standard library.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib is not there yet

import argparse  # noqa: E402
import asyncio  # noqa: E402
import logging  # noqa: E402
import random  # noqa: E402
import shutil  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence  # noqa: E402
from contextlib import AbstractAsyncContextManager, asynccontextmanager  # noqa: E402
from dataclasses import dataclass, field, replace  # noqa: E402
from functools import partial  # noqa: E402
from pathlib import Path  # noqa: E402

import structlog  # noqa: E402
import uvloop  # noqa: E402

from benchmarks.support.bare_reads import (  # noqa: E402
    CHUNK_BYTES,
    FetchRange,
    by_checked_pread,
    by_obstore,
    by_pread,
    plain_http,
    read_ranges,
    send_files,
    with_aioboto3,
)
from benchmarks.support.drain import running_drain  # noqa: E402
from benchmarks.support.log_dir import LogDir, make_log_dir  # noqa: E402
from benchmarks.support.measure import MIB, Cost, cost_of, median  # noqa: E402
from benchmarks.support.our_copy import copy_all, filesystem_store, s3_store  # noqa: E402
from benchmarks.support.our_read import open_reads, open_service, partitions_of, read_all  # noqa: E402
from benchmarks.support.report import Goal, Report  # noqa: E402
from benchmarks.support.s3_clients import make_bucket  # noqa: E402
from tests.support.memory_metadata_log import MemoryMetadataLog  # noqa: E402
from tests.support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server, running_s3_server  # noqa: E402
from tiersidecar.adapters.allocator import reuse_freed_memory  # noqa: E402
from tiersidecar.adapters.stores.s3_settings import S3Settings  # noqa: E402
from tiersidecar.domain.ids import TopicIdPartition  # noqa: E402
from tiersidecar.domain.segments import RemoteLogSegmentMetadata  # noqa: E402
from tiersidecar.formats.aiven.keys import recorded_keys  # noqa: E402
from tiersidecar.ports.store import Store  # noqa: E402
from tiersidecar.reading.read_path import ReadPath, ReadSettings  # noqa: E402
from tiersidecar.services.reader.server import ReaderServiceSettings  # noqa: E402

STREAMS = 8
FIRST_READ_BYTES = 64 * 1024
_REQUIRED_MB_PER_S, _WHERE_BARE_MB_PER_S = 300, 600
_MB_PER_MIB = MIB / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is read: partitions of ``segments`` each.  ``runs``: the median of so many counts."""

    segment_bytes: int
    segments: int
    runs: int
    random_reads: int


FULL = Scale(segment_bytes=64 * MIB, segments=2, runs=5, random_reads=400)
QUICK = Scale(segment_bytes=32 * MIB, segments=1, runs=3, random_reads=100)


Client = Callable[[Callable[[FetchRange], Awaitable[None]]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A log dir in a store, and what the bare clients need to find it there."""

    name: str
    open_store: Callable[[], AbstractAsyncContextManager[Store]]
    metadata: MemoryMetadataLog
    root: Path
    clients: dict[str, Client]
    limits: dict[str, Client] = field(default_factory=dict)
    """Rows without a goal: what cannot be quicker, whoever does it."""

    @property
    def partitions(self) -> list[TopicIdPartition]:
        return partitions_of(self.metadata)

    def segments(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        return list(self.metadata.list_remote_log_segments(partition))

    def objects(self, partition: TopicIdPartition) -> Sequence[tuple[str, int]]:
        return [(recorded_keys(one).log, one.segment_size_in_bytes) for one in self.segments(partition)]

    def size_bytes(self, partitions: Sequence[TopicIdPartition]) -> int:
        return sum(size for partition in partitions for _, size in self.objects(partition))


class Bench:
    """One run in a scratch directory; every measurement is a row, some are goals."""

    def __init__(self, scratch: Path, scale: Scale, report: Report) -> None:
        self._scratch, self._scale, self._report = scratch, scale, report
        self._scratches = 0

    async def run(self) -> None:
        log_dir = self._log_dir(16 * 1024, partitions=STREAMS)
        async with self._in_directory(log_dir) as copied:
            await self._sequential(copied)
            await self._over_http(copied, log_dir)
            await self._random(copied)
        async with self._in_s3(log_dir) as copied:
            await self._sequential(copied)
            await self._random(copied)
        shutil.rmtree(log_dir.path)
        log_dir = self._log_dir(1024, partitions=1)
        async with self._in_directory(log_dir) as copied:
            await self._sequential(copied, batches="1 KiB", streams=(1,))

    # -- sequential

    async def _sequential(
        self, copied: Copied, *, batches: str = "16 KiB", streams: Sequence[int] = (1, STREAMS)
    ) -> None:
        for count in streams:
            partitions = copied.partitions[:count]
            label = f"{copied.name}, {count} stream(s), batches of {batches}"
            bare = await self._bare(copied, partitions)
            for name, cost in bare.items():
                self._report.row(f"{name}, {label}", cost)
            for name, client in copied.limits.items():
                self._report.row(f"{name}, {label}", await self._client(copied, partitions, client))
            cold, warm = await self._ours(copied, partitions)
            self._report.row(f"ours, cold, {label}", cold)
            self._report.row(f"ours, warm, {label}", warm)
            figure = f"{copied.name}_{count}" + ("" if batches == "16 KiB" else "_1kib")
            for name, cost in bare.items():
                of_bare = cold.mib_per_s / cost.mib_per_s
                self._goal(f"{figure}_of_{name}", of_bare, least=0.8 if count == 1 else 0.9)
            if max(cost.mib_per_s for cost in bare.values()) * _MB_PER_MIB >= _WHERE_BARE_MB_PER_S:
                self._goal(f"{figure}_mb_per_s", cold.mib_per_s * _MB_PER_MIB, least=_REQUIRED_MB_PER_S)

    async def _bare(self, copied: Copied, partitions: Sequence[TopicIdPartition]) -> dict[str, Cost]:
        return {name: await self._client(copied, partitions, client) for name, client in copied.clients.items()}

    async def _client(self, copied: Copied, partitions: Sequence[TopicIdPartition], client: Client) -> Cost:
        lanes = [copied.objects(partition) for partition in partitions]
        size_bytes = copied.size_bytes(partitions)
        return median(
            [
                await cost_of(size_bytes, lambda: client(partial(read_ranges, lanes=lanes)))
                for _ in range(self._scale.runs)
            ]
        )

    async def _ours(self, copied: Copied, partitions: Sequence[TopicIdPartition]) -> tuple[Cost, Cost]:
        size_bytes = copied.size_bytes(partitions)
        settings = ReadSettings(chunk_cache_bytes=2 * size_bytes)
        cold, warm = list[Cost](), list[Cost]()
        async with copied.open_store() as store:
            for _ in range(self._scale.runs):
                async with open_reads(store, copied.metadata, ReadSettings()) as (path, _):
                    cold.append(await cost_of(size_bytes, partial(_read_whole, path, partitions, size_bytes)))
                async with open_reads(store, copied.metadata, settings) as (path, _):
                    await _read_whole(path, partitions, size_bytes)
                    warm.append(await cost_of(size_bytes, partial(_read_whole, path, partitions, size_bytes)))
        return median(cold), median(warm)

    async def _over_http(self, copied: Copied, log_dir: LogDir) -> None:
        """One stream, into a client that throws it away."""
        partition, paths = copied.partitions[0], log_dir.segments[0]
        size_bytes = copied.size_bytes([partition])
        sent = [
            await cost_of(size_bytes, lambda: asyncio.to_thread(send_files, paths)) for _ in range(self._scale.runs)
        ]
        self._report.row("sendfile of the same files, loopback", median(sent))
        settings, service = ReadSettings(chunk_cache_bytes=2 * size_bytes), ReaderServiceSettings(port=0)
        plain, cold, warm = list[Cost](), list[Cost](), list[Cost]()
        async with copied.open_store() as store, running_drain() as drain:
            for _ in range(self._scale.runs):
                async with plain_http(copied.root, copied.objects(partition)) as url:
                    plain.append(await cost_of(size_bytes, lambda: drain(url)))  # noqa: B023
                async with open_service(store, copied.metadata, settings, service) as server:
                    url = f"{server.url}/topics/{partition.topic}/partitions/{partition.partition}/batches?offset=0"
                    for costs in (cold, warm):
                        costs.append(await cost_of(size_bytes, lambda: drain(url)))  # noqa: B023
        self._report.row("pread behind plain aiohttp, 1 stream", median(plain))
        self._report.row("ours, cold, HTTP, 1 stream, batches of 16 KiB", median(cold))
        self._report.row("ours, warm, HTTP, 1 stream, batches of 16 KiB", median(warm))
        self._report.line(f"ours, cold, is {median(cold).mib_per_s / median(plain).mib_per_s:.2f} of plain aiohttp")

    # -- random

    async def _random(self, copied: Copied) -> None:
        """Index warm, chunk cache cold.  The goals are against bare GETs of the chunk, which is what others have to fetch; ours
        fetches a part of it, so bare GETs of as many bytes as were wanted are told too."""
        lots = random.Random(11)
        reads = [self._random_read(copied, lots) for _ in range(self._scale.random_reads)]
        chunks = {name: await _times(client, reads, CHUNK_BYTES) for name, client in copied.clients.items()}
        parts = {name: await _times(client, reads, FIRST_READ_BYTES) for name, client in copied.clients.items()}
        ours = await self._our_random_reads(copied, reads)
        label = f"{copied.name}, first bytes at a random offset"
        for name, times in chunks.items():
            self._report.line(f"{name}, {label}, the chunk: {_percentiles(times)}")
            self._report.line(f"{name}, {label}, 64 KiB: {_percentiles(parts[name])}")
        ratios = ", ".join(
            f"{_percentile(ours, 50) / _percentile(parts[name], 50):.2f} of {name}'s 64 KiB" for name in parts
        )
        self._report.line(f"ours, {label}: {_percentiles(ours)}; p50 is {ratios}")
        for percentile in (50, 99):
            for name, times in chunks.items():
                of_bare = _percentile(ours, percentile) / _percentile(times, percentile)
                self._goal(f"{copied.name}_first_p{percentile}_of_{name}", of_bare, most=1.5)

    async def _our_random_reads(
        self, copied: Copied, reads: Sequence[tuple[RemoteLogSegmentMetadata, int]]
    ) -> list[float]:
        times = []
        async with (
            copied.open_store() as store,
            open_reads(store, copied.metadata, ReadSettings(chunk_cache_bytes=0)) as (path, _),
        ):
            for partition in copied.partitions:
                for segment in copied.segments(partition):
                    await path.indexes.indexes(segment)
                    await path.reader.read_batches(partition, segment.start_offset, max_bytes=1)
            for segment, offset in reads:
                read = path.reader.read_batches(segment.topic_id_partition, offset, max_bytes=FIRST_READ_BYTES)
                times.append(await _seconds(read))
        return times

    def _random_read(self, copied: Copied, lots: random.Random) -> tuple[RemoteLogSegmentMetadata, int]:
        segment = lots.choice(copied.segments(lots.choice(copied.partitions)))
        return segment, lots.randint(segment.start_offset, segment.end_offset)

    # -- stores

    @asynccontextmanager
    async def _in_directory(self, log_dir: LogDir) -> AsyncIterator[Copied]:
        root = self._new_directory()
        async with filesystem_store(root) as store:
            metadata = await copy_all(log_dir, store)
        fetch, checked = by_pread(root), by_checked_pread(root)
        yield Copied(
            name="filesystem",
            open_store=lambda: filesystem_store(root),
            metadata=metadata,
            root=root,
            clients={"pread": lambda work: work(fetch)},
            limits={"pread and CRC32C": lambda work: work(checked)},
        )
        shutil.rmtree(root)

    @asynccontextmanager
    async def _in_s3(self, log_dir: LogDir) -> AsyncIterator[Copied]:
        with running_s3_server(self._new_directory()) as server:
            settings = _s3_settings(server)
            await make_bucket(settings)
            async with s3_store(settings) as store:
                metadata = await copy_all(log_dir, store)
            by_rust = by_obstore(settings, server)
            yield Copied(
                name="s3",
                open_store=lambda: s3_store(settings),
                metadata=metadata,
                root=server.directory / settings.bucket,
                clients={
                    "aioboto3": lambda work: with_aioboto3(settings, work),
                    "obstore": lambda work: work(by_rust),
                },
            )

    # -- what all need

    def _log_dir(self, batch_bytes: int, *, partitions: int) -> LogDir:
        return make_log_dir(
            self._new_directory(),
            partitions=partitions,
            segments=partitions * self._scale.segments,
            segment_bytes=self._scale.segment_bytes,
            batch_bytes=batch_bytes,
        )

    def _new_directory(self) -> Path:
        self._scratches += 1
        return self._scratch / f"{self._scratches}"

    def _goal(self, name: str, figure: float, *, least: float | None = None, most: float | None = None) -> None:
        self._report.goals.append(Goal(name=name, figure=figure, least=least, most=most))


async def _read_whole(path: ReadPath, partitions: Sequence[TopicIdPartition], size_bytes: int) -> None:
    found = await read_all(path, partitions)
    if found != size_bytes:
        raise RuntimeError(f"{found} bytes were read of {size_bytes}")


async def _times(client: Client, reads: Sequence[tuple[RemoteLogSegmentMetadata, int]], size_bytes: int) -> list[float]:
    """Of GETs, each of ``size_bytes`` at a multiple of that, about where the offset is."""
    times: list[float] = []

    async def fetch_each(fetch: FetchRange) -> None:
        for segment, offset in reads:
            whole_bytes = segment.segment_size_in_bytes
            share = (offset - segment.start_offset) / (segment.end_offset - segment.start_offset + 1)
            start = int(whole_bytes * share) // size_bytes * size_bytes
            length = min(size_bytes, whole_bytes - start)
            times.append(await _seconds(fetch(recorded_keys(segment).log, start, length)))

    await client(fetch_each)
    return times


async def _seconds(work: Awaitable[object]) -> float:
    began_s = time.perf_counter()
    await work
    return time.perf_counter() - began_s


def _percentile(times: Sequence[float], percentile: int) -> float:
    return sorted(times)[min(len(times) * percentile // 100, len(times) - 1)]


def _percentiles(times: Sequence[float]) -> str:
    return ", ".join(f"p{percentile} {_percentile(times, percentile) * 1000:.2f} ms" for percentile in (50, 99))


def _s3_settings(server: S3Server) -> S3Settings:
    settings = S3Settings(bucket="bench", region="us-east-1", endpoint_url=server.url, addressing="path")
    return replace(settings, access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less data, fewer runs: under 45 seconds")
    scale = QUICK if parser.parse_args().quick else FULL
    reuse_freed_memory()  # as the daemon does; it holds for the bare clients too
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    report = Report()
    report.begin(
        f"read, {scale.segments} segment(s) of {scale.segment_bytes // MIB} MiB a partition, chunks of 4 MiB, "
        f"{os.cpu_count()} cores"
    )
    with (
        tempfile.TemporaryDirectory(prefix="bench-read-") as scratch,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(Bench(Path(scratch), scale, report).run())
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
