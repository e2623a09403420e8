"""Names of directories and files in a log dir (``LocalLog``, ``LogFileUtils``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from tiersidecar.domain.offsets import Offset


class DirectoryKind(StrEnum):
    """Kind of a partition directory; all but ``CURRENT`` end in the value and are not ours to copy (DESIGN.md section 5)."""

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
    """The inverse of :func:`log_file_name`; None for any other file, such as ``.deleted``, ``.cleaned`` and ``.swap``."""
    match = _FILE.fullmatch(name)
    return match and LogFileName(offset=Offset(int(match["offset"])), kind=LogFileKind(match["kind"]))
