"""Rounds of looking, by the daemon's own roster in this process: a real broker's answer, a log dir, and the assignment.

What the daemon does with what a round has found is measured on the daemon.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

from benchmarks.support.scale_cluster import ScaleCluster
from tests.support.lane_parts import edges_of
from tiersidecar.adapters.clock import SystemClock, ThreadBlocking
from tiersidecar.adapters.kafka.broker import open_broker
from tiersidecar.adapters.log_dirs_fs.log_dirs import FilesystemLogDirs
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.roster import Roster

_EVENTS_WITHIN_S = 1.0
_ROUNDS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """CPU seconds of a round of each kind."""

    of_everything: float
    nothing_changed: float
    some_changed: float


async def looks_at(cluster: ScaleCluster, change: Callable[[], None]) -> Looks:
    """Look where nothing has changed, and after ``change``, which is called once."""
    table, topics = PartitionTable(), frozenset(cluster.topics)
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(open_broker(cluster.kafka.bootstrap_servers))
        blocking = await stack.enter_async_context(ThreadBlocking(max_threads=4))
        clock = SystemClock()
        roster = Roster(
            table=table,
            log_dirs=FilesystemLogDirs([str(cluster.log_dir)], blocking=blocking, clock=clock, whole_every_s=3600.0),
            broker=broker,
            assignment=_NoMetadata(),
            policy_for=lambda topic: TopicPolicy() if topic in topics else None,
            broker_id=BrokerId(1),
            edges=edges_of(clock, blocking=blocking),
            forget=lambda owner: None,
        )
        following = asyncio.create_task(roster.follow_changes())
        try:
            await roster.look()
            of_everything = await _cpu_s(roster.look)
            if len(table.assignment) != len(cluster.owners):
                raise RuntimeError(f"{len(table.assignment)} partitions instead of {len(cluster.owners)}")
            nothing_changed = min([await _cpu_s(roster.look) for _ in range(_ROUNDS)])
            before = table.local
            change()
            await asyncio.sleep(_EVENTS_WITHIN_S)
            some_changed = await _cpu_s(roster.look)
            if table.local is before:
                raise RuntimeError("the round after a change has found none")
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
    return Looks(of_everything=of_everything, nothing_changed=nothing_changed, some_changed=some_changed)


class _NoMetadata:
    """The daemon's replica is measured by itself: here nothing is kept of what is assigned."""

    async def assign(self, partitions: Iterable[TopicIdPartition]) -> None:
        pass

    async def wait_until_ready(self, topic_id_partition: TopicIdPartition) -> None:
        pass


async def _cpu_s(work: Callable[[], Awaitable[object]]) -> float:
    """Of this process and all its threads: what else runs on the machine does not count."""
    began_s = time.process_time()
    await work()
    return time.process_time() - began_s
