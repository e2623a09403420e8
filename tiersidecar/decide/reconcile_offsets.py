"""Find gaps and overlaps in the offsets of one partition's live lineage.

The lineage follows from the finished segments' own epochs, by Kafka's rule: what a later epoch starts at or below is cut off.
A segment of another history (an unclean election, a zombie) is left to expiry and is no part of the line.  Readers still get
the front of a segment that was cut, by its epochs: there is no gap.  But it makes no other segment needless, for as a whole it
is of another history.

Overlaps are normal where leaders changed, for replicas roll differently and each copies from the segment that holds the
first offset not yet remote (S-042).  What is not normal: a segment that was begun by the broker which had
itself already finished one with all of its offsets.  Of two that hold the same offsets the one that was finished first is
needless: the other one is read, and may be what an erasure wrote, without the erased records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tiersidecar.decide.reconcile_findings import Finding, FindingKind, Graces
from tiersidecar.domain.offsets import ByteRange, EpochEntry, Lineage
from tiersidecar.domain.segments import NO_LOG_END


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSegment:
    """A segment that is finished, or whose deletion has begun (``is_going``); offsets are inclusive.

    ``started_at`` and ``finished_at`` are positions in the metadata topic's partition; ``since_ms`` is the last event's time.
    """

    segment_id: str
    start_offset: int
    end_offset: int
    epochs: tuple[EpochEntry, ...]
    broker_id: int
    started_at: int
    finished_at: int
    since_ms: int
    is_going: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLine:
    """All such segments of a partition.  ``is_compacted``: cleaned segments cover what the originals covered."""

    topic: str
    topic_id: str
    partition: int
    segments: Sequence[LineSegment]
    is_compacted: bool = False


def decide_offsets(line: PartitionLine, graces: Graces, now_ms: int) -> tuple[Finding, ...]:
    """Return each gap and each needless segment once."""
    lineage = lineage_of(line.segments)
    found = [*_gaps(line, lineage, now_ms)]
    if not line.is_compacted:
        within = [
            segment
            for segment in line.segments
            if lineage.contains_segment(segment.epochs, segment.end_offset, NO_LOG_END)
        ]
        within.sort(key=lambda one: (one.start_offset, one.end_offset, one.started_at))
        found += _overlaps(line, within, now_ms)
    return tuple(finding for finding in found if finding.age_ms >= graces.finding_ms)


def lineage_of(segments: Sequence[LineSegment]) -> Lineage:
    """Return the epochs that the segments were written in, the later ones counting."""
    return Lineage.of(sorted({entry for one in segments for entry in one.epochs}))


def readable_offsets(lineage: Lineage, segments: Iterable[tuple[tuple[EpochEntry, ...], int]]) -> Iterator[ByteRange]:
    """Return the offsets that the lineage reads from ``segments``, whole or cut, each given by its epochs and its end offset
    (inclusive): those that the same epoch wrote in the lineage.  In no order."""
    starts = {entry.epoch: entry.start_offset for entry in lineage.entries}
    stops = dict(zip(starts, [*list(starts.values())[1:], NO_LOG_END], strict=False))
    for epochs, end_offset in segments:
        following = (*(entry.start_offset for entry in epochs[1:]), end_offset + 1)
        for (epoch, start_offset), stop in zip(epochs, following, strict=True):
            if epoch in starts:
                first, last = max(start_offset, starts[epoch]), min(stop, stops[epoch])
                if first < last:
                    yield ByteRange(first, last)


def _gaps(line: PartitionLine, lineage: Lineage, now_ms: int) -> Iterator[Finding]:
    pieces = [
        (piece, one) for one in line.segments for piece in readable_offsets(lineage, [(one.epochs, one.end_offset)])
    ]
    if not pieces:
        return
    pieces.sort(key=lambda each: (each[0].start, each[0].stop, each[1].started_at))
    reached, highest = pieces[0][0].stop, pieces[0][1]
    for piece, one in pieces[1:]:
        if piece.start > reached:
            between = f"{highest.segment_id} and {one.segment_id}"
            yield Finding(
                kind=FindingKind.OFFSET_GAP,
                topic=line.topic,
                topic_id=line.topic_id,
                partition=line.partition,
                start_offset=reached,
                end_offset=piece.start - 1,
                age_ms=now_ms - max(highest.since_ms, one.since_ms),
                detail=f"{piece.start - reached} offsets between segments {between} are in none",
            )
        if piece.stop > reached:
            reached, highest = piece.stop, one


def _overlaps(line: PartitionLine, ascending: Sequence[LineSegment], now_ms: int) -> Iterator[Finding]:
    staying = sorted((each for each in ascending if not each.is_going), key=_by_start_then_longest)
    latest = {_span(one): one for one in sorted(staying, key=lambda each: each.finished_at)}
    counts = Counter(map(_span, staying))
    reaching: list[LineSegment] = []  # those begun at or before the one in hand, that reach its start
    for one in staying:
        reaching = [other for other in reaching if other.end_offset >= one.start_offset]
        last = latest[_span(one)]
        if last is not one:
            if _follows(last, one):
                yield _needless(line, one, f"finished segment {last.segment_id} with all its offsets after it", now_ms)
        elif counts[_span(one)] == 1:
            twin = next((other for other in reaching if _made_needless(one, other)), None)
            if twin is not None:
                yield _needless(
                    line, one, f"had finished segment {twin.segment_id} with all its offsets before", now_ms
                )
        reaching.append(one)


def _needless(line: PartitionLine, one: LineSegment, what: str, now_ms: int) -> Finding:
    return Finding(
        kind=FindingKind.OFFSET_OVERLAP,
        topic=line.topic,
        topic_id=line.topic_id,
        partition=line.partition,
        segment_id=one.segment_id,
        start_offset=one.start_offset,
        end_offset=one.end_offset,
        age_ms=now_ms - one.since_ms,
        detail=f"broker {one.broker_id} {what}",
    )


def _span(one: LineSegment) -> tuple[int, int]:
    return one.start_offset, one.end_offset


def _by_start_then_longest(one: LineSegment) -> tuple[int, int, int]:
    return one.start_offset, -one.end_offset, one.started_at


def _made_needless(one: LineSegment, other: LineSegment) -> bool:
    return other.end_offset >= one.end_offset and _follows(one, other)


def _follows(one: LineSegment, other: LineSegment) -> bool:
    """Return whether the broker that began ``one`` had finished ``other`` before."""
    return other.broker_id == one.broker_id and other.finished_at < one.started_at
