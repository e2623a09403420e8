"""Local segments that could not be proven remote: trimming waits before them, and nothing else of their partition does (S-063).

A store may give one wrong byte, once, or have lost an object of a finished segment for good.  Either is told by name and tried
again, later each time; local data stay until then, so nothing is lost.
"""

from __future__ import annotations

import structlog

from tiersidecar.decide.trim import TrimStep
from tiersidecar.domain.errors import CorruptDataError, ObjectNotFoundError, StoreError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.ports.clock import Clock, Ids
from tiersidecar.ports.metrics.retention import TRIM_REFUSALS
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.tasks.lanes import Backoff
from tiersidecar.tasks.partition_table import PartitionTable, UnprovenCopy

log = structlog.get_logger(__name__)

_BACKOFF, _AWAY = Backoff(initial_s=5.0, maximum_s=300.0), Backoff(initial_s=5.0, maximum_s=30.0)
"""Of what is damaged, and of what the store does not give: it may be back in a moment."""

NotProven = CorruptDataError | StoreError
"""What another look may mend, or a repair."""


class Unproven:
    """The first such segment of each partition: beyond it nothing is trimmed anyway."""

    def __init__(self, *, table: PartitionTable, clock: Clock, ids: Ids, telemetry: Telemetry) -> None:
        self._table, self._clock, self._ids, self._telemetry = table, clock, ids, telemetry

    def is_resting(self, topic_id_partition: TopicIdPartition, base_offset: int) -> bool:
        """Whether the local segment at ``base_offset`` cannot be trimmed before the next try is due."""
        found = self._table.record(topic_id_partition).unproven
        return found is not None and base_offset >= found.base_offset and self._clock.monotonic_s() < found.until_s

    def failed(self, topic_id_partition: TopicIdPartition, step: TrimStep, error: NotProven) -> None:
        """The remote copy of ``step`` could not be read back, or holds something else."""
        base_offset, known, reason = (
            step.local.base_offset,
            self._table.record(topic_id_partition).unproven,
            _reason(error),
        )
        failures = known.failures + 1 if known is not None and known.base_offset == base_offset else 1
        delay_s = (_AWAY if _is_away(error) else _BACKOFF).delay_s(failures, self._ids.random())
        self._telemetry.count(TRIM_REFUSALS, topic=topic_id_partition.topic, reason=reason)
        self._table.record(topic_id_partition).unproven = UnprovenCopy(
            base_offset=base_offset,
            failures=failures,
            until_s=self._clock.monotonic_s() + delay_s,
            reason=f"trimming waits before offset {base_offset}, whose remote copy is {reason}: {error}; it is looked at "
            "again, and `tiersidecar reconcile` tells what is damaged",
        )
        log.error(
            "trim.read_back.failed",
            topic=topic_id_partition.topic,
            partition=topic_id_partition.partition,
            base_offset=base_offset,
            segment_ids=[str(one.remote_log_segment_id) for one in step.remote],
            reason=reason,
            error=str(error),
            failures=failures,
            backoff_ms=int(delay_s * 1000),
        )

    def proven(self, topic_id_partition: TopicIdPartition, step: TrimStep) -> None:
        """All is well with ``step``."""
        found = self._table.record(topic_id_partition).unproven
        if found is None or step.local.base_offset < found.base_offset:
            return
        self._table.record(topic_id_partition).unproven = None
        log.info(
            "trim.read_back.mended",
            topic=topic_id_partition.topic,
            partition=topic_id_partition.partition,
            base_offset=step.local.base_offset,
        )

    def gone(self, topic_id_partition: TopicIdPartition, log_start_offset: int) -> None:
        """The local log begins at ``log_start_offset``: what lay below it waits for nothing any more."""
        found = self._table.record(topic_id_partition).unproven
        if found is not None and found.base_offset < log_start_offset:
            self._table.record(topic_id_partition).unproven = None


def _reason(error: NotProven) -> str:
    if isinstance(error, ObjectNotFoundError):
        return "missing"
    return "unreadable" if isinstance(error, StoreError) else "corrupt"


def _is_away(error: NotProven) -> bool:
    return isinstance(error, StoreError) and not isinstance(error, ObjectNotFoundError)
