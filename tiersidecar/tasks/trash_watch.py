"""How long what is in the trash has been kept beyond its time, as a metric: by the wall clock it is due, but nobody saw its
delay pass."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Protocol

from tiersidecar.decide.topics import PartitionRole
from tiersidecar.domain.errors import RetriableError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.trash import TrashEntry
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.retention import TRASH_OVERDUE_SECONDS
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.tasks.board import Board
from tiersidecar.tasks.trash_clock import TrashClock

_PARTITIONS_AT_ONCE = 50


class KnownTrash(Protocol):
    """``StateLog`` and ``TrashLog``, as far as it is asked."""

    def partition_state(self, topic_id_partition: TopicIdPartition) -> PartitionState: ...

    def trash(self, topic_id_partition: TopicIdPartition) -> Sequence[TrashEntry]: ...

    def trash_partitions(self) -> Sequence[TopicIdPartition]: ...


class TrashWatch:
    """Looks at partitions that are led here, and at those of topics that are gone: any sidecar may delete these."""

    def __init__(
        self, *, board: Board, state: KnownTrash, trash_clock: TrashClock, clock: Clock, telemetry: Telemetry
    ) -> None:
        self._board, self._state, self._trash_clock = board, state, trash_clock
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
        longest_ms, existing = 0, frozenset(self._board.topic_ids.values())
        try:
            for number, tip in enumerate(self._state.trash_partitions()):
                if number % _PARTITIONS_AT_ONCE == 0:
                    await asyncio.sleep(0)
                if not self._is_ours(tip, existing):
                    continue
                time, generation = self._trash_clock.now(), self._state.partition_state(tip).start_generation
                waiting = [one for one in self._state.trash(tip) if not one.is_undone(generation)]
                longest_ms = max(longest_ms, *map(time.overdue_ms, waiting), 0)
        except RetriableError:
            return
        self._telemetry.gauge(TRASH_OVERDUE_SECONDS, longest_ms / 1000)

    def _is_ours(self, tip: TopicIdPartition, existing: Collection[Uuid]) -> bool:
        tiered = self._board.assignment.get(tip)
        return tip.topic_id not in existing if tiered is None else tiered.role is PartitionRole.LEADER
