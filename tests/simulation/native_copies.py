"""The broker's own tiering beside a sidecar: it copies with the same broker id, into the same topic and the same store.

As ``RemoteLogManager.RLMCopyTask`` and Aiven's plugin do it: COPY_SEGMENT_STARTED, the objects, COPY_SEGMENT_FINISHED, one
segment of a partition at a time.  A copy that a change of leaders interrupts stays COPY_SEGMENT_STARTED.  The broker finishes
deletions that others began, as far as ``RLMExpirationTask`` gets (:mod:`~tests.simulation.native_walk`).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.simulation.chances import SeededIds
from tests.simulation.cluster import SimulatedPartition
from tests.simulation.environment import METADATA_TOPIC
from tests.simulation.hazards import Hazard
from tests.simulation.network import at_once
from tests.simulation.replica_log import ReplicaLog
from tests.simulation.world import World
from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId
from tiersidecar.domain.offsets import Lineage, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.aiven.index_blob import IndexArtefacts
from tiersidecar.formats.aiven.layout import plan_objects
from tiersidecar.formats.kafka.log_dir_files import write_leader_epochs
from tiersidecar.formats.metadata.partitioner import metadata_partition
from tiersidecar.formats.metadata.serde import write_event
from tiersidecar.ports.store import BytesBody
from tiersidecar.reading.remote_objects import recorded_keys

_TASK_S = 2.0
_CHUNK_BYTES = 512


async def tier_natively(world: World, hazard: Hazard) -> None:
    """Tier natively from the hazard's time on to the end."""
    await asyncio.sleep(hazard.begins_s)
    world.note("remote.storage.enable is set")
    world.topic_configs["remote.storage.enable"] = "true"
    for partition in world.cluster.partitions.values():
        copies = NativeCopies(world, partition)
        world.spawn(copies.run())
        world.spawn(copies.finish_deletions())


class NativeCopies:
    """The copies of one partition, at whatever leader it has."""

    def __init__(self, world: World, partition: SimulatedPartition) -> None:
        self._world, self._partition = world, partition
        self._ids = SeededIds(world.chances, f"native copies of {partition.topic_id_partition}")

    async def run(self) -> None:
        """Copy one segment after the other."""
        while True:
            await asyncio.sleep(_TASK_S)
            leader, epoch, offset = self._partition.leader, self._partition.epoch, self._first_not_remote()
            if leader is None or offset is None or METADATA_TOPIC not in self._world.topics:
                continue
            log = self._partition.leader_log
            base = max(segment for segment in log.segments[:-1] if segment <= offset)
            end = log.segments[log.segments.index(base) + 1]
            if end <= log.last_stable_offset():
                await self._copy(leader, epoch, log, base, end)

    async def finish_deletions(self) -> None:
        """Finish begun deletions one after the other, beside the copies, as Kafka's expiration has threads of its own."""
        while True:
            await asyncio.sleep(_TASK_S)
            for segment in self._world.deletions_in_native_reach(self._partition):
                await self._delete(segment)

    async def _delete(self, segment: RemoteLogSegmentMetadata) -> None:
        """Finish the deletion of ``segment``: whatever process began it, and even if that process still deletes."""
        chances, leader, epoch = self._world.chances, self._partition.leader, self._partition.epoch
        if leader is None or METADATA_TOPIC not in self._world.topics:
            return
        self._world.note(f"broker {leader} deletes {segment.remote_log_segment_id}, as was begun")
        self._write(self._update(segment, leader, RemoteLogSegmentState.DELETE_SEGMENT_STARTED))
        await asyncio.sleep(0.1 if chances.quiet else chances.between("native deletion lasts", 0.1, 10.0))
        if (self._partition.leader, self._partition.epoch) != (leader, epoch):
            return
        at_once(self._world.bucket.store.delete_objects(recorded_keys(segment, "").in_upload_order))
        self._write(self._update(segment, leader, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED))

    def _first_not_remote(self) -> int | None:
        return None if self._partition.leader is None else self._world.first_not_remote(self._partition)

    async def _copy(self, leader: int, epoch: int, log: ReplicaLog, base: int, end: int) -> None:
        chances = self._world.chances
        started, artefacts = self._started(leader, log, base, end), _artefacts(log, base, end)
        data = log.directory.joinpath(f"{base:020d}.log").read_bytes()
        self._world.note(f"broker {leader} copies {started.remote_log_segment_id} [{base}, {end})")
        self._write(started)
        self._world.rules.native.add(started.remote_log_segment_id)
        await asyncio.sleep(1.0 if chances.quiet else chances.between("native copy lasts", 1.0, 40.0))
        if (self._partition.leader, self._partition.epoch) != (leader, epoch):
            return
        layout = plan_objects(metadata=started, chunk_size=_CHUNK_BYTES, compression=False, encryption=None)
        chunks = [data[at : at + _CHUNK_BYTES] for at in range(0, len(data), _CHUNK_BYTES)]
        blob = layout.index_blob(artefacts, ())
        manifest = layout.manifest(layout.chunk_index([len(chunk) for chunk in chunks]), blob.indexes)
        for key, body in zip(layout.keys.in_upload_order, (data, blob.data, manifest), strict=True):
            at_once(self._world.bucket.store.put_object(key, BytesBody(body)))
        self._write(self._update(started, leader, RemoteLogSegmentState.COPY_SEGMENT_FINISHED))

    def _update(
        self, segment: RemoteLogSegmentMetadata, leader: int, state: RemoteLogSegmentState
    ) -> RemoteLogSegmentMetadataUpdate:
        return RemoteLogSegmentMetadataUpdate(
            remote_log_segment_id=segment.remote_log_segment_id,
            broker_id=BrokerId(leader),
            event_timestamp_ms=self._world.clock.true_ms(),
            state=state,
            custom_metadata=segment.custom_metadata,
        )

    def _started(self, leader: int, log: ReplicaLog, base: int, end: int) -> RemoteLogSegmentMetadata:
        inside = log.batches[log.position_of(base) : log.position_of(end - 1) + 1]
        return RemoteLogSegmentMetadata(
            remote_log_segment_id=RemoteLogSegmentId(
                topic_id_partition=self._partition.topic_id_partition, uuid=self._ids.random_uuid()
            ),
            start_offset=Offset(base),
            end_offset=Offset(end - 1),
            max_timestamp_ms=max(batch.timestamp_ms for batch in inside),
            broker_id=BrokerId(leader),
            event_timestamp_ms=self._world.clock.true_ms(),
            segment_size_in_bytes=sum(len(batch.data) for batch in inside),
            segment_leader_epochs=Lineage(tuple(log.epochs)).entries_in_range(base, end),
            txn_index_empty=not log.directory.joinpath(f"{base:020d}.txnindex").exists(),
        )

    def _write(self, event: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate) -> None:
        topic = self._world.topics[METADATA_TOPIC]
        topic.append(
            metadata_partition(self._partition.topic_id_partition, len(topic.partitions)),
            key=None,
            value=write_event(event, knows_txn_index_empty=True),
            timestamp_ms=self._world.clock.true_ms(),
            now_s=self._world.loop.time(),
        )


def _artefacts(log: ReplicaLog, base: int, end: int) -> IndexArtefacts:
    def file(offset: int, kind: str) -> Path:
        return log.directory / f"{offset:020d}.{kind}"

    aborted = file(base, "txnindex")
    return IndexArtefacts(
        offset_index=file(base, "index").read_bytes(),
        time_index=file(base, "timeindex").read_bytes(),
        producer_snapshot=file(end, "snapshot").read_bytes(),
        leader_epochs=write_leader_epochs([entry for entry in log.epochs if entry.start_offset < end]),
        transaction_index=(aborted.read_bytes() or None) if aborted.exists() else None,
    )
