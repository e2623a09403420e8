"""A broker with thousands of partitions of twenty segments, all of them remote but the active ones, and nothing going on.

Partitions, offsets, leaders and the sidecars' own topics are a real broker's.  Its disk is not: one JVM with 80,000 segments
maps more files than a machine allows by default.  So the broker has the 20 records of each partition in one segment, and the
sidecar looks at a log dir beside it, in which each record is a segment with all its files.  The events say that all sealed
ones are remote; the store has the objects of the last of each partition, whose leader epochs the sidecar reads.
"""

from __future__ import annotations

import asyncio
import shutil
import struct
import time
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from aiokafka import AIOKafkaProducer

from tests.support.batches import batch_bytes, record_bytes
from tests.support.kafka_cluster import KafkaCluster
from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.adapters.kafka.broker import open_broker
from tiersidecar.adapters.state_topic.log import open_state_topic
from tiersidecar.adapters.state_topic.settings import StateTopicSettings
from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.aiven.index_blob import IndexArtefacts, IndexKind
from tiersidecar.formats.aiven.layout import plan_objects
from tiersidecar.formats.kafka.indexes import rebuild_indexes
from tiersidecar.formats.kafka.producer_state import write_producer_snapshot
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.metadata.partitioner import metadata_partition
from tiersidecar.formats.metadata.serde import write_event
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.ports.telemetry import NoTelemetry

SEGMENTS = 20
METADATA_TOPIC, METADATA_PARTITIONS = "__remote_log_metadata", 50
PARTITIONS_OF_A_TOPIC = 100
PROPERTIES = {"log.index.size.max.bytes": "4096"}
_TIME_ENTRY = struct.Struct(">qi")


@dataclass(slots=True)
class IdleCluster:
    """``log_dir`` is made by :meth:`fill`.  Broker 1 leads all partitions; others may be in the cluster."""

    kafka: KafkaCluster
    log_dir: Path
    store: Path
    partitions: int
    segments: int = SEGMENTS
    partitions_of_a_topic: int = PARTITIONS_OF_A_TOPIC
    now_ms: int = field(default_factory=lambda: int(time.time() * 1000))
    owners: list[TopicIdPartition] = field(default_factory=list)

    @property
    def topics(self) -> list[str]:
        return [f"idle-{number}" for number in range(max(self.partitions // self.partitions_of_a_topic, 1))]

    async def fill(self) -> None:
        """Make topics, records, files and events."""
        for topic in self.topics:
            self.kafka.create_topic(
                topic,
                partitions=self.partitions_of_a_topic,
                configs={"retention.ms": "-1", "retention.bytes": "-1"},
                nodes=[1],
            )
            topic_id = topic_id_of(self.kafka, topic)
            self.owners += [
                TopicIdPartition(topic_id=topic_id, topic=topic, partition=number)
                for number in range(self.partitions_of_a_topic)
            ]
        self.kafka.create_topic(
            METADATA_TOPIC,
            partitions=METADATA_PARTITIONS,
            replication_factor=1,
            configs={"cleanup.policy": "delete", "retention.ms": "-1", "unclean.leader.election.enable": "false"},
        )
        await asyncio.to_thread(self._write_files)
        await self._produce()
        await self._say_states()

    def roll(self, owner: TopicIdPartition) -> None:
        """The broker seals the active segment of a partition: a new one appears behind it."""
        directory = self.log_dir / str(owner)
        (directory / f"{self.segments:020d}.snapshot").write_bytes(write_producer_snapshot())
        (directory / f"{self.segments:020d}.log").touch()

    def _local_segments(self) -> dict[int, bytes]:
        """Return the bytes of each by its base offset; the last one is active."""
        return {offset: self._log(offset) for offset in range(self.segments)}

    def _segment_uuid(self, owner: TopicIdPartition, offset: int) -> Uuid:
        return Uuid(uuid.uuid4().bytes)

    def _first_event(self) -> int:
        """Return the number of the first segment of each partition that the topic has events of."""
        return 0

    def _write_files(self) -> None:
        self.log_dir.mkdir(parents=True)
        shutil.copy(self.kafka[1].log_dirs[0] / "meta.properties", self.log_dir)
        snapshot = write_producer_snapshot()
        logs = self._local_segments()
        for owner in self.owners:
            directory = self.log_dir / str(owner)
            directory.mkdir()
            (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {format_uuid(owner.topic_id)}")
            (directory / "leader-epoch-checkpoint").write_text(f"0\n1\n0 {min(logs)}\n")
            for offset, data in logs.items():
                name = directory / f"{offset:020d}"
                name.with_suffix(".log").write_bytes(data)
                name.with_suffix(".index").touch()
                name.with_suffix(".timeindex").write_bytes(_TIME_ENTRY.pack(self.now_ms, 0))
                if offset:
                    name.with_suffix(".snapshot").write_bytes(snapshot)

    def _log(self, offset: int) -> bytes:
        record = record_bytes(0, None, b"idle")
        return batch_bytes(offset, record, count=1, epoch=0, base_timestamp=self.now_ms)

    async def _produce(self) -> None:
        producer = AIOKafkaProducer(**self.kafka.client_settings, linger_ms=50, max_batch_size=256 * 1024)
        await producer.start()
        try:
            for owner in self.owners:
                batch = producer.create_batch()
                for _ in range(self.segments):
                    batch.append(key=None, value=b"idle", timestamp=self.now_ms)
                batch.close()
                await producer.send_batch(batch, owner.topic, partition=owner.partition)
            for place, value in self._events():
                await producer.send(METADATA_TOPIC, value, partition=place)
            await producer.flush()
        finally:
            await producer.stop()

    def _state(self) -> PartitionState:
        return PartitionState().with_start(Offset(0), LeaderEpoch(0))

    async def _say_states(self) -> None:
        """As each partition's first copy does: a topic with remote segments and no state has lost what users deleted."""
        async with AsyncExitStack() as stack:
            broker = await stack.enter_async_context(open_broker(self.kafka.bootstrap_servers))
            settings = StateTopicSettings(
                bootstrap_servers=self.kafka.bootstrap_servers,
                replication_factor=1,
                min_insync_replicas=1,
                broker_id=1,
                incarnation="filling",
            )
            state = await stack.enter_async_context(
                open_state_topic(settings, broker=broker, clock=SystemClock(), ids=SystemIds(), telemetry=NoTelemetry())
            )
            while state.readiness_reason is not None:  # noqa: ASYNC110 - as an operator sees it
                await asyncio.sleep(0.05)
            said = self._state()
            for begin in range(0, len(self.owners), 100):
                some = self.owners[begin : begin + 100]
                await asyncio.gather(*(state.publish_partition_state(owner, said) for owner in some))

    def _events(self) -> Iterator[tuple[int, bytes]]:
        for owner in self.owners:
            place = metadata_partition(owner, METADATA_PARTITIONS)
            for offset in range(self._first_event(), self.segments - 1):
                segment_id = RemoteLogSegmentId(topic_id_partition=owner, uuid=self._segment_uuid(owner, offset))
                started = RemoteLogSegmentMetadata(
                    remote_log_segment_id=segment_id,
                    start_offset=Offset(offset),
                    end_offset=Offset(offset),
                    max_timestamp_ms=self.now_ms,
                    broker_id=BrokerId(1),
                    event_timestamp_ms=self.now_ms,
                    segment_size_in_bytes=len(self._log(offset)),
                    segment_leader_epochs=(EpochEntry(LeaderEpoch(0), Offset(offset)),),
                    txn_index_empty=True,
                )
                finished = RemoteLogSegmentMetadataUpdate(
                    remote_log_segment_id=segment_id,
                    broker_id=BrokerId(1),
                    event_timestamp_ms=self.now_ms,
                    state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                )
                if offset == self.segments - 2:
                    self._write_objects(started)
                yield place, write_event(started, knows_txn_index_empty=True)
                yield place, write_event(finished, knows_txn_index_empty=True)

    def _write_objects(self, metadata: RemoteLogSegmentMetadata) -> None:
        data = self._log(metadata.start_offset)
        offsets, times = rebuild_indexes(iter_batch_headers(data), base_offset=metadata.start_offset)
        artefacts = IndexArtefacts(
            offset_index=offsets.write(),
            time_index=times.write(),
            producer_snapshot=write_producer_snapshot(),
            leader_epochs=b"0\n1\n0 0\n",
            transaction_index=None,
        )
        layout = plan_objects(metadata=metadata, chunk_size=len(data), compression=False, encryption=None)
        blob = layout.index_blob(artefacts, [b""] * len(IndexKind))
        manifest = layout.manifest(layout.chunk_index([len(data)]), blob.indexes)
        for key, body in zip(layout.keys.in_upload_order, (data, blob.data, manifest), strict=True):
            path = self.store / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)


def topic_id_of(kafka: KafkaCluster, topic: str) -> Uuid:
    topic_id = kafka.admin.describe_topic(topic).topic_id
    assert topic_id is not None, "a broker of this age gives every topic an id"
    return Uuid(topic_id.bytes)
