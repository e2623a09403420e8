"""What reading costs: ours against bare ranged GETs and sendfile, of the same objects in one run.

``benchmarks/read.py [--quick]``: a table, then the goals; exit code 1 if one is missed.  *cold* is a chunk cache of the
default size, empty at first, *warm* one that holds all; the store's files are in the page cache for everybody.

All take their turns in each round, and what counts is the median of the rounds' own ratios.  Sequential reads are held against
ranged GETs of a chunk each: of files, with the CRC32C that nobody can do without who must not pass on damaged bytes; of S3, of
which nothing is checked.  First bytes are held against a GET of the chunk; that of the 64 KiB alone that are wanted, which is
stricter, is printed beside it.
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
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence  # noqa: E402
from contextlib import AsyncExitStack, asynccontextmanager  # noqa: E402
from dataclasses import dataclass, replace  # noqa: E402
from functools import partial  # noqa: E402
from pathlib import Path  # noqa: E402
from statistics import median as middle  # noqa: E402

import structlog  # noqa: E402
import uvloop  # noqa: E402

from benchmarks.support.bare_reads import (  # noqa: E402
    CHUNK_BYTES,
    by_checked_pread,
    by_obstore,
    by_pread,
    plain_http,
    send_files,
    with_aioboto3,
)
from benchmarks.support.drain import running_drain  # noqa: E402
from benchmarks.support.log_dir import LogDir, make_log_dir  # noqa: E402
from benchmarks.support.measure import MIB, Cost, by_turns, cost_of_window, median  # noqa: E402
from benchmarks.support.our_copy import copy_all, filesystem_store, s3_store  # noqa: E402
from benchmarks.support.our_read import open_reads, open_service  # noqa: E402
from benchmarks.support.read_turns import (  # noqa: E402
    FIRST_READ_BYTES,
    Copied,
    client_window,
    cold_window,
    first_bytes,
    get_times,
    percentile,
    percentiles,
    warm_indexes,
    warm_window,
)
from benchmarks.support.report import Goal, Report, spread  # noqa: E402
from benchmarks.support.s3_clients import make_bucket  # noqa: E402
from tests.support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server, running_s3_server  # noqa: E402
from tiersidecar.adapters.process_limits import reuse_freed_memory  # noqa: E402
from tiersidecar.adapters.stores.s3_settings import S3Settings  # noqa: E402
from tiersidecar.domain.ids import TopicIdPartition  # noqa: E402
from tiersidecar.domain.segments import RemoteLogSegmentMetadata  # noqa: E402
from tiersidecar.reading.read_path import ReadSettings  # noqa: E402
from tiersidecar.services.reader.server import ReaderServiceSettings  # noqa: E402

STREAMS = 8
_REQUIRED_MB_PER_S, _WHERE_BARE_MB_PER_S = 300, 600
_MB_PER_MIB = MIB / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is read: partitions of ``segments`` each.  ``runs``: the median of so many windows of ``window_bytes`` at least
    counts."""

    segment_bytes: int
    segments: int
    window_bytes: int
    runs: int
    random_reads: int


FULL = Scale(segment_bytes=64 * MIB, segments=2, window_bytes=512 * MIB, runs=9, random_reads=2000)
QUICK = Scale(segment_bytes=32 * MIB, segments=1, window_bytes=128 * MIB, runs=3, random_reads=200)
_READS_A_TURN = 50

Window = Callable[[], Awaitable[Cost]]


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
            costs = await self._sequential_windows(copied, copied.partitions[:count])
            for name, of_name in costs.items():
                self._report.row(f"{name}, {copied.name}, {count} stream(s), batches of {batches}", median(of_name))
            figure = f"{copied.name}_{count}" + ("" if batches == "16 KiB" else "_1kib")
            ours = costs["ours, cold"]
            for name in copied.clients:
                of_bare = [cold.mib_per_s / bare.mib_per_s for cold, bare in zip(ours, costs[name], strict=True)]
                self._report.line(f"ours, cold, is {spread(of_bare, '.2f')} of {name} in the same round")
                self._goal(f"{figure}_of_{_figure(name)}", middle(of_bare), least=copied.least_of[name])
            if max(median(costs[name]).mib_per_s for name in copied.clients) * _MB_PER_MIB >= _WHERE_BARE_MB_PER_S:
                self._goal(f"{figure}_mb_per_s", median(ours).mib_per_s * _MB_PER_MIB, least=_REQUIRED_MB_PER_S)

    async def _sequential_windows(
        self, copied: Copied, partitions: Sequence[TopicIdPartition]
    ) -> dict[str, list[Cost]]:
        """Everybody reads all of ``partitions`` in his turn, as often as it takes to make a window of them."""
        size_bytes = copied.size_bytes(partitions)
        passes = max(self._scale.window_bytes // size_bytes, 1)
        everybody = copied.clients | copied.limits
        windows = {
            name: partial(client_window, copied, partitions, passes, client) for name, client in everybody.items()
        }
        async with copied.open_store() as store, AsyncExitStack() as stack:
            windows["ours, cold"] = partial(cold_window, store, copied, partitions, passes)
            settings = ReadSettings(chunk_cache_bytes=2 * size_bytes)
            warm, _ = await stack.enter_async_context(open_reads(store, copied.metadata, settings))
            windows["ours, warm"] = partial(warm_window, warm, partitions, size_bytes, passes)
            os.sync()
            return await by_turns(self._scale.runs, windows)

    async def _over_http(self, copied: Copied, log_dir: LogDir) -> None:
        """One stream, into a client that throws it away."""
        partition, paths = copied.partitions[0], log_dir.segments[0]
        size_bytes = copied.size_bytes([partition])
        settings, service = ReadSettings(chunk_cache_bytes=2 * size_bytes), ReaderServiceSettings(port=0)
        path = f"/topics/{partition.topic}/partitions/{partition.partition}/batches?offset=0"
        async with copied.open_store() as store, running_drain() as drain, AsyncExitStack() as stack:
            plain = await stack.enter_async_context(plain_http(copied.root, copied.objects(partition)))
            warm = await stack.enter_async_context(open_service(store, copied.metadata, settings, service))

            async def cold() -> Cost:
                async with open_service(store, copied.metadata, ReadSettings(), service) as server:
                    return await cost_of_window(size_bytes, lambda: drain(server.url + path))

            windows: dict[str, Window] = {
                "sendfile of the same files": lambda: cost_of_window(
                    size_bytes, lambda: asyncio.to_thread(send_files, paths)
                ),
                "pread behind plain aiohttp": lambda: cost_of_window(size_bytes, lambda: drain(plain)),
                "ours, cold": cold,
                "ours, warm": lambda: cost_of_window(size_bytes, lambda: drain(warm.url + path)),
            }
            costs = await by_turns(self._scale.runs, windows)
        for name, of_name in costs.items():
            self._report.row(f"{name}, HTTP on loopback, 1 stream, batches of 16 KiB", median(of_name))

    # -- random

    async def _random(self, copied: Copied) -> None:
        """Index warm, chunk cache cold.  The goals are against bare GETs of the chunk, which is what others have to fetch; ours
        fetches a part of it, so bare GETs of as many bytes as were wanted are told too."""
        lots = random.Random(11)
        async with (
            copied.open_store() as store,
            open_reads(store, copied.metadata, ReadSettings(chunk_cache_bytes=0)) as (path, _),
        ):
            await warm_indexes(path, copied)

            async def ours() -> list[float]:
                return [await first_bytes(path, self._random_read(copied, lots)) for _ in range(_READS_A_TURN)]

            windows: dict[str, Callable[[], Awaitable[list[float]]]] = {"ours": ours}
            for name, client in copied.clients.items():
                for what, size_bytes in (("the chunk", CHUNK_BYTES), ("64 KiB", FIRST_READ_BYTES)):
                    reads = [self._random_read(copied, lots) for _ in range(_READS_A_TURN)]
                    windows[f"{name}, {what}"] = partial(get_times, client, reads, size_bytes)
            turns = await by_turns(self._scale.random_reads // _READS_A_TURN, windows)
        times = {name: [one for turn in of_name for one in turn] for name, of_name in turns.items()}
        for name, of_name in times.items():
            self._report.line(f"{name}, {copied.name}, first bytes at a random offset: {percentiles(of_name)}")
        for rank in (50, 99):
            for name in copied.clients:
                of_bare, of_part = (
                    percentile(times["ours"], rank) / percentile(times[f"{name}, {what}"], rank)
                    for what in ("the chunk", "64 KiB")
                )
                self._report.line(f"ours, p{rank}, is {of_bare:.2f} of {name}'s chunk, {of_part:.2f} of its 64 KiB")
                self._goal(f"{copied.name}_first_p{rank}_of_{_figure(name)}", of_bare, most=1.5)

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
            clients={"checked pread": lambda work: work(checked)},
            least_of={"checked pread": 0.8},
            limits={"pread": lambda work: work(fetch)},
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
                least_of={"aioboto3": 0.9, "obstore": 0.95},
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


def _figure(name: str) -> str:
    return name.replace(" ", "_")


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
