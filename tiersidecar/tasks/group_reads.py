"""What the groups that trims wait for have read: one look for all topics, kept for a few seconds."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.decide.trim_holds import GroupRead, GroupsView
from tiersidecar.domain.errors import RetriableError
from tiersidecar.domain.policy import RetentionMode, TrimHolds
from tiersidecar.ports.broker import DescribePartitions, GroupAnswer, GroupType, ReadGroups
from tiersidecar.ports.clock import Clock
from tiersidecar.tasks.partition_table import PartitionTable

MAX_AGE_S = 5.0
"""Committed offsets move forward, so an old answer holds too much.  A group that resets its own, or begins, within this time
may find its first records remote."""


class GroupsBroker(DescribePartitions, Protocol):
    """What is asked."""

    @property
    def groups(self) -> ReadGroups: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """``holds`` are those that it answers for, by topic."""

    at_s: float
    holds: Mapping[str, TrimHolds]
    view: GroupsView


class GroupReads:
    """One per process: partitions that are due at the same time share a look."""

    def __init__(self, *, table: PartitionTable, broker: GroupsBroker, clock: Clock) -> None:
        self._table, self._broker, self._clock = table, broker, clock
        self._lock = asyncio.Lock()
        self._last: _Look | None = None

    async def view(self, partition: TieredPartition) -> GroupsView:
        """Not older than ``MAX_AGE_S``.  What could not be asked is a problem in it, never an error."""
        topic, holds = partition.view.topic_id_partition.topic, partition.policy.holds
        async with self._lock:
            last, now_s = self._last, self._clock.monotonic_s()
            if last is None or now_s - last.at_s >= MAX_AGE_S or last.holds.get(topic) != holds:
                wanted = {**self._holds_of_led(), topic: holds}
                last = self._last = _Look(at_s=now_s, holds=wanted, view=await self._look(wanted))
            return last.view

    def _holds_of_led(self) -> dict[str, TrimHolds]:
        return {
            topic_id_partition.topic: tiered.policy.holds
            for topic_id_partition, tiered in self._table.assignment.items()
            if tiered.role is PartitionRole.LEADER and tiered.policy.mode is RetentionMode.STRICT
        }

    async def _look(self, holds: Mapping[str, TrimHolds]) -> GroupsView:
        consumers, consumers_problem = await self._consumers(holds)
        shares, shares_problem = await self._shares(holds)
        return GroupsView(
            consumers=consumers,
            shares=shares,
            consumers_problem=consumers_problem,
            shares_problem=shares_problem,
        )

    async def _consumers(self, holds: Mapping[str, TrimHolds]) -> tuple[Sequence[GroupRead], str]:
        wanted = {group for one in holds.values() for group in one.groups}
        patterns = {hold.groups_pattern for hold in holds.values() if hold.groups_pattern}
        problem = ""
        topics = [topic for topic, hold in holds.items() if hold.groups or hold.groups_pattern]
        partitions = self._led_of(topics)
        if patterns:
            try:
                listed = await self._broker.groups.list_groups()
                # Of all partitions: a group that reads others of the topic is one of its readers.
                views = await self._broker.describe_partitions(topics)
            except RetriableError as error:
                problem = str(error)
            else:
                wanted |= {group for group, kind in listed.items() if _is_wanted(group, kind, patterns)}
                partitions |= {(view.topic_id_partition.topic, view.topic_id_partition.partition) for view in views}
        return await self._answers(self._broker.groups.committed_offsets, wanted, partitions), problem

    async def _shares(self, holds: Mapping[str, TrimHolds]) -> tuple[Sequence[GroupRead], str]:
        topics = [topic for topic, hold in holds.items() if hold.share]
        if not topics:
            return (), ""
        try:
            groups = await self._broker.groups.list_share_groups()
        except RetriableError as error:
            return (), str(error)
        return await self._answers(self._broker.groups.share_start_offsets, groups, self._led_of(topics)), ""

    async def _answers(self, ask: _Ask, groups: Iterable[str], partitions: set[tuple[str, int]]) -> list[GroupRead]:
        names = sorted(groups)
        if not names:
            return []
        try:
            answers = await ask(names, partitions)
        except RetriableError as error:
            answers = {group: GroupAnswer(offsets={}, error=str(error)) for group in names}
        return [
            GroupRead(group=group, offsets=answer.offsets, problem=answer.error or "")
            for group, answer in answers.items()
        ]

    def _led_of(self, topics: Iterable[str]) -> set[tuple[str, int]]:
        wanted = frozenset(topics)
        return {
            (topic_id_partition.topic, topic_id_partition.partition)
            for topic_id_partition in self._table.assignment
            if topic_id_partition.topic in wanted
        }


class _Ask(Protocol):
    async def __call__(
        self, groups: Sequence[str], partitions: set[tuple[str, int]], /
    ) -> Mapping[str, GroupAnswer]: ...


def _is_wanted(group: str, kind: GroupType, patterns: Iterable[str]) -> bool:
    return kind is GroupType.CONSUMER and any(re.fullmatch(pattern, group) for pattern in patterns)
