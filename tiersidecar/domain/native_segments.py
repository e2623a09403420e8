"""A native broker's view of a partition's remote segments: Kafka's own fold of their events.

Ours (:mod:`tiersidecar.domain.metadata_cache`) gives the same result in every order of events; Kafka's does not.  A forecast of
what a native broker reads, lists and deletes takes Kafka's rules, in the order of the topic (``RemoteLogMetadataCache`` and
``RemoteLogLeaderEpochState`` of Kafka 4.3.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.segments import (
    MetadataEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.states import is_valid_transition


@dataclass(slots=True)
class _EpochState:
    """State of one leader epoch: the finished segments with the offset from which each is read, and those that are only listed
    (``RemoteLogLeaderEpochState``: ``offsetToId``, ``unreferencedSegmentIds``, ``highestLogOffset``)."""

    read_from: dict[int, Uuid] = field(default_factory=dict)
    unreferenced: dict[Uuid, None] = field(default_factory=dict)
    """In the order in which they were added; Kafka's set has no order."""
    highest_offset: int | None = None

    def finish(self, uuid: Uuid, start_offset: int, end_offset: int) -> None:
        """Do ``handleSegmentWithCopySegmentFinishedState``: a segment replaces those that begin at or after it, unless the
        epoch goes on beyond it; and always the one that begins where it does, which is then not even listed."""
        last = max(self.read_from, default=None)
        while last is not None and last >= start_offset and (self.highest_offset or 0) <= end_offset:
            self.unreferenced[self.read_from.pop(last)] = None
            last = max(self.read_from, default=None)
        self.read_from[start_offset] = uuid
        self.unreferenced.pop(uuid, None)
        self.highest_offset = max(end_offset, -1 if self.highest_offset is None else self.highest_offset)

    def begin_to_delete(self, uuid: Uuid, start_offset: int) -> None:
        """Do ``handleSegmentWithDeleteSegmentStartedState``: what it had replaced does not come back."""
        if self.read_from.get(start_offset) == uuid:
            del self.read_from[start_offset]
        self.unreferenced[uuid] = None

    def copy(self) -> _EpochState:
        return _EpochState(dict(self.read_from), dict(self.unreferenced), self.highest_offset)


class NativeSegments:
    """The segments of one partition, as Kafka's ``RemoteLogMetadataCache`` has them after ``events``, in their order."""

    def __init__(self, events: Iterable[MetadataEvent] = ()) -> None:
        self._known: dict[Uuid, RemoteLogSegmentMetadata] = {}
        self._epochs: dict[int, _EpochState] = {}
        for event in events:
            self.apply(event)

    def copy(self) -> NativeSegments:
        """Return an independent copy."""
        copied = NativeSegments()
        copied._known = dict(self._known)
        copied._epochs = {epoch: state.copy() for epoch, state in self._epochs.items()}
        return copied

    def apply(self, event: MetadataEvent) -> None:
        """Fold ``event`` in.  Illegal transitions are dropped; no 4.3.1 broker acts on a partition's deletion."""
        match event:
            case RemoteLogSegmentMetadata():
                self._add(event)
            case RemoteLogSegmentMetadataUpdate():
                self._update(event)
            case RemotePartitionDeleteMetadata():
                return

    def delete(self, segment: RemoteLogSegmentMetadata) -> None:
        """Do ``RemoteLogManager.deleteRemoteLogSegment``: both events of the deletion."""
        uuid = segment.remote_log_segment_id.uuid
        for epoch, start_offset, _ in _spans(segment):
            self._epoch(epoch).begin_to_delete(uuid, start_offset)
        self._forget(segment)

    def finish_again(self, segment: RemoteLogSegmentMetadata) -> None:
        """Apply COPY_SEGMENT_FINISHED once more, which the state machine allows: the segment takes its place anew."""
        for epoch, start_offset, end_offset in _spans(segment):
            self._epoch(epoch).finish(segment.remote_log_segment_id.uuid, start_offset, end_offset)

    def __iter__(self) -> Iterator[RemoteLogSegmentMetadata]:
        """Yield all segments but those whose deletion has finished (``listAllRemoteLogSegments``), in no order of Kafka's."""
        return iter(self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether a segment of this id is known, in whatever state."""
        return segment.remote_log_segment_id.uuid in self._known

    def listed_in(self, leader_epoch: int) -> list[RemoteLogSegmentMetadata]:
        """Return ``listRemoteLogSegments(epoch)``: by start offset; of equal starts the one that is read comes first."""
        state = self._epochs.get(leader_epoch)
        if state is None:
            return []
        read = [state.read_from[start_offset] for start_offset in sorted(state.read_from)]
        segments = [self._known[uuid] for uuid in (*read, *state.unreferenced)]
        return sorted(segments, key=lambda segment: segment.start_offset)

    def segment_for(self, leader_epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """Return ``remoteLogSegmentMetadata``: the segment that answers a fetch of ``offset``, of this epoch; None where Kafka
        finds none, though a finished one may have it."""
        state = self._epochs.get(leader_epoch)
        floor = None if state is None else max((start for start in state.read_from if start <= offset), default=None)
        if state is None or floor is None:
            return None
        segment = self._known[state.read_from[floor]]
        return segment if offset <= self.end_in(segment, leader_epoch) else None

    def read_starts_in(self, leader_epoch: int) -> list[int]:
        """Return the offsets from which on segments are read in this epoch, ascending."""
        state = self._epochs.get(leader_epoch)
        return [] if state is None else sorted(state.read_from)

    def highest_offset_in(self, leader_epoch: int) -> int | None:
        """Return ``highestOffsetForEpoch``, inclusive: the highest ever finished, deleted or not."""
        state = self._epochs.get(leader_epoch)
        return None if state is None else state.highest_offset

    @staticmethod
    def end_in(segment: RemoteLogSegmentMetadata, leader_epoch: int) -> int:
        """Return the last offset, inclusive, that ``segment`` has of this epoch."""
        return next(end for epoch, _, end in _spans(segment) if epoch == leader_epoch)

    def _epoch(self, epoch: int) -> _EpochState:
        return self._epochs.setdefault(epoch, _EpochState())

    def _add(self, segment: RemoteLogSegmentMetadata) -> None:
        uuid = segment.remote_log_segment_id.uuid
        known = self._known.get(uuid)
        if segment.state is not State.COPY_SEGMENT_STARTED or not is_valid_transition(
            None if known is None else known.state, segment.state
        ):
            return
        for entry in segment.segment_leader_epochs:
            self._epoch(entry.epoch).unreferenced[uuid] = None
        self._known[uuid] = segment

    def _update(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        known = self._known.get(update.remote_log_segment_id.uuid)
        if known is None or update.state is State.COPY_SEGMENT_STARTED:
            return
        if not is_valid_transition(known.state, update.state):
            return
        segment = known.with_update(update)
        uuid = segment.remote_log_segment_id.uuid
        if update.state is State.DELETE_SEGMENT_FINISHED:
            self._forget(segment)
            return
        for epoch, start_offset, end_offset in _spans(segment):
            if update.state is State.COPY_SEGMENT_FINISHED:
                self._epoch(epoch).finish(uuid, start_offset, end_offset)
            else:
                self._epoch(epoch).begin_to_delete(uuid, start_offset)
        self._known[uuid] = segment

    def _forget(self, segment: RemoteLogSegmentMetadata) -> None:
        uuid = segment.remote_log_segment_id.uuid
        for entry in segment.segment_leader_epochs:
            self._epoch(entry.epoch).unreferenced.pop(uuid, None)
        self._known.pop(uuid, None)


def _spans(segment: RemoteLogSegmentMetadata) -> Iterator[tuple[int, int, int]]:
    """Yield each epoch with its first and last offset in the segment, both inclusive (``highestOffsetForEpoch``)."""
    entries = segment.segment_leader_epochs
    ends = [*(entry.start_offset - 1 for entry in entries[1:]), segment.end_offset]
    for entry, end_offset in zip(entries, ends, strict=True):
        yield entry.epoch, entry.start_offset, end_offset
