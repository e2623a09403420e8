"""Fetch requests and responses, versions 4 to 18, read without kio (``FetchRequest.json``, ``FetchResponse.json``).

A request::

    [replicaId i32, to v14] maxWaitMs i32 | minBytes i32 | maxBytes i32 | isolationLevel i8
    | [sessionId i32 | sessionEpoch i32, from v7]
    | topics: (name string, to v12; id uuid, from v13 | partitions:
        partition i32 | [currentLeaderEpoch i32, from v9] | fetchOffset i64 | [lastFetchedEpoch i32, from v12]
        | [logStartOffset i64, from v5] | partitionMaxBytes i32)
    | [forgotten topics: (name or id | partitions i32), from v7] | [rackId string, from v11]

A response, of which the place of each partition is kept, so that single ones are replaced::

    throttleTimeMs i32 | [errorCode i16 | sessionId i32, from v7]
    | topics: (name string, to v12; id uuid, from v13 | partitions:
        partition i32 | errorCode i16 | highWatermark i64 | lastStableOffset i64 | [logStartOffset i64, from v5]
        | abortedTransactions: (producerId i64 | firstOffset i64), nullable | [preferredReadReplica i32, from v11]
        | records bytes, nullable)

Both are flexible, with tagged fields, from v12; from v15 the replica id stands in tag 1.  Records are skipped: they are
not even copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from struct import Struct

from tiersidecar.formats.wire.cursor import Buffer, Cursor, Replacement, length_bytes, string_bytes

FETCH_API_KEY = 1
FETCH_VERSIONS = range(4, 19)

TopicKey = str | bytes
"""Topic in a Fetch: its name up to version 12, the 16 bytes of its id from version 13."""
PartitionKey = tuple[TopicKey, int]

CONSUMER = -1
"""``replica_id`` of clients.  Any other negative one is no replica's either, -2 (a debugging consumer) for instance."""
NO_SESSION, FULL_EPOCH, SESSIONLESS_EPOCH = 0, 0, -1
"""KIP-227: epoch 0 asks for a new session, -1 for none; above, the request has only changes."""

_FIRST_FLEXIBLE, _FIRST_BY_ID, _FIRST_WITH_SESSIONS = 12, 13, 7
_INT32, _UUID = Struct(">i"), Struct("16s")
_REPLICA_STATE_TAG = 1


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """Request for one partition."""

    current_leader_epoch: int
    fetch_offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """``partitions`` and ``forgotten`` in the request's order; of an incremental request only the changes."""

    version: int
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    is_read_committed: bool
    session_id: int
    session_epoch: int
    partitions: Mapping[PartitionKey, FetchPartition]
    forgotten: tuple[PartitionKey, ...]

    @property
    def is_of_follower(self) -> bool:
        """Return whether a broker takes it for a replica's (``FetchRequest.isValidBrokerId``), and lets it read as one."""
        return self.replica_id >= 0

    @property
    def is_incremental(self) -> bool:
        return self.session_epoch > FULL_EPOCH


def is_flexible(version: int) -> bool:
    """Return whether this version of Fetch has compact lengths and tagged fields."""
    return version >= _FIRST_FLEXIBLE


def is_by_topic_id(version: int) -> bool:
    """Return whether this version of Fetch names topics by their ids."""
    return version >= _FIRST_BY_ID


def read_fetch_request(body: memoryview, version: int) -> FetchRequest:
    """Read the request of a message body.

    Raises:
        MalformedMessageError: it is none.
    """
    reader = Cursor(body, flexible=is_flexible(version))
    replica_id = CONSUMER if version >= 15 else reader.int32()
    max_wait_ms, min_bytes, max_bytes, isolation_level = reader.fixed(_LIMITS)
    session_id, session_epoch = reader.fixed(_SESSION) if version >= _FIRST_WITH_SESSIONS else (0, SESSIONLESS_EPOCH)
    partitions: dict[PartitionKey, FetchPartition] = {}
    for _ in range(reader.array_length()):
        _read_topic(reader, version, partitions)
    forgotten = _read_forgotten(reader, version) if version >= _FIRST_WITH_SESSIONS else ()
    if version >= 11:
        reader.skip_string()
    replica_state = reader.tagged_fields().get(_REPLICA_STATE_TAG)
    if version >= 15 and replica_state is not None:
        replica_id = Cursor(body, flexible=True, position=replica_state).int32()
    reader.end()
    return FetchRequest(
        version=version,
        replica_id=replica_id,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        is_read_committed=isolation_level == 1,
        session_id=session_id,
        session_epoch=session_epoch,
        partitions=partitions,
        forgotten=forgotten,
    )


def session_epoch_position(version: int) -> int | None:
    """Return where in a request the session epoch stands; None in versions without sessions."""
    if version < _FIRST_WITH_SESSIONS:
        return None
    return (0 if version >= 15 else _INT32.size) + _LIMITS.size + _INT32.size


def most_partitions(size_bytes: int, version: int) -> int:
    """Return the most partitions that a request body of ``size_bytes`` can name, unread; topics' names leave fewer."""
    return size_bytes // (_partition_layout(version)[1].size + is_flexible(version))


def write_single_fetch(
    version: int,
    partition: PartitionKey,
    offset: int,
    *,
    max_wait_ms: int,
    max_bytes: int,
    read_committed: bool,
    last_fetched_epoch: int = -1,
) -> bytes:
    """Return a request for one partition, outside any session.  With ``last_fetched_epoch``, from version 12 on, a broker whose
    log is another one below ``offset`` returns no records."""
    topic, number = partition
    flexible = is_flexible(version)
    parts = [b"" if version >= 15 else _INT32.pack(CONSUMER)]
    parts.append(_LIMITS.pack(max_wait_ms, 0, max_bytes, int(read_committed)))
    if version >= _FIRST_WITH_SESSIONS:
        parts.append(_SESSION.pack(NO_SESSION, SESSIONLESS_EPOCH))
    parts.append(length_bytes(1, flexible=flexible))
    parts.append(topic if isinstance(topic, bytes) else string_bytes(topic, flexible=flexible))
    parts.append(length_bytes(1, flexible=flexible))
    fields = {"partition": number, "fetch_offset": offset, "max_bytes": max_bytes}
    fields["last_fetched_epoch"] = last_fetched_epoch
    names, layout = _partition_layout(version)
    parts.append(layout.pack(*(fields.get(name, -1) for name in names)))
    no_tags = b"\0" if flexible else b""
    parts += [no_tags, no_tags]
    if version >= _FIRST_WITH_SESSIONS:
        parts.append(length_bytes(0, flexible=flexible))
    if version >= 11:
        parts.append(string_bytes("", flexible=flexible))
    return b"".join([*parts, no_tags])


_LIMITS = Struct(">iiib")
_SESSION = Struct(">ii")


@cache
def _partition_layout(version: int) -> tuple[tuple[str, ...], Struct]:
    fields = [
        ("partition", "i", 0),
        ("current_leader_epoch", "i", 9),
        ("fetch_offset", "q", 0),
        ("last_fetched_epoch", "i", 12),
        ("log_start_offset", "q", 5),
        ("max_bytes", "i", 0),
    ]
    chosen = [(name, code) for name, code, since in fields if version >= since]
    return tuple(name for name, _ in chosen), Struct(">" + "".join(code for _, code in chosen))


def _read_topic(reader: Cursor, version: int, partitions: dict[PartitionKey, FetchPartition]) -> None:
    topic = read_topic_key(reader, version)
    names, layout = _partition_layout(version)
    at_offset, at_epoch = names.index("fetch_offset"), 1 if version >= 9 else None
    for _ in range(reader.array_length()):
        values = reader.fixed(layout)
        epoch = -1 if at_epoch is None else values[at_epoch]
        partitions[topic, values[0]] = FetchPartition(epoch, values[at_offset], values[-1])
        reader.skip_tagged_fields()
    reader.skip_tagged_fields()


def read_topic_key(reader: Cursor, version: int) -> TopicKey:
    """Return the key of a topic in a request or response."""
    return bytes(reader.fixed(_UUID)[0]) if is_by_topic_id(version) else reader.string()


def _read_forgotten(reader: Cursor, version: int) -> tuple[PartitionKey, ...]:
    forgotten: list[PartitionKey] = []
    for _ in range(reader.array_length()):
        topic = read_topic_key(reader, version)
        forgotten += [(topic, reader.int32()) for _ in range(reader.array_length())]
        reader.skip_tagged_fields()
    return tuple(forgotten)


NO_ERROR, OFFSET_OUT_OF_RANGE, NOT_LEADER_OR_FOLLOWER = 0, 1, 6
KAFKA_STORAGE_ERROR, FETCH_SESSION_ID_NOT_FOUND = 56, 70
_KAFKA_STORAGE_ERROR_SINCE = 6
FIRST_WITH_SESSIONS = 7

_THROTTLE, _ABORTED = Struct(">i"), Struct(">qq")
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
    """Return the pieces of one partition of a response."""
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
