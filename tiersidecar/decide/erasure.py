"""Choice of the remote segments that are rewritten without the records of given keys, and of those that may not be.

A segment of a topic that is not compacted is rewritten only where no replica still has any of its offsets.  Before a local
segment is trimmed its batches are compared with the remote ones; a rewritten one would differ, and halt the partition
(docs/design/0017-remote-compaction.md).

Nothing of a compacted topic is trimmed or compared, so there the brokers' logs do not count.  But a value counts until a later
record of its key, and that may be a tombstone.  So segments are rewritten from the first one up, and none behind one that still
has such records, or may have some: without the later ones the older value would count again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum

from tiersidecar.decide.expiry_standing import standings
from tiersidecar.decide.needless import is_covered
from tiersidecar.domain.ids import BrokerId, Uuid, format_uuid
from tiersidecar.domain.offsets import NO_OFFSET, ByteRange, Lineage, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import BY_NAME, TrashEntry, replaced_segments


class Erasing(StrEnum):
    """Fate of a segment that has records to be erased."""

    REWRITE = "rewrite"
    """A new segment takes its place, and it goes into the trash."""
    RETIRE = "retire"
    """Readers find its offsets in other segments, which have none of these records: it goes into the trash."""
    IN_TRASH = "in-trash"
    """An earlier erasure has put it there, and readers find its offsets in others."""
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureView:
    """One partition.  ``segments`` are the remote ones of any state, ``log_starts`` where each replica's own log starts,
    ``silent`` why that is not known of the others.  ``hidden`` are finished segments that no reader's look-up returns;
    ``asked`` ranges that a broker's sidecar is asked to copy again, and may be copying now: from its disk, or from the store.
    ``is_compacted``: ``cleanup.policy`` has ``compact``.
    """

    segments: Sequence[RemoteLogSegmentMetadata]
    trash: Sequence[TrashEntry]
    log_starts: Mapping[BrokerId, Offset]
    silent: Mapping[BrokerId, str]
    hidden: Set[Uuid] = frozenset()
    asked: Sequence[ByteRange] = ()
    is_compacted: bool = False

    @property
    def remote_end(self) -> Offset:
        """Return the offset after the last one of any finished segment (exclusive); 0 where there is none."""
        return max((one.next_offset for one in segments_to_read(self)), default=Offset(0))

    @property
    def local_start(self) -> Offset:
        """Return the offset below which no replica has anything; -1 where that is not known."""
        return NO_OFFSET if self.silent else min(self.log_starts.values(), default=NO_OFFSET)

    @property
    def lineage(self) -> Lineage:
        """Return the lineage by all segments that were ever finished."""
        finished = (one for one in self.segments if one.state is not State.COPY_SEGMENT_STARTED)
        return Lineage.of(sorted({entry for one in finished for entry in one.segment_leader_epochs}))


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureStep:
    """``reason`` says why this is done, or why nothing is."""

    segment: RemoteLogSegmentMetadata
    erasing: Erasing
    reason: str


def segments_to_read(view: ErasureView) -> list[RemoteLogSegmentMetadata]:
    """Return the segments that may hold records to be erased and can be read: the finished ones."""
    return [one for one in view.segments if one.state is State.COPY_SEGMENT_FINISHED]


def unreadable_segments(view: ErasureView) -> list[tuple[RemoteLogSegmentMetadata, str]]:
    """Return the segments that may have such records and that are not read, with the reason.  Copies of what is still local, or
    of a compacted topic's newest records, are not among them: every one of these may hold some."""
    reasons = {
        State.COPY_SEGMENT_STARTED: "its copy is not finished",
        State.DELETE_SEGMENT_STARTED: "its deletion has begun and is not finished",
    }
    stop = view.remote_end if view.is_compacted else view.local_start
    return [
        (one, reasons[one.state])
        for one in view.segments
        if one.state is State.DELETE_SEGMENT_STARTED
        or (one.state is State.COPY_SEGMENT_STARTED and one.end_offset < stop)
    ]


def decide_erasure(
    view: ErasureView, dirty: Set[Uuid], clean: Set[Uuid], unread: Set[Uuid] = frozenset()
) -> list[ErasureStep]:
    """Return a step for each segment of ``dirty``, those that hold records to be erased, in the order in which they are done.
    Those of ``clean`` were read and hold none: they alone may stand for others.  Those of ``unread`` could not be read.

    Of segments that hold the same offsets the one that is read is rewritten first; so the others are covered by it then, and
    no smaller one is finished after a larger one, which a native broker would read in its place.
    """
    erased = replaced_segments(view.trash)
    named = {uuid for entry in view.trash if entry.kind in BY_NAME for uuid in entry.segments}
    found = standings(view.segments, view.lineage)
    valid = [one.segment for one in found if one.is_valid]
    holding = _Holding(
        view=view, valid=valid, clean=[one for one in valid if _uuid(one) in clean and _uuid(one) not in named]
    )
    steps: list[ErasureStep] = []
    doubtful: RemoteLogSegmentMetadata | None = None
    for standing in found:
        segment = standing.segment
        # Of one that is partly of another history readers get the front.
        is_given = standing.serves and _uuid(segment) not in view.hidden
        if is_given and _uuid(segment) in unread:
            doubtful = doubtful or segment
        if _uuid(segment) not in dirty:
            continue
        step = _step(holding, segment, is_erased=_uuid(segment) in erased, is_valid=standing.is_valid)
        if doubtful is not None and view.is_compacted and step.erasing is Erasing.REWRITE:
            step = ErasureStep(segment=segment, erasing=Erasing.LEAVE, reason=reason_to_leave_behind(doubtful))
        steps.append(step)
        if step.erasing is Erasing.REWRITE:
            holding = holding.with_rewritten(segment)
        if is_given and step.erasing is Erasing.LEAVE:
            doubtful = doubtful or segment
    return steps


def reason_to_leave_behind(segment: RemoteLogSegmentMetadata) -> str:
    """Return why what is behind ``segment`` in a compacted topic keeps its records of these keys."""
    return (
        f"segment {format_uuid(_uuid(segment))}, from offset {segment.start_offset} on, has or may have records of these keys: "
        "without the later ones here its values would count again"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Holding:
    """Segments that hold offsets without the records to be erased: ``clean`` ones, and those that replace ``rewritten`` ones,
    finished last; ``valid`` are all of this history.  Both ascend by start offset."""

    view: ErasureView
    valid: Sequence[RemoteLogSegmentMetadata]
    clean: Sequence[RemoteLogSegmentMetadata]
    rewritten: Sequence[RemoteLogSegmentMetadata] = ()

    def with_rewritten(self, segment: RemoteLogSegmentMetadata) -> _Holding:
        clean = sorted([*self.clean, segment], key=lambda one: one.start_offset)
        return replace(self, clean=clean, rewritten=[*self.rewritten, segment])

    def has(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether all offsets of ``segment`` are in others, and readers find them there."""
        return is_covered(segment, self.clean) and (_uuid(segment) in self.view.hidden or self._is_replaced(segment))

    def _is_replaced(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether one that is finished last replaces it: in each epoch it begins where ``segment`` does."""
        begins = {*segment.segment_leader_epochs}
        return any(
            one is not segment and one.end_offset >= segment.end_offset and begins <= {*one.segment_leader_epochs}
            for one in self.rewritten
        )

    def larger_than(self, segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata | None:
        """Return a segment that is read in place of a hidden one and reaches beyond it: finished again, the smaller one would
        hide what lies between their ends."""
        if _uuid(segment) not in self.view.hidden:
            return None
        return next(
            (
                one
                for one in self.valid
                if one.start_offset <= segment.start_offset and one.end_offset > segment.end_offset
            ),
            None,
        )


def _step(holding: _Holding, segment: RemoteLogSegmentMetadata, *, is_erased: bool, is_valid: bool) -> ErasureStep:
    def step(erasing: Erasing, reason: str) -> ErasureStep:
        return ErasureStep(segment=segment, erasing=erasing, reason=reason)

    if not is_valid:
        return step(Erasing.LEAVE, "it is of another history, in whole or in part: it goes when its retention is over")
    if is_erased and holding.has(segment):
        if not holding.view.silent and (reason := _still_local(holding.view, segment)):
            return step(Erasing.LEAVE, f"an earlier erasure replaced it, but a log's start went back: {reason}")
        by = "an earlier erasure, or the cleaner," if holding.view.is_compacted else "an earlier erasure"
        return step(Erasing.IN_TRASH, f"{by} replaced it")
    if any(one.start <= segment.end_offset and one.stop > segment.start_offset for one in holding.view.asked):
        return step(
            Erasing.LEAVE, "repair has asked for another copy of some of its offsets, which is not answered yet"
        )
    if reason := _still_local(holding.view, segment):
        return step(Erasing.LEAVE, reason)
    if holding.has(segment):
        return step(Erasing.RETIRE, "other segments hold its offsets without these records")
    if holding.view.is_compacted and _uuid(segment) in holding.view.hidden:
        # What is read in its place is the cleaner one: what the cleaner has taken out must not come back.
        return step(Erasing.LEAVE, "others are read in its place, and are not known to be without these records")
    if larger := holding.larger_than(segment):
        reason = (
            f"segment {format_uuid(_uuid(larger))} is read in its place, and is not known to be without these records"
        )
        return step(Erasing.LEAVE, reason)
    if is_erased:
        return step(Erasing.REWRITE, "what took its place is not there, or not whole: it is rewritten again")
    return step(Erasing.REWRITE, "it holds records of these keys")


def _still_local(view: ErasureView, segment: RemoteLogSegmentMetadata) -> str:
    if view.is_compacted:
        return ""
    if view.silent:
        reasons = "; ".join(f"broker {broker}: {why}" for broker, why in sorted(view.silent.items()))
        return f"not every replica reports where its log starts ({reasons})"
    if not view.log_starts:
        return "no replica says where its log starts"
    if segment.end_offset < view.local_start:
        return ""
    first = max(segment.start_offset, view.local_start)
    holders = ", ".join(str(broker) for broker, start in sorted(view.log_starts.items()) if start <= segment.end_offset)
    return f"still local: offsets {first} to {segment.end_offset} are in the logs of brokers {holders} until they are trimmed"


def _uuid(segment: RemoteLogSegmentMetadata) -> Uuid:
    return segment.remote_log_segment_id.uuid
