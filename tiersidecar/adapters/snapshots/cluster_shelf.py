"""Snapshots of clusters in the store: ``<key.prefix>.tiersidecar/clusters/<cluster id>/<written ms>-<broker id>.snapshot``.

::

    {"format":"tiersidecar-cluster","version":1,"bytes":...}\n   the head, JSON
    <zstd frame>                                                   the rest, JSON
    <4 bytes>                                                      CRC32C of all before, big endian

Of two writers, each has keys of its own: nothing is overwritten, and readers take the one that was written last.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import structlog
import zstandard
from crc32c import crc32c

from tiersidecar.domain.cluster_topics import ClusterTopic, Commit, TopicPartition
from tiersidecar.domain.errors import CorruptDataError, ObjectNotFoundError, ObjectTooLargeError
from tiersidecar.domain.ids import format_uuid, parse_uuid
from tiersidecar.domain.own_objects import CLUSTERS
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.cluster_snapshots import ClusterSnapshot
from tiersidecar.ports.store import BytesBody, Store

log = structlog.get_logger(__name__)

FORMAT, FORMAT_VERSION = "tiersidecar-cluster", 1
_MOST_OBJECT_BYTES = 256 * 1024 * 1024
_MOST_BYTES = 1024 * 1024 * 1024
_KEPT = 3
_SEAL = struct.Struct(">I")
_NAME = re.compile(r"(?P<written_ms>[0-9]{19})-[0-9]{1,10}\.snapshot")
_LATEST_MS = 253_402_300_799_999
"""The end of the year 9999: no clock is there, and what has a later name is none of ours."""


def cluster_directory(key_prefix: str, cluster_id: str) -> str:
    """What the keys of a cluster's snapshots begin with."""
    return f"{key_prefix}{CLUSTERS}{quote(cluster_id, safe='')}/"


class StoreClusterShelf:
    """The :class:`~tiersidecar.ports.cluster_snapshots.ClusterSnapshotShelf` under ``key_prefix`` of ``store``."""

    def __init__(self, store: Store, key_prefix: str, blocking: Blocking) -> None:
        self._store, self._key_prefix, self._blocking = store, key_prefix, blocking

    async def latest(self, cluster_id: str) -> ClusterSnapshot | None:
        """As the port says."""
        for key in reversed(await self._keys(cluster_id)):
            try:
                data = await self._store.fetch_object(key, max_bytes=_MOST_OBJECT_BYTES)
                return await self._blocking.run(read_cluster_snapshot, data, key)
            except (CorruptDataError, ObjectNotFoundError, ObjectTooLargeError):
                continue
        return None

    async def put(self, snapshot: ClusterSnapshot) -> None:
        """As the port says."""
        before = await self._keys(snapshot.cluster_id)
        named = replace(snapshot, written_ms=_later_than(before, snapshot.written_ms))
        directory = cluster_directory(self._key_prefix, snapshot.cluster_id)
        key = f"{directory}{named.written_ms:019d}-{named.broker_id}.snapshot"
        data = await self._blocking.run(write_cluster_snapshot, named)
        await self._store.put_object(key, BytesBody(data), if_absent=True)
        if older := before[: 1 - _KEPT]:
            await self._store.delete_objects(older)

    async def _keys(self, cluster_id: str) -> list[str]:
        """Ascending by the time of writing."""
        listed = self._store.list_objects(cluster_directory(self._key_prefix, cluster_id))
        return sorted([stored.key async for stored in listed if _written_ms(stored.key) >= 0])


def _written_ms(key: str) -> int:
    """-1 for a key of something else."""
    match = _NAME.fullmatch(key.rpartition("/")[2])
    written_ms = -1 if match is None else int(match["written_ms"])
    return written_ms if written_ms <= _LATEST_MS else -1


def _later_than(keys: Sequence[str], now_ms: int) -> int:
    """Return the time to name the next one by.  Readers take the highest: that of a clock that ran ahead is overtaken."""
    highest_ms = _written_ms(keys[-1]) if keys else -1
    if highest_ms > now_ms:
        log.warning("cluster_snapshot.clock.behind", key=keys[-1], ahead_s=(highest_ms - now_ms) // 1000)
    return max(now_ms, highest_ms + 1)


def write_cluster_snapshot(snapshot: ClusterSnapshot) -> bytes:
    """The object's bytes."""
    document = json.dumps(_document(snapshot), separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()
    head = {"format": FORMAT, "version": FORMAT_VERSION, "bytes": len(document)}
    body = (
        json.dumps(head, separators=(",", ":")).encode() + b"\n" + zstandard.ZstdCompressor(level=3).compress(document)
    )
    return body + _SEAL.pack(crc32c(body))


def read_cluster_snapshot(data: bytes, where: str) -> ClusterSnapshot:
    """The snapshot.

    Raises:
        CorruptDataError: damaged, cut short, or of a later format.
    """
    body, seal = data[: -_SEAL.size], data[-_SEAL.size :]
    if len(data) <= _SEAL.size or _SEAL.pack(crc32c(body)) != seal:
        raise CorruptDataError(where=where, position=len(body), reason="its checksum does not fit")
    text, _, frame = body.partition(b"\n")
    try:
        head = json.loads(text)
        return _snapshot_of(json.loads(_opened(frame, _size_in(head))))
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError, zstandard.ZstdError) as error:
        raise CorruptDataError(where=where, position=0, reason=f"no snapshot of a cluster: {error!r}") from error


def _size_in(head: Mapping[str, Any]) -> int:
    if (head["format"], head["version"]) != (FORMAT, FORMAT_VERSION):
        raise ValueError(f"format {head['format']!r} {head['version']!r}: use the release that wrote it")
    size = head["bytes"]
    if type(size) is not int or not 0 <= size <= _MOST_BYTES:
        raise ValueError(f"{size!r} bytes")
    return size


def _opened(frame: bytes, size: int) -> bytes:
    # The decompressor allocates what the frame's own header says, whatever it is bounded to.
    if zstandard.get_frame_parameters(frame).content_size != size:
        raise ValueError(f"a frame that does not have the {size} bytes that its head says")
    return zstandard.ZstdDecompressor().decompress(frame, max_output_size=size)


def _document(snapshot: ClusterSnapshot) -> dict[str, Any]:
    return {
        "cluster_id": snapshot.cluster_id,
        "written_ms": snapshot.written_ms,
        "broker_id": snapshot.broker_id,
        "groups_problem": snapshot.groups_problem,
        "topics": {
            name: {
                "topic_id": format_uuid(topic.topic_id),
                "replication_factor": topic.replication_factor,
                "leader_epochs": list(topic.leader_epochs),
                "configs": dict(topic.configs),
            }
            for name, topic in snapshot.topics.items()
        },
        "groups": {group: _rows(commits) for group, commits in snapshot.groups.items()},
    }


def _rows(commits: Mapping[TopicPartition, Commit]) -> list[list[Any]]:
    return [
        [topic, partition, commit.offset, commit.leader_epoch, commit.metadata]
        for (topic, partition), commit in sorted(commits.items())
    ]


def _snapshot_of(document: Mapping[str, Any]) -> ClusterSnapshot:
    return ClusterSnapshot(
        cluster_id=str(document["cluster_id"]),
        written_ms=int(document["written_ms"]),
        broker_id=int(document["broker_id"]),
        groups_problem=str(document["groups_problem"]),
        topics={
            str(name): ClusterTopic(
                topic_id=parse_uuid(topic["topic_id"]),
                replication_factor=int(topic["replication_factor"]),
                leader_epochs=tuple(int(epoch) for epoch in topic["leader_epochs"]),
                configs={str(key): str(value) for key, value in topic["configs"].items()},
            )
            for name, topic in document["topics"].items()
        },
        groups={
            str(group): {
                (str(topic), int(partition)): Commit(
                    offset=int(offset), leader_epoch=int(epoch), metadata=str(metadata)
                )
                for topic, partition, offset, epoch, metadata in rows
            }
            for group, rows in document["groups"].items()
        },
    )
