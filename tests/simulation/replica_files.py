"""The files of one replica in its directory, as a broker writes, renames and removes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from tiersidecar.domain.ids import TopicIdPartition, format_uuid
from tiersidecar.domain.offsets import EpochEntry, Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction, write_transaction_index
from tiersidecar.formats.kafka.log_dir_files import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, write_leader_epochs
from tiersidecar.formats.kafka.producer_state import ProducerState, write_producer_snapshot
from tiersidecar.formats.kafka.segment_rebuild import SegmentRebuilder

FILE_DELETE_DELAY_S = 60.0
_KINDS = ("log", "index", "timeindex", "txnindex", "snapshot")


class ReplicaFiles:
    """``stamp_ns`` gives a new time of change, later than any before; ``later`` calls back after some seconds; ``changed`` is
    called when a file was written or removed."""

    def __init__(
        self,
        directory: Path,
        partition: TopicIdPartition,
        *,
        stamp_ns: Callable[[], int],
        later: Callable[[float, Callable[[], None]], None],
        changed: Callable[[], None],
    ) -> None:
        self.directory = directory
        self._partition, self._stamp_ns = partition, stamp_ns
        self._later, self._changed = later, changed
        self._paths: dict[tuple[int, str], Path] = {}
        self._epochs_path = self.directory / LEADER_EPOCH_CHECKPOINT
        self._epochs_scratch = self._epochs_path.with_suffix(".tmp")

    def make_directory(self) -> None:
        """Make it, of a new replica."""
        self.directory.mkdir(parents=True)
        metadata = f"version: 0\ntopic_id: {format_uuid(self._partition.topic_id)}\n"
        (self.directory / PARTITION_METADATA).write_text(metadata)
        self._stamp(self.directory / PARTITION_METADATA)

    def remove_directory(self) -> None:
        """Remove it with all that is in it."""
        for path in self.directory.iterdir():
            path.unlink()
        self.directory.rmdir()

    # -- segments

    def open_segment(self, base: int) -> None:
        """Make the .log of a new segment."""
        path = self.path(base, "log")
        path.touch()
        self._stamp(path)
        self._stamp(self.directory)

    def append(self, base: int, data: bytes) -> None:
        """Append to the .log."""
        path = self.path(base, "log")
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, data)
        os.close(descriptor)
        self._stamp(path)

    def seal(self, base: int) -> None:
        """Write the indexes of a segment that gets no more."""
        self._write_indexes(base, self.path(base, "log").read_bytes())

    def truncate(self, base: int, size: int) -> None:
        """Cut the .log off in place; the segment is the active one again."""
        for kind in ("index", "timeindex"):
            self.path(base, kind).unlink(missing_ok=True)
        os.truncate(self.path(base, "log"), size)
        self._stamp(self.path(base, "log"))

    def size(self, base: int) -> int:
        """Return the size of the .log."""
        return self.path(base, "log").stat().st_size

    def replace(self, bases: Sequence[int], data: bytes, aborted: Sequence[AbortedTransaction]) -> None:
        """Put a new segment in the place of those at ``bases``, at the first of them (``LocalLog.replaceSegments``): the old
        files are renamed, but for the snapshot at the first; the new .log has the time of change of the last old one."""
        base, modified_ns = bases[0], self.path(bases[-1], "log").stat().st_mtime_ns
        kept = {self.path(base, "snapshot")}
        self._rename([path for one in bases for path in self.of(one) if path not in kept])
        path = self.path(base, "log")
        path.write_bytes(data)
        self._write_indexes(base, data)
        if aborted:
            self.path(base, "txnindex").write_bytes(write_transaction_index(aborted))
        os.utime(path, ns=(modified_ns, modified_ns))
        self._stamp(self.directory)

    def rename_away(self, bases: Iterable[int]) -> None:
        """Rename as Kafka's asynchronous deletion does: a process that opened or linked a file by then has it still."""
        self._rename([path for base in bases for path in self.of(base)])
        self._stamp(self.directory)

    def of(self, base: int) -> list[Path]:
        """Return those of a segment that are there."""
        return [path for path in (self.path(base, kind) for kind in _KINDS) if path.exists()]

    def path(self, base: int, kind: str) -> Path:
        """Return the path of one file of a segment."""
        path = self._paths.get((base, kind))
        if path is None:
            path = self._paths[base, kind] = self.directory / f"{base:020d}.{kind}"
        return path

    def _write_indexes(self, base: int, data: bytes) -> None:
        rebuilder = SegmentRebuilder(where=str(base), base_offset=Offset(base), earlier_snapshot=None)
        rebuilder.feed(data)
        made = rebuilder.finish()
        self.path(base, "index").write_bytes(made.offset_index)
        self.path(base, "timeindex").write_bytes(made.time_index)

    def _rename(self, paths: Sequence[Path]) -> None:
        for path in paths:
            renamed = path.with_name(f"{path.name}.deleted")
            path.rename(renamed)
            self._later(FILE_DELETE_DELAY_S, partial(self._remove, renamed))

    # -- what lies beside them

    def snapshot_changed(self, offset: int, states: Sequence[ProducerState] | None) -> None:
        """Write a producer snapshot; None: remove it."""
        path = self.path(offset, "snapshot")
        if states is not None:
            path.write_bytes(write_producer_snapshot(states))
            self._stamp(self.directory)
        else:
            self._remove(path)

    def write_transaction_index(self, base: int, entries: Sequence[AbortedTransaction]) -> None:
        """Write it where it has entries, or had some."""
        path = self.path(base, "txnindex")
        if entries or path.exists():
            path.write_bytes(write_transaction_index(entries))
            self._stamp(self.directory)

    def write_epochs(self, epochs: Sequence[EpochEntry]) -> None:
        """Write the leader epoch checkpoint."""
        self._epochs_scratch.write_bytes(write_leader_epochs(epochs))
        self._epochs_scratch.replace(self._epochs_path)
        self._stamp(self.directory)

    def _remove(self, path: Path) -> None:
        if path.exists():  # its directory may be gone with its disk
            path.unlink()
            self._stamp(self.directory)

    def _stamp(self, path: Path) -> None:
        now_ns = self._stamp_ns()
        os.utime(path, ns=(now_ns, now_ns))
        self._changed()
