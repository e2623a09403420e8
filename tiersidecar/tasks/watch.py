"""The watch of the tier role: at every look, stop the lanes of what is not ours any more, and start those that have work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.errors import RetriableError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import NO_OFFSET
from tiersidecar.ports.metadata_log import MetadataView
from tiersidecar.ports.metrics.catalogue import LEADER_GAUGES
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.tasks.backfill import Backfill
from tiersidecar.tasks.board import Board
from tiersidecar.tasks.copy_lag import CopyLagReport
from tiersidecar.tasks.in_flight import InFlight
from tiersidecar.tasks.lanes import Lane, Lanes
from tiersidecar.tasks.pending_copies import pending_copies
from tiersidecar.tasks.roster import Roster
from tiersidecar.tasks.topic_checks import TopicChecks
from tiersidecar.tasks.whereabouts import Whereabouts

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
        board: Board,
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
        self._board, self._roster, self._checks, self._metadata = board, roster, checks, metadata
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
        await self._checks.refresh({tip.topic for tip in (*self._board.assignment, *self._board.unseen)})
        await self._whereabouts.look()
        self._in_flight.report_age()
        self._report()
        await self._report_lags()
        await self._start_lanes(self._board.assignment.values())

    def _let_go(self, before: TieredPartition) -> None:
        tip = before.view.topic_id_partition
        self._lanes.stop(tip)
        self._board.forget(tip)
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
        for number, (tip, partition) in enumerate(self._board.assignment.items(), 1):
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
            if not self._metadata.is_ready(tip) or not self._board.is_proven(partition):
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
        local = self._board.local_partition(tip)
        if local is None or tip.topic in self._board.refused_topics or not self._board.pins.are_known(local.log_dir):
            return False
        return bool(pending_copies(self._board, local, self._board.copied_offsets.get(tip, NO_OFFSET)))
