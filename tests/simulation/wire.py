"""Fetch between a simulated client, the gateway and a simulated broker, with sessions and without."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.formats.wire.cursor import length_bytes, string_bytes
from tiersidecar.formats.wire.fetch import (
    CONSUMER,
    FIRST_WITH_SESSIONS,
    NO_ERROR,
    FetchedPartition,
    FetchPartition,
    FilledPartition,
    PartitionKey,
    is_by_topic_id,
    is_flexible,
    write_partition,
)

_THROTTLE, _HEAD = struct.pack(">i", 0), struct.Struct(">hi")
_INT32, _LIMITS = struct.Struct(">i"), struct.Struct(">iiib")


def key_of(version: int, partition: TopicIdPartition) -> PartitionKey:
    """Return the key by which a Fetch of ``version`` names the partition."""
    return (partition.topic_id if is_by_topic_id(version) else partition.topic), partition.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFetch:
    """A Fetch of a client that keeps sessions: of an incremental one ``partitions`` are those that changed."""

    version: int
    session_id: int
    session_epoch: int
    partitions: Mapping[PartitionKey, FetchPartition]
    forgotten: Sequence[PartitionKey]
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool


def fetch_request(fetch: SessionFetch) -> bytes:
    """Write a request as a consumer does."""
    version, flexible = fetch.version, is_flexible(fetch.version)
    no_tags = b"\0" if flexible else b""
    rows = {key: _asked_row(version, key[1], asked) + no_tags for key, asked in fetch.partitions.items()}
    gone = {key: _INT32.pack(key[1]) for key in fetch.forgotten}
    parts = [
        b"" if version >= 15 else _INT32.pack(CONSUMER),
        _LIMITS.pack(fetch.max_wait_ms, fetch.min_bytes, fetch.max_bytes, int(fetch.read_committed)),
        struct.pack(">ii", fetch.session_id, fetch.session_epoch),
        _by_topic(version, rows),
        _by_topic(version, gone),
        string_bytes("", flexible=flexible) if version >= 11 else b"",
        no_tags,
    ]
    return b"".join(parts)


def _asked_row(version: int, number: int, asked: FetchPartition) -> bytes:
    return b"".join(
        (
            _INT32.pack(number),
            _INT32.pack(asked.current_leader_epoch) if version >= 9 else b"",
            struct.pack(">q", asked.fetch_offset),
            _INT32.pack(-1) if version >= 12 else b"",  # last_fetched_epoch is a follower's
            struct.pack(">q", -1) if version >= 5 else b"",
            _INT32.pack(asked.max_bytes),
        )
    )


def fetch_response(
    version: int, rows: Mapping[PartitionKey, FilledPartition], *, session_id: int = 0, error_code: int = NO_ERROR
) -> bytes:
    """Write a broker's answer; outside of a session without its id."""
    head = _THROTTLE + (_HEAD.pack(error_code, session_id) if version >= FIRST_WITH_SESSIONS else b"")
    written = {key: b"".join(write_partition(version, key[1], row)) for key, row in rows.items()}
    return head + _by_topic(version, written) + (b"\0" if is_flexible(version) else b"")


def _by_topic(version: int, rows: Mapping[PartitionKey, bytes]) -> bytes:
    flexible = is_flexible(version)
    topics = list(dict.fromkeys(topic for topic, _ in rows))
    parts = [length_bytes(len(topics), flexible=flexible)]
    for topic in topics:
        of_topic = [row for key, row in rows.items() if key[0] == topic]
        parts.append(topic if isinstance(topic, bytes) else string_bytes(topic, flexible=flexible))
        parts += [length_bytes(len(of_topic), flexible=flexible), *of_topic, b"\0" if flexible else b""]
    return b"".join(parts)


def records_in(version: int, body: memoryview, row: FetchedPartition) -> bytes:
    """Return the record batches of one partition of a response: they stand last in it."""
    stop = row.stop - (1 if is_flexible(version) else 0)
    return bytes(body[stop - row.records_bytes : stop])
