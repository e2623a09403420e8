"""Names of directories and files in a log dir (``LocalLog``, ``LogFileUtils``), and the broker's small text files there:
checkpoints, ``partition.metadata`` and ``meta.properties``.

A checkpoint is ``<version>\\n<count>\\n`` and one line per entry (``CheckpointFile``): ``<epoch> <start offset>`` in a
leader-epoch-checkpoint, ``<topic> <partition> <offset>`` in the offset checkpoints of a log dir.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from io import StringIO

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import Uuid, parse_uuid
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset


class DirectoryKind(StrEnum):
    """Kind of a partition directory; all but ``CURRENT`` end in the value and are not ours to copy."""

    CURRENT = ""
    DELETE = "-delete"
    FUTURE = "-future"
    STRAY = "-stray"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectoryName:
    """A partition directory.  The topic name of a ``DELETE`` or ``STRAY`` one may have been cut by the broker."""

    topic: str
    partition: int
    kind: DirectoryKind = DirectoryKind.CURRENT

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class LogFileKind(StrEnum):
    """Files of a segment, by their suffix; ``SNAPSHOT`` is the producer snapshot, named for the offset *after* its last."""

    LOG = "log"
    OFFSET_INDEX = "index"
    TIME_INDEX = "timeindex"
    TRANSACTION_INDEX = "txnindex"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFileName:
    """A file of a live segment."""

    offset: Offset
    kind: LogFileKind

    def __str__(self) -> str:
        return log_file_name(self.offset, self.kind)


DELETED_SUFFIX = ".deleted"
"""Suffix of a segment's files from ``file.delete.delay.ms`` before the broker removes them."""

_TOPIC = r"(?P<topic>[a-zA-Z0-9._-]{1,249})"
_CURRENT = re.compile(rf"{_TOPIC}-(?P<partition>0|[1-9][0-9]{{0,9}})")
_MOVED = re.compile(rf"{_TOPIC}-(?P<partition>0|[1-9][0-9]{{0,9}})\.[^\s.]+(?P<suffix>-delete|-future|-stray)")
_FILE = re.compile(r"(?P<offset>[0-9]{20})\.(?P<kind>log|index|timeindex|txnindex|snapshot)")


def parse_log_directory(name: str) -> LogDirectoryName | None:
    """Parse ``<topic>-<partition>``, or that with ``.<unique id>`` and one of the suffixes; None for any other name."""
    if match := _MOVED.fullmatch(name):
        kind = DirectoryKind(match["suffix"])
        return LogDirectoryName(topic=match["topic"], partition=int(match["partition"]), kind=kind)
    if match := _CURRENT.fullmatch(name):
        return LogDirectoryName(topic=match["topic"], partition=int(match["partition"]))
    return None


def log_file_name(offset: int, kind: LogFileKind) -> str:
    """Return ``<offset, 20 digits>.<suffix>``."""
    return f"{offset:020d}.{kind}"


def parse_log_file(name: str) -> LogFileName | None:
    """Invert :func:`log_file_name`; None for any other file, such as ``.deleted``, ``.cleaned`` and ``.swap``."""
    match = _FILE.fullmatch(name)
    return match and LogFileName(offset=Offset(int(match["offset"])), kind=LogFileKind(match["kind"]))


LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT = "cleaner-offset-checkpoint"
REPLICATION_OFFSET_CHECKPOINT = "replication-offset-checkpoint"
"""High watermarks as last flushed."""
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"

_CHECKPOINT_VERSION = 0
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """Cluster and node that a log dir belongs to.  Version 0 is of ZooKeeper days: it has no directory id."""

    version: int
    cluster_id: str
    node_id: int
    directory_id: str | None


def read_leader_epochs(data: bytes, *, where: str = LEADER_EPOCH_CHECKPOINT) -> tuple[EpochEntry, ...]:
    """Return entries in the order of the file.

    Raises:
        CorruptDataError: not such a file, or cut short.
    """
    entries = []
    for number, fields in _checkpoint_lines(data, where):
        epoch, start_offset = _integers(fields, 2, where, number)
        entries.append(EpochEntry(LeaderEpoch(epoch), Offset(start_offset)))
    return tuple(entries)


def write_leader_epochs(entries: Iterable[EpochEntry]) -> bytes:
    """Return the same bytes that a broker writes: also the leader-epoch artefact of a segment (S-034)."""
    return _write_checkpoint(f"{epoch} {start_offset}" for epoch, start_offset in entries)


def read_offset_checkpoint(data: bytes, *, where: str) -> dict[tuple[str, int], Offset]:
    """Return offsets by topic and partition.

    Raises:
        CorruptDataError: not such a file, or cut short.
    """
    offsets = {}
    for number, fields in _checkpoint_lines(data, where):
        topic, *rest = fields
        partition, offset = _integers(rest, 2, where, number)
        offsets[topic, partition] = Offset(offset)
    return offsets


def write_offset_checkpoint(offsets: Mapping[tuple[str, int], int]) -> bytes:
    """Return an offset checkpoint of these entries, in their order: for the hand-over to native tiering, broker stopped."""
    return _write_checkpoint(f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())


def read_partition_metadata(data: bytes, *, where: str = PARTITION_METADATA) -> Uuid:
    """Read the topic id of a partition directory (``PartitionMetadataFile``).

    Raises:
        CorruptDataError: not such a file.
    """
    fields = _key_values(data, ":", where)
    if fields.get("version") != "0":
        raise CorruptDataError(where=where, position=0, reason=f"version {fields.get('version')} instead of 0")
    try:
        return parse_uuid(fields.get("topic_id", ""))
    except ValueError as error:
        raise CorruptDataError(where=where, position=0, reason=f"topic_id: {error}") from error


def read_meta_properties(data: bytes, *, where: str = META_PROPERTIES) -> MetaProperties:
    """Return cluster, node and directory of a log dir.

    Raises:
        CorruptDataError: not such a file, or without cluster or node id.
    """
    fields = {key: _ESCAPE.sub(r"\1", value) for key, value in _key_values(data, "=", where).items()}
    cluster_id = fields.get("cluster.id")
    if not cluster_id:
        raise CorruptDataError(where=where, position=0, reason="there is no cluster.id")
    # Version 0 called the node broker.id.
    node_id = fields.get("node.id", fields.get("broker.id", ""))
    version, node = _integers([fields.get("version", ""), node_id], 2, where, 0)
    return MetaProperties(version=version, cluster_id=cluster_id, node_id=node, directory_id=fields.get("directory.id"))


def _write_checkpoint(lines: Iterable[str]) -> bytes:
    entries = list(lines)
    return "".join(f"{line}\n" for line in (_CHECKPOINT_VERSION, len(entries), *entries)).encode()


def _checkpoint_lines(data: bytes, where: str) -> Iterator[tuple[int, list[str]]]:
    """Yield number (from 1) and fields of each entry's line, one by one: the store may return anything.  A file that the broker
    has made and not yet written to is empty and has no entries, as for Kafka's own CheckpointReadBuffer.

    Raises:
        CorruptDataError: also at the end, where there are fewer or more than announced.
    """
    lines = StringIO(_text(data, where), newline=None)
    head, announced = lines.readline(), lines.readline()
    if not head:
        return
    if not announced:
        raise CorruptDataError(where=where, position=len(data), reason="version and count are missing")
    (version,) = _integers([head.strip()], 1, where, 1)
    (count,) = _integers([announced.strip()], 1, where, 2)
    if version != _CHECKPOINT_VERSION:
        raise CorruptDataError(where=where, position=0, reason=f"version {version} instead of {_CHECKPOINT_VERSION}")
    found = 0
    for number, line in enumerate(lines, start=3):
        if not line.strip():
            continue
        found += 1
        if found <= count:
            yield number, line.split()
    if found != count:
        reason = f"{found} entries where {count} were announced"
        raise CorruptDataError(where=where, position=len(data), reason=reason)


def _integers(fields: list[str], count: int, where: str, line: int) -> list[int]:
    try:
        values = [int(field) for field in fields]
    except ValueError as error:
        raise CorruptDataError(where=where, position=0, reason=f"line {line}: {error}") from error
    if len(values) != count:
        raise CorruptDataError(where=where, position=0, reason=f"line {line} has {len(values)} fields, not {count}")
    return values


def _key_values(data: bytes, separator: str, where: str) -> dict[str, str]:
    lines = (line.strip() for line in _text(data, where).splitlines())
    pairs = (line.partition(separator) for line in lines if line and not line.startswith(("#", "!")))
    return {key.strip(): value.strip() for key, _, value in pairs}


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorruptDataError(where=where, position=error.start, reason="not UTF-8 text") from error
