"""Offsets, leader epochs and byte ranges, with their inclusiveness in one place; and the lineage of a partition's epochs.

``base_offset``, ``start_offset`` and ``end_offset`` are inclusive; ``next_offset``, last stable offset, high watermark
and log end offset are exclusive; :class:`ByteRange` is half-open.

The lineage decides which remote segments are a partition's history.  The broker's leader-epoch-checkpoint is not a lineage
(REQUIREMENTS.md 0.2): when the log start moves, Kafka drops the older epochs and rewrites the start of the first.  Ours is the
epoch blob of the last finished segment that agrees with the live file, followed by the live file's entries; never a union.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)

NO_OFFSET = Offset(-1)
NO_EPOCH = LeaderEpoch(-1)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes ``start`` up to, not including, ``stop``."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"not a byte range: [{self.start}, {self.stop})")

    def __len__(self) -> int:
        return self.stop - self.start


class EpochEntry(NamedTuple):
    """Leader epoch ``epoch`` begins at ``start_offset``, inclusive."""

    epoch: LeaderEpoch
    start_offset: Offset


@dataclass(frozen=True, slots=True)
class Lineage:
    """Epochs with their start offsets; both ascend strictly."""

    entries: tuple[EpochEntry, ...] = ()
    _starts: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for before, after in zip(self.entries, self.entries[1:], strict=False):
            if after.epoch <= before.epoch or after.start_offset <= before.start_offset:
                raise ValueError(f"epochs do not ascend: {before} then {after}")
        object.__setattr__(self, "_starts", tuple(entry.start_offset for entry in self.entries))

    @classmethod
    def of(cls, entries: Iterable[tuple[int, int]]) -> Lineage:
        """Return a lineage from entries in order, by Kafka's rule for those that are not monotonic: a later entry drops those
        with an epoch or a start at or above its own (``LeaderEpochFileCache.assign``), unless it says that the same epoch
        begins later; equal starts collapse to the highest epoch (T-08)."""
        return cls(_assigned(entries))

    def __bool__(self) -> bool:
        return bool(self.entries)

    @property
    def latest_epoch(self) -> LeaderEpoch:
        """Return the last epoch, or -1 when there is none."""
        return self.entries[-1].epoch if self.entries else NO_EPOCH

    def epoch_for_offset(self, offset: int) -> LeaderEpoch | None:
        """Return the epoch that wrote ``offset``; None below the first entry."""
        index = bisect_right(self._starts, offset) - 1
        return self.entries[index].epoch if index >= 0 else None

    def end_offset_of(self, epoch: int, log_end_offset: int) -> Offset | None:
        """Return the end of ``epoch`` (exclusive): where the next epoch starts, or ``log_end_offset``."""
        for index, entry in enumerate(self.entries):
            if entry.epoch == epoch:
                following = self.entries[index + 1 : index + 2]
                return following[0].start_offset if following else Offset(log_end_offset)
        return None

    def entries_in_range(self, start_offset: int, end_offset: int) -> tuple[EpochEntry, ...]:
        """Return the entries of the offsets from ``start_offset`` up to, not including, ``end_offset``; the first one's start
        is raised to ``start_offset`` (``epochEntriesInRange``, T-01)."""
        if end_offset <= start_offset:
            return ()
        last = bisect_right(self._starts, end_offset - 1)
        first = max(bisect_right(self._starts, start_offset, hi=last) - 1, 0)
        chosen = self.entries[first:last]
        if not chosen:
            return ()
        head = chosen[0]
        return (EpochEntry(head.epoch, Offset(max(head.start_offset, start_offset))), *chosen[1:])

    def entries_below(self, end_offset: int) -> tuple[EpochEntry, ...]:
        """Return all entries that start below ``end_offset``, untruncated at the front: the leader-epoch artefact of a segment
        whose next base offset is ``end_offset`` (S-034)."""
        return self.entries[: bisect_right(self._starts, end_offset - 1)]

    def extended_by(self, live: Iterable[EpochEntry]) -> Lineage:
        """Return this lineage, kept as far as it agrees with the broker's live file, then the live file's entries.

        Agreement: an epoch both know.  Where the live file's first entry is that epoch, its start may have been raised
        by a moved log start, so ours counts; where they do not meet, entries of ours at or above the live file's first
        epoch or start are of another history and go.
        """
        live_entries = _assigned(live)
        if not live_entries:
            return self
        if not self.entries:
            return Lineage(live_entries)
        head = live_entries[0]
        older = [entry for entry in self.entries if entry.epoch < head.epoch and entry.start_offset < head.start_offset]
        known = next((entry for entry in self.entries if entry.epoch == head.epoch), None)
        if known is not None and known.start_offset <= head.start_offset:
            head = known
        return Lineage.of([*older, head, *live_entries[1:]])

    def explains(self, seen: Sequence[EpochEntry], ends: Sequence[int]) -> bool:
        """Return whether batches of the epochs ``seen``, from their starts to ``ends`` (inclusive), can be of this history.

        An epoch may be damaged on disk, where no checksum covers it, or this may be a stale file's.  Offsets below the
        first entry prove nothing: a moved log start has dropped their epochs.
        """
        for (epoch, start_offset), end_offset in zip(seen, ends, strict=True):
            at_ends = {self.epoch_for_offset(start_offset), self.epoch_for_offset(end_offset)}
            if not at_ends <= {epoch, None}:
                return False
        return True

    def as_of(self, offset: int, epoch: int) -> Offset:
        """Return ``offset``, said in leader epoch ``epoch``, as far as it holds in this history: not beyond the start of the
        first later epoch, since what that epoch wrote was not there yet."""
        later = (entry.start_offset for entry in self.entries if entry.epoch > epoch)
        return Offset(min(offset, next(later, offset)))

    def contains_segment(self, epochs: tuple[EpochEntry, ...], end_offset: int, log_end_offset: int) -> bool:
        """Return whether a segment with these epochs is of this history
        (``RemoteLogManager.isRemoteSegmentWithinLeaderEpochs``; T-09 to T-14).  ``end_offset`` is inclusive, ``log_end_offset``
        not."""
        if end_offset >= log_end_offset or not self.entries:
            return False
        head = self.entries[0]
        ours = {entry.epoch: entry.start_offset for entry in self.entries}
        # Epochs below the head of the lineage were cut off by an earlier truncation of its front: they prove nothing.
        relevant = [entry for entry in _assigned(epochs) if entry.epoch >= head.epoch]
        if not relevant:
            return False
        first, last = relevant[0], relevant[-1]
        if first.epoch not in ours or last.epoch not in ours:
            return False
        if first.epoch != head.epoch and first.start_offset < ours[first.epoch]:
            return False
        if end_offset >= (self.end_offset_of(last.epoch, log_end_offset) or 0):
            return False
        theirs = {entry.epoch: entry.start_offset for entry in relevant}
        between = [epoch for epoch in ours if first.epoch <= epoch <= last.epoch]
        if set(between) != set(theirs):
            return False
        return all(theirs[epoch] == ours[epoch] for epoch in between if epoch != first.epoch)


def _assigned(entries: Iterable[tuple[int, int]]) -> tuple[EpochEntry, ...]:
    """Return the entries that stay (:meth:`Lineage.of`)."""
    kept: list[EpochEntry] = []
    for epoch, start_offset in entries:
        if kept and kept[-1].epoch == epoch and kept[-1].start_offset <= start_offset:
            continue
        while kept and (kept[-1].epoch >= epoch or kept[-1].start_offset >= start_offset):
            kept.pop()
        kept.append(EpochEntry(LeaderEpoch(epoch), Offset(start_offset)))
    return tuple(kept)
