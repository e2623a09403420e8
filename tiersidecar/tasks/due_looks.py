"""Partitions that a look of the watch takes up: those of which anything has changed, and each of them once in a while.

Of thousands of partitions nearly none changes between two looks, and to see that takes a hundredth of what it takes to ask each
of their lanes.  What no change shows, time above all, is found when the partition's own interval is over: that of Kafka's tasks
(``remote.log.manager.task.interval.ms``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import NamedTuple

from tiersidecar.decide.topics import TieredPartition
from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.segments import LocalPartition
from tiersidecar.ports.state_log import PartitionOfTopic
from tiersidecar.tasks.edges import Edges, Sources
from tiersidecar.tasks.lanes import Lanes

_LOOKS_TO_SETTLE = 2
"""``FollowNote`` is sure of what was deleted at the second look."""


class _Looked(NamedTuple):
    """State of a partition when it was looked at, ``looks`` times by now."""

    partition: TieredPartition
    local: LocalPartition | None
    applied_to: int
    looks: int
    at_s: float


class DueLooks:
    """``interval_s`` is the longest time between two looks at a partition."""

    def __init__(self, *, sources: Sources, edges: Edges, lanes: Lanes, interval_s: float) -> None:
        self._table, self._metadata, self._state = sources.table, sources.metadata, sources.state
        self._clock, self._lanes, self._interval_s = edges.clock, lanes, interval_s
        self._looked: dict[TopicIdPartition, _Looked] = {}
        self._unsettled: set[TopicIdPartition] = set()
        self._order: Mapping[TopicIdPartition, TieredPartition] = {}
        self._places: Mapping[TopicIdPartition, int] = {}
        """Positions in ``_order``, the assignment that they were taken from."""
        self._compared: tuple[object, object, int] = (None, None, -1)
        self._of_all: object = None
        self._state_changes = -1
        self._said: frozenset[PartitionOfTopic] | None = None

    def take(self) -> list[TieredPartition]:
        """Return those that are due now, in the order of the assignment."""
        assignment = self._table.assignment
        restless = self._lanes.take_restless() | self._unsettled | self._table.pressure_trims.keys()
        if self._has_changed_for_all():
            due = set(assignment)
        else:
            due = {*restless, *self._of_state_changes(), *self._changed(), *self._overdue()} & assignment.keys()
        if not due:
            return []
        self._unsettled |= due
        # In the broker's order, which is that in which lanes queue: a set's differs from run to run.
        if self._order is not assignment:
            self._order, self._places = assignment, {one: place for place, one in enumerate(assignment)}
        return [assignment[one] for one in sorted(due, key=self._places.__getitem__)]

    def note(self, partition: TieredPartition, *, is_settled: bool) -> None:
        """Note that ``partition`` has been looked at.  If it is not settled it waits for what no change shows, and is due
        again; so is what was taken and not noted."""
        topic_id_partition = partition.view.topic_id_partition
        before = self._looked.get(topic_id_partition)
        looks = before.looks + 1 if before is not None and before.partition is partition else 1
        self._looked.pop(topic_id_partition, None)  # so that the one looked at longest ago comes first
        self._looked[topic_id_partition] = _Looked(
            partition,
            self._table.local.partitions.get(topic_id_partition),
            self._applied_to(topic_id_partition),
            looks,
            self._clock.monotonic_s(),
        )
        if is_settled and looks >= _LOOKS_TO_SETTLE:
            self._unsettled.discard(topic_id_partition)

    def _has_changed_for_all(self) -> bool:
        """Return whether what is not one partition's has changed: whether the topics can be relied on, which topics and owners
        are refused, which pins are known."""
        table, before = self._table, self._of_all
        self._of_all = (
            self._state.halted_reason,
            self._state.readiness_reason,
            self._metadata.halted_reason,
            dict(table.refused_topics),
            dict(table.untrimmable_topics),
            dict(table.missing_owners),
            table.pins.unread,
        )
        since, self._state_changes = self._state_changes, self._state.changes
        self._said = self._state.changed_since(since)
        return self._of_all != before or self._said is None

    def _of_state_changes(self) -> Iterable[TopicIdPartition]:
        """Return partitions of which the state topic has said something."""
        if not self._said:
            return ()
        return [one for one in self._table.assignment if (one.topic_id, one.partition) in self._said]

    def _changed(self) -> Iterable[TopicIdPartition]:
        """Return partitions that are led otherwise, have other files, or other metadata."""
        table, (assignment, local, changes) = self._table, self._compared
        self._compared = (table.assignment, table.local, self._metadata.changes)
        if assignment is table.assignment and local is table.local and changes == self._compared[-1]:
            return ()
        for gone in self._looked.keys() - table.assignment.keys():
            del self._looked[gone]
        self._unsettled &= table.assignment.keys()
        return [one for one, partition in table.assignment.items() if self._is_other(one, partition)]

    def _is_other(self, topic_id_partition: TopicIdPartition, partition: TieredPartition) -> bool:
        looked = self._looked.get(topic_id_partition)
        return (
            looked is None
            or looked.partition is not partition
            or looked.local is not self._table.local.partitions.get(topic_id_partition)
            or looked.applied_to != self._applied_to(topic_id_partition)
        )

    def _overdue(self) -> Iterable[TopicIdPartition]:
        latest_s = self._clock.monotonic_s() - self._interval_s
        oldest_first = takewhile(lambda one: one[1].at_s <= latest_s, self._looked.items())
        return [topic_id_partition for topic_id_partition, _ in oldest_first]

    def _applied_to(self, topic_id_partition: TopicIdPartition) -> int:
        try:
            return self._metadata.applied_to(topic_id_partition)
        except MetadataNotReadyError:
            return -1
