"""A log dir of thousands of partitions with hundreds of remote segments each, most of them known from the snapshot alone.

As :mod:`benchmarks.support.idle_cluster`, with two differences.  Each partition has two local segments, a sealed and an active
one: the rest was trimmed, as it is where millions of segments are remote.  And the metadata topic has only the last
few segments of each: the snapshot in ``state.dir``, written by the daemon's own code, has those before.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import cast

from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kio.schema.delete_records.v2.response import DeleteRecordsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from benchmarks.support.idle_cluster import METADATA_PARTITIONS, METADATA_TOPIC, IdleCluster, topic_id_of
from tiersidecar.adapters.internal_topics import TopicFacts
from tiersidecar.adapters.metadata_topic.replica import ConsumedPosition, MetadataReplica
from tiersidecar.adapters.metadata_topic.snapshot import (
    SavedPartition,
    SnapshotHead,
    load_snapshot,
    save_snapshot,
)
from tiersidecar.adapters.process_limits import reuse_freed_memory
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.metadata_cache import RemoteLogMetadataCache
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.ports.telemetry import NoTelemetry

REMOTE = 250
"""Remote segments of a partition: 5 million of 20,000."""
REPLAYED = 3
"""Of these, the last ones that only the topic has: a little more than 1 %."""
_LOCAL_START = REMOTE - 1
_TIMEOUT = i32Timedelta.parse(timedelta(seconds=15))


@dataclass(slots=True)
class ScaleCluster(IdleCluster):
    """``segments`` are the remote ones and the active one."""

    segments: int = REMOTE + 1
    _numbers: dict[TopicIdPartition, int] = field(default_factory=dict)

    def _first_event(self) -> int:
        return REMOTE - REPLAYED

    def _segment_uuid(self, owner: TopicIdPartition, offset: int) -> Uuid:
        if not self._numbers:
            self._numbers = {owner: number for number, owner in enumerate(self.owners)}
        return _uuid(self._numbers[owner], offset)

    def _local_segments(self) -> dict[int, bytes]:
        return {offset: self._log(offset) for offset in (_LOCAL_START, REMOTE)}

    def _state(self) -> PartitionState:
        """Return what a sidecar says before it trims, beside the remote log start."""
        trimmed, epoch = Offset(_LOCAL_START), LeaderEpoch(0)
        said = PartitionState().with_start(Offset(0), epoch)
        return replace(said, trim_offset=trimmed, trim_epoch=epoch, held_offset=trimmed, held_epoch=epoch)

    async def fill(self) -> None:
        await IdleCluster.fill(self)
        await asyncio.to_thread(self._trim)

    def _trim(self) -> None:
        """Delete at the broker what the log dir does not have, as the sidecar's trims do."""
        with self.kafka[1].admin.connected() as connection:
            for topic in self.topics:
                rows = tuple(
                    DeleteRecordsPartition(partition_index=i32(number), offset=i64(_LOCAL_START))
                    for number in range(self.partitions_of_a_topic)
                )
                wanted = DeleteRecordsTopic(name=TopicName(topic), partitions=rows)
                answer = cast(
                    DeleteRecordsResponse, connection.call(DeleteRecordsRequest(topics=(wanted,), timeout=_TIMEOUT))
                )
                if any(one.error_code is not ErrorCode.none for one in answer.topics[0].partitions):
                    raise RuntimeError(f"{topic} was not trimmed: {answer.topics[0]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What the snapshot of a cluster is made of."""

    path: Path
    owners: Sequence[TopicIdPartition]
    cluster_id: str
    topic_id: Uuid
    now_ms: int

    @property
    def segments(self) -> int:
        return len(self.owners) * (REMOTE - REPLAYED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """``load_s`` until all partitions are ready, and what a segment takes of the process's resident memory."""

    load_s: float
    bytes_per_segment: float


def snapshot_of(cluster: ScaleCluster, path: Path) -> Snapshot:
    """Return the snapshot to be written for the daemon whose file ``path`` is."""
    return Snapshot(
        path=path,
        owners=cluster.owners,
        cluster_id=cluster.kafka.cluster_id,
        topic_id=topic_id_of(cluster.kafka, METADATA_TOPIC),
        now_ms=cluster.now_ms,
    )


def written_and_loaded(snapshot: Snapshot) -> Loaded:
    """Write the snapshot and load it, in a process of its own each: memory that one has freed would be used again."""
    with _process() as process:
        process.submit(_write, snapshot).result()
    with _process() as process:
        return process.submit(_load, snapshot).result()


def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def _write(snapshot: Snapshot) -> None:
    """By the daemon's own code, as of a topic whose records were all deleted since: it is read from its begin on."""
    snapshot.path.parent.mkdir(parents=True, exist_ok=True)
    head = SnapshotHead(
        cluster_id=snapshot.cluster_id,
        topic=METADATA_TOPIC,
        topic_id=snapshot.topic_id,
        partition_count=METADATA_PARTITIONS,
    )
    positions = dict.fromkeys(range(METADATA_PARTITIONS), ConsumedPosition(position=0, leader_epoch=0, last=None))
    save_snapshot(snapshot.path, head, positions, _saved(snapshot), snapshot.owners)


def _saved(snapshot: Snapshot) -> Iterator[SavedPartition]:
    now_ms = snapshot.now_ms
    for number, owner in enumerate(snapshot.owners):
        cache = RemoteLogMetadataCache(owner)
        for offset in range(REMOTE - REPLAYED):
            uuid = _uuid(number, offset)
            cache.add((uuid, offset, offset, now_ms, 1 << 30, ((0, 0),), True, 1, now_ms, None, 0))
            cache.update((uuid, 1, now_ms, None, 1))
        yield SavedPartition(topic_id_partition=owner, applied_to=-1, image=cache.image())


def _load(snapshot: Snapshot) -> Loaded:
    reuse_freed_memory()  # as the daemon does
    gc.collect()
    before_bytes, began_s = _rss_bytes(), time.perf_counter()
    restored = load_snapshot(snapshot.path, topic=METADATA_TOPIC, partition_count=METADATA_PARTITIONS)
    if restored is None:
        raise RuntimeError("the snapshot was discarded")
    replica = MetadataReplica(
        topic=METADATA_TOPIC,
        partition_count=METADATA_PARTITIONS,
        recovery="",
        telemetry=NoTelemetry(),
        restored=restored,
    )
    del restored
    replica.assign(snapshot.owners)
    replica.begin_session(TopicFacts(cluster_id=snapshot.cluster_id, topic_id=snapshot.topic_id, leader_epochs={}))
    for number in replica.unbounded():
        replica.partitions[number].learn_bounds(0, 0)
    load_s = time.perf_counter() - began_s
    kept = sum(len(held.cache) for held in replica.all_held())
    if replica.waiting() or kept != snapshot.segments:
        raise RuntimeError(f"{replica.waiting()} partitions are not ready, {kept} segments")
    gc.collect()
    return Loaded(load_s=load_s, bytes_per_segment=(_rss_bytes() - before_bytes) / kept)


def _uuid(partition: int, offset: int) -> Uuid:
    """Return one that looks like those of others, the same in every process."""
    return Uuid(hashlib.blake2b(f"{partition} {offset}".encode(), digest_size=16).digest())


def _rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
