"""A bucket's inventory and its metadata topic as Parquet, of any size, with a few odd ones; made once per user.

Made without Spark, so that what is measured begins with a cold one, by as many processes as there are cores.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.aiven.keys import planned_keys
from tiersidecar.formats.metadata.hot import write_added, write_updated
from tiersidecar.spark.jars import build_once

ODD_ONES_EACH = 10
SEGMENTS_PER_PARTITION = 1000
PARTITIONS_PER_TOPIC = 50
METADATA_PARTITIONS = 50
OFFSETS_PER_SEGMENT = 100_000
SIZE_BYTES, WHEN_MS = 512 * 1024 * 1024, 1_700_000_000_000

_FORM = "2"
"""Of the files: another one when this module makes others."""
_SEGMENTS_PER_FILE = 50_000
_SEGMENTS_AT_ONCE = 10_000
_EVENTS = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.binary())])
_OBJECTS = pa.schema([("key", pa.string()), ("size", pa.int64()), ("last_modified_date", pa.timestamp("ms", tz="UTC"))])


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Directories of Parquet files; topics with their ids."""

    events: Path
    objects: Path
    topics: tuple[tuple[str, str], ...]
    event_count: int


def make_load(objects: int) -> Load:
    """``objects`` objects of a third as many segments, of which ten are missing and ten are nobody's."""
    segments = objects // 3
    directory = build_once(f"reconcile-load-{_FORM}-{objects}", partial(_make_files, segments))
    firsts = range(0, segments, SEGMENTS_PER_PARTITION * PARTITIONS_PER_TOPIC)
    return Load(
        events=directory / "events",
        objects=directory / "objects",
        topics=tuple((owner.topic, format_uuid(owner.topic_id)) for owner in map(_owner, firsts)),
        event_count=2 * segments,
    )


def _make_files(segments: int, directory: Path) -> None:
    for name in ("events", "objects"):
        (directory / name).mkdir()
    step = max(1, segments // ODD_ONES_EACH)
    starts = range(0, segments, _SEGMENTS_PER_FILE)
    parts = [range(start, min(start + _SEGMENTS_PER_FILE, segments)) for start in starts]
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        list(pool.map(partial(_make_part, directory, step), parts))


def _make_part(directory: Path, step: int, numbers: range) -> None:
    name = f"part-{numbers.start:09}.parquet"
    with (
        pq.ParquetWriter(directory / "events" / name, _EVENTS, compression="zstd") as events,
        pq.ParquetWriter(directory / "objects" / name, _OBJECTS, compression="zstd") as objects,
    ):
        for at in range(0, len(numbers), _SEGMENTS_AT_ONCE):
            some = numbers[at : at + _SEGMENTS_AT_ONCE]
            events.write_batch(_batch([row for number in some for row in _events(number)], _EVENTS))
            objects.write_batch(_batch([row for number in some for row in _objects(number, step)], _OBJECTS))


def _batch(rows: list[tuple[object, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _events(number: int) -> Iterator[tuple[object, ...]]:
    """COPY_SEGMENT_STARTED and COPY_SEGMENT_FINISHED."""
    segment = _segment(number)
    update = RemoteLogSegmentMetadataUpdate(
        remote_log_segment_id=segment.remote_log_segment_id,
        broker_id=BrokerId(1),
        event_timestamp_ms=WHEN_MS,
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    )
    place = number // SEGMENTS_PER_PARTITION % METADATA_PARTITIONS
    yield place, 2 * number, write_added(segment, knows_txn_index_empty=True)
    yield place, 2 * number + 1, write_updated(update)


def _objects(number: int, step: int) -> Iterator[tuple[object, ...]]:
    log, indexes, manifest = planned_keys(_segment(number)).in_upload_order
    yield log, SIZE_BYTES, WHEN_MS
    if number % step == 0 and number // step < ODD_ONES_EACH:
        yield planned_keys(_segment(number, "orphan")).log, 5, WHEN_MS
    else:
        yield indexes, 1_000_000, WHEN_MS
    yield manifest, 2000, WHEN_MS


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


def _uuid(text: str) -> Uuid:
    return Uuid(hashlib.blake2b(text.encode(), digest_size=16).digest())
