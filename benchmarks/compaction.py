"""What cleaning costs: our cleaner against the broker's own, over the same log in one run; and what the offset map takes.

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
from collections.abc import Callable, Sequence  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402

from benchmarks.support.measure import MIB, Cost  # noqa: E402
from benchmarks.support.process_cpu import cpu_s  # noqa: E402
from benchmarks.support.report import Goal, Report  # noqa: E402
from tests.support.compacted_logs import LogSegment, clean, data_batch  # noqa: E402
from tests.support.compacted_topic import read_segments, wait_until_cleaned  # noqa: E402
from tests.support.kafka_cluster import KafkaCluster  # noqa: E402
from tests.support.raw_log import send_batch  # noqa: E402

TOPIC, RECORD_BYTES, RECORDS_PER_BATCH = "compacted", 1024, 64
SEGMENT_BYTES = 16 * MIB
MAP_BYTES = 128 * MIB
MOST_BESIDE_MAP_MIB = 64
DAY_MS = 86_400_000
FILL_MAP = """
import resource, sys
from tiersidecar.formats.compaction.offset_map import BYTES_PER_SLOT, LOAD_FACTOR, OffsetMap
keys = int(sys.argv[1])
filled = OffsetMap((int(keys / LOAD_FACTOR) + 1) * BYTES_PER_SLOT)
for offset in range(keys):
    filled.put(b"key-%012d" % offset, offset)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - filled.size_bytes / 1024**2)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large the log is, and how many keys the map is filled with."""

    log_bytes: int
    map_keys: int


FULL = Scale(log_bytes=1024 * MIB, map_keys=10_000_000)
QUICK = Scale(log_bytes=96 * MIB, map_keys=1_000_000)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a log of 96 MiB, a map of a million keys")
    scale = QUICK if parser.parse_args().quick else FULL
    report = Report()
    report.begin(f"cleaning a log of {scale.log_bytes // MIB} MiB, records of {RECORD_BYTES} bytes")
    properties = {"log.cleaner.backoff.ms": "100", "log.cleaner.dedupe.buffer.size": str(MAP_BYTES)}
    with tempfile.TemporaryDirectory() as scratch, KafkaCluster(Path(scratch), properties=properties) as kafka:
        kafka.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES, configs={"retention.ms": "-1"})
        _fill(kafka, scale.log_bytes)
        segments = read_segments(kafka[1], TOPIC, 0)
        theirs = _brokers_cost(kafka, segments)
    ours = _cost(sum(len(one.log) for one in segments[:-1]), time.process_time, lambda: _clean(segments[:-1]))
    report.row("the broker's cleaner", theirs, f"{_per_cpu_s(theirs):.0f} MiB per CPU s")
    report.row("ours", ours, f"{_per_cpu_s(ours):.0f} MiB per CPU s")
    beside_mib = _beside_map_mib(scale.map_keys)
    report.line(f"{f'beside a map of {scale.map_keys:,} keys':52}{beside_mib:9.0f} MiB")
    report.goals += [
        Goal(name="mib_per_cpu_s_of_the_brokers", figure=_per_cpu_s(ours) / _per_cpu_s(theirs), least=1),
        Goal(name="beside_the_map_mib", figure=beside_mib, most=MOST_BESIDE_MAP_MIB),
    ]
    return report.end()


def _fill(kafka: KafkaCluster, log_bytes: int) -> None:
    draw = random.Random(5)
    count = log_bytes // RECORD_BYTES
    now_ms = int(time.time() * 1000)
    with kafka.admin.connected(timeout_s=60) as connection:
        for _ in range(count // RECORDS_PER_BATCH):
            records = [
                (b"key-%012d" % draw.randrange(count // 2), draw.randbytes(RECORD_BYTES - 30))
                for _ in range(RECORDS_PER_BATCH)
            ]
            send_batch(connection, TOPIC, data_batch(0, records, base_timestamp=now_ms))


def _brokers_cost(kafka: KafkaCluster, segments: Sequence[LogSegment]) -> Cost:
    """From when the topic becomes a compacted one until its checkpoint is at the active segment; the whole broker's CPU."""

    def cleaned() -> None:
        kafka.admin.alter_topic(TOPIC, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
        wait_until_cleaned(kafka[1], TOPIC, [segments[-1].base_offset])

    return _cost(sum(len(one.log) for one in segments[:-1]), lambda: cpu_s(kafka[1].pid), cleaned)


def _clean(segments: Sequence[LogSegment]) -> None:
    done = clean(
        segments,
        now_ms=int(time.time() * 1000),
        delete_retention_ms=DAY_MS,
        map_bytes=MAP_BYTES,
        segment_bytes=SEGMENT_BYTES,
        slice_bytes=MIB,
    )
    assert done.cleaner_offset == segments[-1].next_base_offset


def _cost(size_bytes: int, cpu: Callable[[], float], work: Callable[[], None]) -> Cost:
    begun_s, begun_cpu_s = time.perf_counter(), cpu()
    work()
    return Cost(size_bytes=size_bytes, wall_s=time.perf_counter() - begun_s, cpu_s=cpu() - begun_cpu_s)


def _per_cpu_s(cost: Cost) -> float:
    return cost.size_bytes / MIB / cost.cpu_s


def _beside_map_mib(keys: int) -> float:
    """What a process that fills a map has in memory beside the map: one of its own, that imports nothing else."""
    done = subprocess.run([sys.executable, "-c", FILL_MAP, str(keys)], capture_output=True, text=True, check=True)
    return float(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
