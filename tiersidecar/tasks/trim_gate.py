"""Let a trim go as far as the groups that it waits for have read, and report which group holds back how much.

One look at the groups serves all topics, and is kept for a few seconds.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.decide.trim import GroupRead, GroupsView, TrimHold, TrimStep, decide_hold, holders_of
from tiersidecar.domain.errors import RetriableError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.policy import RetentionMode, TrimHolds
from tiersidecar.ports.broker import DescribePartitions, GroupAnswer, GroupType, ReadGroups
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.retention import TRIM_HELD_BY_GROUP, TRIM_HELD_BYTES, TRIM_REFUSALS
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.tasks.partition_table import PartitionTable

log = structlog.get_logger(__name__)

GROUPS_SHOWN = 10
"""Groups with a metric of their own, those that hold most; the others are one together."""
OTHERS, UNKNOWN = "(others)", "(unknown)"
_HOLD_MAX_AGE_S = 120.0
"""A partition whose trim is due looks every few seconds: a hold that is not renewed is over."""


class TrimGate:
    """One per process; what it holds back is on the partition table."""

    def __init__(self, *, table: PartitionTable, reads: GroupReads, clock: Clock, telemetry: Telemetry) -> None:
        self._table, self._reads, self._clock, self._telemetry = table, reads, clock, telemetry
        self._seen_s: dict[TopicIdPartition, float] = {}
        self._shown: set[str] = set()

    async def allowed(self, partition: TieredPartition, steps: Sequence[TrimStep]) -> tuple[TrimStep, ...]:
        """Return the first of ``steps`` that no group holds, as of a few seconds ago."""
        hold = await self.hold(partition, steps)
        self._note(partition.view.topic_id_partition, hold)
        return hold.allowed

    async def is_open(self, partition: TieredPartition, steps: Sequence[TrimStep]) -> bool:
        """Return whether all of ``steps``, which were allowed a while ago, still are."""
        return not (await self.hold(partition, steps)).holders

    async def hold(self, partition: TieredPartition, steps: Sequence[TrimStep]) -> TrimHold:
        """Return which groups hold which of ``steps``, as of a few seconds ago; nothing is noted."""
        topic_id_partition, holds = partition.view.topic_id_partition, partition.policy.holds
        if not steps or not (holds.groups or holds.needs_list):
            return TrimHold(allowed=tuple(steps))
        view = await self._reads.view(partition)
        return decide_hold(steps, holders_of(holds, topic_id_partition.topic, topic_id_partition.partition, view))

    def report(self) -> None:
        """Drop holds that are over, and report by group how much is held back."""
        now_s = self._clock.monotonic_s()
        for topic_id_partition in [
            topic_id_partition
            for topic_id_partition, seen_s in self._seen_s.items()
            if now_s - seen_s >= _HOLD_MAX_AGE_S
        ]:
            if topic_id_partition in self._table.records:
                self._table.record(topic_id_partition).trim_hold = None
        for topic_id_partition in [
            topic_id_partition for topic_id_partition in self._seen_s if self._hold_of(topic_id_partition) is None
        ]:
            del self._seen_s[topic_id_partition]
            self._telemetry.forget(
                TRIM_HELD_BYTES, topic=topic_id_partition.topic, partition=str(topic_id_partition.partition)
            )
        held = self._held_by_group()
        for group in self._shown - held.keys():
            self._telemetry.forget(TRIM_HELD_BY_GROUP, group=group)
        for group, held_bytes in held.items():
            self._telemetry.gauge(TRIM_HELD_BY_GROUP, held_bytes, group=group)
        self._shown = set(held)

    def _held_by_group(self) -> dict[str, int]:
        held: defaultdict[str, int] = defaultdict(int)
        for hold in filter(None, map(self._hold_of, self._seen_s)):
            for holder, held_bytes in hold.holders:
                held[holder.group or UNKNOWN] += held_bytes
        ranked = sorted(held.items(), key=lambda one: (-one[1], one[0]))
        rest = sum(held_bytes for _, held_bytes in ranked[GROUPS_SHOWN:])
        return dict(ranked[:GROUPS_SHOWN]) | ({OTHERS: rest} if len(ranked) > GROUPS_SHOWN else {})

    def _hold_of(self, topic_id_partition: TopicIdPartition) -> TrimHold | None:
        record = self._table.records.get(topic_id_partition)
        return None if record is None else record.trim_hold

    def _note(self, topic_id_partition: TopicIdPartition, hold: TrimHold) -> None:
        record = self._table.record(topic_id_partition)
        before, record.trim_hold = record.trim_hold, hold if hold.holders else None
        if hold.holders:
            self._seen_s[topic_id_partition] = self._clock.monotonic_s()
            self._telemetry.gauge(
                TRIM_HELD_BYTES,
                hold.held_bytes,
                topic=topic_id_partition.topic,
                partition=str(topic_id_partition.partition),
            )
        if any(holder.offset is None for holder, _ in hold.holders):
            self._telemetry.count(TRIM_REFUSALS, topic=topic_id_partition.topic, reason="groups")
        self._say(topic_id_partition, before, hold)
        if before is not None or hold.holders:
            self.report()

    def _say(self, topic_id_partition: TopicIdPartition, before: TrimHold | None, hold: TrimHold) -> None:
        """Log it once for each set of groups: how far they have read changes all the time."""
        holders = frozenset(holder.group for holder, _ in hold.holders)
        if holders == frozenset(holder.group for holder, _ in (before.holders if before else ())):
            return
        if holders:
            log.warning(
                "trim.held_back",
                topic=topic_id_partition.topic,
                partition=topic_id_partition.partition,
                bytes=hold.held_bytes,
                reason=hold.reason,
            )
        else:
            log.info("trim.held_back.cleared", topic=topic_id_partition.topic, partition=topic_id_partition.partition)


MAX_AGE_S = 5.0
"""Committed offsets move forward, so an old answer holds too much.  A group that resets its own, or begins, within this time
may find its first records remote."""


class GroupsBroker(DescribePartitions, Protocol):
    """Questions to the broker."""

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
        """Return a look not older than ``MAX_AGE_S``.  What could not be asked is a problem in it, never an error."""
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
            GroupRead(group=group, offsets=answer.offsets, problem=answer.error or "", begun=answer.begun)
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
