"""A thousand readers at random offsets: no error, bounded memory, and what is too much is shed at once.

``benchmarks/readers.py [--quick]``: figures, then the goals; exit code 1 if one is missed.
"""

from __future__ import annotations

import os
import sys

# Not this directory: a module of it has the name of one of the standard library.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib is not there yet

import argparse  # noqa: E402
import asyncio  # noqa: E402
import logging  # noqa: E402
import tempfile  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402

import structlog  # noqa: E402
import uvloop  # noqa: E402

from benchmarks.support.crowd import read_as_crowd, targets_in  # noqa: E402
from benchmarks.support.crowd_peers import bare_http_reads_per_s, obstore_reads_per_s  # noqa: E402
from benchmarks.support.log_dir import make_log_dir  # noqa: E402
from benchmarks.support.measure import MIB  # noqa: E402
from benchmarks.support.our_copy import copy_all, filesystem_store  # noqa: E402
from benchmarks.support.our_read import partitions_of  # noqa: E402
from benchmarks.support.read_server import allow_open_files, running_read_server  # noqa: E402
from benchmarks.support.report import Goal, Report  # noqa: E402
from tests.support.memory_metadata_log import MemoryMetadataLog  # noqa: E402
from tiersidecar.reading.read_path import ReadSettings  # noqa: E402
from tiersidecar.reading.remote_objects import recorded_keys  # noqa: E402

READERS = 1000
BEYOND_CACHE_BYTES = 200 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much there is to read, and for how long."""

    segments: int
    seconds: float
    peer_seconds: float


FULL = Scale(segments=16, seconds=60, peer_seconds=10)
QUICK = Scale(segments=8, seconds=10, peer_seconds=4)


async def run(scratch: Path, scale: Scale, report: Report) -> None:
    """One crowd over a filesystem store."""
    log_dir = make_log_dir(
        scratch / "logs", partitions=8, segments=scale.segments, segment_bytes=64 * MIB, batch_bytes=16 * 1024
    )
    async with filesystem_store(scratch / "store") as store:
        metadata = await copy_all(log_dir, store)
    async with running_read_server(scratch / "store", metadata.events) as server:
        began_bytes = server.read_bytes
        tally = await read_as_crowd(server.url, targets_in(metadata), readers=READERS, seconds=scale.seconds)
        peak_bytes, fetched_bytes = server.peak_rss_bytes, server.read_bytes - began_bytes
    reads_per_s = tally.reads / scale.seconds
    report.line(
        f"{tally.reads} reads ({reads_per_s:.0f}/s), {tally.shed} shed, {len(tally.faults)} faults in {scale.seconds:g} s; "
        f"{tally.size_bytes / MIB / scale.seconds:.0f} MiB/s; slowest read {tally.slowest_s:.2f} s; "
        f"peak RSS {peak_bytes / MIB:.0f} MiB; {fetched_bytes / max(tally.size_bytes, 1):.1f} bytes read for each returned"
    )
    await _peers(scratch / "store", metadata, scale, report, reads_per_s)
    for fault in tally.faults[:5]:
        report.line(f"  {fault}")
    most_bytes = ReadSettings().chunk_cache_bytes + BEYOND_CACHE_BYTES
    report.goals += [
        Goal(name="faults", figure=len(tally.faults), most=0),
        Goal(name="peak_rss_mib", figure=peak_bytes / MIB, most=most_bytes / MIB),
        Goal(name="shed", figure=tally.shed, least=1),
    ]


async def _peers(root: Path, metadata: MemoryMetadataLog, scale: Scale, report: Report, reads_per_s: float) -> None:
    """Rows, not goals: no bare read finds an offset, checks its batches, or is refused."""
    segments = [one for partition in partitions_of(metadata) for one in metadata.list_remote_log_segments(partition)]
    objects = [(recorded_keys(segment).log, segment.segment_size_in_bytes) for segment in segments]
    peers = {
        "obstore's ranged GETs of the files": await obstore_reads_per_s(root, objects, seconds=scale.peer_seconds),
        f"pread behind plain aiohttp, {READERS} readers": await bare_http_reads_per_s(
            root, objects, readers=READERS, seconds=scale.peer_seconds
        ),
    }
    for name, per_s in peers.items():
        report.line(f"{name}: {per_s:.0f}/s; ours is {reads_per_s / per_s:.2f} of it")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 seconds instead of 60")
    scale = QUICK if parser.parse_args().quick else FULL
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    allow_open_files()
    report = Report()
    report.line(f"{READERS} readers, {scale.segments} segments of 64 MiB, chunks of 4 MiB, {os.cpu_count()} cores")
    with (
        tempfile.TemporaryDirectory(prefix="bench-readers-") as scratch,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(run(Path(scratch), scale, report))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
