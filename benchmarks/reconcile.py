"""Reconcile millions of objects on one machine: minutes, CPU seconds per million objects, peak memory.

``benchmarks/reconcile.py [--quick] [--millions N ...]``: a table, then the goals; exit code 1 if one is missed.  Objects are
an inventory in Parquet, the events a dump of raw records in Parquet, and at one million a real topic too; three objects and two
events per segment.  Both are made once, into the user's cache.  Manifests are not read: there is no store.  Some objects are
left out and some added, and exactly those must be found.  Measured is the job, in a session of Spark that has done nothing yet;
the seconds that the session takes to start have a column of their own.
"""

from __future__ import annotations

import os
import sys

# Not this directory: a module of it has the name of one of the standard library.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib is not there yet

import argparse  # noqa: E402
import contextlib  # noqa: E402
import json  # noqa: E402
import shutil  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402

from benchmarks.support.process_tree import TreeCost, cost_of_tree  # noqa: E402
from benchmarks.support.reconcile_load import ODD_ONES_EACH, make_load  # noqa: E402
from benchmarks.support.report import Goal, Report  # noqa: E402

FULL, QUICK = (1_000_000, 3_000_000, 10_000_000), (300_000,)
WITH_TOPIC = 1_000_000
BEGUN = "begun"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    start_s: float
    wall_s: float
    cost: TreeCost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="300,000 objects: under 45 seconds on a quiet machine")
    parser.add_argument("--millions", type=float, nargs="+", help="other scales")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        return _one(arguments.one, arguments.directory, arguments.bootstrap)
    scales: tuple[int, ...] = QUICK if arguments.quick else FULL
    if arguments.millions:
        scales = tuple(int(millions * 1_000_000) for millions in arguments.millions)
    return _all(scales)


def _all(scales: tuple[int, ...]) -> int:
    report = Report()
    print("reconcile an inventory on local[2]")
    print(
        f"{'objects':>12}  {'events from':12}{'start s':>8}{'s':>8}{'CPU s per million':>20}{'peak MiB':>10}",
        flush=True,
    )
    per_million: list[float] = []
    walls: dict[int, float] = {}
    for objects in scales:
        seen = _measured(objects, with_topic=False)
        per_million.append(_row(report, objects, "files", seen))
        walls[objects] = seen.wall_s
        if objects == WITH_TOPIC:
            _row(report, objects, "a topic", _measured(objects, with_topic=True))
    largest = max(scales)
    # Ten million in ten minutes, less in proportion; starting Spark's stages takes some seconds whatever the scale.
    report.goals.append(Goal(name=f"s_at_{largest}", figure=walls[largest], most=max(45.0, largest / 10_000_000 * 600)))
    if len(scales) > 1:
        spread = max(per_million[1:]) / per_million[0] - 1
        report.goals.append(Goal(name="cpu_per_million_above_the_first", figure=spread, most=0.3))
    return report.end()


def _row(report: Report, objects: int, source: str, seen: Measured) -> float:
    per_million = seen.cost.cpu_s / objects * 1_000_000
    peak_mib = seen.cost.peak_rss_bytes / 1024**2
    report.line(f"{objects:12,}  {source:12}{seen.start_s:8.1f}{seen.wall_s:8.1f}{per_million:20.1f}{peak_mib:10.0f}")
    return per_million


def _measured(objects: int, *, with_topic: bool) -> Measured:
    directory = Path(tempfile.mkdtemp(prefix="tiersidecar-reconcile-"))
    load = make_load(objects)
    command = [sys.executable, __file__, "--one", str(objects), "--directory", str(directory)]
    # Spark's workers import what is here.
    environment = {**os.environ, "PYTHONPATH": sys.path[0]}
    try:
        with contextlib.ExitStack() as stack:
            if with_topic:
                from benchmarks.support.reconcile_run import topic_of

                command += ["--bootstrap", stack.enter_context(topic_of(load, directory / "kafka"))]
            began_s = time.perf_counter()
            child = stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment)
            )
            assert child.stdout is not None
            for line in child.stdout:
                if line.strip() == BEGUN:
                    break
            start_s = time.perf_counter() - began_s
            cost, said = cost_of_tree(child.pid, child.stdout.readline)
            child.wait()
        if child.returncode != 0 or not said:
            raise SystemExit(f"the run on {objects} objects failed")
        return Measured(start_s=start_s, wall_s=json.loads(said)["wall_s"], cost=cost)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _one(objects: int, directory: Path, bootstrap_servers: str) -> int:
    """In a process of its own: so its memory and CPU are those of one scale."""
    from benchmarks.support.reconcile_run import run_on_load
    from tiersidecar.spark.session import open_session

    spark = open_session(
        app_name="benchmark",
        master="local[2]",
        settings={"spark.driver.memory": "2g", "spark.local.dir": str(directory / "local")},
    )
    try:
        print(BEGUN, flush=True)
        began_s = time.perf_counter()
        found = run_on_load(spark, make_load(objects), bootstrap_servers)
        wall_s = time.perf_counter() - began_s
        print(json.dumps({"wall_s": wall_s, "found": found}), flush=True)
    finally:
        spark.stop()
    expected = {"missing-object": ODD_ONES_EACH, "orphan-object": ODD_ONES_EACH}
    if found != expected:
        print(f"found {found} instead of {expected}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
