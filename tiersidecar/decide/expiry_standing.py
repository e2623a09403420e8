"""Standing of a finished remote segment in the lineage: of it, partly of it, or foreign to it (S-068 to S-070, U24).

With it the start of a partition's remote log where none is set yet.  What is remote decides nothing there by itself: a copy
that comes late must not give up what lies before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiersidecar.domain.offsets import NO_OFFSET, Lineage, Offset
from tiersidecar.domain.segments import NO_LOG_END, LocalSegment, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A finished segment with its place in the lineage.

    ``is_valid``: all of it is of this history (Kafka's check).  ``served_end`` is its last offset, inclusive, that a reader
    of this history finds in it; -1 when there is none.  An unclean election leaves segments that are not valid and yet
    serve: their front is the only remote copy of offsets that both histories share.  ``served`` are those offsets as ranges,
    start inclusive, stop exclusive, ascending.
    ``weight_bytes`` is its part of the size of the log: bytes that valid segments before it hold too do not count again.
    """

    segment: RemoteLogSegmentMetadata
    is_valid: bool
    served: tuple[tuple[int, int], ...]
    weight_bytes: int = 0

    @property
    def served_end(self) -> int:
        return self.served[-1][1] - 1 if self.served else NO_OFFSET

    @property
    def serves(self) -> bool:
        return self.served_end >= 0


def standings(segments: Sequence[RemoteLogSegmentMetadata], lineage: Lineage) -> list[Standing]:
    """Return all finished segments, ascending by start offset, of equal starts the longest first, of equal spans the latest:
    the one that is read."""
    spans = _epoch_spans(lineage)
    finished = sorted(
        (segment for segment in segments if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED),
        key=lambda segment: (segment.start_offset, -segment.end_offset, -segment.event_timestamp_ms),
    )
    found: list[Standing] = []
    covered_stop = 0
    for segment in finished:
        if not _is_valid(segment, lineage, spans):
            found.append(Standing(segment=segment, is_valid=False, served=_served(segment, spans)))
            continue
        new_offsets = max(segment.next_offset - max(segment.start_offset, covered_stop), 0)
        covered_stop = max(covered_stop, segment.next_offset)
        offsets = segment.next_offset - segment.start_offset
        weight_bytes = segment.segment_size_in_bytes * new_offsets // offsets
        served = ((int(segment.start_offset), int(segment.next_offset)),)
        found.append(Standing(segment=segment, is_valid=True, served=served, weight_bytes=weight_bytes))
    return found


def _is_valid(segment: RemoteLogSegmentMetadata, lineage: Lineage, spans: dict[int, tuple[int, int]]) -> bool:
    """Return ``is_within``, without a walk over the lineage for the many segments of one epoch."""
    if len(segment.segment_leader_epochs) > 1:
        return segment.is_within(lineage)
    epoch = segment.segment_leader_epochs[0].epoch
    first, after = spans.get(epoch, (0, 0))
    return segment.end_offset < after and (segment.start_offset >= first or epoch == lineage.entries[0].epoch)


def _epoch_spans(lineage: Lineage) -> dict[int, tuple[int, int]]:
    """Return the first offset and the offset after the last one of each epoch."""
    following = (*lineage.entries[1:], None)
    return {
        entry.epoch: (entry.start_offset, NO_LOG_END if after is None else after.start_offset)
        for entry, after in zip(lineage.entries, following, strict=False)
    }


def _served(segment: RemoteLogSegmentMetadata, spans: dict[int, tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    epochs = segment.segment_leader_epochs
    stops = [entry.start_offset for entry in epochs[1:]] + [segment.next_offset]
    served: list[tuple[int, int]] = []
    for entry, stop in zip(epochs, stops, strict=True):
        first, after = spans.get(entry.epoch, (0, 0))
        start, end = max(first, entry.start_offset), min(after, stop)
        if start < end:
            served.append((start, end))
    return tuple(served)


def first_start(
    *,
    log_start_offset: int | None,
    found: Sequence[Standing],
    segments: Sequence[LocalSegment],
    broker_expires: bool,
    trim_offset: int,
    held_offset: int,
) -> Offset:
    """Return the broker's own log start, so that what users deleted before the first copy is not readable again; a lower one
    where segments are remote, which a former release copied without setting a start.

    Where the broker deletes by itself (``broker_expires``), or the log begins where a trim of ours has made it begin, for room
    on the disk (``trim_offset``), data that only pins hold is not given up.  Where a trim has given up what was remote
    (``held_offset``) and nothing is, the metadata is not whole: 0 gives up nothing.
    ``log_start_offset`` is None before the broker was asked: then the first offset that is known stands for it, as a hint.
    """
    serving = [standing.segment.start_offset for standing in found if standing.serves]
    if log_start_offset is None:
        known = [*serving, *(segment.base_offset for segment in segments)]
        return Offset(min(known, default=NO_OFFSET))
    if held_offset > 0 and not serving:
        return Offset(0)
    is_ours = broker_expires or log_start_offset <= trim_offset
    pinned = [segment.base_offset for segment in segments if segment.pinned] if is_ours else []
    return Offset(min([log_start_offset, *serving, *pinned]))
