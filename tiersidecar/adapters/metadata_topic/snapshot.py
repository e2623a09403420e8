"""The local snapshot: a SQLite file that spares a restart the replay of the topic (U13).

It can be lost: what is in it comes from the topic.  A file of the next schema is read when its writer says that this schema
may (``readable_since``), one of the former is upgraded in place; any other, and a corrupt one, is discarded with a warning.
All functions here block: call them through the ``blocking`` port.

A cache image as the columns of a snapshot's row: arrays stay bytes, the little that is left is JSON.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import zlib
from array import array
from collections.abc import Container, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct

import structlog

from tiersidecar.adapters.metadata_topic.partition_replica import LastRecord
from tiersidecar.adapters.metadata_topic.replica import ConsumedPosition, RestoredPartition, RestoredReplica
from tiersidecar.domain.ids import TopicIdPartition, Uuid, format_uuid, parse_uuid
from tiersidecar.domain.metadata_cache import RemoteLogMetadataCache
from tiersidecar.domain.metadata_cache_rows import CacheImage, EpochImage
from tiersidecar.domain.states import RemotePartitionDeleteState

_LENGTH = Struct("<i")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedImage:
    """``rows`` as in the image; ``spans``: per epoch all starts, all ends (int64) and all rows (uint32), in the machine's
    byte order; ``custom``: each with an int32 length before it, -1 for none, or empty when no segment has any."""

    rows: bytes
    spans: bytes
    custom: bytes
    detail: str

    def checksum(self, owner: bytes) -> int:
        """Return the CRC32 over all columns, and over what else makes up the row."""
        value = zlib.crc32(owner)
        for part in (self.rows, self.spans, self.custom, self.detail.encode()):
            value = zlib.crc32(part, value)
        return value


def pack_image(image: CacheImage) -> PackedImage:
    """Pack an image into columns, which :func:`unpack_image` takes apart."""
    detail = {
        "epoch_maps": image.epoch_maps,
        "epochs": [
            {
                "epoch": part.epoch,
                "highest_offset": part.highest_offset,
                "count": len(part.rows),
                "superseded": part.superseded,
            }
            for part in image.epochs
        ],
        "delete_state": image.delete_state,
    }
    return PackedImage(
        rows=image.rows,
        spans=b"".join(column.tobytes() for part in image.epochs for column in (part.starts, part.ends, part.rows)),
        custom=_pack_custom(image.custom),
        detail=json.dumps(detail, separators=(",", ":")),
    )


def unpack_image(packed: PackedImage) -> CacheImage:
    """Unpack the image.

    Raises:
        ValueError: the columns do not fit together.
        KeyError: something is missing.
    """
    detail = json.loads(packed.detail)
    epochs, position = [], 0
    for part in detail["epochs"]:
        columns = []
        for code in ("q", "q", "I"):
            column = array(code)
            size = part["count"] * column.itemsize
            column.frombytes(packed.spans[position : position + size])
            position += size
            columns.append(column)
        starts, ends, rows = columns
        epochs.append(
            EpochImage(
                epoch=part["epoch"],
                highest_offset=part["highest_offset"],
                starts=starts,
                ends=ends,
                rows=rows,
                superseded=tuple(part["superseded"]),
            )
        )
    state = detail["delete_state"]
    return CacheImage(
        rows=packed.rows,
        custom=_unpack_custom(packed.custom),
        epoch_maps=tuple(tuple((epoch, first) for epoch, first in epochs) for epochs in detail["epoch_maps"]),
        epochs=tuple(epochs),
        delete_state=None if state is None else RemotePartitionDeleteState(state),
    )


def _pack_custom(custom: tuple[bytes | None, ...] | None) -> bytes:
    if custom is None:
        return b""
    return b"".join(_LENGTH.pack(-1) if value is None else _LENGTH.pack(len(value)) + value for value in custom)


def _unpack_custom(data: bytes) -> tuple[bytes | None, ...] | None:
    if not data:
        return None
    custom: list[bytes | None] = []
    position = 0
    while position < len(data):
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        if length < 0:
            custom.append(None)
        else:
            custom.append(data[position : position + length])
            position += length
    return tuple(custom)


_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSchema:
    """``upgrades`` has the statements that turn a file of one version into one of the next; ``readable_since`` is the
    oldest version whose reader may read what this one writes (it ignores columns that it does not know)."""

    version: int
    readable_since: int
    upgrades: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


SCHEMA = SnapshotSchema(version=1, readable_since=1)

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS position (
    metadata_partition INTEGER PRIMARY KEY, position INTEGER NOT NULL, leader_epoch INTEGER NOT NULL,
    last_offset INTEGER, last_digest INTEGER);
CREATE TABLE IF NOT EXISTS user_partition (
    topic_id BLOB NOT NULL, partition INTEGER NOT NULL, topic TEXT NOT NULL, applied_to INTEGER NOT NULL,
    rows BLOB NOT NULL, spans BLOB NOT NULL, custom BLOB NOT NULL, detail TEXT NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition));
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHead:
    """The topic of a snapshot; all of it must fit when it is read."""

    cluster_id: str
    topic: str
    topic_id: Uuid
    partition_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPartition:
    """A user partition to be written."""

    topic_id_partition: TopicIdPartition
    applied_to: int
    image: CacheImage


class SnapshotUnusableError(Exception):
    """Raised where the file cannot be used; the message says why."""


def save_snapshot(
    path: Path,
    head: SnapshotHead,
    positions: Mapping[int, ConsumedPosition],
    changed: Iterable[SavedPartition],
    kept: Iterable[TopicIdPartition],
    schema: SnapshotSchema = SCHEMA,
) -> None:
    """Write ``positions`` and the ``changed`` partitions in one transaction, and drop those that are not ``kept``.

    ``changed`` must be taken after ``positions``: then nothing below a position is missing, and ``applied_to`` shows what is
    there twice.
    """
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(_TABLES)
        values = {
            "schema_version": str(schema.version),
            "readable_since": str(schema.readable_since),
            "byte_order": sys.byteorder,
            "cluster_id": head.cluster_id,
            "topic": head.topic,
            "topic_id": format_uuid(head.topic_id),
            "partition_count": str(head.partition_count),
        }
        values["checksum"] = str(_checksum(values, positions))
        database.execute("BEGIN IMMEDIATE")
        database.executemany("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", values.items())
        database.execute("DELETE FROM position")
        database.executemany(
            "INSERT INTO position (metadata_partition, position, leader_epoch, last_offset, last_digest)"
            " VALUES (?, ?, ?, ?, ?)",
            [_position_columns(number, at) for number, at in positions.items()],
        )
        _write_user_partitions(database, changed, {(owner.topic_id, owner.partition) for owner in kept})


def _write_user_partitions(
    database: sqlite3.Connection, changed: Iterable[SavedPartition], kept: Container[tuple[Uuid, int]]
) -> None:
    present = database.execute("SELECT topic_id, partition FROM user_partition").fetchall()
    database.executemany(
        "DELETE FROM user_partition WHERE topic_id = ? AND partition = ?",
        [row for row in present if (Uuid(row[0]), row[1]) not in kept],
    )
    database.executemany(
        "INSERT OR REPLACE INTO user_partition"
        " (topic_id, partition, topic, applied_to, rows, spans, custom, detail, checksum)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        map(_to_columns, changed),
    )


def load_snapshot(
    path: Path, *, topic: str, partition_count: int, schema: SnapshotSchema = SCHEMA
) -> RestoredReplica | None:
    """Read the snapshot at ``path``; None, after a warning, when it cannot be used, and then it is out of the way."""
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(path)) as database:
            return _load(database, topic, partition_count, schema)
    except (SnapshotUnusableError, sqlite3.Error, ValueError, KeyError, TypeError, OverflowError) as error:
        _log.warning("metadata.snapshot.discarded", path=str(path), reason=str(error) or type(error).__name__)
        with suppress(FileNotFoundError):
            path.with_name(f"{path.name}-journal").unlink()
        path.replace(path.with_name(f"{path.name}.discarded"))
        return None


def _load(database: sqlite3.Connection, topic: str, partition_count: int, schema: SnapshotSchema) -> RestoredReplica:
    meta: dict[str, str] = dict(database.execute("SELECT name, value FROM meta"))
    _upgrade(database, int(meta["schema_version"]), int(meta["readable_since"]), schema)
    if meta["byte_order"] != sys.byteorder:
        raise SnapshotUnusableError(f"it was written on a {meta['byte_order']}-endian machine")
    if (meta["topic"], meta["partition_count"]) != (topic, str(partition_count)):
        raise SnapshotUnusableError(f"it is of {meta['topic']} with {meta['partition_count']} partitions")
    positions = {
        number: ConsumedPosition(
            position=position,
            leader_epoch=leader_epoch,
            last=None if offset is None else LastRecord(offset, digest),
        )
        for number, position, leader_epoch, offset, digest in database.execute(
            "SELECT metadata_partition, position, leader_epoch, last_offset, last_digest FROM position"
        )
    }
    if int(meta["checksum"]) != _checksum(meta, positions):
        raise SnapshotUnusableError("the checksum of its positions does not fit")
    return RestoredReplica(
        cluster_id=meta["cluster_id"],
        topic_id=parse_uuid(meta["topic_id"]),
        positions=positions,
        partitions=tuple(
            _from_columns(row)
            for row in database.execute(
                "SELECT topic_id, partition, topic, applied_to, rows, spans, custom, detail, checksum FROM user_partition"
            )
        ),
    )


def _upgrade(database: sqlite3.Connection, version: int, readable_since: int, schema: SnapshotSchema) -> None:
    if version > schema.version:
        if readable_since > schema.version:
            raise SnapshotUnusableError(f"its schema {version} is newer than {schema.version}")
        return
    while version < schema.version:
        statements = schema.upgrades.get(version)
        if statements is None:
            raise SnapshotUnusableError(f"its schema {version} is older than any that can be upgraded")
        with database:
            for statement in statements:
                database.execute(statement)
            version += 1
            database.execute("UPDATE meta SET value = ? WHERE name = 'schema_version'", (str(version),))


def _checksum(meta: Mapping[str, str], positions: Mapping[int, ConsumedPosition]) -> int:
    """Return the CRC over what every version of the schema has; a version that adds something adds a checksum of its own."""
    named = [meta[name] for name in ("cluster_id", "topic", "topic_id", "partition_count")]
    rows = [_position_columns(number, positions[number]) for number in sorted(positions)]
    return zlib.crc32(repr((named, rows)).encode())


def _position_columns(number: int, at: ConsumedPosition) -> tuple[int, int, int, int | None, int | None]:
    last = (None, None) if at.last is None else (at.last.offset, at.last.digest)
    return (number, at.position, at.leader_epoch, *last)


def _row_name(owner: TopicIdPartition, applied_to: int) -> bytes:
    return repr((owner.topic_id, owner.topic, owner.partition, applied_to)).encode()


def _to_columns(saved: SavedPartition) -> tuple[object, ...]:
    owner, packed = saved.topic_id_partition, pack_image(saved.image)
    return (
        owner.topic_id,
        owner.partition,
        owner.topic,
        saved.applied_to,
        packed.rows,
        packed.spans,
        packed.custom,
        packed.detail,
        packed.checksum(_row_name(owner, saved.applied_to)),
    )


_COLUMN_TYPES = (bytes, int, str, int, bytes, bytes, bytes, str, int)


def _from_columns(row: tuple[bytes, int, str, int, bytes, bytes, bytes, str, int]) -> RestoredPartition:
    if tuple(map(type, row)) != _COLUMN_TYPES:  # a flipped byte of the file can make any of them null, or text a blob
        raise SnapshotUnusableError("a column is of another type")
    topic_id, partition, topic, applied_to, rows, spans, custom, detail, checksum = row
    owner = TopicIdPartition(topic_id=Uuid(topic_id), topic=topic, partition=partition)
    packed = PackedImage(rows=rows, spans=spans, custom=custom, detail=detail)
    if packed.checksum(_row_name(owner, applied_to)) != checksum:
        raise SnapshotUnusableError(f"the checksum of {owner} does not fit")
    cache = RemoteLogMetadataCache.from_image(owner, unpack_image(packed))
    return RestoredPartition(topic_id_partition=owner, applied_to=applied_to, cache=cache)
