"""When the daemon starts reconcile, and on which machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import pytest

from tests.support.lane_parts import edges_of
from tests.support.manual_clock import ManualClock
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.scripted import ScriptedBroker
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.domain.errors import BrokerUnreachableError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.own_objects import LATEST_REPORT, MOST_REPORT_BYTES
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.metrics.process import RECONCILE_RUNS
from tiersidecar.ports.programs import ProgramEnd
from tiersidecar.ports.store import BytesBody
from tiersidecar.tasks.reconcile_schedule import FAILED_PAUSE_S, ReconcileSchedule

ME, OTHER = BrokerId(1), BrokerId(2)
DAY_S = 86_400.0
COMMAND = ("tiersidecar", "reconcile")


@dataclass(slots=True)
class ScriptedPrograms:
    """Ends with ``code`` at once; puts the summary that a run would put, unless it fails."""

    world: World
    code: int | Exception = 0
    ran: list[Sequence[str]] = field(default_factory=list)

    async def run_idle(self, arguments: Sequence[str]) -> ProgramEnd:
        self.ran.append(arguments)
        if isinstance(self.code, Exception):
            raise self.code
        if self.code in {0, 3}:
            await self.world.put_summary(age_s=0)
        return ProgramEnd(code=self.code, said="said")


class World:
    def __init__(self) -> None:
        self.clock, self.telemetry = ManualClock(), RecordedTelemetry()
        self.store = MemoryStore(clock=self.clock, ids=SystemIds())
        self.broker, self.programs = ScriptedBroker(), ScriptedPrograms(self)
        self.lead(ME)
        self.schedule = ReconcileSchedule(
            broker=self.broker,
            store=self.store,
            key_prefix="p/",
            program=partial(self.programs.run_idle, COMMAND),
            metadata_topic="__remote_log_metadata",
            broker_id=ME,
            interval_s=DAY_S,
            edges=edges_of(self.clock, telemetry=self.telemetry),
        )

    def lead(self, *leaders: BrokerId) -> None:
        """Leaders of partition 0, 1, ... of the metadata topic."""
        topic_id = Uuid(bytes(16))
        self.broker.views = tuple(
            LeaderView(
                topic_id_partition=TopicIdPartition(topic_id=topic_id, topic="__remote_log_metadata", partition=number),
                leader_id=leader,
                leader_epoch=LeaderEpoch(0),
                replicas=(ME, OTHER),
                in_sync_replicas=(ME, OTHER),
            )
            for number, leader in enumerate(leaders)
        )

    async def put_summary(self, *, age_s: float) -> None:
        summary = {"finished_ms": int(self.clock.now_ms() - age_s * 1000), "findings": {}}
        await self.store.put_object(f"p/{LATEST_REPORT}", BytesBody(json.dumps(summary).encode()))

    @property
    def runs(self) -> int:
        return len(self.programs.ran)


@pytest.fixture
def world() -> World:
    return World()


async def test_the_first_run_is_at_once_and_the_next_one_an_interval_after_its_end(world: World) -> None:
    await world.schedule.look()
    assert world.programs.ran == [COMMAND]
    await world.clock.advance(DAY_S - 1)
    await world.schedule.look()
    assert world.runs == 1
    await world.clock.advance(2)
    await world.schedule.look()
    assert world.runs == 2


async def test_a_summary_that_is_too_large_is_replaced_by_the_next_run(world: World) -> None:
    await world.store.put_object(f"p/{LATEST_REPORT}", BytesBody(bytes(MOST_REPORT_BYTES + 1)))
    await world.schedule.look()
    assert world.runs == 1
    await world.clock.advance(DAY_S - 1)
    await world.schedule.look()
    assert world.runs == 1


@pytest.mark.parametrize(
    ("leaders", "runs"),
    [
        pytest.param((ME, OTHER), 1, id="partition 0 is led here"),
        pytest.param((OTHER, ME), 0, id="only another partition is led here"),
        pytest.param((), 0, id="there is no metadata topic yet"),
    ],
)
async def test_only_beside_the_leader_of_partition_0(world: World, leaders: tuple[BrokerId, ...], runs: int) -> None:
    world.lead(*leaders)
    await world.schedule.look()
    assert world.runs == runs


async def test_a_run_that_another_sidecar_made_counts(world: World) -> None:
    await world.put_summary(age_s=DAY_S / 2)
    await world.schedule.look()
    assert world.runs == 0
    await world.clock.advance(DAY_S / 2)
    await world.schedule.look()
    assert world.runs == 1


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        pytest.param(0, "clean", id="clean"),
        pytest.param(3, "findings", id="findings are no failure"),
        pytest.param(1, "failed", id="Spark failed"),
        pytest.param(-9, "failed", id="killed for its memory"),
        pytest.param(FileNotFoundError("no python"), "failed", id="it cannot be started"),
    ],
)
async def test_outcomes_are_counted(world: World, code: int | Exception, outcome: str) -> None:
    world.programs.code = code
    await world.schedule.look()
    counted = world.telemetry.by_label(RECONCILE_RUNS, "outcome")
    assert counted == {name: float(name == outcome) for name in ("clean", "findings", "failed")}


async def test_a_run_that_failed_is_tried_again_after_an_hour(world: World) -> None:
    world.programs.code = 1
    await world.schedule.look()
    await world.clock.advance(FAILED_PAUSE_S - 1)
    await world.schedule.look()
    assert world.runs == 1
    await world.clock.advance(2)
    await world.schedule.look()
    assert world.runs == 2


@pytest.mark.parametrize(
    ("age_s", "runs"),
    [
        pytest.param(DAY_S - 0.001, 0, id="until the interval is over"),
        pytest.param(DAY_S, 1, id="once it is"),
    ],
)
async def test_the_interval_counts_from_the_end_of_the_last_run(world: World, age_s: float, runs: int) -> None:
    await world.put_summary(age_s=age_s)
    await world.schedule.look()
    assert world.runs == runs


@pytest.mark.parametrize(
    "summary", [b"", b"[]", b"{}", b'{"finished_ms": "x"}', b"[" * 100_000, b'{"finished_ms": Infinity}']
)
async def test_a_summary_that_cannot_be_read_is_written_anew(world: World, summary: bytes) -> None:
    await world.store.put_object(f"p/{LATEST_REPORT}", BytesBody(summary))
    await world.schedule.look()
    assert world.runs == 1


async def test_while_the_broker_is_away_nobody_knows_whose_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(topics: Sequence[str]) -> tuple[LeaderView, ...]:
        raise BrokerUnreachableError(address="kafka:9092", reason=f"refused to tell of {topics}")

    with monkeypatch.context() as outage:
        outage.setattr(world.broker, "describe_partitions", away)
        await world.schedule.look()
    assert world.runs == 0
    await world.schedule.look()
    assert world.runs == 1


async def test_it_looks_each_minute(world: World) -> None:
    running = asyncio.create_task(world.schedule.run())
    world.lead(OTHER)
    await world.clock.advance(59)
    world.lead(ME)
    assert world.runs == 0
    await world.clock.advance(1)
    assert world.runs == 1
    await world.clock.advance(DAY_S + 60)
    assert world.runs == 2
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
