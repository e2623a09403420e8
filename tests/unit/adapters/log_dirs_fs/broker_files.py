"""Files as a broker leaves them, in a scratch log dir."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from tiersidecar.domain.ids import TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import LocalSegment
from tiersidecar.formats.kafka.log_dir_files import parse_log_file

GOLDEN = Path(__file__).parents[3] / "golden" / "log-dirs"
TOPIC_ID = Uuid(bytes(range(1, 17)))
START_S = 1_700_000_000


class ScratchLogDir:
    """A log dir in which each change sets the mtime of its directory one second on, whatever the real clock says."""

    def __init__(self, path: Path, *, with_meta_properties: bool = True) -> None:
        self.path = path
        self._seconds: Iterator[int] = count(START_S)
        path.mkdir(parents=True, exist_ok=True)
        if with_meta_properties:
            properties = "#\n#Sat Nov 21 00:44:35 UTC 2026\nnode.id=1\ndirectory.id=ldlWAnQgGypqhN_XSdNg2g\nversion=1\n"
            (path / "meta.properties").write_text(f"{properties}cluster.id=dGllcnNpZGVjYXItdGVzdA\n")

    def add_partition(self, name: str, *segments: int, topic_id: Uuid | None = TOPIC_ID, size_bytes: int = 100) -> Path:
        """A partition directory with segments at these base offsets."""
        directory = self.path / name
        directory.mkdir()
        if topic_id is not None:
            (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {format_uuid(topic_id)}")
        (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
        for base_offset in segments:
            self.add_file(name, f"{base_offset:020d}.log", bytes(size_bytes))
        self.touch(name)
        return directory

    def add_file(self, name: str, file: str, data: bytes = b"") -> Path:
        path = self.path / name / file
        path.write_bytes(data)
        self.touch(name)
        return path

    def rename(self, name: str, before: str, after: str) -> None:
        (self.path / name / before).rename(self.path / name / after)
        self.touch(name)

    def touch(self, name: str) -> None:
        self.set_mtime(name, next(self._seconds))

    def set_mtime(self, name: str, seconds: int) -> None:
        os.utime(self.path / name, (seconds, seconds))


def topic_id_partition(topic: str, partition: int = 0, topic_id: Uuid = TOPIC_ID) -> TopicIdPartition:
    return TopicIdPartition(topic_id=topic_id, topic=topic, partition=partition)


def copy_golden_partition(name: str, target: Path) -> Path:
    """A partition directory of a real broker, to be damaged by a test."""
    directory = target / name
    shutil.copytree(GOLDEN / "clean" / name, directory, copy_function=shutil.copyfile)
    return directory


def sealed_segment(directory: Path, base_offset: int) -> LocalSegment:
    """The segment at ``base_offset`` as a listing shows it."""
    names = [parse_log_file(path.name) for path in directory.glob("*.log")]
    following = min(name.offset for name in names if name is not None and name.offset > base_offset)
    status = (directory / f"{base_offset:020d}.log").stat()
    return LocalSegment(
        directory=str(directory),
        base_offset=Offset(base_offset),
        next_base_offset=Offset(following),
        size_bytes=status.st_size,
        modified_ms=status.st_mtime_ns // 1_000_000,
    )
