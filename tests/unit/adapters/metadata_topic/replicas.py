"""A replica fed from a list instead of a topic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tests.support.metadata_events import ORDERS
from tiersidecar.adapters.internal_topics import TopicFacts
from tiersidecar.adapters.metadata_topic.replica import (
    ConsumedPosition,
    MetadataReplica,
    RestoredPartition,
    RestoredReplica,
)
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.segments import MetadataEvent
from tiersidecar.formats.metadata.partitioner import metadata_partition
from tiersidecar.formats.metadata.serde import write_event
from tiersidecar.ports.telemetry import NoTelemetry

FACTS = TopicFacts(cluster_id="cluster", topic_id=Uuid(b"metadata-topicid"), leader_epochs={0: 3})


@dataclass(frozen=True)
class FakeRecord:
    offset: int
    value: bytes | None
    timestamp: int = 0


def owner(number: int) -> TopicIdPartition:
    """Partition ``number`` of orders."""
    return replace(ORDERS, partition=number)


class Topic:
    """A metadata topic with one partition, and the two consumers' part in feeding ``replica`` from it."""

    def __init__(self, *, restored: RestoredReplica | None = None, partition_count: int = 1) -> None:
        self.records: list[FakeRecord] = []
        self.begin = 0
        self.replica = MetadataReplica(
            topic="metadata",
            partition_count=partition_count,
            recovery="Call the operator.",
            telemetry=NoTelemetry(),
            restored=restored,
        )

    def write(self, *events: MetadataEvent | bytes | None) -> None:
        for event in events:
            value = (
                event if event is None or isinstance(event, bytes) else write_event(event, knows_txn_index_empty=True)
            )
            self.records.append(FakeRecord(len(self.records), value, timestamp=len(self.records)))

    def cut(self, end: int) -> None:
        """The topic loses everything from ``end`` on."""
        del self.records[end:]

    def learn_bounds(self) -> None:
        for number in self.replica.unbounded():
            self.replica.partitions[number].learn_bounds(self.begin, len(self.records))

    def read_live(self, count: int = 1000) -> None:
        self.learn_bounds()
        for number, position in self.replica.live_positions().items():
            records = self.records[position : position + count]
            end = records[-1].offset + 1 if records else position
            self.replica.partitions[number].apply_live(list(records), read_from=position, position=end)

    def read_separately(self, count: int = 1000) -> None:
        self.learn_bounds()
        for number, position in self.replica.side_positions().items():
            records = self.records[position : position + count]
            self.replica.partitions[number].apply_side(
                list(records), read_from=position, position=position + len(records)
            )

    def start(self, assigned: Iterable[TopicIdPartition], facts: TopicFacts = FACTS) -> str | None:
        """Assign and begin a session, without reading."""
        self.replica.assign(assigned)
        return self.replica.begin_session(facts)

    def is_ready(self, number: int) -> bool:
        held = self.replica.held(owner(number))
        return held is not None and held.is_ready

    def segments(self, number: int) -> list[int]:
        """Numbers of the segments known of a partition."""
        cache = self.replica.require(owner(number))
        return [int.from_bytes(m.remote_log_segment_id.uuid, "big") for m in cache.list_remote_log_segments()]


def partition_of(number: int, count: int) -> int:
    """Metadata partition of partition ``number`` of orders."""
    return metadata_partition(owner(number), count)


def snapshot_of(topic: Topic) -> RestoredReplica:
    """What a snapshot of the replica would give back."""
    partition = topic.replica.partitions[0]
    return RestoredReplica(
        cluster_id=FACTS.cluster_id,
        topic_id=FACTS.topic_id,
        positions={0: ConsumedPosition(position=partition.reached, leader_epoch=3, last=partition.last)},
        partitions=tuple(
            RestoredPartition(
                topic_id_partition=held.topic_id_partition,
                applied_to=held.applied_to,
                cache=type(held.cache).from_image(held.topic_id_partition, held.cache.image()),
            )
            for held in partition.live.values()
        ),
    )
