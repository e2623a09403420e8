"""The watch of the tier role (the rest of it is shown on real brokers)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from tests.support.expiry_world import Sidecar, StoppedClock, World
from tests.support.lane_parts import AllDue, edges_of, sources_of
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.pins import local_partition
from tests.support.segments import TOPIC_ID_PARTITION, local_segments
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.decide.backfill import BackfillOrder
from tiersidecar.decide.topics import TieredPartition
from tiersidecar.domain.offsets import Lineage
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.ports.log_dirs import LogDirsView
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.tasks.copy_admission import Backfill, CopyLagReport
from tiersidecar.tasks.lanes import Backoff, Lane, Lanes
from tiersidecar.tasks.watch import LaneSpec, LaneTurns, Watch

PARTITIONS = 640


class Nothing:
    """Roster and checks with nothing to say."""

    async def look(self) -> tuple[TieredPartition, ...]:
        return ()

    async def refresh(self, topics: object) -> None:
        return None


async def test_a_look_at_many_partitions_lets_others_run() -> None:
    """4,000 take a tenth of a second: a gateway in the same process would answer nobody for so long, at each file event."""
    topic_id_partitions = [replace(TOPIC_ID_PARTITION, partition=number) for number in range(PARTITIONS)]
    sidecar = Sidecar(World(), policy=TopicPolicy(), lineage=Lineage.of([(0, 0)]), clock=StoppedClock())
    table, metadata, telemetry = sidecar.table, MemoryMetadataLog(), NoTelemetry()
    await metadata.assign(topic_id_partitions)
    table.local = LogDirsView(
        partitions={
            topic_id_partition: local_partition(local_segments(0, 100, 200), topic_id_partition=topic_id_partition)
            for topic_id_partition in topic_id_partitions
        },
        faults={},
    )
    view = sidecar.partition.view
    table.assignment = {
        topic_id_partition: replace(sidecar.partition, view=replace(view, topic_id_partition=topic_id_partition))
        for topic_id_partition in topic_id_partitions
    }
    lag = CopyLagReport(table=table, metadata=metadata, clock=sidecar.clock, telemetry=telemetry)
    nothing: Any = Nothing()
    due: Any = AllDue(table)

    async def never(partition: TieredPartition) -> None:
        raise AssertionError("nobody has work")

    async with Lanes(clock=sidecar.clock, ids=SystemIds(), telemetry=telemetry, backoff=Backoff()) as lanes:
        watch = Watch(
            sources=sources_of(table=table, broker=nothing, metadata=metadata),
            edges=edges_of(sidecar.clock, telemetry=telemetry),
            roster=nothing,
            checks=nothing,
            backfill=Backfill(
                lags=lag, threshold=5, order=BackfillOrder.OLDEST, clock=sidecar.clock, telemetry=telemetry
            ),
            turns=LaneTurns(
                lanes=lanes,
                due=due,
                work={
                    lane: LaneSpec(run=never, has_work=lambda partition: False)
                    for lane in (Lane.FOLLOW, Lane.RECOPY, Lane.COPY, Lane.RETAIN)
                },
            ),
            report=lambda: None,
        )
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        meanwhile = asyncio.create_task(other())
        await watch.look()
        meanwhile.cancel()
    assert len(lag.known) == PARTITIONS
    assert turns >= 2 * PARTITIONS // 64
