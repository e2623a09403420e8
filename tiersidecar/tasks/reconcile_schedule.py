"""Starts ``tiersidecar reconcile`` when the last run is older than the interval, on one sidecar of the cluster.

That one is beside the leader of the metadata topic's partition 0: no setting of its own, and it moves when that broker dies.
The end of a run stands in the store, so the next sidecar in this place knows it.  Two that both take it for theirs run twice,
which does no harm.

The findings of the last reconcile run, as metrics: read from the summary that it put into the store.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from tiersidecar.decide.reconcile_findings import FindingKind
from tiersidecar.domain.errors import ObjectNotFoundError, ObjectTooLargeError, RetriableError, StoreError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.own_objects import LATEST_REPORT, MOST_REPORT_BYTES
from tiersidecar.ports.broker import DescribePartitions
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.process import RECONCILE_AGE, RECONCILE_FINDINGS, RECONCILE_RUNS
from tiersidecar.ports.programs import ProgramEnd
from tiersidecar.ports.store import FetchRange
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.tasks.edges import Edges


class ReconcileWatch:
    """One small request each ``interval_s``; a store that is away, or a summary that cannot be read, changes nothing."""

    def __init__(self, *, store: FetchRange, key_prefix: str, clock: Clock, telemetry: Telemetry) -> None:
        self._store, self._key, self._clock, self._telemetry = store, f"{key_prefix}{LATEST_REPORT}", clock, telemetry

    async def run(self, interval_s: float) -> None:
        """Look, until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(interval_s)

    async def look(self) -> None:
        """Set the metrics by what is there now."""
        try:
            summary = json.loads(await self._store.fetch_object(self._key, max_bytes=MOST_REPORT_BYTES))
            finished_ms, findings = _read(summary)
        except ObjectNotFoundError:
            return
        except ObjectTooLargeError as error:
            log.warning("reconcile.summary.unreadable", key=self._key, reason=error.reason)
            return
        except StoreError as error:
            log.info("reconcile.summary.unreachable", key=self._key, reason=error.reason)
            return
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            log.warning("reconcile.summary.unreadable", key=self._key, reason=repr(error))
            return
        self._telemetry.gauge(RECONCILE_AGE, max(0.0, (self._clock.now_ms() - finished_ms) / 1000))
        for kind in FindingKind:
            self._telemetry.gauge(RECONCILE_FINDINGS, findings.get(kind.value, 0), kind=kind.value)


def _read(summary: object) -> tuple[int, Mapping[str, int]]:
    if not isinstance(summary, dict):
        raise TypeError("not an object")
    findings = {str(kind): _int64(count) for kind, count in dict(summary["findings"]).items()}
    return _int64(summary["finished_ms"]), findings


def _int64(said: Any) -> int:
    """Return the number.  Raises ValueError: no float can be made of it."""
    if not -(2**63) <= (number := int(said)) < 2**63:
        raise ValueError("a number out of range")
    return number


log = structlog.get_logger(__name__)

LOOK_INTERVAL_S = 60.0
FAILED_PAUSE_S = 3600.0
"""Pause after a run that failed, unless the interval is shorter."""
_OUTCOMES = {0: "clean", 3: "findings"}
FAILED = "failed"


class ReconcileSchedule:
    """``program`` runs reconcile to its end, on idle CPU and I/O; ``interval_s`` is between that and the next run's start."""

    def __init__(
        self,
        *,
        broker: DescribePartitions,
        store: FetchRange,
        key_prefix: str,
        program: Callable[[], Awaitable[ProgramEnd]],
        metadata_topic: str,
        broker_id: BrokerId,
        interval_s: float,
        edges: Edges,
    ) -> None:
        self._broker, self._store, self._key = broker, store, f"{key_prefix}{LATEST_REPORT}"
        self._program = program
        self._metadata_topic, self._broker_id, self._interval_s = metadata_topic, broker_id, interval_s
        self._clock, self._telemetry = edges.clock, edges.telemetry
        self._not_before_s = 0.0
        for outcome in (*_OUTCOMES.values(), FAILED):  # a series that begins with its first event shows no increase
            edges.telemetry.count(RECONCILE_RUNS, 0, outcome=outcome)

    async def run(self) -> None:
        """Look every minute, until cancelled; a run in progress ends with us."""
        while True:
            await self.look()
            await self._clock.sleep(min(LOOK_INTERVAL_S, self._interval_s))

    async def look(self) -> None:
        """Look once, and run once if it is time."""
        try:
            if self._clock.monotonic_s() < self._not_before_s or not await self._is_ours() or not await self._is_due():
                return
        except RetriableError as error:
            log.info("reconcile.schedule.unsure", reason=str(error))
            return
        outcome = await self._run()
        self._telemetry.count(RECONCILE_RUNS, outcome=outcome)
        pause_s = min(FAILED_PAUSE_S, self._interval_s) if outcome == FAILED else self._interval_s
        self._not_before_s = self._clock.monotonic_s() + pause_s

    async def _is_ours(self) -> bool:
        views = await self._broker.describe_partitions([self._metadata_topic])
        return any(view.topic_id_partition.partition == 0 and view.leader_id == self._broker_id for view in views)

    async def _is_due(self) -> bool:
        try:
            data = await self._store.fetch_object(self._key, max_bytes=MOST_REPORT_BYTES)
            finished_ms = int(json.loads(data)["finished_ms"])
        except (ObjectNotFoundError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
            return True  # never, or by a version that says it otherwise
        except ObjectTooLargeError as error:
            log.warning("reconcile.summary.unreadable", key=self._key, reason=error.reason)
            return True  # the run that is due puts another in its place
        return self._clock.now_ms() - finished_ms >= self._interval_s * 1000

    async def _run(self) -> str:
        log.info("reconcile.run.started")
        began_s = self._clock.monotonic_s()
        try:
            end = await self._program()
        except OSError as error:
            end = ProgramEnd(code=-1, said=str(error))
        outcome = _OUTCOMES.get(end.code, FAILED)
        elapsed_ms = int((self._clock.monotonic_s() - began_s) * 1000)
        if outcome == FAILED:
            log.error("reconcile.run.failed", exit_code=end.code, said=end.said, elapsed_ms=elapsed_ms)
        else:
            log.info("reconcile.run.finished", outcome=outcome, elapsed_ms=elapsed_ms)
        return outcome
