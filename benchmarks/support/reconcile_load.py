"""A bucket's inventory and its metadata topic as Parquet, of any size, made by Spark; with a few odd ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tiersidecar.domain.epochs import EpochEntry
from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.aiven.keys import planned_keys
from tiersidecar.formats.metadata.hot import write_added, write_updated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ODD_ONES_EACH = 10
SEGMENTS_PER_PARTITION = 1000
PARTITIONS_PER_TOPIC = 50
METADATA_PARTITIONS = 50
OFFSETS_PER_SEGMENT = 100_000
SIZE_BYTES, WHEN_MS = 512 * 1024 * 1024, 1_700_000_000_000

_EVENTS = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.binary())])
_OBJECTS = pa.schema([("key", pa.string()), ("size", pa.int64()), ("modified_ms", pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Where it lies."""

    events: str
    objects: str
    topics: tuple[tuple[str, str], ...]


def make_load(spark: SparkSession, objects: int, directory: Path) -> Load:
    """``objects`` objects of a third as many segments, less some, plus some that nothing names."""
    segments = objects // 3
    numbers = spark.range(segments, numPartitions=16)
    load = Load(
        events=str(directory / "events"),
        objects=str(directory / "objects"),
        topics=tuple(
            {_owner(number).topic: format_uuid(_owner(number).topic_id) for number in _firsts(segments)}.items()
        ),
    )
    step = max(1, segments // ODD_ONES_EACH)

    def objects_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows: list[tuple[str, int]] = []
            for number in batch.column(0).to_pylist():
                keys = planned_keys(_segment(number)).in_upload_order
                rows += zip(keys, (SIZE_BYTES, 1_000_000, 2000), strict=True)
                if number % step == 0 and number // step < ODD_ONES_EACH:
                    rows[-2:] = [(planned_keys(_segment(number, "orphan")).log, 5), rows[-1]]
            columns = [[key for key, _ in rows], [size for _, size in rows], [WHEN_MS] * len(rows)]
            yield pa.RecordBatch.from_arrays(
                [pa.array(c, f.type) for c, f in zip(columns, _OBJECTS, strict=True)], schema=_OBJECTS
            )

    numbers.mapInArrow(events_of, "partition int, offset bigint, value binary").write.parquet(load.events)
    numbers.mapInArrow(objects_of, "key string, size bigint, modified_ms bigint").write.parquet(load.objects)
    return load


def run_on_load(spark: SparkSession, load: Load) -> dict[str, int]:
    """How many findings there are of each kind."""
    from tiersidecar.decide.reconcile_findings import Graces
    from tiersidecar.spark.inventory import InventoryFormat, read_inventory
    from tiersidecar.spark.reconcile_job import KnownTopic, ReconcileInputs, Reconciler, ReconcileSettings

    settings = ReconcileSettings(graces=Graces(), reads_manifests=False, is_plain=True)
    job = Reconciler(spark, settings, lambda text: None)
    events = spark.read.parquet(load.events)
    inputs = ReconcileInputs(
        early_events=events,
        late_events=lambda: events.limit(0),
        topics=[KnownTopic(topic=topic, topic_id=topic_id) for topic, topic_id in load.topics],
        objects=read_inventory(spark, [load.objects], InventoryFormat.PARQUET),
        inventory_time_ms=WHEN_MS + 1,
    )
    try:
        found = job.run(inputs, now_ms=lambda: WHEN_MS + 86_400_000).findings
        return {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
    finally:
        job.close()


def events_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """COPY_SEGMENT_STARTED and COPY_SEGMENT_FINISHED of each segment."""
    for batch in batches:
        rows: list[tuple[int, int, bytes]] = []
        for number in batch.column(0).to_pylist():
            segment = _segment(number)
            update = RemoteLogSegmentMetadataUpdate(
                remote_log_segment_id=segment.remote_log_segment_id,
                broker_id=BrokerId(1),
                event_timestamp_ms=WHEN_MS,
                state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            )
            place = number // SEGMENTS_PER_PARTITION % METADATA_PARTITIONS
            rows.append((place, 2 * number, write_added(segment, knows_txn_index_empty=True)))
            rows.append((place, 2 * number + 1, write_updated(update)))
        columns = [list(column) for column in zip(*rows, strict=True)]
        yield pa.RecordBatch.from_arrays(
            [pa.array(c, f.type) for c, f in zip(columns, _EVENTS, strict=True)], schema=_EVENTS
        )


def _segment(number: int, salt: str = "") -> RemoteLogSegmentMetadata:
    start = number % SEGMENTS_PER_PARTITION * OFFSETS_PER_SEGMENT
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(
            topic_id_partition=_owner(number), uuid=_uuid(f"segment {number} {salt}")
        ),
        start_offset=Offset(start),
        end_offset=Offset(start + OFFSETS_PER_SEGMENT - 1),
        max_timestamp_ms=WHEN_MS,
        broker_id=BrokerId(1),
        event_timestamp_ms=WHEN_MS,
        segment_size_in_bytes=SIZE_BYTES,
        segment_leader_epochs=(EpochEntry(LeaderEpoch(3), Offset(start)),),
        txn_index_empty=True,
    )


def _owner(number: int) -> TopicIdPartition:
    topic, partition = divmod(number // SEGMENTS_PER_PARTITION, PARTITIONS_PER_TOPIC)
    name = f"orders-of-region-{topic}"
    return TopicIdPartition(topic_id=_uuid(name), topic=name, partition=partition)


def _firsts(segments: int) -> range:
    return range(0, segments, SEGMENTS_PER_PARTITION * PARTITIONS_PER_TOPIC)


def _uuid(text: str) -> Uuid:
    return Uuid(hashlib.blake2b(text.encode(), digest_size=16).digest())
