"""The report of a recovery, for people and as JSON: totals, a line for each topic, and what is left with its reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tiersidecar.decide.recover import Left, LeftSegment, Recovery
from tiersidecar.domain.ids import TopicIdPartition, format_uuid
from tiersidecar.domain.readable import moment_text
from tiersidecar.ports.partition_snapshots import PartitionSnapshot
from tiersidecar.ports.state_log import PartitionState

_MOST_NAMED = 1000
"""Segments that are named one by one; all are counted."""
_NAMED_TO_PEOPLE = 3
_UNKNOWN_WITHOUT_SNAPSHOT = (
    "nothing says what users deleted and where the remote log starts, what was in the trash or being deleted, how the topic "
    "was tiered, and the segments' custom metadata"
)
_THEN_ACCEPT = ", then `tiersidecar accept-topic-loss`"
_WHY = {
    Left.UNFINISHED: "copies that never ended, without a manifest",
    Left.PARTIAL: "segments whose objects are not all there",
    Left.UNREADABLE: "segments whose manifest cannot be read",
    Left.WRONG_KEY: "manifests that lie under the key of another segment",
    Left.CONFLICT: "segments that contradict another one: both have offsets that different leader epochs wrote",
    Left.COVERED: "segments all of whose offsets others have: copies that were given up, or made again",
    Left.OLDER: "segments that were copied before the snapshot but are not in it: deleted or given up before it was written",
    Left.BELOW_START: "segments below the remote log start",
    Left.CONTRADICTION: "segments of which the metadata topic says otherwise",
    Left.BEYOND_END: "segments that were copied after the plan was made: the log has gone on below them",
    Left.UNKNOWN_PLACE: "segments in places that the configuration does not name: put these back under places",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """The plan for a partition.  ``not_ours``: why nothing is.  ``state`` is what snapshot and state topic say together.
    ``state_contradicts``: the state topic has a record of it that lets read what the snapshot knows as deleted.
    ``lacks_state``: neither has one.  ``unknown_places`` are those that the partition has been in, and that the configuration
    does not name."""

    owner: TopicIdPartition
    snapshot: PartitionSnapshot | None = None
    state: PartitionState = PartitionState()  # noqa: RUF009 - frozen
    faults: tuple[str, ...] = ()
    recovery: Recovery = Recovery()  # noqa: RUF009 - frozen
    restores_state: bool = False
    state_contradicts: bool = False
    lacks_state: bool = False
    unknown_places: tuple[str, ...] = ()
    not_ours: str = ""


@dataclass(slots=True)
class _Topic:
    partitions: int = 0
    from_snapshots: int = 0
    from_manifests: int = 0
    updates: int = 0
    states: int = 0

    @property
    def has_work(self) -> bool:
        return bool(self.from_snapshots or self.from_manifests or self.updates or self.states)


@dataclass(slots=True, kw_only=True)
class RecoverReport:
    """Takes plans, one at a time, and keeps figures of them."""

    names_topics: bool = False
    mounts: bool = False
    """True where the topics are set up in another cluster: missing data is reported in other words then."""
    equal: int = 0
    gone: int = 0
    left: Counter[Left] = field(default_factory=Counter)
    named: list[tuple[TopicIdPartition, LeftSegment]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """Snapshots that count for nothing: what they know as deleted, nothing else may know."""
    contradictions: list[str] = field(default_factory=list)
    unknown_places: dict[str, list[TopicIdPartition]] = field(default_factory=dict)
    """Partitions that were in a place that the configuration does not name."""
    holes: list[tuple[TopicIdPartition, tuple[int, int]]] = field(default_factory=list)
    """First and last offsets, inclusive, that no segment has, between segments that have theirs."""
    without_snapshot: list[TopicIdPartition] = field(default_factory=list)
    oldest_ms: int | None = None
    _topics: dict[str, _Topic] = field(default_factory=dict)
    _unknown: Counter[str] = field(default_factory=Counter)

    def take(self, plan: PartitionPlan) -> None:
        """Count it."""
        if plan.not_ours:
            self.faults.append(f"{plan.owner.qualified}: {plan.not_ours}")
            return
        recovery = plan.recovery
        topic = self._topics.setdefault(plan.owner.topic, _Topic())
        topic.partitions += 1
        topic.from_manifests += recovery.from_manifests
        topic.from_snapshots += len(recovery.segments) - recovery.from_manifests
        topic.updates += len(recovery.updates)
        topic.states += plan.restores_state
        self.equal += recovery.equal
        self.gone += recovery.gone
        self.unread += plan.faults
        self.holes += [(plan.owner, hole) for hole in recovery.holes]
        for place in plan.unknown_places:
            self.unknown_places.setdefault(place, []).append(plan.owner)
        self._take_left(plan)
        if plan.lacks_state:
            self.without_snapshot.append(plan.owner)
        if plan.snapshot is not None and (recovery.segments or plan.restores_state):
            written_ms = plan.snapshot.written_ms
            self.oldest_ms = written_ms if self.oldest_ms is None else min(self.oldest_ms, written_ms)

    def _take_left(self, plan: PartitionPlan) -> None:
        self.left.update(one.reason for one in plan.recovery.left)
        self.named += [(plan.owner, one) for one in plan.recovery.left[: _MOST_NAMED - len(self.named)]]
        self.contradictions += [
            f"{plan.owner.qualified}: {format_uuid(segment.uuid)} "
            f"[{segment.start_offset}, {segment.end_offset}]: {segment.detail}"
            for segment in plan.recovery.contradictions[: _MOST_NAMED - len(self.contradictions)]
        ]
        if plan.state_contradicts:
            self.contradictions.append(
                f"{plan.owner.qualified}: the state topic's record makes readable what is deleted in the snapshot, or "
                "has forgotten an undelete"
            )

    def take_unknown(self, owner: TopicIdPartition, segments: int) -> None:
        """Count objects of a topic id that the cluster does not have, or under another name."""
        self._unknown[f"{owner.topic}-{format_uuid(owner.topic_id)}"] += segments

    @property
    def has_contradictions(self) -> bool:
        return bool(self.contradictions)

    @property
    def is_complete(self) -> bool:
        """Return whether nothing is known to be missing, and every place was looked at."""
        return not self.holes and not self.unknown_places

    def steps(self) -> Iterator[str]:
        """Yield the steps, a line for each topic."""
        for name, topic in sorted(self._topics.items()):
            if topic.has_work:
                parts = [
                    f"{topic.from_snapshots:,} segments from snapshots" if topic.from_snapshots else "",
                    f"{topic.from_manifests:,} from manifests alone" if topic.from_manifests else "",
                    f"{topic.updates:,} state changes" if topic.updates else "",
                    f"the state of {topic.states:,} partitions" if topic.states else "",
                ]
                yield f"{name}: publish {', '.join(part for part in parts if part)}"

    def facts(self) -> dict[str, Any]:
        """Return the totals."""
        topics = self._topics.values()
        return {
            "topics": len(topics),
            "partitions": sum(topic.partitions for topic in topics),
            "segments_from_snapshots": sum(topic.from_snapshots for topic in topics),
            "segments_from_manifests": sum(topic.from_manifests for topic in topics),
            "state_changes": sum(topic.updates for topic in topics),
            "partition_states": sum(topic.states for topic in topics),
            "there_already": self.equal,
            "gone": self.gone,
            "left": sum(self.left.values()),
            "holes": len(self.holes),
        }

    def notes(self) -> Iterator[str]:
        """Yield notes for people."""
        if self.oldest_ms is not None:
            yield (
                f"snapshots are as of {moment_text(self.oldest_ms)} or later: what users deleted, paused or brought back after "
                "them is not known"
            )
        if self.without_snapshot:
            named = ", ".join(map(str, self.without_snapshot[:_NAMED_TO_PEOPLE]))
            yield (
                f"{len(self.without_snapshot):,} partitions have no snapshot ({named}…): {_UNKNOWN_WITHOUT_SNAPSHOT}. What "
                f"their manifests say comes back; give deletes again{'' if self.mounts else _THEN_ACCEPT}"
            )
        if any(topic.from_manifests for topic in self._topics.values()):
            yield "of segments from manifests alone it is not known whether they were to be deleted; custom metadata are lost"
        if self.gone:
            yield f"{self.gone:,} segments of snapshots have no object any more: they were deleted since, or are lost"
        for reason, count in sorted(self.left.items()):
            examples = [f"{owner} at {one.start_offset}" for owner, one in self.named if one.reason is reason][
                :_NAMED_TO_PEOPLE
            ]
            yield f"left alone, {count:,}: {_WHY[reason]} (such as {', '.join(examples)})"
        for name, count in sorted(self._unknown.items()):
            yield f"left alone: {name}, {count:,} segments: the cluster has no topic of this id and name"
        if self.holes:
            named = ", ".join(f"{owner} [{first}, {last}]" for owner, (first, last) in self.holes[:_NAMED_TO_PEOPLE])
            yield (
                f"{len(self.holes):,} holes between segments (such as {named}): their records are lost, or were copied to a "
                "place that was not looked at"
            )
        for place, owners in sorted(self.unknown_places.items()):
            named = ", ".join(map(str, owners[:_NAMED_TO_PEOPLE]))
            yield f"place {place}, which the configuration does not name, had segments of {len(owners):,} partitions ({named})"
        yield from (*self.faults, *self.unread)
        yield from (f"contradiction: {contradiction}" for contradiction in self.contradictions)
        if not self.mounts and any(topic.has_work for topic in self._topics.values()):
            yield "offsets of consumer groups are the cluster's own: this does not bring them back"

    def details(self) -> dict[str, Any]:
        """Return the details for ``--json``."""
        return {
            "snapshots_as_of_ms": self.oldest_ms,
            "left_by_reason": {reason.value: count for reason, count in sorted(self.left.items())},
            "left_segments": [
                {
                    "topic": owner.topic,
                    "topic_id": format_uuid(owner.topic_id),
                    "partition": owner.partition,
                    "segment_id": format_uuid(one.uuid),
                    "start_offset": one.start_offset,
                    "end_offset": one.end_offset,
                    "reason": one.reason.value,
                    "detail": one.detail,
                }
                for owner, one in self.named
            ],
            "partitions_without_snapshot": [
                topic_id_partition.qualified for topic_id_partition in self.without_snapshot[:_MOST_NAMED]
            ],
            "holes_between": [
                {
                    "topic": owner.topic,
                    "topic_id": format_uuid(owner.topic_id),
                    "partition": owner.partition,
                    "start_offset": first,
                    "end_offset": last,
                }
                for owner, (first, last) in self.holes[:_MOST_NAMED]
            ],
            "unknown_places": sorted(self.unknown_places),
            "unknown_topics": dict(self._unknown),
            "contradictions": self.contradictions,
            "faults": [*self.faults, *self.unread],
        }
