"""Turn records of the metadata topic into rows, and one segment's events into its row, for both engines.

The codec is the daemon's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.segment_fold import FoldedSegment, SegmentStep, clearings, fold_segment
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.formats.aiven.keys import read_custom_metadata
from tiersidecar.formats.metadata import hot
from tiersidecar.formats.metadata.serde import read_event

UNREADABLE = -1
"""Kind of an event that cannot be read."""

_Row = tuple[Any, ...]


def event_fields(value: bytes, place: tuple[int, int]) -> _Row:
    """Return ``api_key``, ``uuid``, ``state``, ``broker_id``, ``event_timestamp_ms``, ``topic``, ``topic_id``, ``partition``,
    ``start_offset``, ``end_offset``, ``segment_size_bytes``, ``epochs`` (``epoch:start,...``), ``object_prefix``,
    ``remote_size_bytes`` and ``fault`` of the event; what its kind does not have is None.

    ``place`` is partition and offset of the record.  An event that cannot be read is of kind :data:`UNREADABLE`, with the
    reason in ``fault``; one whose custom metadata are another plugin's counts, and has a ``fault`` as well.
    """
    try:
        api_key, position, owner = hot.peek(value)
        topic = value[4:position].decode() if api_key is not None and value[3] < 0x80 else None
        partition = int.from_bytes(owner[16:], "big", signed=True)
        if partition < 0:
            return _unreadable(f"{_name(place)}: partition {partition}")
        if topic is not None and api_key == hot.ADDED and (added := hot.read_added(value, position)) is not None:
            uuid, start, end, _, size, epochs, _, broker, timestamp_ms, custom, state = added
            entries = ",".join([f"{epoch}:{start + relative}" for epoch, relative in epochs])
            return (
                hot.ADDED, uuid, state, broker, timestamp_ms, topic, owner[:16], partition,
                start, end, size, entries, *_custom(custom, place),
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
    """Read a record with several epochs, long names or tags of a later version."""
    event = read_event(value, where=_name(place))
    match event:
        case RemoteLogSegmentMetadata():
            owner = event.topic_id_partition
            entries = ",".join(f"{epoch}:{start}" for epoch, start in event.segment_leader_epochs)
            return (
                hot.ADDED, event.remote_log_segment_id.uuid, int(event.state), event.broker_id, event.event_timestamp_ms,
                owner.topic, owner.topic_id, owner.partition, event.start_offset, event.end_offset,
                event.segment_size_in_bytes, entries, *_custom(event.custom_metadata, place),
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
    """Return object prefix, remote size and fault.  Kafka takes any bytes: an event counts, whatever plugin they are of."""
    if not data:
        return None, None, None
    try:
        metadata = read_custom_metadata(data, where=f"custom metadata in {_name(place)}")
    except CorruptDataError as error:
        return None, None, str(error)
    return metadata.recorded_prefix, metadata.remote_size, None


def _name(place: tuple[int, int]) -> str:
    return f"the metadata topic's partition {place[0]} offset {place[1]}"


SEGMENT = ("topic_id", "partition", "uuid")
ADDED = ("topic", "start_offset", "end_offset", "segment_size_bytes", "epochs")

Event = Mapping[str, Any]
"""Columns as :func:`~tiersidecar.reconcile.segment_rows.event_fields` has them, with ``log_offset`` and ``is_late``."""


def folded_segment(rows: Sequence[Event], deletions: Sequence[tuple[int, bool, int]]) -> dict[str, Any] | None:
    """Return the segment of ``rows``, which are its events in the order of their offsets; None where none of them added it.

    ``deletions`` are offset, lateness and state of the events of its whole partition's deletion, in their order.

    The row has the columns of :data:`SEGMENT` and :data:`ADDED`, ``object_prefix``, ``remote_size_bytes``, ``broker_id`` of the
    broker that copied it, ``since_ms``, the time of the last event that counts, its states ``before`` and ``after`` the cut
    (``before`` is None where it was added late), ``started_at`` and ``finished_at``.
    """
    after = fold_segment(_steps(rows), clearings((offset, state) for offset, _, state in deletions))
    if after is None:
        return None
    if not any(is_late for _, is_late, _ in deletions) and not any(row["is_late"] for row in rows):
        return _row(after, after, rows)
    early = clearings((offset, state) for offset, is_late, state in deletions if not is_late)
    return _row(after, fold_segment(_steps(row for row in rows if not row["is_late"]), early), rows)


def _steps(rows: Iterable[Event]) -> Iterable[SegmentStep[Event]]:
    for row in rows:
        yield SegmentStep(
            offset=row["log_offset"], is_addition=row["api_key"] == hot.ADDED, state=row["state"], row=row
        )


def _row(after: FoldedSegment[Event], before: FoldedSegment[Event] | None, rows: Sequence[Event]) -> dict[str, Any]:
    copied = after.finished or after.added

    def latest(name: str) -> Any:
        """Return the last value that any event gave: objects stay where they were, even if a later event left it out."""
        return next((row[name] for row in reversed(rows) if row[name] is not None), None)

    return {
        **{name: after.added.row[name] for name in (*SEGMENT, *ADDED)},
        "object_prefix": latest("object_prefix"),
        "remote_size_bytes": latest("remote_size_bytes"),
        "broker_id": copied.row["broker_id"],
        "since_ms": after.last.row["event_timestamp_ms"],
        "after": int(after.state),
        "before": None if before is None else int(before.state),
        "started_at": after.started_at,
        "finished_at": after.finished_at,
    }
