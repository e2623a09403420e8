"""Tell of led partitions whose directory is not here, or is not the one that the broker writes: nothing is done with them."""

from __future__ import annotations

import structlog

from tiersidecar.decide.place import TELL_AFTER_S, reason_to_doubt_directory, reason_unseen
from tiersidecar.decide.topics import PartitionRole
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.process import MISPLACED_PARTITIONS
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.tasks.board import Board

log = structlog.get_logger(__name__)


class Whereabouts:
    """Keeps ``board.misplaced`` true, of what has lasted for ``TELL_AFTER_S``; each is told once."""

    def __init__(self, *, board: Board, clock: Clock, telemetry: Telemetry) -> None:
        self._board, self._clock, self._telemetry = board, clock, telemetry
        self._since_s: dict[TopicIdPartition, float] = {}

    def look(self) -> None:
        """Compare what the roster and the topic checks have just found."""
        now_s, reasons = self._clock.monotonic_s(), self._reasons()
        self._since_s = {tip: self._since_s.get(tip, now_s) for tip in reasons}
        lasting = {tip: why for tip, why in reasons.items() if now_s - self._since_s[tip] >= TELL_AFTER_S}
        before, self._board.misplaced = self._board.misplaced, lasting
        for tip in before.keys() - lasting.keys():
            self._telemetry.forget(MISPLACED_PARTITIONS, topic=tip.topic, partition=str(tip.partition))
            log.info("partition.misplaced.cleared", topic=tip.topic, partition=tip.partition)
        for tip in lasting.keys() - before.keys():
            self._telemetry.gauge(MISPLACED_PARTITIONS, 1, topic=tip.topic, partition=str(tip.partition))
            log.error("partition.misplaced", topic=tip.topic, partition=tip.partition, reason=lasting[tip])

    def _reasons(self) -> dict[TopicIdPartition, str]:
        reasons = dict.fromkeys(self._board.unseen, reason_unseen(self._board.local.faults))
        for tip, partition in self._board.assignment.items():
            local = self._board.local.partitions.get(tip)
            if partition.role is PartitionRole.LEADER and local is not None:
                reason = reason_to_doubt_directory(partition.view, local)
                if reason:
                    reasons[tip] = reason
        return {tip: reason for tip, reason in reasons.items() if tip.topic not in self._board.refused_topics}
