"""Bytes of a cluster's snapshot.

::

    {"format":"tiersidecar-cluster","version":1,"bytes":...}\n   the head, JSON
    <zstd frame>                                                   lines of JSON, `bytes` of them when opened
    <4 bytes>                                                      CRC32C of all before, big endian

    {"cluster_id":"…","written_ms":…,"broker_id":…,"groups_problem":""}          the first line
    {"topic":"orders","topic_id":"…","replication_factor":3,"leader_epochs":[7],"configs":{"retention.ms":"-1"}}
    {"group":"billing","commits":[["orders",0,17,3,"metadata"]]}                 one or more of each group

Any writer to the bucket may put one there, and a sidecar reads it beside what it copies.  So lines, and what is
made of them, are bounded: a line is read at once, and between two of them other threads go on.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import zstandard
from crc32c import crc32c

from tiersidecar.domain.cluster_topics import ClusterTopic, Commit, TopicPartition
from tiersidecar.domain.errors import CorruptDataError, StoreError
from tiersidecar.domain.ids import format_uuid, parse_uuid
from tiersidecar.ports.cluster_snapshots import ClusterSnapshot

FORMAT, FORMAT_VERSION = "tiersidecar-cluster", 1
MOST_BYTES = 64 * 1024 * 1024
"""The most for all lines together, and for the object."""
MOST_LINE_BYTES = 2 * 1024 * 1024
MOST_ENTRIES = 1_000_000
"""Commits, settings, topics, groups and partitions together."""
_MOST_HEAD_BYTES = 1024
_COMMITS_A_LINE = 50
"""Their metadata, 4 KiB each unless the broker allows more, fit into a line however JSON writes it."""
_MOST_INT32, _MOST_INT64 = 2**31 - 1, 2**63 - 1
_SEAL = struct.Struct(">I")


def write_cluster_snapshot(snapshot: ClusterSnapshot, key: str = "", *, most_entries: int = MOST_ENTRIES) -> bytes:
    """Return the object's bytes.

    Raises:
        StoreError: it is larger than what readers open.
    """
    document, entries = bytearray(), 0
    for line, count in _lines_of(snapshot):
        text = json.dumps(line, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode() + b"\n"
        document += text
        entries += count
        if len(text) > MOST_LINE_BYTES or len(document) > MOST_BYTES or entries > most_entries:
            reason = (
                f"a snapshot of the cluster has more than {most_entries:,} commits and settings, {MOST_BYTES:,} bytes, or "
                f"{MOST_LINE_BYTES:,} bytes of one topic or of {_COMMITS_A_LINE} commits: readers would refuse it"
            )
            raise StoreError(verb="put", key=key, reason=reason)
    head = {"format": FORMAT, "version": FORMAT_VERSION, "bytes": len(document)}
    frame = zstandard.ZstdCompressor(level=3).compress(document)
    body = json.dumps(head, separators=(",", ":")).encode() + b"\n" + frame
    return body + _SEAL.pack(crc32c(body))


def read_cluster_snapshot(data: bytes, where: str, *, most_entries: int = MOST_ENTRIES) -> ClusterSnapshot:
    """Read the snapshot.

    Raises:
        CorruptDataError: damaged, cut short, of a later format, or larger than what is written.
    """
    body, seal = data[: -_SEAL.size], data[-_SEAL.size :]
    if len(data) <= _SEAL.size or _SEAL.pack(crc32c(body)) != seal:
        raise CorruptDataError(where=where, position=len(body), reason="its checksum does not fit")
    try:
        text, _, frame = body.partition(b"\n")
        return _snapshot_of(_opened(frame, _size_in(text)), most_entries)
    except (
        AttributeError,
        IndexError,
        KeyError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
        zstandard.ZstdError,
    ) as error:
        raise CorruptDataError(where=where, position=0, reason=f"no snapshot of a cluster: {error!r}") from error


def _size_in(text: bytes) -> int:
    if len(text) > _MOST_HEAD_BYTES:
        raise ValueError("its head has no end")
    head = json.loads(text)
    if (head["format"], head["version"]) != (FORMAT, FORMAT_VERSION):
        raise ValueError(f"format {head['format']!r} {head['version']!r}: use the release that wrote it")
    return _whole(head["bytes"], 0, MOST_BYTES)


def _opened(frame: bytes, size: int) -> bytes:
    # The decompressor allocates what the frame's own header says, whatever it is bounded to.
    if zstandard.get_frame_parameters(frame).content_size != size:
        raise ValueError(f"a frame that does not have the {size} bytes that its head says")
    return zstandard.ZstdDecompressor().decompress(frame, max_output_size=size)


def _lines_of(snapshot: ClusterSnapshot) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield lines, each with the number of its entries."""
    yield (
        {
            "cluster_id": snapshot.cluster_id,
            "written_ms": snapshot.written_ms,
            "broker_id": snapshot.broker_id,
            "groups_problem": snapshot.groups_problem,
        },
        1,
    )
    for name, topic in snapshot.topics.items():
        line = {
            "topic": name,
            "topic_id": format_uuid(topic.topic_id),
            "replication_factor": topic.replication_factor,
            "leader_epochs": list(topic.leader_epochs),
            "configs": dict(topic.configs),
        }
        yield line, 1 + len(topic.leader_epochs) + len(topic.configs)
    for group, commits in snapshot.groups.items():
        ordered = sorted(commits.items())
        for start in range(0, len(ordered), _COMMITS_A_LINE):
            some = ordered[start : start + _COMMITS_A_LINE]
            yield {"group": group, "commits": [_row(place, commit) for place, commit in some]}, 1 + len(some)


def _row(place: TopicPartition, commit: Commit) -> list[Any]:
    return [*place, commit.offset, commit.leader_epoch, commit.metadata]


def _snapshot_of(document: bytes, most_entries: int) -> ClusterSnapshot:
    lines = _lines_in(document)
    head = next(lines, {})
    topics: dict[str, ClusterTopic] = {}
    groups: dict[str, dict[TopicPartition, Commit]] = {}
    entries = 1
    for line in lines:
        if "topic" in line:
            topic = _topic_of(line)
            topics[_text(line["topic"])] = topic
            entries += 1 + len(topic.leader_epochs) + len(topic.configs)
        else:
            commits = dict(_commit_of(*row) for row in line["commits"])
            groups.setdefault(_text(line["group"]), {}).update(commits)
            entries += 1 + len(line["commits"])
        if entries > most_entries:
            raise ValueError(f"it has more than {most_entries:,} entries")
    return ClusterSnapshot(
        cluster_id=_text(head["cluster_id"]),
        written_ms=_whole(head["written_ms"], 0, _MOST_INT64),
        broker_id=_whole(head["broker_id"], 0, _MOST_INT32),
        groups_problem=_text(head["groups_problem"]),
        topics=topics,
        groups=groups,
    )


def _lines_in(document: bytes) -> Iterator[dict[str, Any]]:
    file = io.BytesIO(document)
    while text := file.readline(MOST_LINE_BYTES + 1):
        if len(text) > MOST_LINE_BYTES:
            raise ValueError(f"a line has more than {MOST_LINE_BYTES:,} bytes")
        line = json.loads(text)
        if not isinstance(line, dict):
            raise TypeError("a line is no object")
        yield line


def _topic_of(line: Mapping[str, Any]) -> ClusterTopic:
    return ClusterTopic(
        topic_id=parse_uuid(line["topic_id"]),
        replication_factor=_whole(line["replication_factor"], 0, _MOST_INT32),
        leader_epochs=tuple(_whole(epoch, -1, _MOST_INT32) for epoch in line["leader_epochs"]),
        configs={_text(key): _text(value) for key, value in line["configs"].items()},
    )


def _commit_of(topic: Any, partition: Any, offset: Any, epoch: Any, metadata: Any) -> tuple[TopicPartition, Commit]:
    place = _text(topic), _whole(partition, 0, _MOST_INT32)
    return place, Commit(
        offset=_whole(offset, -1, _MOST_INT64),
        leader_epoch=_whole(epoch, -1, _MOST_INT32),
        metadata=_text(metadata),
    )


def _whole(value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"a number out of range: {str(value)[:40]}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"no text: {str(value)[:40]}")
    return value
