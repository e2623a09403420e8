"""Lookup of the remote segment that holds an offset of a partition's history, and of the offsets there are (S-142, S-145)."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tiersidecar.domain.errors import HistoryChangedError, OffsetInHoleError, OffsetOutOfRangeError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import NO_OFFSET, Lineage, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metadata_log import MetadataView
from tiersidecar.ports.metrics.reading import READ_HOLES
from tiersidecar.ports.telemetry import NoTelemetry, Telemetry
from tiersidecar.reading.holes import GIVE_UP, Holes
from tiersidecar.reading.lineage import LineageSource, LogStarts

_SEGMENTS_PER_TURN = 256
"""Segments of a long list that are looked at before other tasks get their turn on the loop."""


@dataclass(frozen=True, slots=True)
class Located:
    """A segment, and the offset (exclusive) up to which it is of the lineage: past it another one must be looked up."""

    metadata: RemoteLogSegmentMetadata
    stop_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetBounds:
    """Offsets that the remote tier holds: ``start`` inclusive, ``end`` exclusive; equal when there are none.  Below
    ``log_start`` nothing may be read, in neither tier; -1 while nothing moved it.  Our own trims gave up remote data below
    ``held``; -1 while they gave up none."""

    start: Offset
    end: Offset
    log_start: Offset = NO_OFFSET
    held: Offset = NO_OFFSET
    lineage: Lineage = field(default_factory=Lineage)

    @property
    def history(self) -> History:
        """Return the history that these bounds show."""
        return History(self.lineage, self.end)

    @property
    def log_end(self) -> Offset:
        """Return the end (exclusive) of a log that is remote alone: its last segments may be gone by now."""
        return max(self.end, self.log_start, Offset(0))


class History(NamedTuple):
    """The leaders that wrote the offsets below ``end``, the end (exclusive) of the remote tier, as it was at one time."""

    lineage: Lineage
    end: Offset

    def agrees(self, lineage: Lineage, start: int, stop: int) -> bool:
        """Return whether the same leaders wrote the offsets from ``start`` up to, not including, ``stop`` in ``lineage``, as
        far as both know: a lineage may have forgotten how the log began, or have learnt it anew from another segment."""
        if lineage is self.lineage or not lineage or not self.lineage:
            return True
        known = max(start, lineage.entries[0].start_offset, self.lineage.entries[0].start_offset)
        return lineage.entries_in_range(known, stop) == self.lineage.entries_in_range(known, stop)


CatchUp = Callable[[TopicIdPartition], Awaitable[None]]
"""Returns once metadata and state of a partition are as of the call, or later."""


class Hole(NamedTuple):
    """Offsets ``start`` up to, not including, ``stop`` that no finished segment of the lineage holds, though others do on both
    sides."""

    start: int
    stop: int


class SegmentLookup:
    """Resolve offsets by the lineage and the replayed metadata, all in memory."""

    def __init__(
        self,
        *,
        metadata: MetadataView,
        lineages: LineageSource,
        log_starts: LogStarts,
        clock: Clock,
        telemetry: Telemetry | None = None,
        hole_advice: str = GIVE_UP,
    ) -> None:
        self._metadata = metadata
        self._lineages = lineages
        self._log_starts = log_starts
        self._telemetry: Telemetry = telemetry or NoTelemetry()
        self._holes = Holes(clock, "read.hole", hole_advice)

    async def locate(self, topic_id_partition: TopicIdPartition, offset: int) -> Located | None:
        """Return the finished segment of the lineage that holds ``offset``, else None.

        A lineage that is a moment old may lack a new epoch: it is asked for again before the answer is None (U25).
        """
        lineage = await self._lineages.lineage(topic_id_partition)
        located = self._find(topic_id_partition, offset, lineage)
        if located is None:
            lineage = await self._lineages.lineage(topic_id_partition, max_age_s=1.0)
            located = self._find(topic_id_partition, offset, lineage)
        return located

    async def end_offset(self, topic_id_partition: TopicIdPartition) -> Offset:
        """Return the end (exclusive) of what has ever been finished in this lineage."""
        return self._end_offset(topic_id_partition, await self._lineages.lineage(topic_id_partition, max_age_s=1.0))

    async def bounds(self, topic_id_partition: TopicIdPartition) -> OffsetBounds:
        """Return the offsets that can be read."""
        return await self._bounds_in(
            topic_id_partition, await self._lineages.lineage(topic_id_partition, max_age_s=1.0)
        )

    async def bounds_after(self, topic_id_partition: TopicIdPartition, catch_up: CatchUp) -> OffsetBounds:
        """Return the same, by what is known once ``catch_up`` returns.  Raise what it raises."""
        await catch_up(topic_id_partition)
        return await self._bounds_in(
            topic_id_partition, await self._lineages.lineage(topic_id_partition, max_age_s=0.0)
        )

    async def _bounds_in(self, topic_id_partition: TopicIdPartition, lineage: Lineage) -> OffsetBounds:
        if self._lacks_beginning(topic_id_partition, lineage):
            lineage = await self._lineages.refresh(topic_id_partition)
        end = self._end_offset(topic_id_partition, lineage)
        start = self._start_offset(topic_id_partition, lineage)
        log_start = self._log_starts.remote_log_start_offset(topic_id_partition, lineage)
        held = self._log_starts.held_offset(topic_id_partition, lineage)
        return OffsetBounds(start=min(start, end), end=end, log_start=log_start, held=held, lineage=lineage)

    def _lacks_beginning(self, topic_id_partition: TopicIdPartition, lineage: Lineage) -> bool:
        """Return whether a segment is remote, and the log starts before the first epoch that the lineage knows: it may be older
        than the segment that has the start."""
        log_start = self._log_starts.remote_log_start_offset(topic_id_partition, lineage)
        return (
            log_start >= 0
            and bool(lineage)
            and log_start < lineage.entries[0].start_offset
            and self._end_offset(topic_id_partition, lineage) > 0
        )

    async def history(self, topic_id_partition: TopicIdPartition) -> History:
        """Return the present history."""
        lineage = await self._lineages.lineage(topic_id_partition, max_age_s=1.0)
        return History(lineage, self._end_offset(topic_id_partition, lineage))

    async def check_history(self, topic_id_partition: TopicIdPartition, history: History, offset: int) -> None:
        """Check that what was decided by ``history`` for offsets from ``offset`` on (which of them there are, which
        transactions were aborted) still holds.

        Raises:
            HistoryChangedError: since then another leader is known to have written some of them.
        """
        lineage = await self._lineages.lineage(topic_id_partition)
        if not history.agrees(lineage, offset, history.end):
            raise HistoryChangedError(subject=str(topic_id_partition), end_offset=history.end)

    async def check_start(self, topic_id_partition: TopicIdPartition, offset: int) -> None:
        """Check that ``offset`` is not below the remote log start: nothing there may be read, even while its segment exists.

        Raises:
            OffsetOutOfRangeError: ``offset`` lies below it.
        """
        lineage = await self._lineages.lineage(topic_id_partition)
        if offset < max(self._log_starts.remote_log_start_offset(topic_id_partition, lineage), 0):
            raise await self.out_of_range(topic_id_partition, offset)

    def check_batch_start(
        self, topic_id_partition: TopicIdPartition, offset: int, leader_epoch: int, end: Offset
    ) -> None:
        """Check the start like :meth:`check_start`, for an offset of the broker's own log, which goes up to ``end``
        (exclusive): its batch has the epoch that wrote it, so no lineage is asked.

        Raises:
            OffsetOutOfRangeError: ``offset`` lies below the remote log start.
            MetadataNotReadyError: the start is not known yet.
        """
        start = self._log_starts.log_start_for(topic_id_partition, leader_epoch)
        if offset < start:
            raise OffsetOutOfRangeError(subject=str(topic_id_partition), offset=offset, start=min(start, end), stop=end)

    async def out_of_range(self, topic_id_partition: TopicIdPartition, offset: int) -> OffsetOutOfRangeError:
        """Return the error with the offsets there are; an offset in a hole is reported to the operator too."""
        bounds = await self.bounds(topic_id_partition)
        if bounds.start <= offset < bounds.end:
            hole = await self._hole_around(topic_id_partition, offset, bounds)
            if hole.start <= offset < hole.stop:
                self.met(topic_id_partition, offset, hole)
                return OffsetInHoleError(
                    subject=str(topic_id_partition),
                    offset=offset,
                    start=bounds.start,
                    stop=bounds.end,
                    hole_start=hole.start,
                    hole_stop=hole.stop,
                )
        return OffsetOutOfRangeError(
            subject=str(topic_id_partition), offset=offset, start=bounds.start, stop=bounds.end
        )

    async def holes(self, topic_id_partition: TopicIdPartition, offset: int) -> list[Hole]:
        """Return the holes above ``offset``, ascending; where there are none, it costs one look-up per later leader epoch."""
        lineage = await self._lineages.lineage(topic_id_partition)
        found, end = list[Hole](), offset
        for (epoch, first), stop in zip(lineage.entries, _stops(lineage), strict=True):
            if stop is not None and stop <= offset:
                continue
            for run_start, run_stop in self._metadata.finished_runs(topic_id_partition, epoch):
                start, run_end = max(run_start, first), run_stop if stop is None else min(run_stop, stop)
                if run_end <= end or start >= run_end:
                    continue
                if start > end > offset:
                    found.append(Hole(end, start))
                end = run_end
        return found

    def met(self, topic_id_partition: TopicIdPartition, offset: int, hole: Hole) -> None:
        """Report to the operator that a reader at ``offset`` cannot go on because of ``hole``."""
        self._telemetry.count(READ_HOLES, topic=topic_id_partition.topic)
        self._holes.met(topic_id_partition, offset, hole.start, hole.stop)

    async def _hole_around(self, topic_id_partition: TopicIdPartition, offset: int, bounds: OffsetBounds) -> Hole:
        """Return the hole from the end of what is held before ``offset`` to the start of what is held after it."""
        start, stop = int(bounds.start), int(bounds.end)
        async for segment in self.segments(topic_id_partition, lambda _: True):
            if segment.start_offset > offset:
                stop = min(stop, segment.start_offset)
            else:
                start = max(start, segment.next_offset)
        return Hole(start, stop)

    async def segment(self, topic_id_partition: TopicIdPartition, uuid: Uuid) -> RemoteLogSegmentMetadata | None:
        """Return a finished segment of the lineage by its id, else None.

        A segment that begins below the remote log start is not served whole; one that an erasure has replaced is not served.
        """
        segment_id = RemoteLogSegmentId(topic_id_partition=topic_id_partition, uuid=uuid)
        lineage = await self._lineages.lineage(topic_id_partition, max_age_s=1.0)
        found = self._metadata.segment(segment_id)
        if found is None or found.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            return None
        is_named = uuid in self._log_starts.replaced_segments(topic_id_partition)
        if is_named and uuid in self._replaced(topic_id_partition, lineage):
            return None
        log_end_offset = self._lineages.log_end_offset(topic_id_partition)
        is_ours = lineage.contains_segment(found.segment_leader_epochs, found.end_offset, log_end_offset)
        is_above = found.start_offset >= self._log_starts.remote_log_start_offset(topic_id_partition, lineage)
        return found if is_ours and is_above else None

    async def segments(
        self, topic_id_partition: TopicIdPartition, wanted: Callable[[RemoteLogSegmentMetadata], bool]
    ) -> AsyncIterator[RemoteLogSegmentMetadata]:
        """Yield the ``wanted`` ones of the lineage's finished segments, ascending by start offset; overlaps included, but none
        that an erasure has replaced."""
        lineage = await self._lineages.lineage(topic_id_partition, max_age_s=1.0)
        log_end_offset = self._lineages.log_end_offset(topic_id_partition)
        replaced = self._replaced(topic_id_partition, lineage)
        listed = self._metadata.list_remote_log_segments(topic_id_partition)
        for count, segment in enumerate(_finished(listed), start=1):
            if count % _SEGMENTS_PER_TURN == 0:
                await asyncio.sleep(0)
            if segment.remote_log_segment_id.uuid in replaced:
                continue
            if wanted(segment) and lineage.contains_segment(
                segment.segment_leader_epochs, segment.end_offset, log_end_offset
            ):
                yield segment

    async def readable(
        self, topic_id_partition: TopicIdPartition, wanted: Callable[[RemoteLogSegmentMetadata], bool]
    ) -> AsyncIterator[Located]:
        """Yield the ``wanted`` ones of the finished segments that hold an offset of the lineage, ascending by start offset.

        Unlike :meth:`segments`, also a segment that an unclean election has cut, with its front alone.
        """
        lineage = await self._lineages.lineage(topic_id_partition, max_age_s=1.0)
        if not lineage:
            return
        head_offset = lineage.entries[0].start_offset
        start = max(self._log_starts.remote_log_start_offset(topic_id_partition, lineage), head_offset)
        replaced = self._replaced(topic_id_partition, lineage)
        listed = self._metadata.list_remote_log_segments(topic_id_partition)
        for count, segment in enumerate(_finished(listed), start=1):
            if count % _SEGMENTS_PER_TURN == 0:
                await asyncio.sleep(0)
            if segment.remote_log_segment_id.uuid in replaced:
                continue
            first = max(segment.start_offset, start)
            if first > segment.end_offset or not wanted(segment):
                continue
            epoch = lineage.epoch_for_offset(first)
            if epoch is not None and Lineage.of(segment.segment_leader_epochs).epoch_for_offset(first) == epoch:
                yield Located(segment, agreed_stop(segment, lineage, first))

    async def next_with_aborted_transactions(self, topic_id_partition: TopicIdPartition, offset: int) -> Located | None:
        """Return the first segment at or after ``offset`` whose transaction index may have entries (S-157).  Entries that end
        at or above its ``stop_offset`` are of another history."""
        lineage = await self._lineages.lineage(topic_id_partition)
        least_epoch = lineage.epoch_for_offset(offset)
        for epoch, _ in lineage.entries:
            if least_epoch is not None and epoch < least_epoch:
                continue
            found = self._metadata.next_segment_with_txn_index(topic_id_partition, epoch, offset)
            if found is None:
                continue
            first = max(offset, found.start_offset)
            # Past the end of the epoch all is of a deposed leader: this segment has nothing more.
            if Lineage.of(found.segment_leader_epochs).epoch_for_offset(first) == lineage.epoch_for_offset(first):
                return Located(found, agreed_stop(found, lineage, first))
        return None

    def _replaced(self, topic_id_partition: TopicIdPartition, lineage: Lineage) -> frozenset[Uuid]:
        """Return those that an erasure names if others of the lineage hold their offsets: an entry alone is no proof, as the
        segment that takes its place may not be finished, or be gone."""
        erased = self._log_starts.replaced_segments(topic_id_partition)
        if not erased:
            return frozenset()
        log_end_offset = self._lineages.log_end_offset(topic_id_partition)
        named, runs = list[RemoteLogSegmentMetadata](), list[list[int]]()  # of offsets without a hole, first and last
        for segment in _finished(self._metadata.list_remote_log_segments(topic_id_partition)):
            if segment.remote_log_segment_id.uuid in erased:
                named.append(segment)
            elif lineage.contains_segment(segment.segment_leader_epochs, segment.end_offset, log_end_offset):
                if runs and segment.start_offset <= runs[-1][1] + 1:
                    runs[-1][1] = max(runs[-1][1], segment.end_offset)
                else:
                    runs.append([segment.start_offset, segment.end_offset])
        return frozenset(one.remote_log_segment_id.uuid for one in named if _is_within(one, runs))

    def _find(self, topic_id_partition: TopicIdPartition, offset: int, lineage: Lineage) -> Located | None:
        epoch = lineage.epoch_for_offset(offset)
        if epoch is None:
            return None
        found = self._metadata.remote_log_segment_metadata(topic_id_partition, epoch, offset)
        return None if found is None else Located(found, agreed_stop(found, lineage, offset))

    def _end_offset(self, topic_id_partition: TopicIdPartition, lineage: Lineage) -> Offset:
        if not lineage:
            return Offset(0)
        for (epoch, _), stop in zip(reversed(lineage.entries), reversed(_stops(lineage)), strict=True):
            highest = self._metadata.highest_offset_for_epoch(topic_id_partition, epoch)
            if highest is not None:
                return Offset(highest + 1 if stop is None else min(highest + 1, stop))
        return Offset(0)

    def _start_offset(self, topic_id_partition: TopicIdPartition, lineage: Lineage) -> Offset:
        kept = self._log_starts.remote_log_start_offset(topic_id_partition, lineage)
        if kept >= 0 and self._find(topic_id_partition, kept, lineage):
            return kept
        for epoch, first_offset in lineage.entries:
            for segment in _finished(self._metadata.list_remote_log_segments(topic_id_partition, epoch)):
                # The log may have started inside its first segment: no epoch is known of what lies below.
                return Offset(max(segment.start_offset, first_offset, kept))
        return Offset(max(kept, 0))


def agreed_stop(metadata: RemoteLogSegmentMetadata, lineage: Lineage, offset: int) -> Offset:
    """Return the offset (exclusive) up to which the segment's epochs are the lineage's, from ``offset`` on, where they agree.

    A segment that a deposed leader copied can go on in its own epoch past the offset at which the next one began.
    """
    theirs = Lineage.of(metadata.segment_leader_epochs)
    starts = {entry.start_offset for entry in (*theirs.entries, *lineage.entries)}
    for start in sorted(start for start in starts if offset < start <= metadata.end_offset):
        if theirs.epoch_for_offset(start) != lineage.epoch_for_offset(start):
            return start
    return metadata.next_offset


def _stops(lineage: Lineage) -> list[Offset | None]:
    """Return the end of each epoch (exclusive), None for the last one; a partition with nothing remote has none."""
    return [*(entry.start_offset for entry in lineage.entries[1:]), None][: len(lineage.entries)]


def _is_within(segment: RemoteLogSegmentMetadata, runs: Sequence[Sequence[int]]) -> bool:
    """Return whether one of ``runs``, which ascend, has all offsets of the segment."""
    start: int = segment.start_offset
    before = bisect_right(runs, start, key=lambda run: run[0]) - 1
    return before >= 0 and runs[before][1] >= segment.end_offset


def _finished(segments: Iterator[RemoteLogSegmentMetadata]) -> Iterator[RemoteLogSegmentMetadata]:
    return (segment for segment in segments if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
