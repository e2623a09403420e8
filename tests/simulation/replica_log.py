"""One replica of a partition: its files in a log dir as a broker leaves them, and in memory the whole history it stands for.

The history has what was trimmed, expired or cleaned locally as well, so that it says what a consumer of this partition must be
able to read; a truncation takes away from both.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.simulation.fetched_batches import AS_WRITTEN, fetched_runs, is_empty
from tests.simulation.producers import Producers
from tests.simulation.records import Batch
from tests.simulation.replica_files import ReplicaFiles
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction, collect_aborted


class Read(NamedTuple):
    """``data`` may end within a batch."""

    data: bytes
    aborted: tuple[AbortedTransaction, ...]


class ReplicaLog:
    """``stamp_ns``, ``later`` and ``changed`` are those of :class:`~tests.simulation.replica_files.ReplicaFiles`.  ``batches``
    are the history as it was written; ``left`` has by base offset what cleaners have left of a batch, nothing where it is
    gone.  ``cleaner_offset`` is the first offset that the cleaner has not cleaned, None where it never ran."""

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
        self._segment_bytes = segment_bytes
        self._files = ReplicaFiles(self.directory, partition, stamp_ns=stamp_ns, later=later, changed=changed)
        self.batches: list[Batch] = []
        self.left: dict[int, bytes] = {}
        self.cleaner_offset: int | None = None
        self.log_start_offset = 0
        self.segments: list[int] = []
        self.epochs: list[EpochEntry] = []
        self.high_watermark = 0
        self._active_bytes = 0
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        self._producers = Producers(self._files.snapshot_changed)
        self._recovery_point, self._checkpointed_log_start = 0, 0
        self._begin_empty()

    @property
    def log_end_offset(self) -> int:
        """Return the log end, exclusive."""
        return max(self.batches[-1].next_offset if self.batches else 0, self.segments[-1] if self.segments else 0)

    @property
    def last_data_offsets(self) -> dict[int, int]:
        """Return the last offset of each producer."""
        return self._producers.last_data_offsets

    def position_of(self, offset: int) -> int:
        """Return the index in the history of the first batch that ends at or above ``offset``."""
        return bisect_left(self.batches, offset, key=lambda batch: batch.last_offset)

    def data_of(self, batch: Batch) -> bytes:
        """Return what this replica has of a batch, empty where a cleaner has taken it away."""
        return self.left.get(batch.base_offset, batch.data)

    def held(self, start: int, stop: int) -> list[Batch]:
        """Return the batches that end at or above ``start`` and lie below ``stop``, without those that are gone."""
        inside = self.batches[self.position_of(start) : self.position_of(stop - 1) + 1]
        return [batch for batch in inside if self.data_of(batch)]

    def aborted_of(self, base: int) -> Sequence[AbortedTransaction]:
        """Return the transaction index of the segment at ``base``."""
        return self._aborted.get(base, ())

    def last_stable_offset(self) -> int:
        """Return it, exclusive, as this replica knows it."""
        unstable = self._producers.first_unstable(self.high_watermark)
        if unstable is None:
            return self.high_watermark
        return min(max(unstable, self.log_start_offset), self.high_watermark)

    def read(self, offset: int, stop: int, max_bytes: int, *, min_one: bool) -> Read:
        """Read as ``LocalLog.read`` does: of one segment, from the batch with ``offset`` on, up to ``stop`` (exclusive, a
        batch's end)."""
        first = next(iter(self.held(offset, stop)), None) if offset < stop else None
        if first is None:
            return Read(b"", ())
        number = max(bisect_right(self.segments, first.base_offset) - 1, 0)
        upper = self.segments[number + 1] if number + 1 < len(self.segments) else self.log_end_offset
        parts = [self.data_of(batch) for batch in self.held(first.base_offset, min(upper, stop))]
        if not min_one and max_bytes < len(parts[0]):
            return Read(b"", ())
        size = max(max_bytes, len(parts[0])) if min_one else max_bytes
        return Read(b"".join(parts)[:size], self._aborted_in(number, offset, upper))

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

    def append_fetched(
        self,
        history: Sequence[Batch],
        bases: Sequence[int],
        at_most: int,
        left_of: Mapping[int, bytes] = AS_WRITTEN,
    ) -> None:
        """Append what follows of the leader's ``history`` (:func:`~tests.simulation.fetched_batches.fetched_runs`); the active
        segment is rolled before what comes at once if both are too much."""
        start, size = len(self.batches), self._segment_bytes
        runs = fetched_runs(history, start, at_most, bases=bases, left_of=left_of, most_bytes=size)
        for run in runs:
            together = sum(len(data) for _, data in run)
            for batch, data in run:
                if data:
                    self.append(batch, together=together, data=data)
                    together = 0
                else:
                    self._pass_over(batch)

    def _pass_over(self, batch: Batch) -> None:
        """Note that a batch of the history is gone at the leader: this replica never gets it."""
        self.batches.append(batch)
        self.left[batch.base_offset] = b""

    def append(self, batch: Batch, together: int | None = None, data: bytes | None = None) -> None:
        """Append at the log end, rolled before it if the active segment is full; ``together``: the bytes that come at once;
        ``data``: what a cleaner has left of it at the leader."""
        assert batch.base_offset == self.log_end_offset
        data = batch.data if data is None else data
        if data != batch.data:
            self.left[batch.base_offset] = data
        size = len(data) if together is None else together
        if self._active_bytes and self._active_bytes + size > self._segment_bytes:
            self.roll()
        if not self.epochs or self.epochs[-1].epoch < batch.leader_epoch:
            self._assign_epoch(batch.leader_epoch, batch.base_offset)
        self.batches.append(batch)
        self._active_bytes += len(data)
        self._files.append(self.segments[-1], data)
        aborted = self._take(batch)
        if aborted is not None:
            self._aborted.setdefault(self.segments[-1], []).append(aborted)
            self._files.write_transaction_index(self.segments[-1], self._aborted[self.segments[-1]])

    def _take(self, batch: Batch) -> AbortedTransaction | None:
        """Have the producers take a batch; a marker that a cleaner has emptied tells them nothing."""
        if batch.marker is not None and self.left.get(batch.base_offset) is not None and is_empty(self.data_of(batch)):
            return None
        return self._producers.take(batch)

    def roll(self) -> None:
        """Seal the active segment: its indexes are written, the producers' states kept, and a new one begins."""
        end = self.log_end_offset
        self._files.seal(self.segments[-1])
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
        self._active_bytes = sum(len(self.data_of(batch)) for batch in self.batches[first:])
        self._aborted[base] = [one for one in self._aborted.get(base, []) if one.last_offset < offset]
        self._files.write_transaction_index(base, self._aborted[base])
        self._files.truncate(base, self._active_bytes)
        self._forget_cleaning(offset)
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
        self._forget_cleaning(offset)
        self.log_start_offset, self.high_watermark = offset, min(self.high_watermark, offset)
        self._producers.begin_anew_at(offset)
        self._open_segment(offset)
        self._write_epochs()

    def _forget_cleaning(self, offset: int) -> None:
        """Forget what lies from ``offset`` on, which was cut off (``LogCleanerManager.maybeTruncateCheckpoint``)."""
        self.left = {base: data for base, data in self.left.items() if base < offset}
        if self.cleaner_offset is not None:
            self.cleaner_offset = min(self.cleaner_offset, offset)

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
            held = [batch for batch in inside if self.data_of(batch)] or inside[-1:]
            if max(batch.timestamp_ms for batch in held) >= before_ms:
                return
            self._expire_first()

    def expire_by_size(self, most_bytes: int) -> None:
        """Expire as the broker's own retention.bytes does: as many of the first segments as leave at least so much."""
        sizes = [self._files.size(base) for base in self.segments]
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
        self._producers.rebuild(self._telling(base), self.segments, log_start=log_start, end=base)
        self._aborted[base] = []
        for batch in self.batches[self.position_of(base) : self.position_of(end - 1) + 1]:
            aborted = self._take(batch) if self.data_of(batch) else None
            if aborted is not None:
                self._aborted[base].append(aborted)
        self._files.write_transaction_index(base, self._aborted[base])
        self._producers.take_snapshot()

    def _rebuild_producers(self, end: int, *, is_clean_start: bool = False) -> None:
        self._producers.rebuild(
            self._telling(end),
            self.segments,
            log_start=self.log_start_offset,
            end=end,
            is_clean_start=is_clean_start,
        )

    def _telling(self, end: int) -> list[Batch]:
        """Return the batches below ``end`` that tell of producers."""
        held = self.held(self.segments[0], end) if end > 0 else []
        return [one for one in held if one.marker is None or not is_empty(self.data_of(one))]

    def lose_directory(self) -> None:
        """Lose the directory, as with a replaced disk."""
        self._files.remove_directory()
        self.batches, self.segments, self.epochs = [], [], []
        self.left, self.cleaner_offset = {}, None
        self._aborted.clear()
        self.log_start_offset = self.high_watermark = self._recovery_point = self._checkpointed_log_start = 0

    def move(self) -> None:
        """Move to another log dir: a new log takes over what is in it from the log start on, as a new replica does, and then
        its place (here in the same directory).  What was opened or linked by then is there still."""
        history, high_watermark, log_start = self.batches, self.high_watermark, self.log_start_offset
        bases, left, cleaner_offset = self.segments, self.left, self.cleaner_offset
        moved = [path for base in bases for path in self._files.of(base)]
        for path in moved:
            path.unlink()
        self._producers.begin_anew_at(0)
        self.segments = []
        self._recovery_point = self._checkpointed_log_start = 0
        self.follow_from(history, log_start)
        self.append_fetched(history, bases, len(history), left)
        self.high_watermark, self.cleaner_offset = high_watermark, cleaner_offset

    # -- what a cleaner makes of it

    def replace_segments(
        self, bases: Sequence[int], left: Mapping[int, bytes], aborted: Sequence[AbortedTransaction]
    ) -> None:
        """Put one segment in the place of those at ``bases``: of each batch in it what ``left`` has by base offset, and the
        transaction index ``aborted``.  Snapshots at the bases that are gone go as well."""
        self.left.update(left)
        self._files.replace(bases, b"".join(left[base] for base in sorted(left)), aborted)
        for base in bases:
            self._aborted.pop(base, None)
        self._aborted[bases[0]] = list(aborted)
        for base in bases[1:]:
            self.segments.remove(base)
            self._producers.drop_snapshot(base)

    def cleaned_up_to(self, offset: int) -> None:
        """Note the end of a round; what it has cleaned had been flushed when it was sealed."""
        self.cleaner_offset, self._recovery_point = offset, max(self._recovery_point, offset)

    # -- files

    def _begin_empty(self) -> None:
        self._files.make_directory()
        self._open_segment(0)
        self._write_epochs()

    def _open_segment(self, base: int) -> None:
        self.segments.append(base)
        self._active_bytes = 0
        self._files.open_segment(base)

    def _rename_away(self, bases: Sequence[int]) -> None:
        self._files.rename_away(bases)
        for base in bases:
            self._aborted.pop(base, None)
            self._producers.drop_snapshot(base)

    def _write_epochs(self) -> None:
        self._files.write_epochs(self.epochs)
