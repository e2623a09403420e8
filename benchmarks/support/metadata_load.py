"""Metadata events in numbers: in memory, and in the topic of a real broker."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from aiokafka import AIOKafkaProducer

from tests.support.kafka_cluster import KafkaCluster
from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
from tiersidecar.adapters.internal_topics import TopicFacts
from tiersidecar.adapters.kafka.broker import open_broker
from tiersidecar.adapters.metadata_topic.log import open_metadata_topic
from tiersidecar.adapters.metadata_topic.replica import MetadataReplica, RestoredReplica
from tiersidecar.adapters.metadata_topic.settings import MetadataTopicSettings
from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.metadata.partitioner import metadata_partition
from tiersidecar.formats.metadata.serde import write_event
from tiersidecar.ports.telemetry import NoTelemetry

OFFSETS_PER_SEGMENT = 1_000_000

BATCH_RECORDS = 1_000
"""Of one metadata partition, as the consumer hands them over: so many at the mean of a replay from a broker, at most 2,000."""

CUSTOM_METADATA: dict[str, Callable[[int], bytes | None]] = {
    "no custom metadata (the plugin's default)": lambda number: None,
    "REMOTE_SIZE": lambda number: b"\x01\x00\x05" + number.to_bytes(5, "big"),
    "REMOTE_SIZE, OBJECT_PREFIX and OBJECT_KEY": lambda number: b"\x03\x00\x05" + number.to_bytes(120, "big"),
}
"""By what custom.metadata.fields.include says; 128 bytes is the most that Kafka takes by default."""


class MemoryRecord(NamedTuple):
    """A record without a topic; ``timestamp`` is its create time."""

    partition: int
    offset: int
    value: bytes
    timestamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """``partitions`` user partitions that copy in turn: each segment is started and finished.  The same every time."""

    partitions: int
    metadata_partitions: int
    custom: Callable[[int], bytes | None] = lambda number: None
    owners: list[TopicIdPartition] = field(init=False)
    facts: TopicFacts = field(init=False)

    def __post_init__(self) -> None:
        owners = [
            TopicIdPartition(topic_id=Uuid(b"orders-topic-id!"), topic="orders.of.the.shop", partition=number)
            for number in range(self.partitions)
        ]
        object.__setattr__(self, "owners", owners)
        facts = TopicFacts(cluster_id="bench", topic_id=Uuid(b"metadata-topicid"), leader_epochs={})
        object.__setattr__(self, "facts", facts)

    def owner_of(self, segment: int) -> TopicIdPartition:
        return self.owners[segment % self.partitions]

    def events(
        self, segments: int
    ) -> Iterator[tuple[TopicIdPartition, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate]]:
        """Two for each segment."""
        chance = random.Random(1)
        for number in range(segments):
            owner, start = self.owner_of(number), number // self.partitions * OFFSETS_PER_SEGMENT
            segment_id = RemoteLogSegmentId(topic_id_partition=owner, uuid=Uuid(chance.randbytes(16)))
            yield (
                owner,
                RemoteLogSegmentMetadata(
                    remote_log_segment_id=segment_id,
                    start_offset=Offset(start),
                    end_offset=Offset(start + OFFSETS_PER_SEGMENT - 1),
                    max_timestamp_ms=1_700_000_000_000 + number,
                    broker_id=BrokerId(1),
                    event_timestamp_ms=1_700_000_000_000 + number,
                    segment_size_in_bytes=1 << 30,
                    segment_leader_epochs=(EpochEntry(LeaderEpoch(number // self.partitions // 10), Offset(start)),),
                    txn_index_empty=True,
                ),
            )
            yield (
                owner,
                RemoteLogSegmentMetadataUpdate(
                    remote_log_segment_id=segment_id,
                    broker_id=BrokerId(1),
                    event_timestamp_ms=1_700_000_000_100 + number,
                    custom_metadata=self.custom(number),
                    state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                ),
            )

    def stream(self, segments: int) -> Iterator[MemoryRecord]:
        """The events as records, made on the way."""
        places = {owner: metadata_partition(owner, self.metadata_partitions) for owner in self.owners}
        ends: defaultdict[int, int] = defaultdict(int)
        for owner, event in self.events(segments):
            place = places[owner]
            yield MemoryRecord(place, ends[place], write_event(event, knows_txn_index_empty=True))
            ends[place] += 1

    def records(self, segments: int) -> list[MemoryRecord]:
        """The events as records, made before."""
        return list(self.stream(segments))


def new_replica(metadata_partitions: int, restored: RestoredReplica | None = None) -> MetadataReplica:
    """A replica that nothing was assigned to."""
    return MetadataReplica(
        topic="metadata", partition_count=metadata_partitions, recovery="", telemetry=NoTelemetry(), restored=restored
    )


def feed(replica: MetadataReplica, owners: Sequence[TopicIdPartition], records: Iterable[MemoryRecord]) -> None:
    """Assign ``owners`` and apply ``records`` in batches, as the main consumer does."""
    replica.assign(owners)
    replica.begin_session(TopicFacts(cluster_id="bench", topic_id=Uuid(b"metadata-topicid"), leader_epochs={}))
    for number in replica.unbounded():
        replica.partitions[number].learn_bounds(0, 1 << 40)
    batches: defaultdict[int, list[MemoryRecord]] = defaultdict(list)
    for record in records:
        batch = batches[record.partition]
        batch.append(record)
        if len(batch) == BATCH_RECORDS:
            _apply(replica, record.partition, batch)
    for number, batch in batches.items():
        _apply(replica, number, batch)


def fill(replica: MetadataReplica, load: Workload, segments: int) -> None:
    """As :func:`feed`, without the bytes: what the caches hold afterwards is the same."""
    replica.assign(load.owners)
    replica.begin_session(load.facts)
    for number in replica.unbounded():
        replica.partitions[number].learn_bounds(0, 0)
    caches = [held.cache for held in map(replica.held, load.owners) if held is not None]
    chance = random.Random(1)
    for number in range(segments):
        cache, round_ = caches[number % load.partitions], number // load.partitions
        uuid, start, time_ms = chance.randbytes(16), round_ * OFFSETS_PER_SEGMENT, 1_700_000_000_000 + number
        epochs = ((round_ // 10, 0),)
        cache.add((uuid, start, start + OFFSETS_PER_SEGMENT - 1, time_ms, 1 << 30, epochs, True, 1, time_ms, None, 0))
        cache.update((uuid, 1, time_ms + 100, load.custom(number), 1))


def _apply(replica: MetadataReplica, number: int, batch: list[MemoryRecord]) -> None:
    partition = replica.partitions[number]
    if batch and partition.position is not None:
        partition.apply_live(list(batch), read_from=partition.position, position=batch[-1].offset + 1)
    batch.clear()


async def replayed_from_broker(scratch: Path, load: Workload, segments: int) -> tuple[float, float]:
    """Seconds until all partitions are ready: by a replay of a real broker's topic, and then with the snapshot."""
    with KafkaCluster(scratch / "kafka", brokers=1) as cluster:
        settings = MetadataTopicSettings(
            bootstrap_servers=cluster.bootstrap_servers,
            partitions=load.metadata_partitions,
            replication_factor=1,
            min_insync_replicas=1,
            snapshot_path=str(scratch / "topic-snapshot.db"),
        )
        await _seconds_to_ready(settings, [])  # makes the topic
        await _write(cluster, settings.topic, load, segments)
        replay_s = await _seconds_to_ready(settings, load.owners)
        return replay_s, await _seconds_to_ready(settings, load.owners)


async def _write(cluster: KafkaCluster, topic: str, load: Workload, segments: int) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=20, max_batch_size=256 * 1024)
    await producer.start()
    try:
        for record in load.stream(segments):
            await producer.send(topic, record.value, partition=record.partition)
        await producer.flush()
    finally:
        await producer.stop()


async def _seconds_to_ready(settings: MetadataTopicSettings, owners: Sequence[TopicIdPartition]) -> float:
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(open_broker(settings.bootstrap_servers))
        blocking = await stack.enter_async_context(ThreadBlocking(max_threads=2))
        began_s = time.perf_counter()
        log = await stack.enter_async_context(
            open_metadata_topic(
                settings,
                broker=broker,
                clock=SystemClock(),
                ids=SystemIds(),
                telemetry=NoTelemetry(),
                blocking=blocking,
            )
        )
        await log.assign(owners)
        while log.readiness_reason is not None:  # noqa: ASYNC110 - as an operator sees it
            await asyncio.sleep(0.01)
        return time.perf_counter() - began_s
