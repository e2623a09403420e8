"""Recover 1,000,000 segments from manifests alone: seconds, CPU seconds and peak memory.

``benchmarks/recover.py [--quick]``: a table, then the goals; exit code 1 if one is missed.  The bucket is simulated: a listing
of three objects per segment, in the order of their keys, and manifests that are made when they are asked for (which is part
of the time, and said apart).  All else is real: the walk, the manifests, the decisions and the events as bytes of Kafka;
publishing them is not in it.  Every segment is compared with what was put in.  ``--quick`` takes 50,000 segments, whose goal
is in proportion.
"""

from __future__ import annotations

import os
import sys

# Not this directory: a module of it has the name of one of the standard library.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib is not there yet

import argparse  # noqa: E402
import asyncio  # noqa: E402
import resource  # noqa: E402
import time  # noqa: E402
from collections.abc import AsyncIterator  # noqa: E402
from dataclasses import dataclass, replace  # noqa: E402

from benchmarks.support.local_bucket import WHEN_MS, segment_manifest, segment_of  # noqa: E402
from benchmarks.support.report import Goal, Report  # noqa: E402
from tiersidecar.decide.recover import RecoveryView, decide_recovery, events_of, wanted_manifests  # noqa: E402
from tiersidecar.domain.offsets import ByteRange  # noqa: E402
from tiersidecar.domain.segments import RemoteLogSegmentMetadata  # noqa: E402
from tiersidecar.domain.states import RemoteLogSegmentState  # noqa: E402
from tiersidecar.formats.aiven.keys import parse_object_key, planned_keys  # noqa: E402
from tiersidecar.formats.metadata.serde import write_event  # noqa: E402
from tiersidecar.ports.store import Buffer, StoredObject  # noqa: E402
from tiersidecar.reconcile.bucket_walk import MANIFESTS_AT_ONCE, read_manifests, walk_bucket  # noqa: E402

FULL, QUICK = 1_000_000, 50_000
MOST_S_FOR_FULL = 600.0
MOST_MIB = 400
SEGMENTS_PER_PARTITION = 10_000


@dataclass(slots=True)
class SimulatedBucket:
    """``segments`` segments in partitions of 10,000.  ``made_s`` is the time that went into making manifests."""

    segments: int
    made_s: float = 0.0

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        """As a store does: ascending by key, so partitions come in the order of their numbers' text."""
        partitions = range((self.segments - 1) // SEGMENTS_PER_PARTITION + 1)
        for partition in sorted(partitions, key=str):
            first = partition * SEGMENTS_PER_PARTITION
            for number in range(first, min(first + SEGMENTS_PER_PARTITION, self.segments)):
                keys = planned_keys(segment_of(number, SEGMENTS_PER_PARTITION))
                for key in (keys.indexes, keys.log, keys.manifest):
                    yield StoredObject(key=key, size_bytes=1, modified_ms=WHEN_MS)

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        begun_s = time.perf_counter()
        parsed = parse_object_key(key)
        assert parsed is not None
        partition = parsed.segment_id.topic_id_partition.partition
        number = partition * SEGMENTS_PER_PARTITION + parsed.start_offset // 1000
        data = segment_manifest(segment_of(number, SEGMENTS_PER_PARTITION))
        self.made_s += time.perf_counter() - begun_s
        await asyncio.sleep(0)
        return data

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        return memoryview(await self.fetch_object(key, max_bytes=2**30))[byte_range.start : byte_range.stop]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="50,000 segments: under a minute on a quiet machine")
    segments = QUICK if parser.parse_args().quick else FULL
    report = Report()
    print("recover from manifests alone")
    print(f"{'segments':>12}{'s':>8}{'CPU s':>8}{'made s':>8}{'peak MiB':>10}{'events MiB':>12}", flush=True)
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    bucket = SimulatedBucket(segments)
    event_bytes = asyncio.run(_recover(bucket))
    wall_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report.line(
        f"{segments:12,}{wall_s:8.1f}{cpu_s:8.1f}{bucket.made_s:8.1f}{peak_mib:10.0f}{event_bytes / 2**20:12.1f}"
    )
    report.goals.append(Goal(name="recover_s", figure=wall_s, most=MOST_S_FOR_FULL * segments / FULL))
    report.goals.append(Goal(name="recover_peak_mib", figure=peak_mib, most=MOST_MIB))
    return report.end()


async def _recover(bucket: SimulatedBucket) -> int:
    """Bytes of all events.

    Raises:
        RuntimeError: what came back is not what was put in.
    """
    turn, event_bytes, count = asyncio.Semaphore(MANIFESTS_AT_ONCE), 0, 0
    async for partition in walk_bucket(bucket, ""):
        wanted = wanted_manifests({}, None, partition.stored)
        manifests = await read_manifests(bucket, "", partition, wanted, turn)
        view = RecoveryView(known={}, snapshot=None, stored=partition.stored, manifests=manifests)
        recovery = decide_recovery(view)
        if recovery.left:
            raise RuntimeError(f"left: {recovery.left[:3]}")
        for place, segment in enumerate(recovery.segments):
            _check(segment, partition.owner.partition * SEGMENTS_PER_PARTITION + place)
            event_bytes += sum(len(write_event(event, knows_txn_index_empty=True)) for event in events_of(segment))
        count += len(recovery.segments)
    if count != bucket.segments:
        raise RuntimeError(f"{count} segments came back of {bucket.segments}")
    return event_bytes


def _check(found: RemoteLogSegmentMetadata, number: int) -> None:
    expected = replace(segment_of(number, SEGMENTS_PER_PARTITION), state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
    if found != expected:
        raise RuntimeError(f"{found} came back for {expected}")


if __name__ == "__main__":
    sys.exit(main())
