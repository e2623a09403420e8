"""Fetch responses, versions 4 to 18: the place of each partition, so that single ones are replaced (``FetchResponse.json``).

::

    throttleTimeMs i32 | [errorCode i16 | sessionId i32, from v7]
    | topics: (name string, to v12; id uuid, from v13 | partitions:
        partition i32 | errorCode i16 | highWatermark i64 | lastStableOffset i64 | [logStartOffset i64, from v5]
        | abortedTransactions: (producerId i64 | firstOffset i64), nullable | [preferredReadReplica i32, from v11]
        | records bytes, nullable)

Flexible, with tagged fields, from v12.  Records are skipped: they are not even copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from struct import Struct

from tiersidecar.formats.wire.cursor import Buffer, Cursor, Replacement, length_bytes
from tiersidecar.formats.wire.fetch_requests import PartitionKey, TopicKey, is_flexible, read_topic_key

NO_ERROR, OFFSET_OUT_OF_RANGE, NOT_LEADER_OR_FOLLOWER = 0, 1, 6
KAFKA_STORAGE_ERROR, FETCH_SESSION_ID_NOT_FOUND = 56, 70
_KAFKA_STORAGE_ERROR_SINCE = 6
FIRST_WITH_SESSIONS = 7

_THROTTLE, _INT32, _ABORTED = Struct(">i"), Struct(">i"), Struct(">qq")
_HEAD = Struct(">hi")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition:
    """One partition of a response, its bytes from ``start`` up to, not including, ``stop``, its records from ``records_start``
    on.  ``log_start_offset`` is -1 before version 5.  ``aborted`` has producer id and first offset of each, None for
    read_uncommitted."""

    key: PartitionKey
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records_start: int
    records_bytes: int
    aborted: tuple[tuple[int, int], ...] | None
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """``partitions`` in the response's order."""

    throttle_time_ms: int
    error_code: int
    session_id: int
    partitions: tuple[FetchedPartition, ...]

    @property
    def records_bytes(self) -> int:
        """Return the bytes of records in all partitions."""
        return sum(partition.records_bytes for partition in self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledPartition:
    """A partition in a response in place of the broker's answer for it.

    ``high_watermark`` and ``last_stable_offset`` are exclusive, -1 where they are not known.  ``aborted`` has producer id and
    first offset of each; None for read_uncommitted.  ``throttle_ms`` is how long the client is to stay away because of it.
    """

    error_code: int = NO_ERROR
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: tuple[tuple[int, int], ...] | None = None
    records: Sequence[Buffer] = ()
    throttle_ms: int = 0

    @property
    def records_bytes(self) -> int:
        return sum(map(len, self.records))


def read_fetch_response(body: memoryview, version: int) -> FetchResponse:
    """Return where everything is in a message body.

    Raises:
        MalformedMessageError: it is no Fetch response of this version.
    """
    reader = Cursor(body, flexible=is_flexible(version))
    (throttle_time_ms,) = reader.fixed(_THROTTLE)
    error_code, session_id = reader.fixed(_HEAD) if version >= FIRST_WITH_SESSIONS else (NO_ERROR, 0)
    partitions: list[FetchedPartition] = []
    for _ in range(reader.array_length()):
        topic = read_topic_key(reader, version)
        partitions += [_read_partition(reader, version, topic) for _ in range(reader.array_length())]
        reader.skip_tagged_fields()
    reader.skip_tagged_fields()
    reader.end()
    return FetchResponse(
        throttle_time_ms=throttle_time_ms, error_code=error_code, session_id=session_id, partitions=tuple(partitions)
    )


def replacing(version: int, partition: FetchedPartition, filled: FilledPartition) -> list[Replacement]:
    """Return ``filled`` where ``partition`` was: to be spliced into the response."""
    head, *rest = write_partition(version, partition.key[1], filled)
    return [(partition.start, partition.stop, head), *((partition.stop, partition.stop, piece) for piece in rest)]


def write_partition(version: int, partition: int, filled: FilledPartition) -> list[Buffer]:
    """The pieces of one partition of a response."""
    flexible = is_flexible(version)
    error_code = filled.error_code
    if error_code == KAFKA_STORAGE_ERROR and version < _KAFKA_STORAGE_ERROR_SINCE:
        error_code = NOT_LEADER_OR_FOLLOWER  # as the broker does for clients that do not know the other
    values = [partition, error_code, filled.high_watermark, filled.last_stable_offset, filled.log_start_offset]
    layout = partition_layout(version)
    parts = [layout.pack(*values[: 5 if version >= 5 else 4])]
    parts.append(length_bytes(-1 if filled.aborted is None else len(filled.aborted), flexible=flexible))
    for producer_id, first_offset in filled.aborted or ():
        parts += [_ABORTED.pack(producer_id, first_offset), b"\0" if flexible else b""]
    if version >= 11:
        parts.append(_INT32.pack(-1))
    parts.append(length_bytes(filled.records_bytes, flexible=flexible))
    return [b"".join(parts), *filled.records, *([b"\0"] if flexible else [])]


def throttling(fetched: FetchResponse, throttle_ms: int) -> list[Replacement]:
    """Return what raises the response's throttle time to at least that: to be spliced into it, before all partitions."""
    if throttle_ms <= fetched.throttle_time_ms:
        return []
    return [(0, _THROTTLE.size, _THROTTLE.pack(throttle_ms))]


def write_session_error(version: int, throttle_time_ms: int, error_code: int) -> bytes:
    """Return a response that only ends a fetch session; of a version that has sessions."""
    flexible = is_flexible(version)
    head = _THROTTLE.pack(throttle_time_ms) + _HEAD.pack(error_code, 0) + length_bytes(0, flexible=flexible)
    return head + (b"\0" if flexible else b"")


@cache
def partition_layout(version: int) -> Struct:
    return Struct(">ihqqq" if version >= 5 else ">ihqq")


def _read_partition(reader: Cursor, version: int, topic: TopicKey) -> FetchedPartition:
    start = reader.position
    partition, error_code, high_watermark, last_stable_offset, *rest = reader.fixed(partition_layout(version))
    aborted = _read_aborted(reader)
    if version >= 11:
        reader.int32()
    records_bytes = reader.skip_bytes()
    records_start = reader.position - records_bytes
    reader.skip_tagged_fields()
    return FetchedPartition(
        key=(topic, partition),
        error_code=error_code,
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        log_start_offset=rest[0] if rest else -1,
        records_start=records_start,
        records_bytes=records_bytes,
        aborted=aborted,
        start=start,
        stop=reader.position,
    )


def _read_aborted(reader: Cursor) -> tuple[tuple[int, int], ...] | None:
    count = reader.array_length()
    if count < 0:
        return None
    found = []
    for _ in range(count):
        producer_id, first_offset = reader.fixed(_ABORTED)
        reader.skip_tagged_fields()
        found.append((producer_id, first_offset))
    return tuple(found)
