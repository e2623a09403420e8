"""Watch the broker's log starts: above everything that a sidecar meant to trim, something else deletes local data.

A ``retention.ms`` that tooling put back, or a DeleteRecords sent straight to the broker.  It is an alarm and nothing more: the
broker's log start is never evidence of a user's delete (DESIGN.md section 5).
"""

from __future__ import annotations

import asyncio

import structlog

from tiersidecar.decide.topics import PartitionRole
from tiersidecar.domain.errors import RetriableError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.policy import RetentionMode
from tiersidecar.ports.broker import ListOffsets, OffsetSpec
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.retention import LOG_START_UNEXPLAINED
from tiersidecar.ports.state_log import StateLog
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.tasks.board import Board

log = structlog.get_logger(__name__)

_PARTITIONS_IN_ONE_GO = 64
"""About a millisecond between two looks at the loop."""


class LogStartWatch:
    """One question for all partitions that this broker leads in strict mode."""

    def __init__(
        self, *, board: Board, broker: ListOffsets, state: StateLog, clock: Clock, telemetry: Telemetry
    ) -> None:
        self._board, self._broker, self._state = board, broker, state
        self._clock, self._telemetry = clock, telemetry
        self._first_seen: dict[TopicIdPartition, int] = {}
        self._alarmed: dict[TopicIdPartition, int] = {}

    async def run(self, interval_s: float) -> None:
        """Look every ``interval_s`` until cancelled."""
        while True:
            try:
                await self.look()
            except RetriableError as error:
                log.debug("log_start.watch.retry", error=str(error))
            await self._clock.sleep(interval_s)

    async def look(self) -> None:
        """Ask once.

        Raises:
            RetriableError: broker or state topic are away.
        """
        led = self._led()
        for known in (self._first_seen, self._alarmed):
            for gone in known.keys() - led.keys():
                del known[gone]
        if not led:
            return
        answers = await self._broker.list_offsets(led, OffsetSpec.EARLIEST)
        for number, (tip, answer) in enumerate(answers.items(), 1):
            if number % _PARTITIONS_IN_ONE_GO == 0:
                await asyncio.sleep(0)
            if answer.error is None:
                self._judge(tip, answer.offset)

    def _led(self) -> dict[TopicIdPartition, LeaderEpoch]:
        return {
            tip: tiered.view.leader_epoch
            for tip, tiered in self._board.assignment.items()
            if tiered.role is PartitionRole.LEADER and tiered.policy.mode is RetentionMode.STRICT
        }

    def _judge(self, tip: TopicIdPartition, log_start_offset: Offset) -> None:
        self._board.log_start_offsets[tip] = log_start_offset
        state = self._state.partition_state(tip)
        # Until our first trim whatever was there when we came is no news.
        first_seen = self._first_seen.setdefault(tip, log_start_offset)
        # Each as far as it holds in this history: what was meant before an unclean election may be above all of it.
        lineage = self._board.lineage_on_disk(tip)
        trimmed = lineage.as_of(state.trim_offset, state.trim_epoch) if state.trim_offset >= 0 else first_seen
        meant = max(state.start_in(lineage), trimmed)
        is_unexplained = log_start_offset > meant
        labels = {"topic": tip.topic, "partition": str(tip.partition)}
        self._telemetry.gauge(LOG_START_UNEXPLAINED, 1 if is_unexplained else 0, **labels)
        if not is_unexplained:
            self._alarmed.pop(tip, None)
            return
        if self._alarmed.get(tip) == log_start_offset:
            return
        self._alarmed[tip] = log_start_offset
        copied_offset = self._board.copied_offsets.get(tip, -1)
        log.error(
            "log_start.unexplained",
            **labels,
            log_start_offset=log_start_offset,
            trim_offset=meant,
            lost_offsets=max(log_start_offset - max(copied_offset + 1, meant), 0),
            reason="something other than a sidecar deleted local data; nothing remote goes because of it",
        )
