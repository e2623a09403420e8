"""What cleaning costs: ours against the class that Kafka's broker runs, over the same log, in turn; what the offset map takes;
how much of a clean log is not read again; and how often a filter has a segment read in vain.

``benchmarks/compaction.py [--quick]``: records of 1 KiB, each key written about twice; a table, then the goals; exit code 1
if one is missed.
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
import subprocess  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from dataclasses import dataclass, replace  # noqa: E402
from pathlib import Path  # noqa: E402
from statistics import median  # noqa: E402

import structlog  # noqa: E402

from benchmarks.support.measure import MIB, Cost  # noqa: E402
from benchmarks.support.report import Goal, Report, spread  # noqa: E402
from tests.support.clean_world import CleanWorld  # noqa: E402
from tests.support.compacted_logs import NOW_MS, LogSegment, data_batch  # noqa: E402
from tests.support.faulty_store import FaultyStore  # noqa: E402
from tests.support.kafka_cleaner import CleanerCase, clean_by_kafka  # noqa: E402
from tiersidecar.domain.ids import format_uuid  # noqa: E402
from tiersidecar.domain.offsets import Offset  # noqa: E402
from tiersidecar.formats import native  # noqa: E402
from tiersidecar.formats.compaction.cleaning import Cleaner, CleaningTerms, SegmentCleaner  # noqa: E402
from tiersidecar.formats.compaction.key_filter import SegmentKeys  # noqa: E402
from tiersidecar.formats.compaction.offset_map import BYTES_PER_SLOT, OffsetMap, OffsetMapBuilder, most_keys  # noqa: E402
from tiersidecar.formats.compaction.segments import SegmentRewriter  # noqa: E402
from tiersidecar.formats.compaction.whole_batches import WholeBatches  # noqa: E402
from tiersidecar.formats.native import NativeCore  # noqa: E402

RECORD_BYTES, RECORDS_PER_BATCH = 1024, 64
SEGMENT_BYTES = 16 * MIB
MAP_BYTES = 128 * MIB
MOST_BESIDE_MAP_MIB = 64
KEYS_PER_SEGMENT, SEGMENTS_PER_ROUND, SAVED_MAP_SLOTS = 100, 20, 20_000
FILTERS, KEYS_PER_FILTER, KEYS_ASKED = 2000, 500, 5000
_NAME_LENGTH = 22
"""Of a segment's id at the end of its objects' names."""
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
    """How large the log is, how often it is cleaned, how many keys the map is filled with, and of how many segments one in ten
    has a dirty key."""

    log_bytes: int
    rounds: int
    map_keys: int
    segments: int


FULL = Scale(log_bytes=512 * MIB, rounds=5, map_keys=10_000_000, segments=400)
QUICK = Scale(log_bytes=32 * MIB, rounds=3, map_keys=300_000, segments=100)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a log of 32 MiB, a map of 300,000 keys")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
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
    turns = [(_kafkas_cost(case), _cost(case)) for _ in range(scale.rounds)]
    ratios = [_per_cpu_s(ours) / _per_cpu_s(theirs) for theirs, ours in turns]
    for who, costs in (
        ("Kafka's Cleaner, in a warm JVM", [turn[0] for turn in turns]),
        ("ours", [turn[1] for turn in turns]),
    ):
        middle = sorted(costs, key=_per_cpu_s)[len(costs) // 2]
        report.row(who, middle, f"{_per_cpu_s(middle):.0f} MiB per CPU s")
    report.line(f"{f'ours of theirs, {len(ratios)} rounds in turn':52}{spread(ratios, '.2f')}")
    in_python = _cost_in_python(case)
    report.row("ours, without the native core", in_python, f"{_per_cpu_s(in_python):.0f} MiB per CPU s")
    saved = asyncio.run(_downloads_saved(scale.segments))
    report.line(f"{'bytes of clean segments not read':52}{saved:9.1%}")
    in_vain = _read_in_vain()
    report.line(f"{f'of {FILTERS:,} segments read for no key of {KEYS_ASKED:,}':52}{in_vain:9.2%}")
    beside_mib = _beside_map_mib(scale.map_keys)
    report.line(f"{f'beside a map of {scale.map_keys:,} keys':52}{beside_mib:9.0f} MiB")
    report.goals += [
        Goal(name="mib_per_cpu_s_of_kafkas", figure=median(ratios), least=1),
        Goal(name="downloads_saved", figure=saved, least=0.85),
        Goal(name="read_in_vain", figure=in_vain, most=0.01),
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
    """From files to files, like Kafka's, and with the filters that Kafka does not make."""
    with tempfile.TemporaryDirectory() as scratch:
        paths = [Path(scratch) / f"{segment.base_offset}.log" for segment in case.segments]
        for path, segment in zip(paths, case.segments, strict=True):
            path.write_bytes(segment.log)
        begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        offset_map = OffsetMap(case.map_bytes)
        builder = OffsetMapBuilder(offset_map, first_dirty_offset=case.first_dirty)
        for path, segment in zip(paths, case.segments, strict=True):
            batches = WholeBatches()
            for part in _slices(path):
                builder.feed(batches, part, where=path.name)
            builder.end_segment(segment.next_base_offset)
        bound = case.segments[-1].next_base_offset
        terms = CleaningTerms(
            now_ms=case.now_ms, delete_retention_ms=case.delete_retention_ms, upper_bound_offset=bound
        )
        cleaner = Cleaner(offset_map, terms)
        for path, segment in zip(paths, case.segments, strict=True):
            one = SegmentCleaner(cleaner, size_bytes=len(segment.log), max_timestamp_ms=NOW_MS, where=path.name)
            rewriter = SegmentRewriter(one, base_offset=Offset(segment.base_offset), rewrite_run=one.rewrite_run)
            keys = SegmentKeys()
            with path.with_suffix(".cleaned").open("xb") as file:
                for part in _slices(path):
                    for piece in rewriter.feed(part, where=path.name):
                        file.write(piece)
                        keys.look(piece, where=path.name)
            rewriter.finish()
            keys.key_filter(most_keys(case.map_bytes))
        cpu_s = time.process_time() - begun_cpu_s
        return Cost(size_bytes=_size(case), wall_s=time.perf_counter() - begun_s, cpu_s=cpu_s)


def _slices(path: Path) -> Iterator[memoryview]:
    view = memoryview(bytearray(MIB))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(view):
            yield view[:size]


def _cost_in_python(case: CleanerCase) -> Cost:
    core = native.core
    native.core = NativeCore(walks=None, reason="the benchmark says so")
    try:
        return _cost(case)
    finally:
        native.core = core


async def _downloads_saved(segments: int) -> float:
    """A clean log, then a dirty segment with a key of every tenth segment, and as many keys as the map holds: the share of the
    bytes of the clean segments that the round did not fetch."""
    with tempfile.TemporaryDirectory() as scratch:
        world = CleanWorld(scratch=Path(scratch) / "cleaned", dedupe_bytes=BYTES_PER_SLOT * SAVED_MAP_SLOTS)
        keys, offset = KEYS_PER_SEGMENT, 0
        for number in range(segments):
            await world.add(_segment(offset, [b"%d-%d" % (number, key) for key in range(keys)]))
            offset += keys
            if number % SEGMENTS_PER_ROUND == SEGMENTS_PER_ROUND - 1:
                await world.clean_all()
        await world.clean_all()
        sizes = {format_uuid(one.remote_log_segment_id.uuid): one.segment_size_in_bytes for one in world.segments()}
        dirty = [b"%d-7" % number for number in range(0, segments, 10)]
        dirty += [b"new-%d" % number for number in range(most_keys(world.dedupe_bytes) - len(dirty))]
        await world.add(_segment(offset, dirty))
        store = FaultyStore(world.builder.run.store)
        world.builder.run = replace(world.builder.run, store=store)  # type: ignore[arg-type]
        await world.clean()
        read = [span for key, span in store.log_fetches() if key.removesuffix(".log")[-_NAME_LENGTH:] in sizes]
    return 1 - sum(one.stop - one.start for one in read if one is not None) / sum(sizes.values())


def _read_in_vain() -> float:
    """The share of segments that a round with a full map reads, though they have none of its keys."""
    asked = OffsetMap((KEYS_ASKED + 1) * 2 * BYTES_PER_SLOT)
    for offset in range(KEYS_ASKED):
        asked.put(b"asked-%d" % offset, offset)
    read = 0
    for number in range(FILTERS):
        keys = SegmentKeys()
        keys.look(data_batch(0, [(b"%d-%d" % (number, key), b"") for key in range(KEYS_PER_FILTER)]), where="a.log")
        key_filter = keys.key_filter(KEYS_ASKED)
        read += key_filter is None or not key_filter.rules_out(asked, now_ms=NOW_MS)
    return read / FILTERS


def _segment(base_offset: int, keys: list[bytes]) -> LogSegment:
    draw, batches = random.Random(base_offset), []
    for begin in range(0, len(keys), RECORDS_PER_BATCH):
        some = keys[begin : begin + RECORDS_PER_BATCH]
        batches.append(data_batch(base_offset + begin, [(key, draw.randbytes(RECORD_BYTES - 30)) for key in some]))
    return LogSegment(base_offset=base_offset, next_base_offset=base_offset + len(keys), log=b"".join(batches))


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
