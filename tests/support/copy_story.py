"""The story of a partition's copies by its events: without a gap, and with the overlaps that elections explain.

Everything here is checked in the order of the metadata topic, which is the one order that all sidecars share.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition
from tiersidecar.domain.segments import (
    MetadataEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.states import is_valid_transition


@dataclass(slots=True)
class CopyStory:
    """One partition, from its first event on.

    ``next_offset`` is where the finished segments end that follow each other from offset 0 without a hole.  ``straddling``
    counts segments that begin below what another broker had finished and end above it; ``late`` those of which
    another broker had finished a part since they were begun; ``redundant`` copies begun when another broker's had just covered
    them, which must be given up; ``interrupted`` copies that will never finish; ``refused`` events that the state machine does
    not take.
    """

    next_offset: int = 0
    straddling: int = 0
    late: int = 0
    redundant: int = 0
    refused: int = 0
    copied_by: list[int] = field(default_factory=list)
    segments: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = field(default_factory=dict)
    _began_at: dict[RemoteLogSegmentId, tuple[int, int]] = field(default_factory=dict)
    _redundant: set[RemoteLogSegmentId] = field(default_factory=set)
    _finished: list[RemoteLogSegmentMetadata] = field(default_factory=list)

    @property
    def interrupted(self) -> int:
        """Return copies that were not finished."""
        return len(self._began_at) - len(self._finished)

    @property
    def finished(self) -> list[RemoteLogSegmentMetadata]:
        """Return them in the order in which they were finished."""
        return self._finished

    def in_state(self, state: State) -> list[RemoteLogSegmentMetadata]:
        """Return segments whose last event leaves them in ``state``, ascending by start offset."""
        chosen = [segment for segment in self.segments.values() if segment.state is state]
        return sorted(chosen, key=lambda segment: (segment.start_offset, segment.end_offset))

    def apply(self, event: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate) -> None:
        """Take the next event.

        Raises:
            AssertionError: it leaves a gap, or an overlap that no election explains.
        """
        known = self.segments.get(event.remote_log_segment_id)
        if not is_valid_transition(known.state if known else None, event.state):
            self.refused += 1
        elif isinstance(event, RemoteLogSegmentMetadata):
            self._began(event)
        elif known is not None and known.state is not event.state:
            self.segments[event.remote_log_segment_id] = now = known.with_update(event)
            if event.state is State.COPY_SEGMENT_FINISHED:
                self._ended(now)

    def _began(self, segment: RemoteLogSegmentMetadata) -> None:
        where = f"{segment.remote_log_segment_id} [{segment.start_offset}, {segment.end_offset}]"
        assert segment.start_offset <= self.next_offset, f"{where} begins above {self.next_offset}: a gap"
        if segment.end_offset < self.next_offset:
            last = self._finished[-1]
            assert last.broker_id != segment.broker_id, f"{where} was remote already, up to {self.next_offset}"
            self.redundant += 1
            self._redundant.add(segment.remote_log_segment_id)
        elif segment.start_offset < self.next_offset:
            before = max(self._finished, key=lambda one: one.end_offset)
            assert before.broker_id != segment.broker_id, f"{where} overlaps what its own broker copied"
            self.straddling += 1
        self.segments[segment.remote_log_segment_id] = segment
        self._began_at[segment.remote_log_segment_id] = (len(self._finished), self.next_offset)

    def _ended(self, segment: RemoteLogSegmentMetadata) -> None:
        is_redundant = segment.remote_log_segment_id in self._redundant
        assert not is_redundant, (
            f"{segment.remote_log_segment_id} was remote when it was begun, and is finished all the same"
        )
        if self._is_late(segment):
            self.late += 1
        else:
            _, next_offset = self._began_at[segment.remote_log_segment_id]
            assert next_offset == self.next_offset, f"{segment.remote_log_segment_id} was copied twice by one broker"
        self._finished.append(segment)
        self.next_offset = max(self.next_offset, segment.next_offset)
        if self.copied_by[-1:] != [segment.broker_id]:
            self.copied_by.append(segment.broker_id)

    def _is_late(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether another broker has finished a part of it since it was begun."""
        began_at, _ = self._began_at[segment.remote_log_segment_id]
        since = (one for one in self._finished[began_at:] if one.broker_id != segment.broker_id)
        return any(one.end_offset >= segment.start_offset for one in since)


class CopyStories:
    """The stories of all partitions, which grow as the events come."""

    def __init__(self) -> None:
        self.by_partition: dict[TopicIdPartition, CopyStory] = {}

    def apply(self, event: MetadataEvent) -> None:
        """Take the next event.

        Raises:
            AssertionError: as :meth:`CopyStory.apply`.
        """
        assert not isinstance(event, RemotePartitionDeleteMetadata), "4.3.1 does not write these"
        owner = event.remote_log_segment_id.topic_id_partition
        self.by_partition.setdefault(owner, CopyStory()).apply(event)


def copy_stories(events: Iterable[MetadataEvent]) -> dict[TopicIdPartition, CopyStory]:
    """Return the story of each user partition.

    Raises:
        AssertionError: as :meth:`CopyStory.apply`.
    """
    stories = CopyStories()
    for event in events:
        stories.apply(event)
    return stories.by_partition
