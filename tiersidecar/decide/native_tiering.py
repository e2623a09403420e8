"""Forecast of what a broker with native tiering would do with remote segments, by Kafka's own rules.

The rules are those of ``RemoteLogManager`` of Kafka 4.3.1; each function names the method that it stands for.  A broker that
has just begun to lead does two things at once: ``RLMCopyTask`` raises the log start to the first remote segment, and
``RLMExpirationTask`` deletes.  The expiration runs again and again, so the next round may take what one leaves: rounds go
on here until nothing more goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from tiersidecar.domain.native_segments import NativeSegments
from tiersidecar.domain.offsets import Lineage, Offset
from tiersidecar.domain.segments import NO_LOG_END, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State


class DeletionReason(StrEnum):
    """Reasons of a native broker to delete a segment."""

    BEGUN = "begun"
    """Its deletion had begun: the broker finishes any process's DELETE_SEGMENT_STARTED that its walk reaches."""
    BELOW_LOG_START = "below-log-start"
    """``isSegmentBreachByLogStartOffset``: it ends below the log start, and has no epoch after the first."""
    UNKNOWN_EPOCHS = "unknown-epochs"
    """``deleteLogSegmentsDueToLeaderEpochCacheTruncation``: all its epochs are before the first that the broker knows."""
    RETENTION_TIME = "retention-ms"
    RETENTION_SIZE = "retention-bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLog:
    """Files of the broker when it begins to lead: ``log-start-offset-checkpoint``, ``leader-epoch-checkpoint``, its log.

    ``log_end_offset`` is exclusive.  ``local_log_start_offset`` is the base offset of its first segment on disk.
    ``only_local_bytes`` are those of local segments from the highest remote offset on (``onlyLocalLogSegmentsSize``).
    """

    log_start_offset: Offset
    local_log_start_offset: Offset
    log_end_offset: Offset
    leader_epochs: Lineage
    only_local_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeRetention:
    """The topic's settings: ``retention.ms``, ``retention.bytes`` (-1: no limit), and whether it is not
    ``remote.log.copy.disable``."""

    retention_ms: int = -1
    retention_bytes: int = -1
    is_copying: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """One segment that goes, and why."""

    segment: RemoteLogSegmentMetadata
    reason: DeletionReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Fate of a partition under a native broker.

    ``deletions`` come in the order in which the broker would delete, ``kept`` is all that is left, unfinished copies included.
    ``unreadable`` are the offsets, [from, to), at or above the log start that the broker finds in no segment though it counts
    them as remote.  It copies from ``copies_from`` on.
    """

    deletions: tuple[Deletion, ...]
    kept: tuple[RemoteLogSegmentMetadata, ...]
    log_start_offset: Offset
    unreadable: tuple[tuple[int, int], ...]
    copies_from: Offset

    def bytes_of(self, reason: DeletionReason) -> int:
        """Return the sum of the sizes of what goes for ``reason``."""
        return sum(one.segment.segment_size_in_bytes for one in self.deletions if one.reason is reason)


def foretell(segments: NativeSegments, log: NativeLog, retention: NativeRetention, now_ms: int) -> Forecast:
    """Return what a native broker that begins to lead with ``log`` makes of ``segments``, at ``now_ms`` of its clock."""
    left = segments.copy()
    if retention.is_copying:
        log = _started(log, _found_log_start(left, log))
    deletions: list[Deletion] = []
    while True:
        found, start = _expired(left, log, retention, now_ms)
        truncated = [*found, *_with_unknown_epochs(left, log, {_id(one.segment) for one in found})]
        for deletion in truncated:
            left.delete(deletion.segment)
        deletions += truncated
        if not truncated and start <= log.log_start_offset:
            break
        log = _started(log, start)
    copies_from = highest_remote_offset(left, log) + 1
    return Forecast(
        deletions=tuple(deletions),
        kept=tuple(sorted(left, key=lambda one: (one.start_offset, one.end_offset, _id(one)))),
        log_start_offset=log.log_start_offset,
        unreadable=tuple(_unreadable(left, log, max(copies_from, log.local_log_start_offset))),
        copies_from=Offset(copies_from),
    )


def highest_remote_offset(segments: NativeSegments, log: NativeLog) -> int:
    """Return ``findHighestRemoteOffset``, inclusive: of the latest epoch that was ever copied, not beyond its end; -1: none.

    What lies below it counts as copied, hole or not: local retention may delete it.
    """
    for entry in reversed(log.leader_epochs.entries):
        highest = segments.highest_offset_in(entry.epoch)
        if highest is not None:
            end = log.leader_epochs.end_offset_of(entry.epoch, log.log_end_offset)
            return min(highest, (log.log_end_offset if end is None else end) - 1)
    return -1


def _id(segment: RemoteLogSegmentMetadata) -> bytes:
    return segment.remote_log_segment_id.uuid


def _found_log_start(segments: NativeSegments, log: NativeLog) -> int:
    """Return ``findLogStartOffset``: the first segment listed in the earliest epoch that has one, in whatever state."""
    for entry in log.leader_epochs.entries:
        for segment in segments.listed_in(entry.epoch):
            return segment.start_offset
    return log.local_log_start_offset


def _started(log: NativeLog, start_offset: int) -> NativeLog:
    """Apply ``UnifiedLog.maybeIncrementLogStartOffset``: the log start only rises, and epochs before it leave the file."""
    if start_offset <= log.log_start_offset:
        return log
    kept = log.leader_epochs.entries_in_range(start_offset, NO_LOG_END)
    return replace(log, log_start_offset=Offset(start_offset), leader_epochs=Lineage(kept))


def _expired(
    segments: NativeSegments, log: NativeLog, retention: NativeRetention, now_ms: int
) -> tuple[list[Deletion], int]:
    """Return what goes, and the log start after it, by the first half of ``cleanupExpiredRemoteLogSegments``.

    It walks the epochs of the broker's file, and ends at the first segment of this history that is kept.
    """
    budget = _Budget(segments, log, retention, now_ms)
    found: dict[bytes, Deletion] = {}
    for segment in (one for entry in log.leader_epochs.entries for one in segments.listed_in(entry.epoch)):
        if _id(segment) in found:
            continue
        reason: DeletionReason | None
        if segment.state is State.DELETE_SEGMENT_STARTED:
            reason = DeletionReason.BEGUN
        elif _is_below_log_start(segment, log):
            reason = DeletionReason.BELOW_LOG_START
        elif segment.is_within(log.leader_epochs, log.log_end_offset):
            reason = budget.breached_by(segment)
        else:
            continue  # of another history
        if reason is None:
            break
        found[_id(segment)] = Deletion(segment=segment, reason=reason)
    return list(found.values()), budget.log_start_offset


def _is_below_log_start(segment: RemoteLogSegmentMetadata, log: NativeLog) -> bool:
    """Return ``isSegmentBreachByLogStartOffset``."""
    first = log.leader_epochs.entries[0].epoch
    return segment.end_offset < log.log_start_offset and segment.segment_leader_epochs[-1].epoch <= first


def _with_unknown_epochs(segments: NativeSegments, log: NativeLog, gone: set[bytes]) -> Iterator[Deletion]:
    """Yield what was written before the first epoch that the broker knows: all of it goes (the second half)."""
    if not log.leader_epochs:
        return
    first = log.leader_epochs.entries[0].epoch
    for segment in sorted(segments, key=lambda one: (one.segment_leader_epochs[0].epoch, one.start_offset)):
        if _id(segment) not in gone and segment.segment_leader_epochs[-1].epoch < first:
            yield Deletion(segment=segment, reason=DeletionReason.UNKNOWN_EPOCHS)


class _Budget:
    """``RemoteLogRetentionHandler``: retention by time, then by size, in the order of the walk."""

    def __init__(self, segments: NativeSegments, log: NativeLog, retention: NativeRetention, now_ms: int) -> None:
        self._until_ms = now_ms - retention.retention_ms if retention.retention_ms >= 0 else -1
        self._excess_bytes = 0
        self.log_start_offset = -1
        """Return where retention moves the log start to; -1 where it deletes nothing."""
        if retention.retention_bytes >= 0:
            total = log.only_local_bytes + _valid_bytes(segments, log)
            self._excess_bytes = max(total - retention.retention_bytes, 0)

    def breached_by(self, segment: RemoteLogSegmentMetadata) -> DeletionReason | None:
        size = segment.segment_size_in_bytes
        reason = None
        if segment.max_timestamp_ms < self._until_ms:
            self._excess_bytes = max(self._excess_bytes - size, 0)
            reason = DeletionReason.RETENTION_TIME
        elif self._excess_bytes > 0 and size <= self._excess_bytes:
            self._excess_bytes -= size
            reason = DeletionReason.RETENTION_SIZE
        if reason is not None:
            self.log_start_offset = max(self.log_start_offset, segment.end_offset + 1)
        return reason


def _valid_bytes(segments: NativeSegments, log: NativeLog) -> int:
    """Compute ``buildRetentionSizeData``: finished segments of this history, each once; of copies of the same offsets, all."""
    listed = {_id(one): one for entry in log.leader_epochs.entries for one in segments.listed_in(entry.epoch)}
    return sum(
        one.segment_size_in_bytes
        for one in listed.values()
        if one.state is State.COPY_SEGMENT_FINISHED and one.is_within(log.leader_epochs, log.log_end_offset)
    )


def _unreadable(segments: NativeSegments, log: NativeLog, stop_offset: int) -> Iterator[tuple[int, int]]:
    """Return the offsets from the log start to ``stop_offset`` that ``RemoteLogManager.read`` finds in no segment."""
    offset, hole = int(log.log_start_offset), -1
    while offset < stop_offset:
        epoch = log.leader_epochs.epoch_for_offset(offset)
        segment = None if epoch is None else segments.segment_for(epoch, offset)
        if segment is not None and epoch is not None:
            if hole >= 0:
                yield hole, offset
            hole, offset = -1, min(segments.end_in(segment, epoch) + 1, _next_start(segments, log, offset, stop_offset))
            continue
        hole = offset if hole < 0 else hole
        offset = _next_start(segments, log, offset, stop_offset)
    if hole >= 0:
        yield hole, stop_offset


def _next_start(segments: NativeSegments, log: NativeLog, offset: int, stop_offset: int) -> int:
    """Return where the next epoch begins, or the next segment that is read in this one, though this one reaches beyond."""
    epoch = log.leader_epochs.epoch_for_offset(offset)
    later: list[int] = [entry.start_offset for entry in log.leader_epochs.entries if entry.start_offset > offset]
    later += [] if epoch is None else [start for start in segments.read_starts_in(epoch) if start > offset]
    return min(later, default=stop_offset)
