"""Plan for rebuilding a partition's remote log metadata, by its last snapshot and the objects in the store.

A segment of the snapshot comes back with all its fields, if its objects are there.  One that no snapshot has comes back by its
manifest, if nothing contradicts it: it must be later than the snapshot, since what that does not list was deleted or given up
before.  Doubtful segments are named and left: a missing event can be published later, but deleted data must not return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tiersidecar.domain.ids import DEFAULT_PLACE, Uuid
from tiersidecar.domain.offsets import Lineage
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate, SegmentEvent
from tiersidecar.domain.states import RemoteLogSegmentState as State

_STARTED, _FINISHED, _DELETING = State.COPY_SEGMENT_STARTED, State.COPY_SEGMENT_FINISHED, State.DELETE_SEGMENT_STARTED


class Left(StrEnum):
    """Reason why a segment is left alone."""

    UNFINISHED = "unfinished"
    """Objects without a manifest, and no event: a copy that never ended."""
    PARTIAL = "partial"
    """Some of its three objects are missing."""
    UNREADABLE = "unreadable-manifest"
    WRONG_KEY = "wrong-key"
    """The manifest is another segment's."""
    CONFLICT = "conflict"
    """Another segment has the same offsets, as another leader epoch wrote them."""
    COVERED = "covered"
    """Other segments hold all its offsets: a copy that was given up, or made again."""
    OLDER = "older-than-snapshot"
    """It was there when the snapshot was written, which does not have it: it had been deleted or given up."""
    BELOW_START = "below-start"
    """The remote log starts above it."""
    CONTRADICTION = "contradiction"
    """The metadata topic says otherwise."""
    BEYOND_END = "beyond-end"
    """The log goes on below its start: other records have its offsets."""
    UNKNOWN_PLACE = "unknown-place"
    """It lies in a place that the configuration does not have: whether it is there cannot be known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObjects:
    """Objects of a segment in ``place``; ``modified_ms`` is the manifest's time, -1 without one."""

    start_offset: int
    has_log: bool = False
    has_indexes: bool = False
    has_manifest: bool = False
    modified_ms: int = -1
    place: str = DEFAULT_PLACE

    @property
    def is_whole(self) -> bool:
        return self.has_log and self.has_indexes and self.has_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class BadManifest:
    """A manifest that no event can be made of."""

    reason: Left
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSegments:
    """Segments by a snapshot; see :class:`~tiersidecar.ports.partition_snapshots.PartitionSnapshot`."""

    written_ms: int
    segments: Mapping[Uuid, RemoteLogSegmentMetadata]
    highest_offsets: Mapping[int, int]

    def is_older(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether ``segment``, which the snapshot does not have, was copied before it was written.

        What goes on past the highest offset that was copied by then is later, whatever the clocks of two machines say.
        """
        if segment.event_timestamp_ms > self.written_ms:
            return False
        last = max(self.highest_offsets.items(), default=(-1, -1))
        return (segment.segment_leader_epochs[-1].epoch, segment.end_offset) <= last


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryView:
    """``known`` is what the metadata topic has, ``manifests`` what was read of those that :func:`wanted_manifests` names.

    ``start_for`` returns the remote log start for what a leader epoch wrote, -1 where none is set.  ``absent`` are
    finished segments of ``known`` whose manifest the store was asked for, and has not.  ``out_of_reach`` has the place of
    segments in places that the configuration does not have.
    """

    known: Mapping[Uuid, RemoteLogSegmentMetadata]
    snapshot: SnapshotSegments | None
    stored: Mapping[Uuid, StoredObjects]
    manifests: Mapping[Uuid, RemoteLogSegmentMetadata | BadManifest]
    start_for: Callable[[int], int] = lambda epoch: -1
    absent: frozenset[Uuid] = frozenset()
    out_of_reach: Mapping[Uuid, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftSegment:
    """``end_offset`` is inclusive, -1 where it is not known."""

    uuid: Uuid
    start_offset: int
    end_offset: int
    reason: Left
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """``segments`` are published from their first event on, ``updates`` carry on those that the topic has.

    ``equal`` segments are in the topic as they should be, or further; ``gone`` ones have no object any more.  ``holes`` are
    first and last offsets, inclusive, that no finished segment has, between those that have theirs.
    """

    segments: tuple[RemoteLogSegmentMetadata, ...] = ()
    updates: tuple[RemoteLogSegmentMetadataUpdate, ...] = ()
    from_manifests: int = 0
    equal: int = 0
    gone: int = 0
    left: tuple[LeftSegment, ...] = ()
    holes: tuple[tuple[int, int], ...] = ()

    @property
    def contradictions(self) -> tuple[LeftSegment, ...]:
        return tuple(segment for segment in self.left if segment.reason is Left.CONTRADICTION)


def recovery_below(recovery: Recovery, end: int) -> Recovery:
    """Return ``recovery`` without the finished segments that begin at offset ``end`` or beyond: others have their offsets.

    One that begins below it stays: what it has beyond is of an earlier leader epoch, and so of no history.
    """
    kept: list[RemoteLogSegmentMetadata] = []
    beyond: list[RemoteLogSegmentMetadata] = []
    for one in recovery.segments:
        (beyond if one.state is _FINISHED and one.start_offset >= end else kept).append(one)
    if not beyond:
        return recovery
    named = [
        LeftSegment(
            uuid=one.remote_log_segment_id.uuid,
            start_offset=one.start_offset,
            end_offset=one.end_offset,
            reason=Left.BEYOND_END,
            detail=f"the log goes on at {end}",
        )
        for one in beyond
    ]
    return replace(
        recovery,
        segments=tuple(kept),
        from_manifests=max(recovery.from_manifests - len(beyond), 0),
        holes=tuple(hole for hole in recovery.holes if hole[0] < end),
        left=tuple(sorted([*recovery.left, *named], key=lambda one: (one.start_offset, one.uuid))),
    )


def events_of(segment: RemoteLogSegmentMetadata, started_with: bytes | None = None) -> Iterator[SegmentEvent]:
    """Yield the events that leave ``segment`` as it is, as Kafka would write them: the first carries no custom metadata but
    ``started_with``, which names the place of one that is not in the default one.

    One that is being deleted is never finished on the way: it may be a copy that was given up, whose offsets would count as
    copied, and in a native broker it would take the place of a live segment that begins where it does.
    """
    yield replace(segment, state=_STARTED, custom_metadata=started_with)
    if segment.state is not _STARTED:
        yield _update_to(segment, segment.state)


def in_order_of_events(segments: Iterable[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
    """Return ``segments`` in the order in which their events are published.

    Of finished segments that begin at the same offset in an epoch, a native broker reads the one whose event comes last, and
    what the others have beyond its end is lost to it.  So ends ascend.
    """
    return sorted(segments, key=lambda one: (one.state is _FINISHED, one.end_offset, _order(one)))


def wanted_manifests(
    known: Mapping[Uuid, RemoteLogSegmentMetadata],
    snapshot: SnapshotSegments | None,
    stored: Mapping[Uuid, StoredObjects],
) -> list[Uuid]:
    """Return the segments whose manifest must be read: nothing else has all that an event says of them."""
    listed = {} if snapshot is None else snapshot.segments
    return [
        uuid
        for uuid, objects in stored.items()
        if objects.is_whole and uuid not in known and (uuid not in listed or listed[uuid].state is _STARTED)
    ]


def decide_recovery(view: RecoveryView) -> Recovery:
    """Return what is to be published, and what is left."""
    plan = _Plan()
    listed = {} if view.snapshot is None else view.snapshot.segments
    for segment in listed.values():
        _decide_listed(view, segment, plan)
    for uuid in view.absent:
        plan.leave(
            view.known[uuid], Left.CONTRADICTION, "the topic says that it is finished, the store has no manifest of it"
        )
    candidates = list(_candidates(view, listed, plan))
    trusted = [*plan.segments, *(one for uuid, one in view.known.items() if uuid not in view.absent)]
    taken = _without_conflicts(candidates, [one for one in trusted if one.state is _FINISHED], plan)
    updated = {one.remote_log_segment_id.uuid for one in plan.updates if one.state is _FINISHED}
    there = [one for one in trusted if one.state is _FINISHED or one.remote_log_segment_id.uuid in updated]
    return Recovery(
        segments=tuple(sorted([*plan.segments, *taken], key=_order)),
        holes=tuple(_holes_between([*there, *taken], view.start_for)),
        updates=tuple(plan.updates),
        from_manifests=len(taken),
        equal=plan.equal + sum(uuid not in listed and uuid not in view.absent for uuid in view.known),
        gone=plan.gone,
        left=tuple(sorted(plan.left, key=lambda one: (one.start_offset, one.uuid))),
    )


@dataclass(slots=True)
class _Plan:
    segments: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    updates: list[RemoteLogSegmentMetadataUpdate] = field(default_factory=list)
    equal: int = 0
    gone: int = 0
    left: list[LeftSegment] = field(default_factory=list)

    def leave(self, segment: RemoteLogSegmentMetadata, reason: Left, detail: str = "") -> None:
        uuid = segment.remote_log_segment_id.uuid
        start, end = segment.start_offset, segment.end_offset
        self.left.append(LeftSegment(uuid=uuid, start_offset=start, end_offset=end, reason=reason, detail=detail))


def _decide_listed(view: RecoveryView, segment: RemoteLogSegmentMetadata, plan: _Plan) -> None:
    """Decide about a segment that the snapshot has."""
    uuid = segment.remote_log_segment_id.uuid
    known, objects = view.known.get(uuid), view.stored.get(uuid)
    if known is not None:
        _decide_known(known, segment, objects, view.out_of_reach, plan)
    elif uuid in view.out_of_reach:
        _leave_out_of_reach(segment, view.out_of_reach[uuid], plan)
    elif objects is None:
        plan.gone += 1
    elif segment.state is not _FINISHED:
        if not (segment.state is _STARTED and objects.is_whole):  # a whole one counts by its manifest
            plan.segments.append(segment)
    elif objects.is_whole:
        plan.segments.append(segment)
    else:
        plan.leave(segment, Left.PARTIAL, _missing(objects))


def _leave_out_of_reach(segment: RemoteLogSegmentMetadata, place: str, plan: _Plan) -> None:
    plan.leave(segment, Left.UNKNOWN_PLACE, f"it lies in place {place}, which the configuration does not name")


def _decide_known(
    known: RemoteLogSegmentMetadata,
    segment: RemoteLogSegmentMetadata,
    objects: StoredObjects | None,
    out_of_reach: Mapping[Uuid, str],
    plan: _Plan,
) -> None:
    """Decide about a segment that both the topic and the snapshot have.  It is finished only if its objects are there."""
    if _content(known) != _content(segment):
        plan.leave(
            segment, Left.CONTRADICTION, "the topic gives it other offsets, epochs or sizes than the snapshot does"
        )
    elif known.state >= segment.state:
        plan.equal += 1
    elif (place := out_of_reach.get(known.remote_log_segment_id.uuid)) is not None:
        _leave_out_of_reach(segment, place, plan)
    elif segment.state is _FINISHED and objects is None:
        plan.gone += 1
    elif segment.state is _FINISHED and objects is not None and not objects.is_whole:
        plan.leave(segment, Left.PARTIAL, _missing(objects))
    else:
        plan.updates.append(_update_to(segment, segment.state))


def _candidates(
    view: RecoveryView, listed: Mapping[Uuid, RemoteLogSegmentMetadata], plan: _Plan
) -> Iterator[RemoteLogSegmentMetadata]:
    """Yield what no snapshot has, or has as begun, and only other segments may contradict."""
    for uuid, objects in view.stored.items():
        if uuid in view.known or (uuid in listed and (listed[uuid].state is not _STARTED or not objects.is_whole)):
            continue
        if not objects.is_whole:
            reason = Left.PARTIAL if objects.has_manifest else Left.UNFINISHED
            start = objects.start_offset
            plan.left.append(
                LeftSegment(uuid=uuid, start_offset=start, end_offset=-1, reason=reason, detail=_missing(objects))
            )
            continue
        segment = view.manifests[uuid]
        if isinstance(segment, BadManifest):
            plan.left.append(
                LeftSegment(
                    uuid=uuid,
                    start_offset=objects.start_offset,
                    end_offset=-1,
                    reason=segment.reason,
                    detail=segment.detail,
                )
            )
        elif view.snapshot is not None and uuid not in listed and view.snapshot.is_older(segment):
            plan.leave(segment, Left.OLDER)
        elif segment.end_offset < view.start_for(segment.segment_leader_epochs[-1].epoch):
            plan.leave(segment, Left.BELOW_START)
        else:
            yield segment


def _without_conflicts(
    candidates: Sequence[RemoteLogSegmentMetadata], trusted: Sequence[RemoteLogSegmentMetadata], plan: _Plan
) -> list[RemoteLogSegmentMetadata]:
    """Return those that fit the others: where two overlap, the same epochs wrote what both have.

    Of several copies of the same offsets one is enough: retention by size counts what is finished.  The largest stays, of
    equal ones the latest.
    """
    wanted = {candidate.remote_log_segment_id.uuid for candidate in candidates}
    conflicting: dict[Uuid, RemoteLogSegmentMetadata] = {}
    for earlier, later in _overlapping([*candidates, *trusted]):
        if _agree(earlier, later):
            continue
        for one, other in ((earlier, later), (later, earlier)):
            if one.remote_log_segment_id.uuid in wanted:
                conflicting[one.remote_log_segment_id.uuid] = other
    fitting = []
    for candidate in candidates:
        uuid = candidate.remote_log_segment_id.uuid
        if uuid in conflicting:
            plan.leave(candidate, Left.CONFLICT, f"other leader epochs than in {_name(conflicting[uuid])}")
        else:
            fitting.append(candidate)
    return _uncovered(fitting, trusted, plan)


def _uncovered(
    fitting: Sequence[RemoteLogSegmentMetadata], trusted: Sequence[RemoteLogSegmentMetadata], plan: _Plan
) -> list[RemoteLogSegmentMetadata]:
    new = {segment.remote_log_segment_id.uuid for segment in fitting}
    restored = {segment.remote_log_segment_id.uuid for segment in plan.segments}
    covered: dict[Uuid, RemoteLogSegmentMetadata] = {}

    def rank(one: RemoteLogSegmentMetadata) -> tuple[int, bool, int, bytes]:
        uuid = one.remote_log_segment_id.uuid
        return one.end_offset - one.start_offset, uuid not in new, one.event_timestamp_ms, uuid

    for pair in _overlapping([*fitting, *trusted]):
        small, large = sorted(pair, key=rank)
        uuid = small.remote_log_segment_id.uuid
        if large.remote_log_segment_id.uuid in restored and _is_later_twin(small, large):
            continue  # an erasure, or a repair, has replaced what the snapshot has
        if uuid in new and large.start_offset <= small.start_offset and small.end_offset <= large.end_offset:
            covered[uuid] = large
    for segment in fitting:
        if (other := covered.get(segment.remote_log_segment_id.uuid)) is not None:
            plan.leave(segment, Left.COVERED, f"by {_name(other)}")
    return [segment for segment in fitting if segment.remote_log_segment_id.uuid not in covered]


def _holes_between(
    finished: Iterable[RemoteLogSegmentMetadata], start_for: Callable[[int], int]
) -> Iterator[tuple[int, int]]:
    """Yield the offsets that none of ``finished`` has, but for those below the start of the remote log."""
    next_offset: int | None = None
    for one in sorted(finished, key=_order):
        if next_offset is not None:
            first = max(next_offset, start_for(one.segment_leader_epochs[-1].epoch))
            if first < one.start_offset:
                yield first, one.start_offset - 1
        next_offset = max(next_offset or 0, one.end_offset + 1)


def _is_later_twin(segment: RemoteLogSegmentMetadata, other: RemoteLogSegmentMetadata) -> bool:
    is_twin = (segment.start_offset, segment.end_offset) == (other.start_offset, other.end_offset)
    return is_twin and segment.event_timestamp_ms > other.event_timestamp_ms


def _overlapping(
    segments: Sequence[RemoteLogSegmentMetadata],
) -> Iterator[tuple[RemoteLogSegmentMetadata, RemoteLogSegmentMetadata]]:
    """Yield each pair that has offsets in common, the one that starts first before the other."""
    open_ones: list[RemoteLogSegmentMetadata] = []
    for segment in sorted(segments, key=_order):
        open_ones = [one for one in open_ones if one.end_offset >= segment.start_offset]
        for one in open_ones:
            yield one, segment
        open_ones.append(segment)


def _agree(earlier: RemoteLogSegmentMetadata, later: RemoteLogSegmentMetadata) -> bool:
    """Return whether the same epochs wrote the offsets that both have."""
    start, stop = later.start_offset, min(earlier.end_offset, later.end_offset) + 1
    ours, theirs = (Lineage.of(one.segment_leader_epochs).entries_in_range(start, stop) for one in (earlier, later))
    return ours == theirs


def _update_to(segment: RemoteLogSegmentMetadata, state: State) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        remote_log_segment_id=segment.remote_log_segment_id,
        broker_id=segment.broker_id,
        event_timestamp_ms=segment.event_timestamp_ms,
        state=state,
        custom_metadata=segment.custom_metadata,
    )


def _content(segment: RemoteLogSegmentMetadata) -> tuple[object, ...]:
    """Return the fields that no update changes."""
    return (
        segment.start_offset,
        segment.end_offset,
        segment.max_timestamp_ms,
        segment.segment_size_in_bytes,
        tuple(sorted(segment.segment_leader_epochs)),
    )


def _missing(objects: StoredObjects) -> str:
    found = {".log": objects.has_log, ".indexes": objects.has_indexes, ".rsm-manifest": objects.has_manifest}
    return f"the store has no {', '.join(name for name, is_there in found.items() if not is_there)} of it"


def _name(segment: RemoteLogSegmentMetadata) -> str:
    return f"{segment.remote_log_segment_id} [{segment.start_offset}, {segment.end_offset}]"


def _order(segment: RemoteLogSegmentMetadata) -> tuple[int, int, int, bytes]:
    """Return a sort key; of equal spans the latest comes last: it is read, as before."""
    uuid = segment.remote_log_segment_id.uuid
    return segment.start_offset, segment.end_offset, segment.event_timestamp_ms, uuid
