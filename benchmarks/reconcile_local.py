"""Reconcile 300,000 objects without Spark: seconds, CPU seconds and peak memory, with and without reading the manifests.

``benchmarks/reconcile_local.py [--quick]``: a table, then the goals; exit code 1 if one is missed.  The store is a directory of
small files, listed as it is; three objects and two events per segment, some left out and some added, and exactly those must be
found.  The events are handed over in memory, so reading them from a broker is not in it.  ``--quick`` takes 60,000
objects, whose goal is in proportion.
"""

from __future__ import annotations

import os
import sys

# Not this directory: a module of it has the name of one of the standard library.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib is not there yet

import argparse  # noqa: E402
import asyncio  # noqa: E402
import resource  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections import Counter  # noqa: E402
from collections.abc import AsyncIterator, Sequence  # noqa: E402
from pathlib import Path  # noqa: E402

from benchmarks.support.local_bucket import ODD_ONES_EACH, WHEN_MS, LocalBucket  # noqa: E402
from benchmarks.support.report import Goal, Report  # noqa: E402
from tests.support.directory_store import DirectoryStore  # noqa: E402
from tiersidecar.decide.reconcile_findings import Graces  # noqa: E402
from tiersidecar.reconcile.inputs import ReconcileSettings  # noqa: E402
from tiersidecar.reconcile.local import (  # noqa: E402
    LocalInputs,
    RawEvent,
    reconcile_locally,
)

FULL, QUICK = 300_000, 60_000
MOST_S_FOR_FULL = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="60,000 objects: under 45 seconds on a quiet machine")
    objects = QUICK if parser.parse_args().quick else FULL
    report = Report()
    print("reconcile a directory in this process")
    print(f"{'objects':>12}  {'manifests':12}{'s':>8}{'CPU s':>8}{'peak MiB':>10}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        bucket = LocalBucket(Path(directory), objects)
        for name, reads_manifests in (("listed", False), ("read", True)):
            wall_s, cpu_s = asyncio.run(_run(bucket, reads_manifests=reads_manifests))
            peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            report.line(f"{objects:12,}  {name:12}{wall_s:8.1f}{cpu_s:8.1f}{peak_mib:10.0f}")
            most_s = MOST_S_FOR_FULL * objects / FULL
            report.goals.append(Goal(name=f"s_manifests_{name}", figure=wall_s, most=most_s))
    return report.end()


async def _run(bucket: LocalBucket, *, reads_manifests: bool) -> tuple[float, float]:
    """Seconds, and CPU seconds."""
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    async with DirectoryStore(str(bucket.root))() as store:
        seen = await reconcile_locally(
            store,
            ReconcileSettings(graces=Graces(), reads_manifests=reads_manifests, is_plain=True),
            LocalInputs(early_events=_parts(bucket.events), late_events=lambda: _parts([]), topics=bucket.topics),
            lambda text: None,
            now_ms=lambda: WHEN_MS + 86_400_000,
        )
    found = Counter(finding.kind.value for finding in seen.findings)
    if found != {"missing-object": ODD_ONES_EACH, "orphan-object": ODD_ONES_EACH}:
        raise RuntimeError(f"found {dict(found)}")
    return time.perf_counter() - begun_s, time.process_time() - begun_cpu_s


async def _parts(events: Sequence[RawEvent]) -> AsyncIterator[Sequence[RawEvent]]:
    for begin in range(0, len(events), 500):
        yield events[begin : begin + 500]


if __name__ == "__main__":
    sys.exit(main())
