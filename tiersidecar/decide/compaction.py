"""Plan for cleaning the remote log of a compacted topic: whether, and how far (``LogCleanerManager``, ``Cleaner``).

The log has five regions: clean, dirty, uncleanable (``min.compaction.lag.ms``), unstable (at or above the last stable
offset), and what is not remote yet.  A round builds its map of the dirty region and rewrites clean and dirty ones, chunk by
chunk so that what is fetched fits the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiersidecar.domain.offsets import Offset

MOST_OFFSETS_OF_SEGMENT = (1 << 31) - 1
_SHARE_OF_DISK = 3
"""Fetched segments, the inputs of the map again, and the output may each take that much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """Settings of a topic, under Kafka's names."""

    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    segment_bytes: int
    segment_index_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanableSegment:
    """A remote segment of the lineage; ``end_offset`` is inclusive.

    ``first_timestamp_ms`` is the first batch's, 0 or below where it is not known; index sizes 0 where they are not.
    """

    start_offset: Offset
    end_offset: Offset
    size_bytes: int
    max_timestamp_ms: int
    first_timestamp_ms: int = -1
    offset_index_bytes: int = 0
    time_index_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionView:
    """``segments`` ascend and do not overlap.  ``cleaner_offset`` is the first offset that was not cleaned, None where nothing
    was; ``free_disk_bytes`` what temporary files may take.  ``takes_all``: an operator has asked for one chunk of all that may
    be cleaned, whatever the dirty ratio is.  ``is_crossed``: readers pass from the remote log into the broker's, which begins
    later, and need the values before it gone in time: chunks are no larger for an operator."""

    segments: Sequence[CleanableSegment]
    cleaner_offset: Offset | None
    remote_log_start_offset: Offset
    last_stable_offset: Offset
    free_disk_bytes: int
    takes_all: bool = False
    is_crossed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """A round of cleaning; with no ``chunks`` nothing is done, because of ``reason``.

    The dirty region is ``first_dirty_offset`` up to, not including, ``first_uncleanable_offset``.  Each chunk is a run of
    dirty segments of which one map is built.  ``was_reset``: the cleaner offset was none of this log's.
    """

    chunks: tuple[tuple[CleanableSegment, ...], ...]
    reason: str
    first_dirty_offset: Offset
    first_uncleanable_offset: Offset
    dirty_ratio: float
    is_forced: bool
    was_reset: bool


def decide_compaction(view: CompactionView, settings: CompactionSettings, *, now_ms: int) -> CompactionPlan:
    """Plan a round, or say why there is none."""
    first_dirty, was_reset = _first_dirty_offset(view)
    dirty = [segment for segment in view.segments if segment.end_offset >= first_dirty]
    cleanable = _cleanable(dirty, view, settings, now_ms)
    uncleanable = Offset(cleanable[-1].end_offset + 1) if cleanable else first_dirty
    clean_bytes = sum(segment.size_bytes for segment in view.segments if segment.end_offset < first_dirty)
    dirty_bytes = sum(one.size_bytes for one in cleanable)
    ratio = dirty_bytes / (clean_bytes + dirty_bytes) if dirty_bytes else 0.0
    is_forced = view.takes_all or _is_overdue(dirty, settings, now_ms)
    reason = ""
    if not dirty_bytes:
        reason = "no dirty segment may be cleaned yet" + (_reason_to_wait(dirty[0], view) if dirty else "")
    elif not is_forced and ratio <= settings.min_cleanable_dirty_ratio:
        reason = (
            f"the dirty ratio {ratio:.3f} is not above min.cleanable.dirty.ratio {settings.min_cleanable_dirty_ratio:g}"
        )
    elif (
        largest := max(one.size_bytes for one in (*cleanable, *view.segments))
    ) > view.free_disk_bytes // _SHARE_OF_DISK:
        reason = (
            f"a segment has {largest} bytes, and a third of the free disk is {view.free_disk_bytes // _SHARE_OF_DISK}"
        )
    return CompactionPlan(
        chunks=() if reason else _chunks(cleanable, _most_bytes(view, settings, clean_bytes)),
        reason=reason,
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=uncleanable,
        dirty_ratio=ratio,
        is_forced=is_forced,
        was_reset=was_reset,
    )


def group_segments(
    segments: Sequence[CleanableSegment], settings: CompactionSettings
) -> tuple[tuple[CleanableSegment, ...], ...]:
    """Group successive segments whose outputs make one (``Cleaner.groupSegmentsBySize``): the sizes before the cleaning, of
    .log and indexes, fit the limits, and the offsets one index."""
    groups: list[list[CleanableSegment]] = []
    for segment in segments:
        if groups and _fits(groups[-1], segment, settings):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return tuple(map(tuple, groups))


def _first_dirty_offset(view: CompactionView) -> tuple[Offset, bool]:
    """Return the first dirty offset, and whether it was reset: as in Kafka, all is dirty if the offset is outside the log."""
    start = view.remote_log_start_offset
    if view.cleaner_offset is None:
        return start, False
    end = Offset(view.segments[-1].end_offset + 1) if view.segments else start
    if start <= view.cleaner_offset <= max(end, start):
        return view.cleaner_offset, False
    return start, True


def _cleanable(
    dirty: Sequence[CleanableSegment], view: CompactionView, settings: CompactionSettings, now_ms: int
) -> list[CleanableSegment]:
    """Return the dirty segments before the first that is not wholly stable, or has a record within the least lag."""
    found: list[CleanableSegment] = []
    for segment in dirty:
        is_stable = segment.end_offset < view.last_stable_offset
        is_young = (
            settings.min_compaction_lag_ms > 0 and segment.max_timestamp_ms > now_ms - settings.min_compaction_lag_ms
        )
        if is_young or not is_stable:
            break
        found.append(segment)
    return found


def _reason_to_wait(first: CleanableSegment, view: CompactionView) -> str:
    """Return why the ``first`` dirty segment may not be cleaned."""
    if first.end_offset >= view.last_stable_offset:
        return (
            f": a transaction that is open, or whose end is not remote yet, begins at offset {view.last_stable_offset}"
        )
    return f": the one from offset {first.start_offset} on has records within min.compaction.lag.ms"


def _is_overdue(dirty: Sequence[CleanableSegment], settings: CompactionSettings, now_ms: int) -> bool:
    earliest_ms = min((segment.first_timestamp_ms for segment in dirty if segment.first_timestamp_ms > 0), default=None)
    return earliest_ms is not None and earliest_ms < now_ms - max(settings.max_compaction_lag_ms, 0)


def _most_bytes(view: CompactionView, settings: CompactionSettings, clean_bytes: int) -> int:
    """Return how much one chunk takes: ``segment.bytes`` at least (S-250), and as much as the clean part has, which each round
    goes over again.  So all rounds of a backlog together read no more than about three times what it has.

    Only with ``takes_all``, where readers do not cross over, is there no bound: then the map bounds what a round takes, as in
    Kafka.  What streams past needs no room on the disk."""
    if view.takes_all and not view.is_crossed:
        return sum(segment.size_bytes for segment in view.segments)
    return min(max(settings.segment_bytes, clean_bytes), view.free_disk_bytes // _SHARE_OF_DISK)


def _chunks(segments: Sequence[CleanableSegment], most_bytes: int) -> tuple[tuple[CleanableSegment, ...], ...]:
    """Split ``segments`` into chunks of at least one segment, even one larger than ``most_bytes``."""
    chunks: list[list[CleanableSegment]] = []
    size_bytes = 0
    for segment in segments:
        if not chunks or size_bytes + segment.size_bytes > most_bytes:
            chunks.append([])
            size_bytes = 0
        chunks[-1].append(segment)
        size_bytes += segment.size_bytes
    return tuple(map(tuple, chunks))


def _fits(group: Sequence[CleanableSegment], segment: CleanableSegment, settings: CompactionSettings) -> bool:
    together = (*group, segment)
    return (
        sum(one.size_bytes for one in together) <= settings.segment_bytes
        and sum(one.offset_index_bytes for one in together) <= settings.segment_index_bytes
        and sum(one.time_index_bytes for one in together) <= settings.segment_index_bytes
        and segment.end_offset - group[0].start_offset <= MOST_OFFSETS_OF_SEGMENT
    )
