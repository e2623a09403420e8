"""Raw records of the metadata topic to columns, in Arrow batches, by the codec that the daemon replays with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.formats.aiven.custom_metadata import CustomMetadata, read_custom_metadata
from tiersidecar.formats.metadata import hot
from tiersidecar.formats.metadata.serde import read_event
from tiersidecar.spark.columns import EVENTS, UNREADABLE, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RAW_COLUMNS = ("partition", "offset", "is_late", "value")
"""What :func:`decoded` wants: the record's partition, offset and value, and whether it came after the listing began."""

_Row = tuple[Any, ...]
_NO_CUSTOM_METADATA = CustomMetadata()


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
        if topic is not None and api_key == hot.ADDED and (added := hot.read_added(value, position)) is not None:
            uuid, start, end, _, size, epochs, _, broker, timestamp_ms, custom, state = added
            told = ",".join([f"{epoch}:{start + relative}" for epoch, relative in epochs])
            metadata = _custom(custom, place)
            return (
                hot.ADDED, uuid, state, broker, timestamp_ms, topic, owner[:16], int.from_bytes(owner[16:], "big"),
                start, end, size, told, metadata.object_prefix, metadata.remote_size, None,
            )  # fmt: skip
        if topic is not None and api_key == hot.UPDATED and (updated := hot.read_updated(value, position)) is not None:
            uuid, broker, timestamp_ms, custom, state = updated
            metadata = _custom(custom, place)
            return (
                hot.UPDATED, uuid, state, broker, timestamp_ms, None, None, None,
                None, None, None, None, metadata.object_prefix, metadata.remote_size, None,
            )  # fmt: skip
        return _rare_fields(value, place)
    except (CorruptDataError, IndexError, UnicodeDecodeError) as error:
        return UNREADABLE, None, None, None, None, None, None, None, None, None, None, None, None, None, str(error)


def _rare_fields(value: bytes, place: tuple[int, int]) -> _Row:
    """Several epochs, long names, tags of a later version."""
    event = read_event(value, where=_name(place))
    match event:
        case RemoteLogSegmentMetadata():
            owner = event.topic_id_partition
            told = ",".join(f"{epoch}:{start}" for epoch, start in event.segment_leader_epochs)
            metadata = _custom(event.custom_metadata, place)
            return (
                hot.ADDED, event.remote_log_segment_id.uuid, int(event.state), event.broker_id, event.event_timestamp_ms,
                owner.topic, owner.topic_id, owner.partition, event.start_offset, event.end_offset,
                event.segment_size_in_bytes, told, metadata.object_prefix, metadata.remote_size, None,
            )  # fmt: skip
        case RemoteLogSegmentMetadataUpdate():
            metadata = _custom(event.custom_metadata, place)
            return (
                hot.UPDATED, event.remote_log_segment_id.uuid, int(event.state), event.broker_id, event.event_timestamp_ms,
                None, None, None, None, None, None, None, metadata.object_prefix, metadata.remote_size, None,
            )  # fmt: skip
        case _:
            owner = event.topic_id_partition
            return (
                hot.PARTITION_DELETE, None, int(event.state), event.broker_id, event.event_timestamp_ms,
                owner.topic, owner.topic_id, owner.partition, None, None, None, None, None, None, None,
            )  # fmt: skip


def _custom(data: bytes | None, place: tuple[int, int]) -> CustomMetadata:
    return read_custom_metadata(data, where=_name(place)) if data else _NO_CUSTOM_METADATA


def _name(place: tuple[int, int]) -> str:
    return f"the metadata topic's partition {place[0]} offset {place[1]}"
