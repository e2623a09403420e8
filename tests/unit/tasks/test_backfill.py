"""The backfill keeps to its own rate and leaves the rest alone; gauges and log say how long it takes."""

from __future__ import annotations

import asyncio
from math import isnan

import pytest
from structlog.testing import capture_logs

from tests.support.manual_clock import ManualClock, settle
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.segments import TOPIC_ID_PARTITION, local_segments
from tests.unit.tasks.test_store_gate import Store
from tiersidecar.decide.backfill import BackfillOrder
from tiersidecar.decide.quota import RateQuota
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.ids import DEFAULT_PLACE, BrokerId
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import LeaderView, LocalPartition
from tiersidecar.ports.log_dirs import LogDirsView
from tiersidecar.ports.metrics.copying import BACKFILL_BYTES, BACKFILL_ETA, COPY_LAG_SECONDS
from tiersidecar.ports.telemetry import Metric, NoTelemetry
from tiersidecar.tasks.copy_admission import Backfill, CopyAdmission, CopyLagReport, CopyQuota, CopySlots
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.store_gates import StoreGates

SEGMENT_BYTES = 100
VIEW = LeaderView(
    topic_id_partition=TOPIC_ID_PARTITION,
    leader_id=BrokerId(1),
    leader_epoch=LeaderEpoch(0),
    replicas=(BrokerId(1),),
    in_sync_replicas=(BrokerId(1),),
)
TIERED = TieredPartition(view=VIEW, role=PartitionRole.LEADER, policy=TopicPolicy())


class Gauges(NoTelemetry):
    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        self.values[metric.name] = value


class Scene:
    """One led partition with a backlog of ``sealed`` segments, of which ``copied`` are remote."""

    def __init__(self) -> None:
        self.clock, self.gauges, self.table = ManualClock(), Gauges(), PartitionTable()
        self.table.assignment = {TOPIC_ID_PARTITION: TIERED}
        self.metadata = MemoryMetadataLog()
        self.lags = CopyLagReport(table=self.table, metadata=self.metadata, clock=self.clock, telemetry=self.gauges)
        self.backfill = Backfill(
            lags=self.lags, threshold=5, order=BackfillOrder.OLDEST, clock=self.clock, telemetry=self.gauges
        )

    def look(self, sealed: int, copied: int) -> None:
        segments = local_segments(*range(0, 10 * sealed + 10, 10), modified_ms=self.clock.now_ms() - 7000)
        local = LocalPartition(
            topic_id_partition=TOPIC_ID_PARTITION,
            log_dir="/logs",
            directory="/logs/orders-3",
            segments=segments,
            leader_epochs=(EpochEntry(LeaderEpoch(0), Offset(0)),),
        )
        self.table.local = LogDirsView(partitions={TOPIC_ID_PARTITION: local}, faults={})
        self.table.record(TOPIC_ID_PARTITION).copied_offset = 10 * copied - 1
        self.lags.report(TIERED)
        self.backfill.look()


def test_the_lag_is_told_in_bytes_and_seconds_whoever_copies() -> None:
    """U18."""
    scene = Scene()
    scene.look(sealed=3, copied=1)
    assert scene.gauges.values[COPY_LAG_SECONDS.name] == 7
    scene.look(sealed=3, copied=3)
    assert scene.gauges.values[COPY_LAG_SECONDS.name] == 0


async def test_eta_is_what_remains_at_the_rate_so_far() -> None:
    scene = Scene()
    scene.look(sealed=100, copied=0)
    assert scene.gauges.values[BACKFILL_BYTES.name] == 10_000
    assert isnan(scene.gauges.values[BACKFILL_ETA.name]), "nothing tells how fast it goes"
    for _ in range(10):
        await scene.clock.advance(10)
        scene.backfill.copied(SEGMENT_BYTES)
    scene.look(sealed=100, copied=10)
    assert scene.gauges.values[BACKFILL_ETA.name] == pytest.approx(9_000 / 10)


async def test_the_log_tells_it_once_a_minute_and_when_it_is_over() -> None:
    scene = Scene()
    with capture_logs() as logs:
        for copied in range(13):
            scene.look(sealed=12, copied=copied)
            await scene.clock.advance(20)
    events = [log["event"] for log in logs]
    assert events == ["copy.backfill.progress"] * 3 + ["copy.backfill.finished"]
    assert [log["remaining_bytes"] for log in logs[:3]] == [1200, 900, 600]
    assert scene.gauges.values[BACKFILL_ETA.name] == 0


async def test_a_partition_that_is_led_no_more_is_no_backlog() -> None:
    scene = Scene()
    scene.look(sealed=100, copied=0)
    scene.table.assignment = {}
    scene.backfill.look()
    assert scene.gauges.values[BACKFILL_BYTES.name] == 0


async def admit(admission: CopyAdmission, count: int) -> None:
    for _ in range(count):
        async with admission.admitted(TOPIC_ID_PARTITION, SEGMENT_BYTES):
            pass


@pytest.mark.parametrize(("sealed", "at_once"), [(100, 13), (3, 20)], ids=["in backfill", "not in backfill"])
async def test_only_a_backfill_keeps_to_its_rate(sealed: int, at_once: int) -> None:
    """100 B/s over Kafka's 11 windows: the first copies are let in until the average is above it."""
    scene = Scene()
    scene.look(sealed=sealed, copied=0)
    admission = CopyAdmission(
        slots=CopySlots(10),
        quota=CopyQuota(quota=RateQuota(), clock=scene.clock),
        backfill=scene.backfill,
        backfill_quota=CopyQuota(quota=RateQuota(bytes_per_s=100), clock=scene.clock),
        gates=StoreGates({DEFAULT_PLACE: Store(scene.clock)}, lambda topic: DEFAULT_PLACE, clock=scene.clock),
    )
    done = 0

    async def copies() -> None:
        nonlocal done
        for _ in range(20):
            await admit(admission, 1)
            done += 1

    task = asyncio.ensure_future(copies())
    await scene.clock.advance(10.5)
    await settle(200)
    assert done == pytest.approx(at_once, abs=2)
    task.cancel()
    await settle()
