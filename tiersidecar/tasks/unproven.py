"""Local segments that could not be proven remote: trimming waits before them, and nothing else of their partition does (S-063).

A store may give one wrong byte, once, or have lost an object of a finished segment for good.  Either is told by name and tried
again, later each time; local data stay until then, so nothing is lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from tiersidecar.decide.trim import TrimStep
from tiersidecar.domain.errors import CorruptDataError, ObjectNotFoundError, StoreError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.ports.clock import Clock, Ids
from tiersidecar.ports.metrics.retention import TRIM_REFUSALS
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.tasks.board import Board, UnprovenFrom
from tiersidecar.tasks.lanes import Backoff

log = structlog.get_logger(__name__)

_BACKOFF, _AWAY = Backoff(initial_s=5.0, maximum_s=300.0), Backoff(initial_s=5.0, maximum_s=30.0)
"""Of what is damaged, and of what the store does not give: it may be back in a moment."""

NotProven = CorruptDataError | StoreError
"""What another look may mend, or a repair."""


@dataclass(slots=True)
class _Unproven:
    base_offset: int
    failures: int = 0
    until_s: float = 0.0


class Unproven:
    """The first such segment of each partition: beyond it nothing is trimmed anyway."""

    def __init__(self, *, board: Board, clock: Clock, ids: Ids, telemetry: Telemetry) -> None:
        self._board, self._clock, self._ids, self._telemetry = board, clock, ids, telemetry
        self._found: dict[TopicIdPartition, _Unproven] = {}

    def is_resting(self, tip: TopicIdPartition, base_offset: int) -> bool:
        """Whether the local segment at ``base_offset`` cannot be trimmed before the next try is due."""
        found = self._found.get(tip)
        return found is not None and base_offset >= found.base_offset and self._clock.monotonic_s() < found.until_s

    def failed(self, tip: TopicIdPartition, step: TrimStep, error: NotProven) -> None:
        """The remote copy of ``step`` could not be read back, or holds something else."""
        found = self._found.get(tip)
        if found is None or found.base_offset != step.local.base_offset:
            found = self._found[tip] = _Unproven(base_offset=step.local.base_offset)
        found.failures += 1
        delay_s = (_AWAY if _is_away(error) else _BACKOFF).delay_s(found.failures, self._ids.random())
        found.until_s = self._clock.monotonic_s() + delay_s
        reason = _reason(error)
        self._telemetry.count(TRIM_REFUSALS, topic=tip.topic, reason=reason)
        self._board.unproven_from[tip] = UnprovenFrom(found.base_offset, found.until_s)
        self._board.unproven[tip] = (
            f"trimming waits before offset {found.base_offset}, whose remote copy is {reason}: {error}; it is looked at again, "
            "and `tiersidecar reconcile` tells what is damaged"
        )
        log.error(
            "trim.read_back.failed",
            topic=tip.topic,
            partition=tip.partition,
            base_offset=found.base_offset,
            segment_ids=[str(one.remote_log_segment_id) for one in step.remote],
            reason=reason,
            error=str(error),
            failures=found.failures,
            backoff_ms=int(delay_s * 1000),
        )

    def proven(self, tip: TopicIdPartition, step: TrimStep) -> None:
        """All is well with ``step``."""
        found = self._found.get(tip)
        if found is None or step.local.base_offset < found.base_offset:
            return
        self._forget(tip)
        log.info("trim.read_back.mended", topic=tip.topic, partition=tip.partition, base_offset=step.local.base_offset)

    def gone(self, tip: TopicIdPartition, log_start_offset: int) -> None:
        """The local log begins at ``log_start_offset``: what lay below it waits for nothing any more."""
        found = self._found.get(tip)
        if found is not None and found.base_offset < log_start_offset:
            self._forget(tip)

    def _forget(self, tip: TopicIdPartition) -> None:
        del self._found[tip]
        self._board.unproven.pop(tip, None)
        self._board.unproven_from.pop(tip, None)


def _reason(error: NotProven) -> str:
    if isinstance(error, ObjectNotFoundError):
        return "missing"
    return "unreadable" if isinstance(error, StoreError) else "corrupt"


def _is_away(error: NotProven) -> bool:
    return isinstance(error, StoreError) and not isinstance(error, ObjectNotFoundError)
