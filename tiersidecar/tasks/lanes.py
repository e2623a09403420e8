"""Lanes: at most one running step per partition and purpose, and what becomes of an error in it.

A lane exists only while it has work: the watch starts one, it works until nothing is left, and ends.  All lanes live in
one TaskGroup, so that ending the process cancels them all at their next await; every step is safe to abandon there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType

import structlog

from tiersidecar.domain.errors import FatalError, PartitionHaltedError, RetriableError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.ports.clock import Clock, Ids
from tiersidecar.ports.metrics.process import HALTED_PARTITIONS
from tiersidecar.ports.telemetry import Telemetry

log = structlog.get_logger(__name__)


class Lane(StrEnum):
    """Purposes of a partition's lanes: they cannot hold each other up."""

    COPY = "copy"
    RETAIN = "retain"
    FOLLOW = "follow"
    RECOPY = "recopy"
    CLEAN = "clean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """``remote.log.manager.task.retry.backoff.ms`` doubling up to ``.max.ms``, with jitter; ``halted_s`` after an error
    that does not mend itself."""

    initial_s: float = 0.5
    maximum_s: float = 30.0
    jitter: float = 0.2
    halted_s: float = 300.0

    def delay_s(self, failures: int, random: float) -> float:
        """Return the seconds to wait after the ``failures``-th failure in a row; ``random`` is uniform in [0, 1)."""
        plain = min(self.initial_s * 2.0 ** min(failures - 1, 30), self.maximum_s)
        return plain * (1 + self.jitter * (2 * random - 1))


@dataclass(slots=True)
class _Record:
    """State of a lane and its last runs."""

    failures: int = 0
    not_before_s: float = 0.0
    halted: str = ""
    trouble: str = ""


LaneKey = tuple[TopicIdPartition, Lane]


class Lanes:
    """Starts, watches and stops lanes; use as an async context manager.

    ``has_logged`` says of a retriable error whether it is part of an outage that is logged elsewhere: of thousands of lanes
    each would log it at each retry."""

    def __init__(
        self,
        *,
        clock: Clock,
        ids: Ids,
        telemetry: Telemetry,
        backoff: Backoff,
        has_logged: Callable[[Exception], bool] = lambda error: False,
    ) -> None:
        self._clock, self._ids, self._telemetry, self._backoff = clock, ids, telemetry, backoff
        self._has_logged = has_logged
        self._group = asyncio.TaskGroup()
        self._running: dict[LaneKey, asyncio.Task[None]] = {}
        self._records: dict[LaneKey, _Record] = {}
        self._ended_lately: set[TopicIdPartition] = set()
        self._failed: set[LaneKey] = set()
        self.turns = 0
        """Count of lanes' begins and ends."""

    async def __aenter__(self) -> Lanes:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._running.values():
            task.cancel()
        await self._group.__aexit__(kind, error, trace)

    def start(
        self,
        partition: TopicIdPartition,
        lane: Lane,
        work: Callable[[], Awaitable[None]],
        name: str,
        *,
        may_act: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Run ``work`` in this lane, unless it runs already or still backs off; return whether it was started.

        A run that may not act, before it or after it, returns early with nothing done, and so ends no halt.
        """
        key = (partition, lane)
        record = self._records.setdefault(key, _Record())
        if key in self._running or self._clock.monotonic_s() < record.not_before_s:
            return False
        task = self._group.create_task(self._run(key, record, work, may_act), name=name)
        self._running[key] = task
        self.turns += 1
        task.add_done_callback(lambda done: self._ended(key, done))
        return True

    def stop(self, partition: TopicIdPartition) -> None:
        """Cancel the partition's lanes at their next await, and forget its troubles."""
        for lane in Lane:
            task = self._running.get((partition, lane))
            if task is not None:
                task.cancel()
            self._records.pop((partition, lane), None)
            self._failed.discard((partition, lane))
        self._telemetry.forget(HALTED_PARTITIONS, topic=partition.topic, partition=str(partition.partition))

    def running(self, partition: TopicIdPartition) -> tuple[Lane, ...]:
        """Return lanes of the partition that run right now."""
        return tuple(lane for lane in Lane if (partition, lane) in self._running)

    def take_restless(self) -> set[TopicIdPartition]:
        """Return partitions of which a lane has ended since this was asked last, and those of which one has failed and not
        succeeded since: it is to be started again."""
        ended, self._ended_lately = self._ended_lately, set()
        return ended | {partition for partition, _ in self._failed}

    def any_running(self) -> bool:
        return bool(self._running)

    def halted(self, partition: TopicIdPartition) -> str:
        """Return why the partition is parked; empty when it is not."""
        return "; ".join(r.halted for lane in Lane if (r := self._records.get((partition, lane))) and r.halted)

    def why_halted(self, partition: TopicIdPartition, lane: Lane) -> str:
        """Return why that lane is parked, empty when it is not: what it does is not done, until it has succeeded once."""
        record = self._records.get((partition, lane))
        return "" if record is None else record.halted

    def reason_at_rest(self, partition: TopicIdPartition, lane: Lane) -> str:
        """Return what became of that lane's last run, where it failed: it is parked, or backs off; empty after one that
        succeeded."""
        record = self._records.get((partition, lane))
        if record is None:
            return ""
        return f"the partition is halted: {record.halted}" if record.halted else record.trouble

    def trouble(self, partition: TopicIdPartition) -> str:
        """Return the last retriable error of a lane that has not succeeded since; empty when there is none."""
        return "; ".join(r.trouble for lane in Lane if (r := self._records.get((partition, lane))) and r.trouble)

    def _ended(self, key: LaneKey, task: asyncio.Task[None]) -> None:
        self.turns += 1
        self._ended_lately.add(key[0])
        if self._running.get(key) is task:
            del self._running[key]

    async def _run(
        self, key: LaneKey, record: _Record, work: Callable[[], Awaitable[None]], may_act: Callable[[], bool]
    ) -> None:
        """Run ``work``, and decide by an error's type what becomes of it: in this one place."""
        partition, lane = key
        bound = log.bind(topic=partition.topic, partition=partition.partition, lane=lane.value)
        ends_halt = bool(record.halted) and may_act()
        try:
            await work()
        except RetriableError as error:
            record.failures += 1
            record.trouble = str(error)
            delay_s = self._backoff.delay_s(record.failures, self._ids.random())
            record.not_before_s = self._clock.monotonic_s() + delay_s
            say = bound.debug if self._has_logged(error) else bound.warning
            say("lane.retry", error=str(error), failures=record.failures, backoff_ms=int(delay_s * 1000))
        except PartitionHaltedError as error:
            is_known = record.halted == str(error)
            backoff = self._backoff
            self._halt(key, record, str(error), backoff.maximum_s if error.is_watched else backoff.halted_s)
            (bound.debug if is_known else bound.error)("lane.halted", error=str(error))
        except FatalError:
            raise
        except Exception as error:  # noqa: BLE001  a bug in one partition must not take the others down
            self._halt(key, record, f"unexpected {type(error).__name__}: {error}", self._backoff.halted_s)
            bound.exception("lane.halted", error=str(error))
        else:
            self._succeeded(key, record, ends_halt=ends_halt and may_act())
        if self._records.get(key) is record:  # else the partition has been stopped meanwhile
            (self._failed.add if record.halted or record.failures else self._failed.discard)(key)

    def _halt(self, key: LaneKey, record: _Record, reason: str, delay_s: float) -> None:
        record.halted = reason
        record.not_before_s = self._clock.monotonic_s() + delay_s
        self._telemetry.gauge(HALTED_PARTITIONS, 1, topic=key[0].topic, partition=str(key[0].partition))

    def _succeeded(self, key: LaneKey, record: _Record, *, ends_halt: bool) -> None:
        record.failures, record.not_before_s, record.trouble = 0, 0.0, ""
        if ends_halt:
            record.halted = ""
            if not self.halted(key[0]):
                self._telemetry.gauge(HALTED_PARTITIONS, 0, topic=key[0].topic, partition=str(key[0].partition))
