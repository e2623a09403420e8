"""How one sidecar grows with partitions and segments: CPU, memory, restart, status, page and metrics at 1x, 4x and 16x.

``benchmarks/scale.py [--quick]``: a table with the exponent of growth of each figure (1: in proportion), then the goals; exit
code 1 if one is missed.  16x are 20,000 partitions with 5 million remote segments.  The daemon is the real one, with its roles
tier and read, beside a real broker; its log dir and what is remote are made (benchmarks/support/scale_cluster.py says how).
Snapshots in the store are off: the first ones of 20,000 partitions would take longer than the rest of the run.  A broker has a
file open for each partition, so where a process may have fewer than that all three sizes are smaller; the first line says so.
What 200 MiB/s take is measured by itself, since it does not depend on either.  On two busy cores 2,560 partitions at 16x
(``--partitions 160``) took twelve minutes; the full sizes take several times that.  ``--quick`` has 160 partitions at 16x and
waits for seconds until the daemon is idle: its exponents say little, for what a process takes anyhow outweighs the rest.
"""

from __future__ import annotations

import os
import sys

# Not this directory: a module of it has the name of one of the standard library.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib is not there yet

import argparse  # noqa: E402
import asyncio  # noqa: E402
import logging  # noqa: E402
import resource  # noqa: E402
import tempfile  # noqa: E402
from dataclasses import dataclass, replace  # noqa: E402
from pathlib import Path  # noqa: E402

import structlog  # noqa: E402
import uvloop  # noqa: E402

from benchmarks.support.growth import Figure, Growth  # noqa: E402
from benchmarks.support.log_dir import make_log_dir  # noqa: E402
from benchmarks.support.measure import MIB, cost_of  # noqa: E402
from benchmarks.support.our_copy import copy_all, filesystem_store  # noqa: E402
from benchmarks.support.report import Report  # noqa: E402
from benchmarks.support.scale_cluster import REMOTE  # noqa: E402
from benchmarks.support.scale_run import Size, Watching, measured  # noqa: E402

FACTORS = (1, 4, 16)
RATE = 200 * MIB
_OTHER_FILES = 700
"""What a broker has open beside its user partitions: jars, its own topics, connections."""

FIGURES = (
    Figure(name="idle_share_of_a_core", what="idle, share of a core", form=".2%", most=0.15),
    Figure(name="look_cpu_s", what="a round of looking, nothing changed, CPU s", form=".4f"),
    Figure(name="look_changed_cpu_s", what="a round, 1 % of partitions changed, CPU s", form=".4f"),
    Figure(name="look_all_cpu_s", what="a round that reads all files, CPU s", form=".3f"),
    Figure(name="sealed_to_remote_s", what="1 % of partitions sealed, until all remote, s", form=".2f"),
    Figure(name="sealed_to_remote_cpu_s", what="the same, CPU s of the daemon", form=".2f"),
    Figure(name="rss_mib", what="resident memory, MiB", form=",.0f"),
    Figure(name="bytes_per_segment", what="memory of a segment, bytes", form=",.0f", most=400, grows=False),
    Figure(name="snapshot_mib", what="local snapshot, MiB", form=",.1f"),
    Figure(name="load_s", what="snapshot loaded, alone, s", form=".2f"),
    Figure(name="restart_s", what="restart, until ready, s", form=".2f", most=60),
    Figure(name="restart_cpu_s", what="the same, CPU s", form=".2f"),
    Figure(name="status_s", what="/status, s", form=".2f", most=2),
    Figure(name="status_mib", what="/status, MiB", form=".2f"),
    Figure(name="page_s", what="page of the cluster, s", form=".2f", most=2),
    Figure(name="page_mib", what="page of the cluster, MiB", form=".2f"),
    Figure(name="scrape_s", what="/metrics, s", form=".2f", most=2),
    Figure(name="scrape_mib", what="/metrics, MiB", form=".2f"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """``partitions`` at 1x, in ``topics`` at 1x; ``copied_mib`` at 200 MiB/s."""

    partitions: int
    topics: int
    watching: Watching
    copied_mib: int


FULL = Scale(partitions=1_250, topics=10, watching=Watching(settling_s=240.0, watched_s=45.0), copied_mib=2_048)
QUICK = Scale(partitions=10, topics=1, watching=Watching(settling_s=10.0, watched_s=2.0), copied_mib=200)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="160 partitions at 16x: under a minute")
    parser.add_argument("--partitions", type=int, help="at 1x, in place of 1,250 (with --quick 10)")
    asked = parser.parse_args()
    scale = QUICK if asked.quick else FULL
    if asked.partitions:
        scale = replace(scale, partitions=asked.partitions)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    report, growth = Report(), Growth(FACTORS, FIGURES)
    partitions = _that_fit(scale)
    sizes = [
        Size(partitions=factor * partitions, partitions_of_a_topic=partitions // scale.topics) for factor in FACTORS
    ]
    report.line(
        f"one sidecar beside {_listed([size.partitions for size in sizes])} partitions"
        f" with {_listed([size.partitions * REMOTE for size in sizes])} remote segments"
        + (
            f" ({scale.partitions * FACTORS[-1]:,} are more than open files allow)"
            if partitions < scale.partitions
            else ""
        )
    )
    for factor, size in zip(FACTORS, sizes, strict=True):
        with tempfile.TemporaryDirectory(prefix="bench-scale-") as scratch:
            run = measured(Path(scratch), size, scale.watching)
        growth.add(run.figures)
        report.line(f"{factor}x: made in {run.made_s:.0f} s, measured in {run.measured_s:.0f} s")
    for line in growth.table():
        report.line(line)
    with (
        tempfile.TemporaryDirectory(prefix="bench-scale-") as scratch,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        report.line(runner.run(_copied(Path(scratch), scale.copied_mib)))
    report.goals += growth.goals()
    return report.end()


def _that_fit(scale: Scale) -> int:
    """Return the partitions at 1x of which the broker may have 16 times as many open."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most == resource.RLIM_INFINITY:
        return scale.partitions
    fitting = (most - _OTHER_FILES) // FACTORS[-1]
    return min(scale.partitions, fitting // scale.topics * scale.topics)


def _listed(numbers: list[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)


async def _copied(scratch: Path, size_mib: int) -> str:
    """As benchmarks/copy.py does it: the daemon's own copy, with the broker's answers and the metadata topic in memory."""
    log_dir = make_log_dir(
        scratch / "logs", partitions=10, segments=size_mib // 40, segment_bytes=40 * MIB, batch_bytes=16 * 1024
    )
    async with filesystem_store(scratch / "store") as store:
        cost = await cost_of(log_dir.size_bytes, lambda: copy_all(log_dir, store, rate_bytes_per_s=RATE))
    return (
        f"copying to a directory at {cost.mib_per_s:.0f} MiB/s of {RATE // MIB} allowed: {cost.cpu_s_per_gib:.2f} CPU s/GiB,"
        f" {cost.cpu_s / cost.wall_s:.2f} of a core"
    )


if __name__ == "__main__":
    sys.exit(main())
