"""What remote log metadata costs: reading events, keeping segments, starting again with a million of them.

``benchmarks/metadata.py [--quick]``: a table, then the goals; exit code 1 if one is missed.  Everything but the replay from a
real broker's topic runs on one core, in this process.
"""

from __future__ import annotations

import os
import sys

# Not this directory: a module of it has the name of one of the standard library.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib is not there yet

import argparse  # noqa: E402
import asyncio  # noqa: E402
import gc  # noqa: E402
import logging  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
import tracemalloc  # noqa: E402
from collections.abc import Callable, Iterator, Sequence  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from dataclasses import dataclass, replace  # noqa: E402
from functools import partial  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TypeVar  # noqa: E402

import structlog  # noqa: E402
import uvloop  # noqa: E402

from benchmarks.support.metadata_load import (  # noqa: E402
    BATCH_RECORDS,
    CUSTOM_METADATA,
    MemoryRecord,
    Workload,
    feed,
    fill,
    new_replica,
    replayed_from_broker,
)
from benchmarks.support.report import Goal, Report  # noqa: E402
from tests.unit.formats.metadata.kio_records import read_with_kio  # noqa: E402
from tiersidecar.adapters.metadata_topic.replica import ConsumedPosition, MetadataReplica  # noqa: E402
from tiersidecar.adapters.metadata_topic.snapshot import (  # noqa: E402
    SavedPartition,
    SnapshotHead,
    load_snapshot,
    save_snapshot,
)
from tiersidecar.domain.ids import TopicIdPartition  # noqa: E402
from tiersidecar.domain.metadata_cache import RemoteLogMetadataCache  # noqa: E402
from tiersidecar.formats import native  # noqa: E402
from tiersidecar.formats.metadata import hot  # noqa: E402
from tiersidecar.formats.metadata.partitioner import metadata_partition  # noqa: E402
from tiersidecar.formats.metadata.serde import read_event  # noqa: E402
from tiersidecar.formats.native import NativeCore  # noqa: E402

KEPT_SEGMENTS = 1_000_000
"""Of the restart: more than the plan for a broker (4,000 partitions, 100,000 segments)."""
METADATA_PARTITIONS = 50
CORES = {"Python": NativeCore(walks=None, reason="the benchmark says so")} | (
    {"native": native.core} if native.core.walks is not None else {}
)
"""The last one is the one that runs in production here, and that the goals are for."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """``segments`` have two events each; the best of ``runs`` counts, since other work only ever adds."""

    segments: int
    topic_segments: int
    runs: int


FULL = Scale(segments=500_000, topic_segments=250_000, runs=3)
QUICK = Scale(segments=60_000, topic_segments=40_000, runs=2)


class Bench:
    """Measurements, each printed as it is known."""

    def __init__(self, scratch: Path, scale: Scale, report: Report) -> None:
        self._scratch, self._scale, self._report = scratch, scale, report
        self._folded_per_s = 0.0

    async def run(self) -> None:
        load = Workload(partitions=4_000, metadata_partitions=METADATA_PARTITIONS)
        records = load.records(self._scale.segments)
        gc.freeze()  # the records are the measurement's: a consumer lets go of each batch
        self._codec(records)
        self._folding(load, records)
        del records
        gc.unfreeze()
        self._memory()
        self._restart()
        await self._topic()

    def _codec(self, records: list[MemoryRecord]) -> None:
        values = [record.value for record in records]
        some = values[: len(values) // 10]
        core = native.core.walks
        if core is not None:
            batches = [records[at : at + BATCH_RECORDS] for at in range(0, len(records), BATCH_RECORDS)]
            self._rate("decode, native", len(records), lambda: _each(core.read_metadata, batches))
        self._rate("decode, struct codec (production, Python)", len(values), lambda: _decode_hot(values))
        self._rate(
            "decode, general reader to dataclasses", len(some), lambda: _each(lambda v: read_event(v, where=""), some)
        )
        self._rate("decode, kio to its entities (the oracle)", len(some), lambda: _each(read_with_kio, some))

    def _folding(self, load: Workload, records: list[MemoryRecord]) -> None:
        fields = [_decode(record.value) for record in records]
        keys = [load.owner_of(number // 2) for number in range(len(records))]

        one_each = list({metadata_partition(owner, METADATA_PARTITIONS): owner for owner in load.owners}.values())

        def apply_only() -> None:
            caches = {owner: RemoteLogMetadataCache(owner) for owner in load.owners}
            for owner, (kind, one) in zip(keys, fields, strict=True):
                cache = caches[owner]
                cache.add(one) if kind == hot.ADDED else cache.update(one)  # type: ignore[arg-type]

        def consume(owners: Sequence[TopicIdPartition]) -> None:
            feed(new_replica(METADATA_PARTITIONS), owners, records)

        self._rate("apply alone, Python", len(records), apply_only)
        rate = 0.0
        for name, core in CORES.items():
            with _on(core):
                rate = self._rate(
                    f"decode + apply, as the consumer does it, {name}", len(records), partial(consume, load.owners)
                )
                self._rate(f"the same, of partitions kept elsewhere, {name}", len(records), partial(consume, one_each))
        self._folded_per_s = rate
        self._goal("decode_apply_events_per_s", rate, least=700_000)

    def _memory(self) -> None:
        per_segment = []
        for what, custom in CUSTOM_METADATA.items():
            # 25 segments a partition, as planned for a broker.
            load = Workload(partitions=1_000, metadata_partitions=METADATA_PARTITIONS, custom=custom)
            records = load.records(25_000)
            gc.collect()
            tracemalloc.start()
            replica = new_replica(METADATA_PARTITIONS)
            feed(replica, load.owners, records)
            gc.collect()
            used = tracemalloc.get_traced_memory()[0] / 25_000
            tracemalloc.stop()
            per_segment.append(used)
            self._report.line(f"{f'memory of a finished segment, {what}':60}{used:12,.0f} B")
            del replica
        self._goal("bytes_per_segment", per_segment[0], most=400)

    def _restart(self) -> None:
        load = Workload(partitions=4_000, metadata_partitions=METADATA_PARTITIONS)
        path = self._scratch / "snapshot.db"
        replica = new_replica(METADATA_PARTITIONS)
        fill(replica, load, KEPT_SEGMENTS)
        save_s = _seconds(partial(_save, path, replica, load))
        del replica
        replay_s = 2 * KEPT_SEGMENTS / self._folded_per_s
        best = min(_seconds(lambda: _restore(path, load)) for _ in range(self._scale.runs))
        size_mib = path.stat().st_size / 1024**2
        self._report.line(f"{'full replay of 1,000,000 segments, by the rate above':60}{replay_s:12.2f} s")
        self._report.line(f"{'writing their snapshot':60}{save_s:12.2f} s  {size_mib:.0f} MiB")
        self._report.line(
            f"{'restart from the snapshot, all partitions ready':60}{best:12.2f} s  {replay_s / best:.1f} x"
        )
        self._goal("replay_s", replay_s, most=3.5)
        self._goal("restart_s", best, most=5)

    async def _topic(self) -> None:
        load = Workload(partitions=400, metadata_partitions=METADATA_PARTITIONS)
        seconds, restart_s = await replayed_from_broker(self._scratch, load, self._scale.topic_segments)
        events = 2 * self._scale.topic_segments
        self._report.line(
            f"{'replay from a real topic, to ready':60}{events / seconds:12,.0f} events/s  {seconds:.1f} s"
        )
        self._report.line(f"{'restart beside the same topic with the snapshot':60}{restart_s:12.2f} s")

    def _rate(self, what: str, count: int, work: Callable[[], object]) -> float:
        rate = count / min(_cpu_seconds(work) for _ in range(self._scale.runs))
        self._report.line(f"{what:60}{rate:12,.0f} events/s  {1e6 / rate:.2f} us")
        return rate

    def _goal(self, name: str, figure: float, *, least: float | None = None, most: float | None = None) -> None:
        self._report.goals.append(Goal(name=name, figure=figure, least=least, most=most))


def _decode(value: bytes) -> tuple[int | None, object]:
    kind, position, _ = hot.peek(value)
    return kind, hot.read_added(value, position) if kind == hot.ADDED else hot.read_updated(value, position)


def _decode_hot(values: list[bytes]) -> None:
    for value in values:
        kind, position, _ = hot.peek(value)
        if kind == hot.ADDED:
            hot.read_added(value, position)
        else:
            hot.read_updated(value, position)


def _each(function: Callable[[T], object], values: list[T]) -> None:
    for value in values:
        function(value)


@contextmanager
def _on(core: NativeCore) -> Iterator[None]:
    before, native.core = native.core, core
    try:
        yield
    finally:
        native.core = before


def _positions(replica: MetadataReplica) -> Iterator[tuple[int, ConsumedPosition]]:
    for partition in replica.partitions:
        yield partition.number, ConsumedPosition(position=partition.reached, leader_epoch=0, last=partition.last)


def _save(path: Path, replica: MetadataReplica, load: Workload) -> None:
    held = replica.all_held()
    head = SnapshotHead(
        cluster_id=load.facts.cluster_id,
        topic=replica.topic,
        topic_id=load.facts.topic_id,
        partition_count=METADATA_PARTITIONS,
    )
    saved = [
        SavedPartition(topic_id_partition=one.topic_id_partition, applied_to=one.applied_to, image=one.cache.image())
        for one in held
    ]
    save_snapshot(path, head, dict(_positions(replica)), saved, [one.topic_id_partition for one in held])


def _restore(path: Path, load: Workload) -> None:
    restored = load_snapshot(path, topic="metadata", partition_count=METADATA_PARTITIONS)
    if restored is None:
        raise RuntimeError("the snapshot was discarded")
    positions = {number: replace(at, last=None) for number, at in restored.positions.items()}
    replica = new_replica(METADATA_PARTITIONS, restored=replace(restored, positions=positions))
    replica.assign(load.owners)
    replica.begin_session(load.facts)
    for number in replica.unbounded():
        replica.partitions[number].learn_bounds(0, positions[number].position)
    kept = sum(len(held.cache) for held in replica.all_held())
    if replica.waiting() or kept != KEPT_SEGMENTS:
        raise RuntimeError(f"{replica.waiting()} partitions are not ready, {kept} segments")


def _seconds(work: Callable[[], object]) -> float:
    gc.collect()
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def _cpu_seconds(work: Callable[[], object]) -> float:
    """Of this process, which has one busy thread: what else runs on the machine does not count."""
    gc.collect()
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer events: under 45 seconds")
    scale = QUICK if parser.parse_args().quick else FULL
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    report = Report()
    report.line(f"metadata, {2 * scale.segments:,} events, {os.cpu_count()} cores, Python {sys.version.split()[0]}")
    with (
        tempfile.TemporaryDirectory(prefix="bench-metadata-") as scratch,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(Bench(Path(scratch), scale, report).run())
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
