"""The watch of the tier role: at every look, stop the lanes of what is not ours any more, and start those that have work.

Tell of led partitions whose directory is not here, or is not the one that the broker writes: nothing is done with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

import structlog

from tiersidecar.decide.place import TELL_AFTER_S, UnwrittenEpoch, may_be_unwritten, reason_unseen
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.errors import RetriableError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import NO_EPOCH
from tiersidecar.ports.broker import EndOfEpochs, EpochAsked, EpochEndAnswer, ListOffsets, OffsetSpec
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metadata_log import MetadataView
from tiersidecar.ports.metrics.catalogue import LEADER_GAUGES
from tiersidecar.ports.metrics.process import MISPLACED_PARTITIONS
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.tasks.copy_admission import Backfill
from tiersidecar.tasks.copy_lag import CopyLagReport, pending_copies
from tiersidecar.tasks.in_flight import InFlight
from tiersidecar.tasks.lanes import Lane, Lanes
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.roster import Roster
from tiersidecar.tasks.topic_checks import TopicChecks


class AskOfEpochs(EndOfEpochs, ListOffsets, Protocol):
    """What the broker is asked."""


class Whereabouts:
    """Keeps ``table.misplaced`` true, of what has lasted for ``TELL_AFTER_S``; each is told once."""

    def __init__(self, *, table: PartitionTable, broker: AskOfEpochs, clock: Clock, telemetry: Telemetry) -> None:
        self._table, self._broker, self._clock, self._telemetry = table, broker, clock, telemetry
        self._since_s: dict[TopicIdPartition, float] = {}

    async def look(self) -> None:
        """Compare what the roster and the topic checks have just found, and ask the broker where its file is not enough."""
        await self._ask()
        now_s, reasons = self._clock.monotonic_s(), self._reasons()
        self._since_s = {tip: self._since_s.get(tip, now_s) for tip in reasons}
        lasting = {tip: why for tip, why in reasons.items() if now_s - self._since_s[tip] >= TELL_AFTER_S}
        before, self._table.misplaced = self._table.misplaced, lasting
        for tip in before.keys() - lasting.keys():
            self._telemetry.forget(MISPLACED_PARTITIONS, topic=tip.topic, partition=str(tip.partition))
            log.info("partition.misplaced.cleared", topic=tip.topic, partition=tip.partition)
        for tip in lasting.keys() - before.keys():
            self._telemetry.gauge(MISPLACED_PARTITIONS, 1, topic=tip.topic, partition=str(tip.partition))
            log.error("partition.misplaced", topic=tip.topic, partition=tip.partition, reason=lasting[tip])

    def _reasons(self) -> dict[TopicIdPartition, str]:
        reasons = dict.fromkeys(self._table.unseen, reason_unseen(self._table.local.faults))
        reasons |= {tip: why for tip, one in self._table.assignment.items() if (why := self._table.doubt(one))}
        return {tip: reason for tip, reason in reasons.items() if tip.topic not in self._table.refused_topics}

    async def _ask(self) -> None:
        """Keep ``table.unwritten_epochs`` true; while the broker does not answer, what it said of an epoch holds in it."""
        questions, said = self._questions(), self._table.unwritten_epochs
        self._table.unwritten_epochs = {tip: said[tip] for tip in questions.keys() & said.keys()}
        try:
            self._table.unwritten_epochs = await self._unwritten(questions)
        except RetriableError as error:
            log.warning("unwritten_epochs.not_told", partitions=len(questions), error=str(error))

    def _questions(self) -> dict[TopicIdPartition, EpochAsked]:
        """Led partitions whose files end with an earlier epoch, with that one."""
        found = dict[TopicIdPartition, EpochAsked]()
        for tip, partition in self._table.assignment.items():
            local = self._table.local.partitions.get(tip)
            if local is None or partition.role is not PartitionRole.LEADER:
                continue
            last_epoch = may_be_unwritten(partition.view, local)
            if last_epoch is not None:
                found[tip] = EpochAsked(current_epoch=partition.view.leader_epoch, epoch=last_epoch)
        return found

    async def _unwritten(
        self, questions: Mapping[TopicIdPartition, EpochAsked]
    ) -> dict[TopicIdPartition, UnwrittenEpoch]:
        known = await self._ends({tip: replace(one, epoch=one.current_epoch) for tip, one in questions.items()})
        unknown = {tip: one for tip, one in questions.items() if tip in known and known[tip].epoch == NO_EPOCH}
        ends = await self._ends(unknown)
        agreed = {tip: one for tip, one in unknown.items() if tip in ends and ends[tip].epoch == one.epoch}
        fences = {tip: one.current_epoch for tip, one in agreed.items()}
        latest = await self._broker.list_offsets(fences, OffsetSpec.LATEST) if fences else {}
        return {
            tip: UnwrittenEpoch(leader_epoch=one.current_epoch, last_epoch=one.epoch, end_offset=ends[tip].end_offset)
            for tip, one in agreed.items()
            if latest[tip].error is None and latest[tip].offset <= ends[tip].end_offset
        }

    async def _ends(self, asked: Mapping[TopicIdPartition, EpochAsked]) -> dict[TopicIdPartition, EpochEndAnswer]:
        """Without those that the broker has nothing to say of: another leads, or in another epoch."""
        answers = await self._broker.end_of_epochs(asked) if asked else {}
        return {tip: answer for tip, answer in answers.items() if answer.error is None}


log = structlog.get_logger(__name__)

LaneWork = Callable[[TieredPartition], Awaitable[None]]

_PARTITIONS_IN_ONE_GO = 64
"""About a millisecond: a look at 4,000 partitions takes a tenth of a second, for which no Fetch may wait."""


class Watch:
    """One per process.  ``copy`` and ``retain`` are what two lanes of a led partition do, ``follow`` and ``recopy`` the others,
    which followed ones have as well; ``report`` is called at each look."""

    def __init__(
        self,
        *,
        table: PartitionTable,
        roster: Roster,
        checks: TopicChecks,
        whereabouts: Whereabouts,
        metadata: MetadataView,
        in_flight: InFlight,
        lag: CopyLagReport,
        backfill: Backfill,
        lanes: Lanes,
        copy: LaneWork,
        retain: LaneWork,
        retain_has_work: Callable[[TieredPartition], bool],
        recopy: LaneWork,
        recopy_has_work: Callable[[TieredPartition], bool],
        follow: LaneWork,
        follow_has_work: Callable[[TieredPartition], bool],
        report: Callable[[], None],
        interval_s: float,
        telemetry: Telemetry,
    ) -> None:
        self._table, self._roster, self._checks, self._metadata = table, roster, checks, metadata
        self._whereabouts = whereabouts
        self._in_flight, self._lag, self._backfill, self._lanes = in_flight, lag, backfill, lanes
        self._copy, self._retain, self._retain_has_work = copy, retain, retain_has_work
        self._recopy, self._recopy_has_work = recopy, recopy_has_work
        self._follow, self._follow_has_work = follow, follow_has_work
        self._report, self._interval_s, self._telemetry = report, interval_s, telemetry
        self.looks = 0
        """Looks that have ended, with or without an error."""

    async def run(self) -> None:
        """Look, and look again at each file event and every interval; never ends by itself."""
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
                await self._roster.wait(self._interval_s)

    async def look(self) -> None:
        """One look.

        Raises:
            RetriableError: the broker did not answer; what was known stays, and so do the lanes.
        """
        for before in await self._roster.look():
            self._let_go(before)
        await self._checks.refresh({tip.topic for tip in (*self._table.assignment, *self._table.unseen)})
        await self._whereabouts.look()
        self._in_flight.report_age()
        self._report()
        await self._report_lags()
        await self._start_lanes(self._table.assignment.values())

    def _let_go(self, before: TieredPartition) -> None:
        tip = before.view.topic_id_partition
        self._lanes.stop(tip)
        self._table.forget(tip)
        for metric in LEADER_GAUGES:
            self._telemetry.forget(metric, topic=tip.topic, partition=str(tip.partition))
        log.info(
            "partition.let_go",
            topic=tip.topic,
            partition=tip.partition,
            role=before.role.value,
            leader_epoch=before.view.leader_epoch,
        )

    async def _report_lags(self) -> None:
        for number, (tip, partition) in enumerate(self._table.assignment.items(), 1):
            if number % _PARTITIONS_IN_ONE_GO == 0:
                await asyncio.sleep(0)
            if partition.role is PartitionRole.LEADER and self._metadata.is_ready(tip):
                self._lag.report(partition)
        self._backfill.look()

    async def _start_lanes(self, partitions: Iterable[TieredPartition]) -> None:
        for number, partition in enumerate(partitions, 1):
            if number % _PARTITIONS_IN_ONE_GO == 0:
                await asyncio.sleep(0)
            tip = partition.view.topic_id_partition
            if self._follow_has_work(partition):
                self._start(partition, Lane.FOLLOW, self._follow)
            if not self._metadata.is_ready(tip) or not self._table.is_proven(partition):
                continue
            if self._recopy_has_work(partition):
                self._start(partition, Lane.RECOPY, self._recopy)
            if partition.role is not PartitionRole.LEADER:
                continue
            if self._copy_has_work(tip):
                self._start(partition, Lane.COPY, self._copy)
            if self._retain_has_work(partition):
                self._start(partition, Lane.RETAIN, self._retain)

    def _start(self, partition: TieredPartition, lane: Lane, work: LaneWork) -> None:
        tip = partition.view.topic_id_partition
        self._lanes.start(tip, lane, lambda: work(partition), f"{lane} {tip}@{partition.view.leader_epoch}")

    def _copy_has_work(self, tip: TopicIdPartition) -> bool:
        local = self._table.local_partition(tip)
        if local is None or tip.topic in self._table.refused_topics or not self._table.pins.are_known(local.log_dir):
            return False
        return bool(pending_copies(self._table, local, self._table.record(tip).last_copied))
