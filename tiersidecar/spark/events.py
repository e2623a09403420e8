"""Raw records of the metadata topic to columns, in Arrow batches, by the codec that the daemon replays with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.formats.aiven.custom_metadata import read_custom_metadata
from tiersidecar.formats.metadata import hot
from tiersidecar.formats.metadata.serde import read_event
from tiersidecar.spark.columns import EVENTS, UNREADABLE, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RAW_COLUMNS = ("partition", "offset", "is_late", "value")
"""What :func:`decoded` wants: the record's partition, offset and value, and whether it came after the listing began."""

_Row = tuple[Any, ...]


def decoded(raw: DataFrame) -> DataFrame:
    """Columns of :data:`~tiersidecar.spark.columns.EVENTS`, one row for each row of ``raw``."""
    return raw.select(*RAW_COLUMNS).mapInArrow(_decode_batches, ddl(EVENTS))


def _decode_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        partitions, offsets, lates, values = (column.to_pylist() for column in batch.columns)
        rows = [
            _fields(value or b"", place)
            for value, place in zip(values, zip(partitions, offsets, strict=True), strict=True)
        ]
        columns = [partitions, offsets, lates, *map(list, zip(*rows, strict=True))] if rows else [[]] * len(EVENTS)
        arrays = [pa.array(column, type=field.type) for column, field in zip(columns, EVENTS, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=EVENTS)


def _fields(value: bytes, place: tuple[int, int]) -> _Row:
    """All columns behind the first three."""
    try:
        api_key, position, owner = hot.peek(value)
        topic = value[4:position].decode() if api_key is not None and value[3] < 0x80 else None
        partition = int.from_bytes(owner[16:], "big", signed=True)
        if partition < 0:
            return _unreadable(f"{_name(place)}: partition {partition}")
        if topic is not None and api_key == hot.ADDED and (added := hot.read_added(value, position)) is not None:
            uuid, start, end, _, size, epochs, _, broker, timestamp_ms, custom, state = added
            told = ",".join([f"{epoch}:{start + relative}" for epoch, relative in epochs])
            return (
                hot.ADDED, uuid, state, broker, timestamp_ms, topic, owner[:16], partition,
                start, end, size, told, *_custom(custom, place),
            )  # fmt: skip
        if topic is not None and api_key == hot.UPDATED and (updated := hot.read_updated(value, position)) is not None:
            uuid, broker, timestamp_ms, custom, state = updated
            return (
                hot.UPDATED, uuid, state, broker, timestamp_ms, None, owner[:16], partition,
                None, None, None, None, *_custom(custom, place),
            )  # fmt: skip
        return _rare_fields(value, place)
    except (CorruptDataError, IndexError, UnicodeDecodeError) as error:
        return _unreadable(str(error))


def _rare_fields(value: bytes, place: tuple[int, int]) -> _Row:
    """Several epochs, long names, tags of a later version."""
    event = read_event(value, where=_name(place))
    match event:
        case RemoteLogSegmentMetadata():
            owner = event.topic_id_partition
            told = ",".join(f"{epoch}:{start}" for epoch, start in event.segment_leader_epochs)
            return (
                hot.ADDED, event.remote_log_segment_id.uuid, int(event.state), event.broker_id, event.event_timestamp_ms,
                owner.topic, owner.topic_id, owner.partition, event.start_offset, event.end_offset,
                event.segment_size_in_bytes, told, *_custom(event.custom_metadata, place),
            )  # fmt: skip
        case RemoteLogSegmentMetadataUpdate():
            owner = event.remote_log_segment_id.topic_id_partition
            return (
                hot.UPDATED, event.remote_log_segment_id.uuid, int(event.state), event.broker_id, event.event_timestamp_ms,
                None, owner.topic_id, owner.partition, None, None, None, None, *_custom(event.custom_metadata, place),
            )  # fmt: skip
        case _:
            owner = event.topic_id_partition
            return (
                hot.PARTITION_DELETE, None, int(event.state), event.broker_id, event.event_timestamp_ms,
                owner.topic, owner.topic_id, owner.partition, None, None, None, None, None, None, None,
            )  # fmt: skip


def _unreadable(fault: str) -> _Row:
    return UNREADABLE, None, None, None, None, None, None, None, None, None, None, None, None, None, fault


def _custom(data: bytes | None, place: tuple[int, int]) -> tuple[str | None, int | None, str | None]:
    """Object prefix, remote size and fault.  Kafka takes any bytes: an event counts, whatever plugin they are of."""
    if not data:
        return None, None, None
    try:
        metadata = read_custom_metadata(data, where=f"custom metadata in {_name(place)}")
    except CorruptDataError as error:
        return None, None, str(error)
    return metadata.object_prefix, metadata.remote_size, None


def _name(place: tuple[int, int]) -> str:
    return f"the metadata topic's partition {place[0]} offset {place[1]}"
