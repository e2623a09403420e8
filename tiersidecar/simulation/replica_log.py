"""One replica of a partition: its files in a log dir as a broker leaves them, and in memory the whole history it stands for.

The history has what was trimmed or expired locally as well, so that it says what a consumer of this partition must be able to
read; a truncation takes away from both.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from tiersidecar.domain.epochs import EpochEntry
from tiersidecar.domain.ids import TopicIdPartition, format_uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.formats.kafka.checkpoints import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, write_leader_epochs
from tiersidecar.formats.kafka.segment_rebuild import SegmentRebuilder
from tiersidecar.simulation.records import Batch

FILE_DELETE_DELAY_S = 60.0


class ReplicaLog:
    """``stamp_ns`` gives a new time of change, later than any before; ``later`` calls back after some seconds; ``changed`` is
    called when a file was written or removed."""

    def __init__(
        self,
        log_dir: Path,
        partition: TopicIdPartition,
        *,
        segment_bytes: int,
        stamp_ns: Callable[[], int],
        later: Callable[[float, Callable[[], None]], None],
        changed: Callable[[], None],
    ) -> None:
        self.directory = log_dir / str(partition)
        self._segment_bytes, self._stamp_ns = segment_bytes, stamp_ns
        self._later, self._changed = later, changed
        self._paths: dict[tuple[int, str], Path] = {}
        self._epochs_path = self.directory / LEADER_EPOCH_CHECKPOINT
        self._epochs_scratch = self._epochs_path.with_suffix(".tmp")
        self.batches: list[Batch] = []
        self.log_start_offset = 0
        self.segments: list[int] = []
        self.epochs: list[EpochEntry] = []
        self.high_watermark = 0
        self.producers_known_from = 0
        """Below it this replica has no producers' state: it writes no abort entry for a transaction that began there."""
        self._active_bytes = 0
        self.directory.mkdir(parents=True)
        metadata = f"version: 0\ntopic_id: {format_uuid(partition.topic_id)}\n"
        (self.directory / PARTITION_METADATA).write_text(metadata)
        self._open_segment(0)
        self._write_epochs()

    @property
    def log_end_offset(self) -> int:
        """Exclusive."""
        return self.batches[-1].next_offset if self.batches else 0

    def position_of(self, offset: int) -> int:
        """Index in the history of the first batch that ends at or above ``offset``."""
        return bisect_left(self.batches, offset, key=lambda batch: batch.last_offset)

    def held(self) -> list[Batch]:
        """What the files hold, from the log start on."""
        return self.batches[self.position_of(self.log_start_offset) :]

    def known(self) -> list[Batch]:
        """Those by which this replica knows of transactions."""
        return self.batches[self.position_of(self.producers_known_from) :]

    # -- what makes it longer

    def begin_epoch(self, epoch: int) -> None:
        """Leadership begins here, at the log end."""
        start = self.log_end_offset
        self.epochs = [one for one in self.epochs if one.start_offset < start and one.epoch < epoch]
        self.epochs.append(EpochEntry(LeaderEpoch(epoch), Offset(start)))
        self._write_epochs()

    def append(self, batch: Batch) -> None:
        """At the log end, rolled before it if the active segment is full."""
        assert batch.base_offset == self.log_end_offset
        if self._active_bytes and self._active_bytes + len(batch.data) > self._segment_bytes:
            self.roll()
        if not self.epochs or self.epochs[-1].epoch < batch.leader_epoch:
            self.epochs.append(EpochEntry(LeaderEpoch(batch.leader_epoch), Offset(batch.base_offset)))
            self._write_epochs()
        self.batches.append(batch)
        self._active_bytes += len(batch.data)
        path = self._path(self.segments[-1], "log")
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, batch.data)
        os.close(descriptor)
        self._stamp(path)

    def roll(self) -> None:
        """Seal the active segment: its companions are written whole, and a new one begins."""
        base, end = self.segments[-1], self.log_end_offset
        self._write_companions(base, end)
        self._open_segment(end)

    def _write_companions(self, base: int, end: int) -> None:
        earlier = self._path(base, "snapshot")
        rebuilder = SegmentRebuilder(
            where=str(base),
            base_offset=Offset(base),
            earlier_snapshot=earlier.read_bytes() if earlier.exists() else None,
        )
        rebuilder.feed(self._path(base, "log").read_bytes())
        made = rebuilder.finish()
        self._path(base, "index").write_bytes(made.offset_index)
        self._path(base, "timeindex").write_bytes(made.time_index)
        if made.transaction_index is not None:
            self._path(base, "txnindex").write_bytes(made.transaction_index)
        self._path(end, "snapshot").write_bytes(made.producer_snapshot)

    # -- what makes it shorter

    def truncate_to(self, offset: int) -> None:
        """Cut off everything from ``offset`` on: in place, so that links of ours lose it as well."""
        if offset >= self.log_end_offset:
            return
        keep = self.position_of(offset)
        self.batches = self.batches[:keep]
        self.producers_known_from = min(self.producers_known_from, offset)
        above = [base for base in self.segments[1:] if base >= offset]
        self.segments = self.segments[: len(self.segments) - len(above)]
        self._rename_away(above)
        base = self.segments[-1]
        if base > offset:
            self.start_anew_at(offset)
            return
        first = self.position_of(base)
        self._active_bytes = sum(len(batch.data) for batch in self.batches[first:])
        for kind in ("index", "timeindex", "txnindex"):
            self._path(base, kind).unlink(missing_ok=True)
        os.truncate(self._path(base, "log"), self._active_bytes)
        self._stamp(self._path(base, "log"))
        self.epochs = [entry for entry in self.epochs if entry.start_offset < offset]
        self.high_watermark = min(self.high_watermark, offset)
        # As UnifiedLog does: files of segments below the old log start may still be there.
        self.log_start_offset = min(self.log_start_offset, offset)
        self._write_epochs()

    def start_anew_at(self, offset: int) -> None:
        """Drop all files: this replica had fallen behind its leader's log start, and takes over its history, but for the
        producers' state."""
        self._rename_away(self.segments)
        self.segments, self.epochs = [], []
        self.log_start_offset, self.high_watermark = offset, min(self.high_watermark, offset)
        self.producers_known_from = offset
        self._open_segment(offset)
        self._write_epochs()

    def raise_log_start(self, offset: int) -> None:
        """As DeleteRecords, or as the leader's log start does in a follower: Kafka forgets the epochs below."""
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        below = [entry for entry in self.epochs if entry.start_offset <= offset]
        if below:
            head = EpochEntry(below[-1].epoch, Offset(offset))
            self.epochs = [head, *(entry for entry in self.epochs if entry.start_offset > offset)]
            self._write_epochs()

    def delete_segments_below_log_start(self) -> None:
        """The broker's retention thread: renamed first, removed a minute later."""
        below = [base for base, following in pairwise(self.segments) if following <= self.log_start_offset]
        if below:
            self.segments = self.segments[len(below) :]
            self._rename_away(below)

    def expire_by_time(self, before_ms: int) -> None:
        """The broker's own retention.ms, in race mode: whole segments below the high watermark."""
        while len(self.segments) > 1 and self.segments[1] <= self.high_watermark:
            last = self.batches[self.position_of(self.segments[1] - 1)]
            if last.timestamp_ms > before_ms:
                return
            self.raise_log_start(self.segments[1])
            self.delete_segments_below_log_start()

    def forget_producers(self) -> None:
        """As a move to another log dir: what the files have is replicated anew, without the state of producers before it."""
        self.producers_known_from = max(self.producers_known_from, self.segments[0])
        self._path(self.segments[0], "snapshot").unlink(missing_ok=True)
        for base, end in pairwise(self.segments):
            for path in (self._path(base, "txnindex"), self._path(end, "snapshot")):
                path.unlink(missing_ok=True)
            self._write_companions(base, end)
        self._stamp(self.directory)

    def forget_log_start(self) -> None:
        """As an unclean stop of the broker does: the log start falls back to the first file that is still there."""
        self.log_start_offset = min(self.log_start_offset, self.segments[0])

    # -- files

    def _open_segment(self, base: int) -> None:
        self.segments.append(base)
        self._active_bytes = 0
        path = self._path(base, "log")
        path.touch()
        self._stamp(path)
        self._stamp(self.directory)

    def _rename_away(self, bases: Sequence[int]) -> None:
        """As Kafka's asynchronous deletion: whoever opened or linked a file by then has it still."""
        for base in bases:
            for path in self._files_of(base):
                renamed = path.with_name(f"{path.name}.deleted")
                path.rename(renamed)
                self._later(FILE_DELETE_DELAY_S, partial(self._remove, renamed))
        self._stamp(self.directory)

    def _remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._changed()

    def _files_of(self, base: int) -> list[Path]:
        paths = [self._path(base, kind) for kind in ("log", "index", "timeindex", "txnindex", "snapshot")]
        return [path for path in paths if path.exists()]

    def _path(self, base: int, kind: str) -> Path:
        path = self._paths.get((base, kind))
        if path is None:
            path = self._paths[base, kind] = self.directory / f"{base:020d}.{kind}"
        return path

    def _write_epochs(self) -> None:
        self._epochs_scratch.write_bytes(write_leader_epochs(self.epochs))
        self._epochs_scratch.replace(self._epochs_path)
        self._stamp(self.directory)

    def _stamp(self, path: Path) -> None:
        now_ns = self._stamp_ns()
        os.utime(path, ns=(now_ns, now_ns))
        self._changed()
