"""The watch of the tier role: at every look, stop the lanes of what is not ours any more, and start those that have work, of
partitions that are due (:mod:`tiersidecar.tasks.due_looks`).

Log led partitions whose directory is not here, or is not the one that the broker writes: nothing is done with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import is_
from typing import Protocol

import structlog

from tiersidecar.decide.topics import (
    REPORT_AFTER_S,
    PartitionRole,
    TieredPartition,
    UnwrittenEpoch,
    may_be_unwritten,
    reason_unseen,
)
from tiersidecar.domain.errors import RetriableError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import NO_EPOCH
from tiersidecar.ports.broker import EndOfEpochs, EpochAsked, EpochEndAnswer, ListOffsets, OffsetSpec
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.catalogue import LEADER_GAUGES
from tiersidecar.ports.metrics.process import MISPLACED_PARTITIONS
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.tasks.catch_up import LaneWork
from tiersidecar.tasks.copy_admission import Backfill, pending_copies
from tiersidecar.tasks.due_looks import DueLooks
from tiersidecar.tasks.edges import Edges, Sources
from tiersidecar.tasks.lanes import Lane, Lanes
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.roster import Roster
from tiersidecar.tasks.topic_checks import TopicChecks


class AskOfEpochs(EndOfEpochs, ListOffsets, Protocol):
    """Questions to the broker."""


class Whereabouts:
    """Keeps ``table.misplaced`` true, of what has lasted for ``REPORT_AFTER_S``; each is logged once."""

    def __init__(self, *, table: PartitionTable, broker: AskOfEpochs, clock: Clock, telemetry: Telemetry) -> None:
        self._table, self._broker, self._clock, self._telemetry = table, broker, clock, telemetry
        self._since_s: dict[TopicIdPartition, float] = {}
        self._quiet: tuple[object, ...] = ()
        """Assignment, files and what is not here, when there was nothing to ask or to log of them."""
        self._quiet_but_for = frozenset[str]()
        """The topics that were refused then."""

    async def look(self) -> None:
        """Compare what the roster and the topic checks have just found, and ask the broker where its file is not enough."""
        looked = (self._table.assignment, self._table.local, self._table.unseen)
        refused = frozenset(self._table.refused_topics)
        if self._quiet and refused == self._quiet_but_for and all(map(is_, looked, self._quiet)):
            return
        has_asked = await self._ask()
        self._note_lasting()
        self._quiet = () if has_asked or self._since_s or self._table.unseen else looked
        self._quiet_but_for = refused

    def _note_lasting(self) -> None:
        now_s, reasons = self._clock.monotonic_s(), self._reasons()
        self._since_s = {
            topic_id_partition: self._since_s.get(topic_id_partition, now_s) for topic_id_partition in reasons
        }
        lasting = {
            topic_id_partition: why
            for topic_id_partition, why in reasons.items()
            if now_s - self._since_s[topic_id_partition] >= REPORT_AFTER_S
        }
        before, self._table.misplaced = self._table.misplaced, lasting
        for topic_id_partition in before.keys() - lasting.keys():
            self._telemetry.forget(
                MISPLACED_PARTITIONS, topic=topic_id_partition.topic, partition=str(topic_id_partition.partition)
            )
            log.info(
                "partition.misplaced.cleared", topic=topic_id_partition.topic, partition=topic_id_partition.partition
            )
        for topic_id_partition in lasting.keys() - before.keys():
            self._telemetry.gauge(
                MISPLACED_PARTITIONS, 1, topic=topic_id_partition.topic, partition=str(topic_id_partition.partition)
            )
            log.error(
                "partition.misplaced",
                topic=topic_id_partition.topic,
                partition=topic_id_partition.partition,
                reason=lasting[topic_id_partition],
            )

    def _reasons(self) -> dict[TopicIdPartition, str]:
        reasons = dict.fromkeys(self._table.unseen, reason_unseen(self._table.local.faults))
        reasons |= {
            topic_id_partition: why
            for topic_id_partition, one in self._table.assignment.items()
            if (why := self._table.doubt(one))
        }
        return {
            topic_id_partition: reason
            for topic_id_partition, reason in reasons.items()
            if topic_id_partition.topic not in self._table.refused_topics
        }

    async def _ask(self) -> bool:
        """Keep ``table.unwritten_epochs`` true; while the broker does not answer, what it said of an epoch holds in it.  Return
        whether there was anything to ask."""
        questions, said = self._questions(), self._table.unwritten_epochs
        self._table.unwritten_epochs = {
            topic_id_partition: said[topic_id_partition] for topic_id_partition in questions.keys() & said.keys()
        }
        try:
            self._table.unwritten_epochs = await self._unwritten(questions)
        except RetriableError as error:
            log.warning("unwritten_epochs.not_told", partitions=len(questions), error=str(error))
        return bool(questions)

    def _questions(self) -> dict[TopicIdPartition, EpochAsked]:
        """Return led partitions whose files end with an earlier epoch, with that one."""
        found = dict[TopicIdPartition, EpochAsked]()
        for topic_id_partition, partition in self._table.assignment.items():
            local = self._table.local.partitions.get(topic_id_partition)
            if local is None or partition.role is not PartitionRole.LEADER:
                continue
            last_epoch = may_be_unwritten(partition.view, local)
            if last_epoch is not None:
                found[topic_id_partition] = EpochAsked(current_epoch=partition.view.leader_epoch, epoch=last_epoch)
        return found

    async def _unwritten(
        self, questions: Mapping[TopicIdPartition, EpochAsked]
    ) -> dict[TopicIdPartition, UnwrittenEpoch]:
        known = await self._ends(
            {
                topic_id_partition: replace(question, epoch=question.current_epoch)
                for topic_id_partition, question in questions.items()
            }
        )
        unknown = {
            topic_id_partition: question
            for topic_id_partition, question in questions.items()
            if topic_id_partition in known and known[topic_id_partition].epoch == NO_EPOCH
        }
        ends = await self._ends(unknown)
        agreed = {
            topic_id_partition: one
            for topic_id_partition, one in unknown.items()
            if topic_id_partition in ends and ends[topic_id_partition].epoch == one.epoch
        }
        fences = {topic_id_partition: one.current_epoch for topic_id_partition, one in agreed.items()}
        latest = await self._broker.list_offsets(fences, OffsetSpec.LATEST) if fences else {}
        return {
            topic_id_partition: UnwrittenEpoch(
                leader_epoch=one.current_epoch, last_epoch=one.epoch, end_offset=ends[topic_id_partition].end_offset
            )
            for topic_id_partition, one in agreed.items()
            if latest[topic_id_partition].error is None
            and latest[topic_id_partition].offset <= ends[topic_id_partition].end_offset
        }

    async def _ends(self, asked: Mapping[TopicIdPartition, EpochAsked]) -> dict[TopicIdPartition, EpochEndAnswer]:
        """Return the answers without those that the broker has nothing to say of: another leads, or in another epoch."""
        answers = await self._broker.end_of_epochs(asked) if asked else {}
        return {topic_id_partition: answer for topic_id_partition, answer in answers.items() if answer.error is None}


log = structlog.get_logger(__name__)

_PARTITIONS_IN_ONE_GO = 64
"""About a millisecond: a look at 4,000 partitions takes a tenth of a second, for which no Fetch may wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSpec:
    """Work of a lane, and whether it is worth starting now: cheap, and asked at every look."""

    run: LaneWork
    has_work: Callable[[TieredPartition], bool] = lambda partition: True
    may_act: Callable[[TieredPartition], bool] = lambda partition: True
    """Return whether a run would do its work: one that ends early, for it is forbidden, is not started to end a halt, and ends
    none.  Asked where one failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneTurns:
    """The lanes, what each does, and which partitions are due to be asked whether they have work for one."""

    lanes: Lanes
    due: DueLooks
    work: Mapping[Lane, LaneSpec]


class Watch:
    """One per process.  Of the lanes, copy and retain are a led partition's, follow and recopy a followed one's as well; clean
    is there where compacted topics are tiered.  Copy has work where the table says so.  ``report`` is called at each look."""

    def __init__(
        self,
        *,
        sources: Sources,
        edges: Edges,
        roster: Roster,
        checks: TopicChecks,
        backfill: Backfill,
        turns: LaneTurns,
        report: Callable[[], None],
    ) -> None:
        self._table, self._metadata, self._telemetry = sources.table, sources.metadata, edges.telemetry
        self._roster, self._checks, self._backfill = roster, checks, backfill
        self._whereabouts = Whereabouts(
            table=sources.table, broker=sources.broker, clock=edges.clock, telemetry=edges.telemetry
        )
        self._lanes, self._due, self._work, self._report = turns.lanes, turns.due, turns.work, report
        self.looks = 0
        """Looks that have ended, with or without an error."""

    async def run(self, interval_s: float) -> None:
        """Look, and look again at each file event and every ``interval_s``; never ends by itself."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._roster.follow_changes(), name="watch log dir changes")
            while True:
                try:
                    await self.look()
                except RetriableError as error:
                    self._roster.note(error)
                else:
                    self._roster.note(None)
                self.looks += 1
                await self._roster.wait(interval_s)

    async def look(self) -> None:
        """Look once.

        Raises:
            RetriableError: the broker did not answer; what was known stays, and so do the lanes.
        """
        for before in await self._roster.look():
            self._let_go(before)
        await self._checks.refresh(
            {topic_id_partition.topic for topic_id_partition in (*self._table.assignment, *self._table.unseen)}
        )
        await self._whereabouts.look()
        self._report()
        due = self._due.take()
        if due or self._backfill.is_under_way:  # else nothing waits, as nothing did
            await self._report_lags(due)
            await self._start_lanes(due)

    def _let_go(self, before: TieredPartition) -> None:
        topic_id_partition = before.view.topic_id_partition
        self._lanes.stop(topic_id_partition)
        self._table.forget(topic_id_partition)
        for metric in LEADER_GAUGES:
            self._telemetry.forget(metric, topic=topic_id_partition.topic, partition=str(topic_id_partition.partition))
        log.info(
            "partition.let_go",
            topic=topic_id_partition.topic,
            partition=topic_id_partition.partition,
            role=before.role.value,
            leader_epoch=before.view.leader_epoch,
        )

    async def _report_lags(self, partitions: Iterable[TieredPartition]) -> None:
        for number, partition in enumerate(partitions, 1):
            if number % _PARTITIONS_IN_ONE_GO == 0:
                await asyncio.sleep(0)
            if partition.role is PartitionRole.LEADER and self._metadata.is_ready(partition.view.topic_id_partition):
                self._backfill.lags.report(partition)
        self._backfill.look()

    async def _start_lanes(self, partitions: Iterable[TieredPartition]) -> None:
        for number, partition in enumerate(partitions, 1):
            if number % _PARTITIONS_IN_ONE_GO == 0:
                await asyncio.sleep(0)
            self._due.note(partition, is_settled=self._start_lanes_of(partition))

    def _start_lanes_of(self, partition: TieredPartition) -> bool:
        """Return whether nothing is waited for that only another look can find."""
        topic_id_partition = partition.view.topic_id_partition
        self._start(partition, Lane.FOLLOW)
        if not self._metadata.is_ready(topic_id_partition) or not self._table.is_proven(partition):
            return False
        self._start(partition, Lane.RECOPY)
        if partition.role is not PartitionRole.LEADER:
            return True
        if self._table.pins.unread is None:
            return False
        has_copies = self._has_copies(partition)
        if self._may_copy(topic_id_partition):
            self._start(partition, Lane.COPY, has_work=has_copies)
        self._start(partition, Lane.RETAIN)
        if Lane.CLEAN in self._work:
            self._start(partition, Lane.CLEAN)
        return not has_copies

    def _start(self, partition: TieredPartition, lane: Lane, *, has_work: bool | None = None) -> None:
        """Start the lane if it has work, which it is asked unless it is known; one that runs already runs on.

        One that failed is started without work, too, if it may act: what it failed for may have been done otherwise, and only a
        run that succeeds ends the halt or the trouble that is reported of it.
        """
        topic_id_partition, spec = partition.view.topic_id_partition, self._work[lane]
        has_work = spec.has_work(partition) if has_work is None else has_work
        if not has_work and not (self._lanes.reason_at_rest(topic_id_partition, lane) and spec.may_act(partition)):
            return
        self._lanes.start(
            topic_id_partition,
            lane,
            lambda: spec.run(partition),
            f"{lane} {topic_id_partition}@{partition.view.leader_epoch}",
            may_act=lambda: spec.may_act(partition),
        )

    def _may_copy(self, topic_id_partition: TopicIdPartition) -> bool:
        """Return whether what is to be copied can be known."""
        local = self._table.local_partition(topic_id_partition)
        return (
            local is not None
            and topic_id_partition.topic not in self._table.refused_topics
            and self._table.pins.are_known(local.log_dir)
        )

    def _has_copies(self, partition: TieredPartition) -> bool:
        topic_id_partition = partition.view.topic_id_partition
        local = self._table.local_partition(topic_id_partition)
        last_copied = self._table.record(topic_id_partition).last_copied
        return local is not None and bool(pending_copies(self._table, local, last_copied))
