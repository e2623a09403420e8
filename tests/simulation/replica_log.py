"""One replica of a partition: its files in a log dir as a broker leaves them, and in memory the whole history it stands for.

The history has what was trimmed or expired locally as well, so that it says what a consumer of this partition must be able to
read; a truncation takes away from both.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.simulation.producers import Producers
from tests.simulation.records import Batch
from tiersidecar.domain.ids import TopicIdPartition, format_uuid
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction, collect_aborted, write_transaction_index
from tiersidecar.formats.kafka.log_dir_files import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, write_leader_epochs
from tiersidecar.formats.kafka.producer_state import ProducerState, write_producer_snapshot
from tiersidecar.formats.kafka.segment_rebuild import SegmentRebuilder

FILE_DELETE_DELAY_S = 60.0


class Read(NamedTuple):
    """``data`` may end within a batch."""

    data: bytes
    aborted: tuple[AbortedTransaction, ...]


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
        self._partition = partition
        self.batches: list[Batch] = []
        self.log_start_offset = 0
        self.segments: list[int] = []
        self.epochs: list[EpochEntry] = []
        self.high_watermark = 0
        self._active_bytes = 0
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        self._producers = Producers(self._snapshot_changed)
        self._recovery_point, self._checkpointed_log_start = 0, 0
        self._begin_empty()

    @property
    def log_end_offset(self) -> int:
        """Return the log end, exclusive."""
        return max(self.batches[-1].next_offset if self.batches else 0, self.segments[-1] if self.segments else 0)

    def position_of(self, offset: int) -> int:
        """Return the index in the history of the first batch that ends at or above ``offset``."""
        return bisect_left(self.batches, offset, key=lambda batch: batch.last_offset)

    def last_stable_offset(self) -> int:
        """Return it, exclusive, as this replica knows it."""
        unstable = self._producers.first_unstable(self.high_watermark)
        if unstable is None:
            return self.high_watermark
        return min(max(unstable, self.log_start_offset), self.high_watermark)

    def read(self, offset: int, stop: int, max_bytes: int, *, min_one: bool) -> Read:
        """Read as ``LocalLog.read`` does: of one segment, from the batch with ``offset`` on, up to ``stop`` (exclusive, a
        batch's end)."""
        if offset >= stop:
            return Read(b"", ())
        first = self.position_of(offset)
        number = max(bisect_right(self.segments, self.batches[first].base_offset) - 1, 0)
        upper = self.segments[number + 1] if number + 1 < len(self.segments) else self.log_end_offset
        left = self.batches[first : self.position_of(min(upper, stop) - 1) + 1]
        if not min_one and max_bytes < len(left[0].data):
            return Read(b"", ())
        data = b"".join(batch.data for batch in left)
        size = max(max_bytes, len(left[0].data)) if min_one else max_bytes
        return Read(data[:size], self._aborted_in(number, offset, upper))

    def _aborted_in(self, number: int, offset: int, upper: int) -> tuple[AbortedTransaction, ...]:
        """Return aborted transactions as ``collectAbortedTransactions`` does, from that segment on."""
        found = list[AbortedTransaction]()
        for base in self.segments[number:]:
            entries, is_complete = collect_aborted(self._aborted.get(base, ()), offset, upper)
            found += entries
            if is_complete:
                break
        return tuple(found)

    # -- what makes it longer

    def begin_epoch(self, epoch: int) -> None:
        """Begin a leader epoch here, at the log end."""
        self._assign_epoch(epoch, self.log_end_offset)

    def _assign_epoch(self, epoch: int, start: int) -> None:
        """Add an epoch; one in which nothing was written is forgotten (``LeaderEpochFileCache.assign``)."""
        start = max(start, self.log_start_offset)
        self.epochs = [one for one in self.epochs if one.start_offset < start and one.epoch < epoch]
        self.epochs.append(EpochEntry(LeaderEpoch(epoch), Offset(start)))
        self._write_epochs()

    def append_fetched(self, history: Sequence[Batch], bases: Sequence[int], at_most: int) -> None:
        """Append what follows of the leader's ``history``, at most so many batches.  What comes with one Fetch, of one of the
        leader's segments at ``bases``, is appended at once, and the active segment is rolled before it if both are too much."""
        left = history[len(self.batches) : len(self.batches) + at_most]
        while left:
            end = next((base for base in bases if base > left[0].base_offset), left[-1].next_offset)
            count, size = 1, len(left[0].data)
            while count < len(left) and left[count].base_offset < end:
                if size + len(left[count].data) > self._segment_bytes:
                    break
                size += len(left[count].data)
                count += 1
            self.append(left[0], together=size)
            for batch in left[1:count]:
                self.append(batch, together=0)
            left = left[count:]

    def append(self, batch: Batch, together: int | None = None) -> None:
        """Append at the log end, rolled before it if the active segment is full; ``together``: the bytes that come at once."""
        assert batch.base_offset == self.log_end_offset
        size = len(batch.data) if together is None else together
        if self._active_bytes and self._active_bytes + size > self._segment_bytes:
            self.roll()
        if not self.epochs or self.epochs[-1].epoch < batch.leader_epoch:
            self._assign_epoch(batch.leader_epoch, batch.base_offset)
        self.batches.append(batch)
        self._active_bytes += len(batch.data)
        path = self._path(self.segments[-1], "log")
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, batch.data)
        os.close(descriptor)
        self._stamp(path)
        aborted = self._producers.take(batch)
        if aborted is not None:
            self._aborted.setdefault(self.segments[-1], []).append(aborted)
            self._write_transaction_index(self.segments[-1])

    def roll(self) -> None:
        """Seal the active segment: its indexes are written, the producers' states kept, and a new one begins."""
        base, end = self.segments[-1], self.log_end_offset
        rebuilder = SegmentRebuilder(where=str(base), base_offset=Offset(base), earlier_snapshot=None)
        rebuilder.feed(self._path(base, "log").read_bytes())
        made = rebuilder.finish()
        self._path(base, "index").write_bytes(made.offset_index)
        self._path(base, "timeindex").write_bytes(made.time_index)
        self._producers.move_end(end)
        self._producers.take_snapshot()
        self._open_segment(end)

    # -- what makes it shorter

    def truncate_to(self, offset: int) -> None:
        """Cut off everything from ``offset`` on: in place, so that links of ours lose it as well."""
        if offset >= self.log_end_offset:
            return
        if self.segments[0] > offset:
            self.batches = self.batches[: self.position_of(offset)]
            self.start_anew_at(offset)
            return
        keep = self.position_of(offset)
        self.batches = self.batches[:keep]
        # One that begins right there stays, empty.
        above = [base for base in self.segments if base > offset]
        self.segments = self.segments[: len(self.segments) - len(above)]
        self._rename_away(above)
        base = self.segments[-1]
        first = self.position_of(base)
        self._active_bytes = sum(len(batch.data) for batch in self.batches[first:])
        for kind in ("index", "timeindex"):
            self._path(base, kind).unlink(missing_ok=True)
        self._aborted[base] = [one for one in self._aborted.get(base, []) if one.last_offset < offset]
        if self._path(base, "txnindex").exists():
            self._write_transaction_index(base)
        os.truncate(self._path(base, "log"), self._active_bytes)
        self._stamp(self._path(base, "log"))
        self.epochs = [entry for entry in self.epochs if entry.start_offset < offset]
        self.high_watermark = min(self.high_watermark, offset)
        # As UnifiedLog does: files of segments below the old log start may still be there.
        self.log_start_offset = min(self.log_start_offset, offset)
        self._rebuild_producers(offset)
        self._write_epochs()

    def start_anew_at(self, offset: int) -> None:
        """Drop all files: this replica had fallen behind its leader's log start, and takes over its history.  It knows nothing
        of producers then."""
        self._rename_away(self.segments)
        self.segments, self.epochs = [], []
        self._aborted.clear()
        self.log_start_offset, self.high_watermark = offset, min(self.high_watermark, offset)
        self._producers.begin_anew_at(offset)
        self._open_segment(offset)
        self._write_epochs()

    def follow_from(self, history: Sequence[Batch], log_start: int) -> None:
        """Begin with the batch that has ``log_start``: what a replica does that lacks what lies before it."""
        first = bisect_left(history, log_start, key=lambda batch: batch.last_offset)
        self.batches = list(history[:first])
        begins_at = history[first].base_offset if first < len(history) else log_start
        self.start_anew_at(begins_at)
        self.log_start_offset = log_start

    def raise_log_start(self, offset: int) -> None:
        """Raise it as DeleteRecords does, or the leader's log start in a follower: Kafka forgets the epochs below."""
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        self._producers.log_start_moved(offset)
        below = [entry for entry in self.epochs if entry.start_offset <= offset]
        if below:
            head = EpochEntry(below[-1].epoch, Offset(offset))
            self.epochs = [head, *(entry for entry in self.epochs if entry.start_offset > offset)]
            self._write_epochs()

    def delete_segments_below_log_start(self) -> None:
        """Delete as the broker's retention thread does: renamed first, removed a minute later."""
        below = [base for base, following in pairwise(self.segments) if following <= self.log_start_offset]
        if below:
            self.segments = self.segments[len(below) :]
            self._rename_away(below)

    def expire_by_time(self, before_ms: int) -> None:
        """Expire as the broker's own retention.ms does: whole segments below the high watermark, the active one as well."""
        while self._is_first_below_high_watermark():
            end = self.segments[1] if len(self.segments) > 1 else self.log_end_offset
            inside = self.batches[self.position_of(self.segments[0]) : self.position_of(end - 1) + 1]
            if max(batch.timestamp_ms for batch in inside) >= before_ms:
                return
            self._expire_first()

    def expire_by_size(self, most_bytes: int) -> None:
        """Expire as the broker's own retention.bytes does: as many of the first segments as leave at least so much."""
        sizes = [self._path(base, "log").stat().st_size for base in self.segments]
        too_much = sum(sizes) - most_bytes
        for size in sizes:
            if size > too_much or not self._is_first_below_high_watermark():
                return
            too_much -= size
            self._expire_first()

    def _is_first_below_high_watermark(self) -> bool:
        if len(self.segments) > 1:
            return self.segments[1] <= self.high_watermark
        return self._active_bytes > 0 and self.log_end_offset <= self.high_watermark

    def _expire_first(self) -> None:
        if len(self.segments) == 1:
            self.roll()
        self.raise_log_start(self.segments[1])
        self.delete_segments_below_log_start()

    # -- what becomes of it when its broker ends

    def close(self) -> None:
        """Shut down in order: all is written."""
        self._producers.take_snapshot()
        self.write_checkpoints()

    def write_checkpoints(self) -> None:
        """Write recovery point and log start, as every broker writes them now and then."""
        self._recovery_point = self.log_end_offset
        self._checkpointed_log_start = self.log_start_offset if self.log_start_offset > self.segments[0] else 0

    def lose_checkpoints(self) -> None:
        """Lose the files of the log dir that say how far it was written and where it begins."""
        self._recovery_point = self._checkpointed_log_start = 0

    def load(self, *, was_clean: bool) -> None:
        """Load as ``LogLoader`` does, at the start of a broker; after a crash what may not have been flushed is recovered, and
        the log start is the one that was written last."""
        if not self.segments:
            self._producers.begin_anew_at(0)
            self._begin_empty()
            return
        self._producers.forget()
        checkpointed = self._checkpointed_log_start
        if not was_clean:
            first = max(bisect_right(self.segments, self._recovery_point) - 1, 0)
            for number in range(first, len(self.segments)):
                self._recover_segment(number, checkpointed)
        self.log_start_offset = max(checkpointed, self.segments[0])
        self._producers.forget()
        self._producers.drop_stray_snapshots(self.segments)
        self._rebuild_producers(self.log_end_offset, is_clean_start=was_clean)

    def _recover_segment(self, number: int, log_start: int) -> None:
        """Recover with a state of its own, from the last snapshot below it: what that lacks its transaction index will lack."""
        base = self.segments[number]
        end = self.segments[number + 1] if number + 1 < len(self.segments) else self.log_end_offset
        self._producers.forget()
        held = self.batches[self.position_of(max(self.segments[0], 0)) :]
        self._producers.rebuild(held, self.segments, log_start=log_start, end=base)
        self._aborted[base] = []
        for batch in self.batches[self.position_of(base) : self.position_of(end - 1) + 1]:
            aborted = self._producers.take(batch)
            if aborted is not None:
                self._aborted[base].append(aborted)
        self._write_transaction_index(base)
        self._producers.take_snapshot()

    def _rebuild_producers(self, end: int, *, is_clean_start: bool = False) -> None:
        held = self.batches[self.position_of(self.segments[0]) :]
        self._producers.rebuild(
            held, self.segments, log_start=self.log_start_offset, end=end, is_clean_start=is_clean_start
        )

    def lose_directory(self) -> None:
        """Lose the directory, as with a replaced disk."""
        for path in self.directory.iterdir():
            path.unlink()
        self.directory.rmdir()
        self.batches, self.segments, self.epochs = [], [], []
        self._aborted.clear()
        self.log_start_offset = self.high_watermark = self._recovery_point = self._checkpointed_log_start = 0

    def move(self) -> None:
        """Move to another log dir: a new log takes over what is in it from the log start on, as a new replica does, and then
        its place (here in the same directory).  What was opened or linked by then is there still."""
        history, high_watermark, log_start = self.batches, self.high_watermark, self.log_start_offset
        bases = self.segments
        moved = [path for base in bases for path in self._files_of(base)]
        for path in moved:
            path.unlink()
        self._producers.begin_anew_at(0)
        self.segments = []
        self._recovery_point = self._checkpointed_log_start = 0
        self.follow_from(history, log_start)
        self.append_fetched(history, bases, len(history))
        self.high_watermark = high_watermark

    # -- files

    def _begin_empty(self) -> None:
        self.directory.mkdir(parents=True)
        metadata = f"version: 0\ntopic_id: {format_uuid(self._partition.topic_id)}\n"
        (self.directory / PARTITION_METADATA).write_text(metadata)
        self._open_segment(0)
        self._write_epochs()

    def _open_segment(self, base: int) -> None:
        self.segments.append(base)
        self._active_bytes = 0
        path = self._path(base, "log")
        path.touch()
        self._stamp(path)
        self._stamp(self.directory)

    def _snapshot_changed(self, offset: int, states: Sequence[ProducerState] | None) -> None:
        path = self._path(offset, "snapshot")
        if states is None:
            self._remove(path)
        else:
            path.write_bytes(write_producer_snapshot(states))
            self._stamp(self.directory)

    def _write_transaction_index(self, base: int) -> None:
        path, entries = self._path(base, "txnindex"), self._aborted.get(base)
        if entries or path.exists():
            path.write_bytes(write_transaction_index(entries or ()))
            self._stamp(self.directory)

    def _rename_away(self, bases: Sequence[int]) -> None:
        """Rename as Kafka's asynchronous deletion does: a process that opened or linked a file by then has it still."""
        for base in bases:
            for path in self._files_of(base):
                renamed = path.with_name(f"{path.name}.deleted")
                path.rename(renamed)
                self._later(FILE_DELETE_DELAY_S, partial(self._remove, renamed))
            self._aborted.pop(base, None)
            self._producers.drop_snapshot(base)
        self._stamp(self.directory)

    def _remove(self, path: Path) -> None:
        if path.exists():  # its directory may be gone with its disk
            path.unlink()
            self._stamp(self.directory)

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
