"""What cleaning costs: ours against the class that Kafka's broker runs, over the same log; and what the offset map takes.

``benchmarks/compaction.py [--quick]``: records of 1 KiB, each key written about twice; a table, then the goals; exit code 1
if one is missed.
"""

from __future__ import annotations

import os
import sys

# Not this directory: a module of it has the name of one of the standard library.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib is not there yet

import argparse  # noqa: E402
import random  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402

from benchmarks.support.measure import MIB, Cost  # noqa: E402
from benchmarks.support.report import Goal, Report  # noqa: E402
from tests.support.compacted_logs import NOW_MS, LogSegment, clean, data_batch  # noqa: E402
from tests.support.kafka_cleaner import CleanerCase, clean_by_kafka  # noqa: E402

RECORD_BYTES, RECORDS_PER_BATCH = 1024, 64
SEGMENT_BYTES = 16 * MIB
MAP_BYTES = 128 * MIB
MOST_BESIDE_MAP_MIB = 64
DAY_MS = 86_400_000
FILL_MAP = """
import re, sys
from pathlib import Path
from tiersidecar.formats.compaction.offset_map import BYTES_PER_SLOT, LOAD_FACTOR, OffsetMap
keys = int(sys.argv[1])
filled = OffsetMap((int(keys / LOAD_FACTOR) + 1) * BYTES_PER_SLOT)
for offset in range(keys):
    filled.put(b"key-%012d" % offset, offset)
peak_kib = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])  # ru_maxrss has the parent's
print(peak_kib / 1024 - filled.size_bytes / 1024**2)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large the log is, and how many keys the map is filled with."""

    log_bytes: int
    map_keys: int


FULL = Scale(log_bytes=512 * MIB, map_keys=10_000_000)
QUICK = Scale(log_bytes=32 * MIB, map_keys=300_000)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a log of 32 MiB, a map of 300,000 keys")
    scale = QUICK if parser.parse_args().quick else FULL
    report = Report()
    report.begin(f"cleaning a log of {scale.log_bytes // MIB} MiB, records of {RECORD_BYTES} bytes")
    case = CleanerCase(
        segments=tuple(_log(scale.log_bytes)),
        aborted=(),
        producers={},
        now_ms=NOW_MS,
        delete_retention_ms=DAY_MS,
        first_dirty=0,
        map_bytes=MAP_BYTES,
    )
    theirs = _kafkas_cost(case)
    ours = _cost(case)
    report.row("Kafka's Cleaner, in a warm JVM", theirs, f"{_per_cpu_s(theirs):.0f} MiB per CPU s")
    report.row("ours", ours, f"{_per_cpu_s(ours):.0f} MiB per CPU s")
    beside_mib = _beside_map_mib(scale.map_keys)
    report.line(f"{f'beside a map of {scale.map_keys:,} keys':52}{beside_mib:9.0f} MiB")
    report.goals += [
        Goal(name="mib_per_cpu_s_of_kafkas", figure=_per_cpu_s(ours) / _per_cpu_s(theirs), least=1),
        Goal(name="beside_the_map_mib", figure=beside_mib, most=MOST_BESIDE_MAP_MIB),
    ]
    return report.end()


def _log(log_bytes: int) -> Iterator[LogSegment]:
    """Of plain batches, the keys at random."""
    draw, count = random.Random(5), log_bytes // RECORD_BYTES
    per_segment = SEGMENT_BYTES // RECORD_BYTES
    for base in range(0, count, per_segment):
        batches = []
        for offset in range(base, base + per_segment, RECORDS_PER_BATCH):
            keys = [b"key-%012d" % draw.randrange(count // 2) for _ in range(RECORDS_PER_BATCH)]
            batches.append(data_batch(offset, [(key, draw.randbytes(RECORD_BYTES - 30)) for key in keys]))
        yield LogSegment(base_offset=base, next_base_offset=base + per_segment, log=b"".join(batches))


def _kafkas_cost(case: CleanerCase) -> Cost:
    """Of the second time in one JVM: the first warms it up.  All its threads count; what it takes on the clock is not known."""
    with tempfile.TemporaryDirectory() as scratch:
        cpu_s = clean_by_kafka(Path(scratch), [case, case], jvm_options=())[-1].cpu_s
    return Cost(size_bytes=_size(case), wall_s=cpu_s, cpu_s=cpu_s)


def _cost(case: CleanerCase) -> Cost:
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    clean(
        case.segments,
        now_ms=case.now_ms,
        delete_retention_ms=case.delete_retention_ms,
        map_bytes=case.map_bytes,
        aborted=case.aborted,
        slice_bytes=MIB,
    )
    cpu_s = time.process_time() - begun_cpu_s
    return Cost(size_bytes=_size(case), wall_s=time.perf_counter() - begun_s, cpu_s=cpu_s)


def _size(case: CleanerCase) -> int:
    return sum(len(segment.log) for segment in case.segments)


def _per_cpu_s(cost: Cost) -> float:
    return cost.size_bytes / MIB / cost.cpu_s


def _beside_map_mib(keys: int) -> float:
    """What a process that fills a map has in memory beside the map: one of its own, that imports nothing else."""
    done = subprocess.run([sys.executable, "-c", FILL_MAP, str(keys)], capture_output=True, text=True, check=True)
    return float(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
