"""One turn of reading for each: bare clients, and ours with caches that are empty or hold all."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.support.bare_reads import FetchRange, read_ranges
from benchmarks.support.measure import Cost, cost_of_window, in_all
from benchmarks.support.our_read import open_reads, partitions_of, read_all
from tests.support.memory_metadata_log import MemoryMetadataLog
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.ports.store import Store
from tiersidecar.reading.read_path import ReadPath, ReadSettings
from tiersidecar.reading.remote_objects import recorded_keys

FIRST_READ_BYTES = 64 * 1024
Client = Callable[[Callable[[FetchRange], Awaitable[None]]], Awaitable[None]]
"""Does the work it is given with its own ranged GETs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A log dir in a store, and what the bare clients need to find it there."""

    name: str
    open_store: Callable[[], AbstractAsyncContextManager[Store]]
    metadata: MemoryMetadataLog
    root: Path
    clients: dict[str, Client]
    least_of: dict[str, float]
    """By client: the share of its sequential rate that is the goal."""
    limits: dict[str, Client] = field(default_factory=dict)
    """Rows without a goal: what cannot be quicker, whoever does it."""

    @property
    def partitions(self) -> list[TopicIdPartition]:
        return partitions_of(self.metadata)

    def segments(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        return list(self.metadata.list_remote_log_segments(partition))

    def objects(self, partition: TopicIdPartition) -> list[tuple[str, int]]:
        return [(recorded_keys(segment).log, segment.segment_size_in_bytes) for segment in self.segments(partition)]

    def size_bytes(self, partitions: Sequence[TopicIdPartition]) -> int:
        return sum(size for partition in partitions for _, size in self.objects(partition))


async def client_window(copied: Copied, partitions: Sequence[TopicIdPartition], passes: int, client: Client) -> Cost:
    """All of ``partitions``, one stream each, ``passes`` times, by a client that is connected already, as we are."""
    lanes = [copied.objects(partition) * passes for partition in partitions]
    costs: list[Cost] = []

    async def read(fetch: FetchRange) -> None:
        await fetch(lanes[0][0][0], 0, 1)
        size_bytes = passes * copied.size_bytes(partitions)
        costs.append(await cost_of_window(size_bytes, partial(read_ranges, fetch, lanes)))

    await client(read)
    return costs[0]


async def cold_window(store: Store, copied: Copied, partitions: Sequence[TopicIdPartition], passes: int) -> Cost:
    """Each pass with caches of its own, empty at first."""
    size_bytes, costs = copied.size_bytes(partitions), list[Cost]()
    for _ in range(passes):
        async with open_reads(store, copied.metadata, ReadSettings()) as (path, _):
            costs.append(await cost_of_window(size_bytes, partial(_read_whole, path, partitions, size_bytes)))
    return in_all(costs)


async def warm_window(path: ReadPath, partitions: Sequence[TopicIdPartition], size_bytes: int, passes: int) -> Cost:
    """With caches that hold what can be kept."""
    return in_all(
        [await cost_of_window(size_bytes, partial(_read_whole, path, partitions, size_bytes)) for _ in range(passes)]
    )


async def _read_whole(path: ReadPath, partitions: Sequence[TopicIdPartition], size_bytes: int) -> None:
    found = await read_all(path, partitions)
    if found != size_bytes:
        raise RuntimeError(f"{found} bytes were read of {size_bytes}")


async def warm_indexes(path: ReadPath, copied: Copied) -> None:
    """Manifests too."""
    for partition in copied.partitions:
        for segment in copied.segments(partition):
            await path.indexes.indexes(segment)
            await path.reader.read_batches(partition, segment.start_offset, max_bytes=1)


async def first_bytes(path: ReadPath, read: tuple[RemoteLogSegmentMetadata, int]) -> float:
    """Seconds until they are there."""
    segment, offset = read
    return await _seconds(path.reader.read_batches(segment.topic_id_partition, offset, max_bytes=FIRST_READ_BYTES))


async def get_times(
    client: Client, reads: Sequence[tuple[RemoteLogSegmentMetadata, int]], size_bytes: int
) -> list[float]:
    """Of GETs, each of ``size_bytes`` at a multiple of that, about where the offset is."""
    taken: list[float] = []

    async def fetch_each(fetch: FetchRange) -> None:
        await fetch(recorded_keys(reads[0][0]).log, 0, 1)  # connected, as we are
        for segment, offset in reads:
            whole_bytes = segment.segment_size_in_bytes
            share = (offset - segment.start_offset) / (segment.end_offset - segment.start_offset + 1)
            start = int(whole_bytes * share) // size_bytes * size_bytes
            length = min(size_bytes, whole_bytes - start)
            taken.append(await _seconds(fetch(recorded_keys(segment).log, start, length)))

    await client(fetch_each)
    return taken


async def _seconds(work: Awaitable[object]) -> float:
    began_s = time.perf_counter()
    await work
    return time.perf_counter() - began_s


def percentile(taken: Sequence[float], rank: int) -> float:
    """The one that ``rank`` of a hundred do not pass."""
    return sorted(taken)[min(len(taken) * rank // 100, len(taken) - 1)]


def percentiles(taken: Sequence[float]) -> str:
    """For people, in milliseconds."""
    return ", ".join(f"p{rank} {percentile(taken, rank) * 1000:.2f} ms" for rank in (50, 99))
