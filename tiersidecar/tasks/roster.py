"""Assignment of partitions: one look at log dirs and broker keeps the table and the metadata assignment true."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import is_

import structlog

from tiersidecar.decide.topics import INTERNAL_TOPICS, TieredPartition, decide_assignment, decide_unseen
from tiersidecar.domain.errors import BrokerUnreachableError, RetriableError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import LeaderView, LocalPartition
from tiersidecar.ports.broker import DescribePartitions
from tiersidecar.ports.log_dirs import LogDirs, LogDirsView
from tiersidecar.ports.metadata_log import MetadataAssignment
from tiersidecar.ports.metrics.process import LOG_DIR_FAULTS
from tiersidecar.tasks.edges import Edges
from tiersidecar.tasks.partition_table import PartitionTable

log = structlog.get_logger(__name__)


_BEING_MADE_S = 5.0
"""Longest time for which a directory that the broker has just made lacks what a whole one has."""


_SOON_AGAIN_S, _MOST_SOON_AGAIN_S = 0.5, 8.0
"""A look at thousands of partitions takes a tenth of a second: clients do not have it taken all the time, and seldom where it
finds nothing new."""


_SCANS_OF_A_CHANGE = 2
"""How many looks read all files, from the first that knows of another leader on: what was deleted before it led, and what since
(``FollowNote``), is not left to file events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decided:
    """Facts by which it was last decided which partitions are ours."""

    views: tuple[LeaderView, ...]
    present: Mapping[TopicIdPartition, LocalPartition]
    policies: Mapping[str, TopicPolicy | None]
    departing: frozenset[TopicIdPartition]

    def is_as(self, other: _Decided) -> bool:
        """Return whether the same follows from it.  For views and keys it compares only whether they are the same objects,
        which takes a hundredth of comparing thousands."""
        if self.views is not other.views or (self.policies, self.departing) != (other.policies, other.departing):
            return False
        if self.present is other.present:
            return True
        return len(self.present) == len(other.present) and all(map(is_, self.present, other.present))


class Roster:
    """One per process, whatever its roles.  ``forget`` is called with each partition whose metadata is no longer kept."""

    def __init__(
        self,
        *,
        table: PartitionTable,
        log_dirs: LogDirs,
        broker: DescribePartitions,
        assignment: MetadataAssignment,
        policy_for: Callable[[str], TopicPolicy | None],
        broker_id: BrokerId,
        edges: Edges,
        forget: Callable[[TopicIdPartition], None],
    ) -> None:
        self._table, self._log_dirs, self._broker, self._assignment = table, log_dirs, broker, assignment
        self._policy_for, self._broker_id = policy_for, broker_id
        self._clock, self._telemetry = edges.clock, edges.telemetry
        self._forget = forget
        self._views: tuple[LeaderView, ...] = ()
        self._whole_scans_left = 0
        self._decided: _Decided | None = None
        self._topics: set[str] = set()
        self._assigned: frozenset[TopicIdPartition] = frozenset()
        self._faulty: frozenset[str] = frozenset()
        self._fault_since_s: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._not_woken_before_s, self._soon_again_s = 0.0, _SOON_AGAIN_S
        self._away_since_s: float | None = None
        self._failures = 0

    async def look(self) -> tuple[TieredPartition, ...]:
        """Ask, scan, assign; return what is not ours any more as it was: gone, led in another epoch or by another (S-182), or
        tiered otherwise.

        Raises:
            RetriableError: the broker did not answer; what was known of it stays.
        """
        self._table.looks += 1
        try:
            views = await self._broker.describe_partitions()
        except RetriableError:
            await self._scan()
            raise
        if views is not self._views:
            self._views, self._whole_scans_left = views, _SCANS_OF_A_CHANGE
        # After the answer: files as they were before it have no word of the leader epoch that it names.
        await self._scan()
        return await self._decide(views)

    def begin_anew(self) -> None:
        """Read all files at the next looks: a process that takes the role anew knows of no deletion before (``FollowNote``)."""
        self._whole_scans_left = _SCANS_OF_A_CHANGE

    def let_go(self, before: TieredPartition) -> None:
        """Forget what is known of a partition that :meth:`look` gave, for a process in which nothing else does."""
        self._table.forget(before.view.topic_id_partition)

    async def _decide(self, views: tuple[LeaderView, ...]) -> tuple[TieredPartition, ...]:
        """Decide which partitions are ours; the last decision stays where all that it is decided by is what it was."""
        if self._decided is None or views is not self._decided.views:
            self._table.topic_ids = {view.topic_id_partition.topic: view.topic_id_partition.topic_id for view in views}
            self._topics = {view.topic_id_partition.topic for view in views if self._broker_id in view.replicas}
        present = self._table.local.partitions
        policies = {topic: self._policy_for(topic) for topic in self._topics - INTERNAL_TOPICS}
        decided = _Decided(views=views, present=present, policies=policies, departing=frozenset(self._table.departing))
        if self._decided is not None and decided.is_as(self._decided):
            return ()
        self._decided = None
        assignment = decide_assignment(views, present, self._broker_id, policies.get)
        self._table.unseen = decide_unseen(views, present, self._broker_id, policies.get)
        assignment = {now.view.topic_id_partition: now for now in map(self._kept, assignment.values())}
        changed = tuple(
            before
            for topic_id_partition, before in self._table.assignment.items()
            if (now := assignment.get(topic_id_partition)) is not before and _is_other(now, before)
        )
        if assignment.keys() != self._table.assignment.keys():
            self._soon_again_s = _SOON_AGAIN_S
        self._table.assignment = assignment
        await self._assign(frozenset([*assignment, *decided.departing]))
        self._decided = decided
        return changed

    def _kept(self, now: TieredPartition) -> TieredPartition:
        """Return what was there before, where it is the same, else with the name that the local partition has: of thousands a
        look takes up each a hundred times, and what is the same object need not be compared."""
        before = self._table.assignment.get(now.view.topic_id_partition)
        if before == now:
            return before
        own = self._table.local.partitions[now.view.topic_id_partition].topic_id_partition
        return replace(now, view=replace(now.view, topic_id_partition=own))

    async def _scan(self) -> None:
        if self._whole_scans_left:
            self._whole_scans_left -= 1
            self._table.local = await self._log_dirs.scan()
        else:
            self._table.local = await self._log_dirs.scan_changed()
        self._report_faults(self._table.local)

    async def follow_changes(self) -> None:
        """Wake :meth:`wait` at each file event; never ends."""
        async for _ in self._log_dirs.changes():
            self._wake.set()

    async def wait(self, interval_s: float) -> None:
        """Return at the next file event, or after ``interval_s``."""
        sleeping = asyncio.ensure_future(self._clock.sleep(interval_s))
        waking = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait((sleeping, waking), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            waking.cancel()
        self._wake.clear()

    def look_soon(self) -> None:
        """End the :meth:`wait` that is under way, or the next one; not again within half a second, and twice as long each time
        until a look finds another assignment."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._not_woken_before_s:
            self._not_woken_before_s = now_s + self._soon_again_s
            self._soon_again_s = min(self._soon_again_s * 2, _MOST_SOON_AGAIN_S)
            self._wake.set()

    def note(self, error: RetriableError | None) -> None:
        """Keep on the partition table what the last look met; an outage is logged at its begin, and its length at its end."""
        now_s, trouble = self._clock.monotonic_s(), "" if error is None else str(error)
        if error is not None:
            if self._away_since_s is None:
                self._away_since_s, self._failures = now_s, 0
                log.warning("broker.away", error=trouble)
            self._failures += 1
        elif self._away_since_s is not None:
            away_ms = int((now_s - self._away_since_s) * 1000)
            log.info("broker.back", away_ms=away_ms, failures=self._failures, error=self._table.watch_trouble)
            self._away_since_s = None
        self._table.watch_trouble = trouble

    def has_logged(self, error: Exception) -> bool:
        """Return whether ``error`` is of the broker's outage that was logged at its begin; it is counted, for the end."""
        if self._away_since_s is None or not isinstance(error, BrokerUnreachableError):
            return False
        self._failures += 1
        return True

    async def _assign(self, partitions: frozenset[TopicIdPartition]) -> None:
        await self._assignment.assign(partitions)
        gone, self._assigned = self._assigned - partitions, partitions
        for partition in gone:
            self._forget(partition)

    def _report_faults(self, view: LogDirsView) -> None:
        """Log faults of partition directories once they have lasted: one that is being made has no partition.metadata yet."""
        now_s = self._clock.monotonic_s()
        self._fault_since_s = {directory: self._fault_since_s.get(directory, now_s) for directory in view.faults}
        for directory in self._faulty - view.faults.keys():
            self._telemetry.forget(LOG_DIR_FAULTS, directory=directory)
            log.info("log_dir.fault.cleared", directory=directory)
        lasting = {
            directory: reason
            for directory, reason in view.faults.items()
            if not _is_of_a_partition(directory) or now_s - self._fault_since_s[directory] >= _BEING_MADE_S
        }
        for directory in lasting.keys() - self._faulty:
            self._telemetry.gauge(LOG_DIR_FAULTS, 1, directory=directory)
            log.error("log_dir.fault", directory=directory, reason=lasting[directory])
        self._faulty = frozenset(lasting)


async def keep_roster(roster: Roster, interval_s: float) -> None:
    """Look at every interval until cancelled: all that a process without the role ``tier`` needs."""
    while True:
        try:
            for before in await roster.look():
                roster.let_go(before)
        except RetriableError as error:
            roster.note(error)
        else:
            roster.note(None)
        await roster.wait(interval_s)


def _is_of_a_partition(directory: str) -> bool:
    return re.search(r"-\d+$", directory) is not None


def _is_other(now: TieredPartition | None, before: TieredPartition) -> bool:
    if now is None:
        return True
    is_same = (now.role, now.view.leader_epoch, now.policy) == (before.role, before.view.leader_epoch, before.policy)
    return not is_same
