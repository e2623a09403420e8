"""What the stores cost: each kind against the same client bare, on the same server in the same run.

``benchmarks/stores.py [--quick] [--kinds gcs …]``: a table, then the goals; exit code 1 if one is missed.

Everybody has his turn in each round, and what counts is the median of the rounds' own ratios.  Uploads are whole files, two at
once; reads are ranged GETs of 4 MiB, four at once.  Then a store of 50 ms a request, narrow for each connection: one stream of
the read path against bare GETs, as many at once as the stream has, and against a stream that has 16 MiB ahead at most.  What
a stream begins with counts: manifest, index, and the first chunk, of which alone it cannot be known that the reader goes on.
Last, reads of 64 KiB of a store that takes a second for two requests of a hundred, with and without second requests.
"""

from __future__ import annotations

import os
import sys

# Not this directory: a module of it has the name of one of the standard library.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib is not there yet
sys.path.insert(1, os.path.join(sys.path[0], "docs", "examples", "hdfs-store"))  # noqa: PTH118

import argparse  # noqa: E402
import asyncio  # noqa: E402
import logging  # noqa: E402
import random  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Sequence  # noqa: E402
from dataclasses import dataclass, replace  # noqa: E402
from functools import partial  # noqa: E402
from pathlib import Path  # noqa: E402
from statistics import median as middle  # noqa: E402
from statistics import quantiles  # noqa: E402

import structlog  # noqa: E402
import uvloop  # noqa: E402

from benchmarks.support.bare_reads import CHUNK_BYTES, FetchRange, by_obstore  # noqa: E402
from benchmarks.support.log_dir import make_log_dir  # noqa: E402
from benchmarks.support.measure import MIB, Cost, by_turns, cost_of, cost_of_window, median  # noqa: E402
from benchmarks.support.our_copy import copy_all, filesystem_store, s3_store  # noqa: E402
from benchmarks.support.our_read import open_reads, partitions_of, read_all  # noqa: E402
from benchmarks.support.report import Goal, Report, spread  # noqa: E402
from benchmarks.support.s3_clients import make_bucket  # noqa: E402
from benchmarks.support.store_kinds import BUCKET, KINDS, Kind  # noqa: E402
from tests.support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server, running_s3_server  # noqa: E402
from tests.support.toxiproxy import Toxic, running_toxiproxy  # noqa: E402
from tiersidecar.adapters.clock import SystemClock  # noqa: E402
from tiersidecar.adapters.process_limits import reuse_freed_memory  # noqa: E402
from tiersidecar.adapters.stores.s3_settings import S3Settings  # noqa: E402
from tiersidecar.adapters.stores.wrapped_store import WrappedStore  # noqa: E402
from tiersidecar.domain.offsets import ByteRange  # noqa: E402
from tiersidecar.ports.store import Buffer, SourceFile, Store  # noqa: E402
from tiersidecar.ports.telemetry import NoTelemetry  # noqa: E402
from tiersidecar.reading.hedged_fetches import HedgedFetches  # noqa: E402
from tiersidecar.reading.read_path import ReadSettings  # noqa: E402
from tiersidecar.reading.remote_objects import recorded_keys  # noqa: E402
from tiersidecar.testing.store_contract import FileBody  # noqa: E402

READS_AT_ONCE = 4
LEAST_WINDOW_S, MOST_PASSES = 0.4, 16
"""Reads of the same files are repeated until a window takes about so long: shorter ones say little."""
LATENCY_MS, KB_PER_S = 50, 25_000
SLOW_SHARE, SLOW_S, FIRST_BYTES = 0.02, 1.0, 64 * 1024
HEDGED_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """``files`` of ``file_bytes`` go up and are read in each of ``runs`` rounds; ``far_bytes`` are read from afar in each of
    ``far_runs``, and with little ahead too if ``far_fixed``; ``reads`` are those of a store that is slow at times."""

    files: int
    file_bytes: int
    runs: int
    far_bytes: int
    far_runs: int
    far_fixed: bool
    reads: int


FULL = Scale(
    files=4,
    file_bytes=64 * MIB,
    runs=7,
    far_bytes=1024 * MIB,
    far_runs=3,
    far_fixed=True,
    reads=4000,
)
QUICK = Scale(
    files=2,
    file_bytes=16 * MIB,
    runs=3,
    far_bytes=1024 * MIB,
    far_runs=1,
    far_fixed=False,
    reads=1000,
)


class Bench:
    """One run in a scratch directory; every measurement is a row, some are goals."""

    def __init__(self, scratch: Path, scale: Scale, report: Report) -> None:
        self._scratch, self._scale, self._report = scratch, scale, report
        self._files = [scratch / f"segment-{number}" for number in range(scale.files)]

    async def run(self, kinds: Sequence[str]) -> None:
        for path in self._files:
            path.write_bytes(os.urandom(self._scale.file_bytes))
        for name in kinds:
            directory = self._scratch / name
            directory.mkdir()
            async with KINDS[name](directory) as kind:
                await self._against_bare(kind)
        for path in self._files:
            path.unlink()
        await self._from_afar()
        await self._slow_at_times()

    # -- each kind against the same client bare

    async def _against_bare(self, kind: Kind) -> None:
        size_bytes = self._scale.files * self._scale.file_bytes
        async with kind.open_store() as store:
            costs = await by_turns(
                self._scale.runs,
                {
                    "ours": partial(cost_of, size_bytes, partial(_put_all, store, self._files)),
                    "bare": partial(cost_of, size_bytes, partial(kind.upload, self._files)),
                },
            )
            self._compare(f"{kind.name}_upload", costs)
            wanted = _ranges([path.name for path in self._files], self._scale.file_bytes)
            once = await cost_of_window(size_bytes, partial(_read, kind.fetch, wanted, READS_AT_ONCE))
            passes = max(1, min(MOST_PASSES, round(LEAST_WINDOW_S / once.wall_s)))
            size_bytes, wanted = size_bytes * passes, wanted * passes
            costs = await by_turns(
                self._scale.runs,
                {
                    "ours": partial(
                        cost_of_window, size_bytes, partial(_read, _by_store(store), wanted, READS_AT_ONCE)
                    ),
                    "bare": partial(cost_of_window, size_bytes, partial(_read, kind.fetch, wanted, READS_AT_ONCE)),
                },
            )
            self._compare(f"{kind.name}_read", costs)

    def _compare(self, what: str, costs: dict[str, list[Cost]]) -> None:
        for name, of_name in costs.items():
            self._report.row(f"{what}, {name}", median(of_name))
        pairs = list(zip(costs["ours"], costs["bare"], strict=True))
        rates = [ours.mib_per_s / bare.mib_per_s for ours, bare in pairs]
        processor = [ours.cpu_s / bare.cpu_s for ours, bare in pairs]
        self._report.line(f"{what}: {spread(rates, '.2f')} of bare, CPU {spread(processor, '.2f')} times bare")
        self._goal(f"{what}_of_bare", middle(rates), least=0.9)
        self._goal(f"{what}_cpu", middle(processor), most=1.5)

    # -- a store that is far away

    async def _from_afar(self) -> None:
        directory = self._scratch / "far"
        directory.mkdir()
        with (
            running_s3_server(directory) as server,
            running_toxiproxy(directory, server.url.removeprefix("http://")) as way,
        ):
            near = _s3_settings(server)
            await make_bucket(near)
            log_dir = make_log_dir(
                self._scratch / "log-dir",
                partitions=1,
                segments=1,
                segment_bytes=self._scale.far_bytes,
                batch_bytes=16 * 1024,
            )
            async with s3_store(near) as store:
                metadata = await copy_all(log_dir, store)
            way.add(Toxic(kind="latency", attributes=(("latency", LATENCY_MS),)))
            way.add(Toxic(kind="bandwidth", attributes=(("rate", KB_PER_S),)))
            partition = partitions_of(metadata)[0]
            segment = next(iter(metadata.list_remote_log_segments(partition)))
            size_bytes = segment.segment_size_in_bytes
            wanted = _ranges([recorded_keys(segment).log], size_bytes)
            far = replace(near, endpoint_url=way.url)
            fetch = by_obstore(far, replace(server, url=way.url))
            async with s3_store(far) as plain:
                store = CountingStore(plain)

                async def stream() -> Cost:
                    async with open_reads(store, metadata, ReadSettings()) as (path, _):
                        return await cost_of_window(size_bytes, partial(read_all, path, [partition]))

                async def fixed() -> Cost:
                    async with open_reads(plain, metadata, ReadSettings(read_ahead_bytes=16 * MIB)) as (path, _):
                        return await cost_of_window(size_bytes, partial(read_all, path, [partition]))

                async def bare() -> Cost:
                    return await cost_of_window(size_bytes, partial(_read, fetch, wanted, store.most_at_once))

                ways = {"one stream": stream, "16 MiB ahead": fixed, "bare GETs": bare}
                if not self._scale.far_fixed:
                    del ways["16 MiB ahead"]
                # Every round counts: none of them is bounded by this machine, and each takes seconds.
                costs = await by_turns(self._scale.far_runs, ways, uncounted=0)
            for name, of_name in costs.items():
                self._report.row(f"{name}, {LATENCY_MS} ms, {KB_PER_S // 1000} MB/s a connection", median(of_name))
            pairs = zip(costs["one stream"], costs["bare GETs"], strict=True)
            rates = [ours.mib_per_s / theirs.mib_per_s for ours, theirs in pairs]
            self._report.line(f"one stream is {spread(rates, '.2f')} of {store.most_at_once} bare GETs at once")
            self._goal("far_stream_of_bare", middle(rates), least=0.8)
            if not self._scale.far_fixed:
                return
            pairs = zip(costs["one stream"], costs["16 MiB ahead"], strict=True)
            rates = [ours.mib_per_s / theirs.mib_per_s for ours, theirs in pairs]
            self._report.line(f"one stream is {spread(rates, '.2f')} of one that has 16 MiB ahead at most")
            self._goal("far_stream_of_16_mib_ahead", middle(rates), least=1.5)

    # -- a store that is slow at times

    async def _slow_at_times(self) -> None:
        root = self._scratch / "slow"
        async with filesystem_store(root) as store:
            await _put_bytes(store, self._scratch / "slow-source")
            took: dict[str, list[float]] = {}
            sent: dict[str, int] = {}
            for name, percent in (("alone", 0), ("hedged", 5)):
                slow = SlowAtTimes(store, random.Random(22))
                fetches = HedgedFetches(slow, percent=percent, clock=SystemClock(), telemetry=NoTelemetry())
                took[name] = await _timed_reads(fetches.fetch_range, self._scale.reads)
                sent[name] = slow.requests
                await fetches.aclose()
        late = {name: quantiles(times, n=100)[98] for name, times in took.items()}
        extra = sent["hedged"] / sent["alone"] - 1
        for name, times in took.items():
            self._report.line(
                f"reads of 64 KiB, {name}: median {middle(times) * 1000:.1f} ms, p99 {late[name] * 1000:.0f} ms"
            )
        self._report.line(f"second requests: {extra * 100:.1f} % of all")
        self._goal("hedged_p99_of_alone", late["hedged"] / late["alone"], most=0.5)
        self._goal("hedged_extra_requests", extra, most=0.05)

    def _goal(self, name: str, figure: float, *, least: float | None = None, most: float | None = None) -> None:
        self._report.goals.append(Goal(name=name, figure=figure, least=least, most=most))


class CountingStore(WrappedStore):
    """Notes the most ranged GETs at once."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._now = self.most_at_once = 0

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            return await super().fetch_range(key, byte_range)
        finally:
            self._now -= 1


class SlowAtTimes(WrappedStore):
    """Two of a hundred GETs wait for a second first; none is local."""

    def __init__(self, store: Store, draw: random.Random) -> None:
        super().__init__(store)
        self._draw = draw
        self.requests = 0

    @property
    def is_local(self) -> bool:
        return False

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        self.requests += 1
        if self._draw.random() < SLOW_SHARE:
            await asyncio.sleep(SLOW_S)
        return await super().fetch_range(key, byte_range)


async def _put_all(store: Store, paths: Sequence[Path]) -> None:
    await asyncio.gather(*(_put(store, path) for path in paths))


async def _put(store: Store, path: Path) -> None:
    with path.open("rb") as file:
        whole = ByteRange(0, path.stat().st_size)
        await store.put_object(path.name, FileBody(SourceFile(fileno=file.fileno(), path=str(path), byte_range=whole)))


async def _put_bytes(store: Store, path: Path) -> None:
    path.write_bytes(os.urandom(16 * MIB))
    await _put(store, path)


def _by_store(store: Store) -> FetchRange:
    async def fetch(key: str, start: int, size_bytes: int) -> int:
        return len(await store.fetch_range(key, ByteRange(start, start + size_bytes)))

    return fetch


def _ranges(keys: Sequence[str], size_bytes: int) -> list[tuple[str, int, int]]:
    """Key, first byte and number of bytes of each chunk."""
    return [
        (key, start, min(CHUNK_BYTES, size_bytes - start))
        for key in keys
        for start in range(0, size_bytes, CHUNK_BYTES)
    ]


async def _read(fetch: FetchRange, wanted: Sequence[tuple[str, int, int]], at_once: int) -> None:
    """All of them in their order, ``at_once`` at a time."""
    left = iter(wanted)

    async def lane() -> None:
        for key, start, size_bytes in left:
            await fetch(key, start, size_bytes)

    await asyncio.gather(*(lane() for _ in range(at_once)))


async def _timed_reads(fetch: Callable[[str, ByteRange], object], reads: int) -> list[float]:
    """Seconds of each of ``reads`` at random places, some at once."""
    draw, took, left = random.Random(7), list[float](), iter(range(reads))

    async def lane() -> None:
        for _ in left:
            start = draw.randrange(0, 16 * MIB - FIRST_BYTES)
            began_s = time.perf_counter()
            await fetch("slow-source", ByteRange(start, start + FIRST_BYTES))  # type: ignore[misc]
            took.append(time.perf_counter() - began_s)

    await asyncio.gather(*(lane() for _ in range(HEDGED_AT_ONCE)))
    return took


def _s3_settings(server: S3Server) -> S3Settings:
    return S3Settings(
        bucket=BUCKET,
        region="us-east-1",
        endpoint_url=server.url,
        addressing="path",
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less data, fewer runs: under 45 seconds")
    parser.add_argument(
        "--kinds",
        nargs="*",
        choices=sorted(KINDS),
        help="default: all; with --quick all but hdfs, which is slow to start",
    )
    arguments = parser.parse_args()
    kinds = arguments.kinds or [name for name in KINDS if not (arguments.quick and name == "hdfs")]
    scale = QUICK if arguments.quick else FULL
    reuse_freed_memory()  # as the daemon does; it holds for the bare clients too
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    report = Report()
    report.begin(f"stores, {scale.files} files of {scale.file_bytes // MIB} MiB, {os.cpu_count()} cores")
    with (
        tempfile.TemporaryDirectory(prefix="bench-stores-") as scratch,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(Bench(Path(scratch), scale, report).run(kinds))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
