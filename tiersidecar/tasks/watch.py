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
        self._since_s = {
            topic_id_partition: self._since_s.get(topic_id_partition, now_s) for topic_id_partition in reasons
        }
        lasting = {
            topic_id_partition: why
            for topic_id_partition, why in reasons.items()
            if now_s - self._since_s[topic_id_partition] >= TELL_AFTER_S
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

    async def _ask(self) -> None:
        """Keep ``table.unwritten_epochs`` true; while the broker does not answer, what it said of an epoch holds in it."""
        questions, said = self._questions(), self._table.unwritten_epochs
        self._table.unwritten_epochs = {
            topic_id_partition: said[topic_id_partition] for topic_id_partition in questions.keys() & said.keys()
        }
        try:
            self._table.unwritten_epochs = await self._unwritten(questions)
        except RetriableError as error:
            log.warning("unwritten_epochs.not_told", partitions=len(questions), error=str(error))

    def _questions(self) -> dict[TopicIdPartition, EpochAsked]:
        """Led partitions whose files end with an earlier epoch, with that one."""
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
        """Without those that the broker has nothing to say of: another leads, or in another epoch."""
        answers = await self._broker.end_of_epochs(asked) if asked else {}
        return {topic_id_partition: answer for topic_id_partition, answer in answers.items() if answer.error is None}


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
        await self._checks.refresh(
            {topic_id_partition.topic for topic_id_partition in (*self._table.assignment, *self._table.unseen)}
        )
        await self._whereabouts.look()
        self._in_flight.report_age()
        self._report()
        await self._report_lags()
        await self._start_lanes(self._table.assignment.values())

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

    async def _report_lags(self) -> None:
        for number, (topic_id_partition, partition) in enumerate(self._table.assignment.items(), 1):
            if number % _PARTITIONS_IN_ONE_GO == 0:
                await asyncio.sleep(0)
            if partition.role is PartitionRole.LEADER and self._metadata.is_ready(topic_id_partition):
                self._lag.report(partition)
        self._backfill.look()

    async def _start_lanes(self, partitions: Iterable[TieredPartition]) -> None:
        for number, partition in enumerate(partitions, 1):
            if number % _PARTITIONS_IN_ONE_GO == 0:
                await asyncio.sleep(0)
            topic_id_partition = partition.view.topic_id_partition
            if self._follow_has_work(partition):
                self._start(partition, Lane.FOLLOW, self._follow)
            if not self._metadata.is_ready(topic_id_partition) or not self._table.is_proven(partition):
                continue
            if self._recopy_has_work(partition):
                self._start(partition, Lane.RECOPY, self._recopy)
            if partition.role is not PartitionRole.LEADER:
                continue
            if self._copy_has_work(topic_id_partition):
                self._start(partition, Lane.COPY, self._copy)
            if self._retain_has_work(partition):
                self._start(partition, Lane.RETAIN, self._retain)

    def _start(self, partition: TieredPartition, lane: Lane, work: LaneWork) -> None:
        topic_id_partition = partition.view.topic_id_partition
        self._lanes.start(
            topic_id_partition,
            lane,
            lambda: work(partition),
            f"{lane} {topic_id_partition}@{partition.view.leader_epoch}",
        )

    def _copy_has_work(self, topic_id_partition: TopicIdPartition) -> bool:
        local = self._table.local_partition(topic_id_partition)
        if (
            local is None
            or topic_id_partition.topic in self._table.refused_topics
            or not self._table.pins.are_known(local.log_dir)
        ):
            return False
        return bool(pending_copies(self._table, local, self._table.record(topic_id_partition).last_copied))
