"""The time by which the trash becomes due: the wall clock, as far as this process and those before it saw it go.

The time for which what is in the trash has been kept beyond its delay, as a metric: by the wall clock it is due, but no process
saw its delay pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Protocol

import structlog

from tiersidecar.decide.expiry_stops import ClockReading, reason_to_doubt_clock
from tiersidecar.decide.topics import PartitionRole
from tiersidecar.decide.trash_time import TrashTime, seen_at_start, seen_by_heir, seen_by_next
from tiersidecar.domain.errors import RetriableError, StateDirError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.seen_time import SeenTime
from tiersidecar.domain.trash import TrashEntry
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.retention import TRASH_OVERDUE_SECONDS
from tiersidecar.ports.seen_times import SeenTimes
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.tasks.partition_table import PartitionTable

_PARTITIONS_AT_ONCE = 50


class KnownTrash(Protocol):
    """``StateLog`` and ``TrashLog``, as far as it is asked."""

    def partition_state(self, topic_id_partition: TopicIdPartition) -> PartitionState: ...

    def trash(self, topic_id_partition: TopicIdPartition) -> Sequence[TrashEntry]: ...

    def trash_partitions(self) -> Sequence[TopicIdPartition]: ...


class TrashWatch:
    """Looks at partitions that are led here, and at those of topics that are gone: any sidecar may delete these."""

    def __init__(
        self, *, table: PartitionTable, state: KnownTrash, trash_clock: TrashClock, clock: Clock, telemetry: Telemetry
    ) -> None:
        self._table, self._state, self._trash_clock = table, state, trash_clock
        self._clock, self._telemetry = clock, telemetry

    async def run(self, interval_s: float) -> None:
        """Look every ``interval_s``, until cancelled; a process that does not delete any more says nothing."""
        try:
            while True:
                await self.look()
                await self._clock.sleep(interval_s)
        finally:
            self._telemetry.forget(TRASH_OVERDUE_SECONDS)

    async def look(self) -> None:
        """Set the metric by what is known now; while the state topic is not read to its end it stays as it is."""
        longest_ms, existing = 0, frozenset(self._table.topic_ids.values())
        try:
            for number, topic_id_partition in enumerate(self._state.trash_partitions()):
                if number % _PARTITIONS_AT_ONCE == 0:
                    await asyncio.sleep(0)
                if not self._is_ours(topic_id_partition, existing):
                    continue
                time, generation = (
                    self._trash_clock.now(),
                    self._state.partition_state(topic_id_partition).start_generation,
                )
                waiting = [entry for entry in self._state.trash(topic_id_partition) if not entry.is_undone(generation)]
                longest_ms = max(longest_ms, *map(time.overdue_ms, waiting), 0)
        except RetriableError:
            return
        self._telemetry.gauge(TRASH_OVERDUE_SECONDS, longest_ms / 1000)

    def _is_ours(self, topic_id_partition: TopicIdPartition, existing: Collection[Uuid]) -> bool:
        tiered = self._table.assignment.get(topic_id_partition)
        return topic_id_partition.topic_id not in existing if tiered is None else tiered.role is PartitionRole.LEADER


log = structlog.get_logger(__name__)

_KEEP_INTERVAL_S = 60.0


class TrashClock:
    """One per process, from its start on.  ``known`` is what former processes kept in ``times``, None where there is nothing:
    then it goes on from what the last holder of its broker's lease said (:meth:`succeed`), and keeps nothing until then."""

    def __init__(self, *, clock: Clock, times: SeenTimes, known: SeenTime | None) -> None:
        self._clock, self._times = clock, times
        self._first = self._reading()
        self._unseen = seen_at_start(known, self._first.wall_ms).unseen
        self._trouble = self._doubt = ""
        self._is_continued = known is not None
        if known is not None:
            self._log_gap(known)

    def succeed(self, former: SeenTime | None) -> None:
        """Go on from the last holder's time, right before we claim our broker's lease: ``former`` is what it had seen, None
        where nothing says it."""
        if self._is_continued:
            own, self._unseen = self._unseen, seen_by_next(self.seen, former).unseen
            if former is not None and self._unseen != own:
                log.warning("clock.unseen", from_ms=former.until_ms, to_ms=self.now().seen_ms)
            return
        self._is_continued = True
        now_ms = self.now().seen_ms
        self._unseen = seen_by_heir(former, now_ms).unseen
        if former is None or former.until_ms > now_ms:
            lease = "nor does a lease" if former is None else "and by the lease it is later than by this clock"
            reason = f"state.dir has no time before, {lease}"
            log.info("clock.begun", delays_count_from_ms=now_ms, reason=reason)
        else:
            log.info("clock.continued", seen_until_ms=former.until_ms, reason="the lease has the time before")
            self._log_gap(former)

    def now(self) -> TrashTime:
        """Return this moment.  A doubt lasts until the process ends: what others decided by this clock meanwhile has a time
        that is as doubtful."""
        now = self._reading()
        self._doubt = self._doubt or reason_to_doubt_clock(self._first, now)
        return TrashTime(
            now_ms=now.wall_ms,
            doubt=self._doubt,
            unseen=self._unseen,
            seen_ms=self._first.wall_ms + self._passed_ms(now),
        )

    @property
    def seen(self) -> SeenTime:
        """Return what was seen until now.  A jump of the wall clock is not: the monotonic one counts."""
        return SeenTime(until_ms=self.now().seen_ms, unseen=self._unseen)

    async def keep(self) -> None:
        """Keep what was seen; never ends."""
        while True:
            await self.note()
            await self._clock.sleep(_KEEP_INTERVAL_S)

    async def note(self) -> None:
        """Keep what was seen until now.  Not before it goes on from something: the process after this one would go on from
        nothing, though the lease says more."""
        if not self._is_continued:
            return
        try:
            await self._times.write(self.seen)
        except StateDirError as error:
            if str(error) != self._trouble:
                log.warning("seen_time.not_written", error=str(error))
            self._trouble = str(error)
        else:
            self._trouble = ""

    def _log_gap(self, former: SeenTime) -> None:
        if self._unseen != former.unseen:
            log.warning("clock.unseen", from_ms=former.until_ms, to_ms=self.now().seen_ms)

    def _passed_ms(self, now: ClockReading) -> int:
        return int((now.monotonic_s - self._first.monotonic_s) * 1000)

    def _reading(self) -> ClockReading:
        return ClockReading(wall_ms=self._clock.now_ms(), monotonic_s=self._clock.monotonic_s())
