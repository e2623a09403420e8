"""What copying costs: ours against cp with fsync, bare S3 clients and bare libraries, over the same files in one run.

``benchmarks/copy.py [--quick]``: a table, then the goals; exit code 1 if one is missed.
"""

from __future__ import annotations

import os
import sys

# Not this directory: a module of it has the name of one of the standard library.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib is not there yet

import argparse  # noqa: E402
import asyncio  # noqa: E402
import logging  # noqa: E402
import shutil  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Awaitable, Callable, Iterator  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from functools import partial  # noqa: E402
from pathlib import Path  # noqa: E402

import structlog  # noqa: E402
import uvloop  # noqa: E402
from Crypto.PublicKey import RSA  # noqa: E402

from benchmarks.support.baselines import copy_by_cp, transform_by_library  # noqa: E402
from benchmarks.support.log_dir import LogDir, make_log_dir  # noqa: E402
from benchmarks.support.measure import MIB, Cost, cost_of, median  # noqa: E402
from benchmarks.support.our_copy import copy_all, filesystem_store, s3_store  # noqa: E402
from benchmarks.support.report import Goal, Report  # noqa: E402
from benchmarks.support.s3_clients import make_bucket, upload_by_aioboto3, upload_by_obstore  # noqa: E402
from benchmarks.support.timed_store import TimedStore  # noqa: E402
from tests.support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server, running_s3_server  # noqa: E402
from tiersidecar.adapters.process_limits import reuse_freed_memory  # noqa: E402
from tiersidecar.adapters.stores.s3_settings import S3Settings  # noqa: E402
from tiersidecar.formats import native  # noqa: E402
from tiersidecar.formats.aiven.key_ring import KeyRing, RsaKeyPair  # noqa: E402
from tiersidecar.tasks.segment_objects import LayoutSettings  # noqa: E402

SEGMENT_BYTES = 64 * MIB
CORES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is copied, and of how many runs the median counts; ``small_batch_runs`` have no goal."""

    segments: int
    small_batch_segments: int
    file_runs: int
    small_batch_runs: int
    s3_runs: int
    quota_s: int


FULL = Scale(segments=64, small_batch_segments=16, file_runs=3, small_batch_runs=3, s3_runs=3, quota_s=30)
QUICK = Scale(segments=5, small_batch_segments=2, file_runs=3, small_batch_runs=1, s3_runs=1, quota_s=10)
QUOTA = 64 * MIB
"""Bytes per second."""
_IS_NATIVE = native.core.walks is not None
_MOST_SMALL_CPU_S_PER_GIB = 1.2


class Bench:
    """One run in a scratch directory; every measurement is a row, some are goals."""

    def __init__(self, scratch: Path, scale: Scale, report: Report) -> None:
        self._scratch, self._scale, self._report = scratch, scale, report
        self._targets = 0
        self._unlimited: Cost | None = None

    async def run(self) -> None:
        with self._log_dir(1, 1, 16 * 1024) as log_dir:  # whatever the first copy alone costs
            await self._in_turns(log_dir, lambda target: _copy_to_files(log_dir, target), runs=1)
        for partitions in (1, 10):
            with self._log_dir(partitions, self._scale.segments, 16 * 1024) as log_dir:
                await self._filesystem(log_dir, partitions)
                await self._s3(log_dir, partitions)
        for name, batch_bytes in (("1 KiB", 1024), ("300 B", 300)):
            with self._log_dir(2, self._scale.small_batch_segments, batch_bytes) as log_dir:
                [ours] = await self._in_turns(
                    log_dir, lambda target: _copy_to_files(log_dir, target), runs=self._scale.small_batch_runs
                )
                self._report.row(f"ours, filesystem, 2 partitions, batches of {name}", ours)
                if batch_bytes == 1024 and _IS_NATIVE:
                    self._goal("batches_1_kib_cpu_s_per_gib", ours.cpu_s_per_gib, most=_MOST_SMALL_CPU_S_PER_GIB)
        with self._log_dir(10, QUOTA * self._scale.quota_s // SEGMENT_BYTES, 16 * 1024) as log_dir:
            await self._transform(log_dir, "zstd", LayoutSettings(compression=True))
            await self._transform(log_dir, "AES-GCM", LayoutSettings(key_ring=_key_ring()))
            await self._quota(log_dir)

    # -- stores

    async def _filesystem(self, log_dir: LogDir, partitions: int) -> None:
        by_cp, ours = await self._in_turns(
            log_dir, lambda target: copy_by_cp(log_dir, target), lambda target: _copy_to_files(log_dir, target)
        )
        self._report.row(f"cp and fsync of each file, {partitions} at once", by_cp)
        self._report.row(f"ours, filesystem, {partitions} partition(s)", ours)
        self._goal(f"filesystem_{partitions}", ours.mib_per_s / by_cp.mib_per_s, least=0.7)
        self._goal(
            f"filesystem_{partitions}_cpu", ours.cpu_s_per_gib / by_cp.cpu_s_per_gib, most=1.3 if _IS_NATIVE else 2.0
        )
        self._unlimited = ours

    async def _s3(self, log_dir: LogDir, partitions: int) -> None:
        with running_s3_server(self._scratch / f"s3-{partitions}") as server:
            settings = _s3_settings(server)
            await make_bucket(settings)
            lanes = log_dir.segments

            costs = await self._in_turns(
                log_dir,
                lambda _: upload_by_aioboto3(settings, lanes),
                lambda _: upload_by_obstore(settings, server, lanes),
                lambda _: _copy_to_s3(log_dir, settings),
                runs=self._scale.s3_runs,
                clean=lambda: _empty(server.directory / settings.bucket),
            )
        for name, cost in zip(("aioboto3", "obstore", "ours"), costs, strict=True):
            self._report.row(f"{name}, S3, {partitions} partition(s)", cost)
        *bare, ours = costs
        best = max(bare, key=lambda cost: cost.mib_per_s)
        self._goal(f"s3_{partitions}", ours.mib_per_s / best.mib_per_s, least=1.0)
        self._goal(f"s3_{partitions}_cpu", ours.cpu_s_per_gib / best.cpu_s_per_gib, most=1.15)

    # -- transforms

    async def _transform(self, log_dir: LogDir, name: str, settings: LayoutSettings) -> None:
        bare, ours = await self._in_turns(
            log_dir,
            lambda target: transform_by_library(log_dir, settings, target, threads=CORES),
            lambda target: _copy_to_files(log_dir, target, settings),
        )
        self._report.row(f"{name} alone, {CORES} threads, from file to file", bare)
        self._report.row(f"ours with {name}, filesystem, 10 partitions", ours)
        self._goal(name.lower().replace("-", "_"), ours.mib_per_s / bare.mib_per_s, least=0.9)

    # -- quota

    async def _quota(self, log_dir: LogDir) -> None:
        """The slices that leave for the store, by the clock that the shaper does not read."""
        async with filesystem_store(self._new_target()) as store:
            timed = TimedStore(store)
            cost = await cost_of(log_dir.size_bytes, lambda: copy_all(log_dir, timed, rate_bytes_per_s=QUOTA))
        highest = timed.most_bytes_in_a_second
        note = f"highest in a second {highest / MIB:.1f}"
        self._report.row(f"ours, filesystem, 10 partitions, {QUOTA // MIB} MiB/s allowed", cost, note)
        self._goal("quota_error", abs(timed.mean_bytes_per_s / QUOTA - 1), most=0.03)
        self._goal("quota_highest", highest / QUOTA, most=1.1)
        assert self._unlimited is not None, "measured before"
        of_unlimited = cost.cpu_s_per_gib / self._unlimited.cpu_s_per_gib
        self._goal("quota_cpu_of_unlimited", of_unlimited, most=1.5 if _IS_NATIVE else 2.5)

    # -- what all need

    async def _in_turns(
        self,
        log_dir: LogDir,
        *ways: Callable[[Path], Awaitable[object]],
        runs: int | None = None,
        clean: Callable[[], object] = lambda: None,
    ) -> list[Cost]:
        """The median cost of each way of copying ``log_dir``; the ways take turns, so that what else the machine does meets
        all of them."""
        costs: list[list[Cost]] = [[] for _ in ways]
        for _ in range(runs or self._scale.file_runs):
            for way, so_far in zip(ways, costs, strict=True):
                target = self._new_target()
                so_far.append(await cost_of(log_dir.size_bytes, partial(way, target)))
                shutil.rmtree(target, ignore_errors=True)
                clean()
        return [median(of_one_way) for of_one_way in costs]

    def _new_target(self) -> Path:
        self._targets += 1
        return self._scratch / f"target-{self._targets}"

    @contextmanager
    def _log_dir(self, partitions: int, segments: int, batch_bytes: int) -> Iterator[LogDir]:
        path = self._scratch / "logs"
        yield make_log_dir(
            path, partitions=partitions, segments=segments, segment_bytes=SEGMENT_BYTES, batch_bytes=batch_bytes
        )
        shutil.rmtree(path)

    def _goal(self, name: str, figure: float, *, least: float | None = None, most: float | None = None) -> None:
        self._report.goals.append(Goal(name=name, figure=figure, least=least, most=most))


async def _copy_to_files(log_dir: LogDir, target: Path, settings: LayoutSettings | None = None) -> None:
    async with filesystem_store(target) as store:
        await copy_all(log_dir, store, settings)


async def _copy_to_s3(log_dir: LogDir, settings: S3Settings) -> None:
    async with s3_store(settings) as store:
        await copy_all(log_dir, store)


def _empty(bucket: Path) -> None:
    for path in bucket.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _s3_settings(server: S3Server) -> S3Settings:
    return S3Settings(
        bucket="bench",
        region="us-east-1",
        endpoint_url=server.url,
        addressing="path",
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
    )


def _key_ring() -> KeyRing:
    key = RSA.generate(2048)
    return KeyRing(active_key_id="bench", keys={"bench": RsaKeyPair(public=key.public_key(), private=key)})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less data, one run each: under 45 seconds")
    scale = QUICK if parser.parse_args().quick else FULL
    reuse_freed_memory()  # as the daemon does, and before there are threads; the peers in this process have it too
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    report = Report()
    report.begin(f"copy, {scale.segments} segments of 64 MiB, batches of 16 KiB, {os.cpu_count()} cores")
    with (
        tempfile.TemporaryDirectory(prefix="bench-copy-") as scratch,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(Bench(Path(scratch), scale, report).run())
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
