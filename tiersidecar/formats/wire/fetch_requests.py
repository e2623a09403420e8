"""Fetch requests, versions 4 to 18, read without kio (``FetchRequest.json``).

::

    [replicaId i32, to v14] maxWaitMs i32 | minBytes i32 | maxBytes i32 | isolationLevel i8
    | [sessionId i32 | sessionEpoch i32, from v7]
    | topics: (name string, to v12; id uuid, from v13 | partitions:
        partition i32 | [currentLeaderEpoch i32, from v9] | fetchOffset i64 | [lastFetchedEpoch i32, from v12]
        | [logStartOffset i64, from v5] | partitionMaxBytes i32)
    | [forgotten topics: (name or id | partitions i32), from v7] | [rackId string, from v11]

Flexible, with tagged fields, from v12; from v15 the replica id stands in tag 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from struct import Struct

from tiersidecar.formats.wire.cursor import Cursor, length_bytes, string_bytes

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
    """The request of a message body.

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
