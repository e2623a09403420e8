"""Which lanes a look starts, and what it drops of a partition that is not ours any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.lane_parts import AllDue, edges_of, sources_of
from tests.support.manual_clock import ManualClock
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.pins import LOG_DIR, local_partition
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.scripted import ScriptedBroker
from tests.support.segments import TOPIC_ID_PARTITION, local_segments
from tiersidecar.decide.backfill import BackfillOrder
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.errors import BrokerUnreachableError, RetriableError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.log_dirs import LogDirsView
from tiersidecar.ports.metrics.catalogue import LEADER_GAUGES
from tiersidecar.ports.metrics.copying import BACKFILL_BYTES, BACKFILL_PARTITIONS, COPY_LAG_SEGMENTS
from tiersidecar.tasks.copy_admission import Backfill, CopyLagReport
from tiersidecar.tasks.lanes import Lane
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.watch import LaneSpec, LaneTurns, Watch

BROKER = BrokerId(1)
LED = TieredPartition(
    view=LeaderView(
        topic_id_partition=TOPIC_ID_PARTITION,
        leader_id=BROKER,
        leader_epoch=LeaderEpoch(4),
        replicas=(BROKER,),
        in_sync_replicas=(BROKER,),
    ),
    role=PartitionRole.LEADER,
    policy=TopicPolicy(),
)
FOLLOWED = replace(LED, role=PartitionRole.FOLLOWER)


class Rounds:
    """A roster, topic checks and lanes that note what they are told."""

    def __init__(self) -> None:
        self.gone: tuple[TieredPartition, ...] = ()
        self.trouble: RetriableError | None = None
        self.noted: list[RetriableError | None] = []
        self.waited: list[float] = []
        self.checked: list[set[str]] = []
        self.started: dict[Lane, tuple[Callable[[], Awaitable[None]], str]] = {}
        self.stopped: list[TopicIdPartition] = []
        self.may_act: dict[Lane, bool] = {}
        self.at_rest: dict[Lane, str] = {}
        self.enough = asyncio.Event()

    async def look(self) -> tuple[TieredPartition, ...]:
        if self.trouble is not None:
            raise self.trouble
        return self.gone

    async def follow_changes(self) -> None:
        await asyncio.Event().wait()

    def note(self, error: RetriableError | None) -> None:
        self.noted.append(error)

    async def wait(self, interval_s: float) -> None:
        self.waited.append(interval_s)
        if len(self.waited) == 3:
            self.enough.set()
            await asyncio.Event().wait()
        self.trouble = None

    async def refresh(self, topics: set[str]) -> None:
        self.checked.append(topics)

    def start(
        self,
        topic_id_partition: TopicIdPartition,
        lane: Lane,
        work: Callable[[], Awaitable[None]],
        name: str,
        *,
        may_act: Callable[[], bool],
    ) -> None:
        assert topic_id_partition == TOPIC_ID_PARTITION
        self.started[lane], self.may_act[lane] = (work, name), may_act()

    def reason_at_rest(self, topic_id_partition: TopicIdPartition, lane: Lane) -> str:
        assert topic_id_partition == TOPIC_ID_PARTITION
        return self.at_rest.get(lane, "")

    def stop(self, topic_id_partition: TopicIdPartition) -> None:
        self.stopped.append(topic_id_partition)

    def report_age(self) -> None:
        return None


class Stage:
    """``works`` are the lanes with something to do beside copying, which the table tells; ``done`` is what ran."""

    def __init__(self, *works: Lane, tiered: TieredPartition = LED) -> None:
        self.table, self.metadata, self.telemetry = PartitionTable(), MemoryMetadataLog(), RecordedTelemetry()
        self.table.local = LogDirsView(
            partitions={TOPIC_ID_PARTITION: local_partition(local_segments(0, 100, 200), epochs=[(4, 0)])}, faults={}
        )
        self.table.assignment = {TOPIC_ID_PARTITION: tiered}
        self.table.pins.unread = frozenset()
        self.forbidden = set[Lane]()
        self.rounds, self.done, self.reports = Rounds(), list[tuple[Lane, TieredPartition]](), 0
        told: Any = self.rounds
        self.due = AllDue(self.table)
        due: Any = self.due
        clock = ManualClock()
        self.lag = CopyLagReport(table=self.table, metadata=self.metadata, clock=clock, telemetry=self.telemetry)
        self.watch = Watch(
            sources=sources_of(table=self.table, broker=ScriptedBroker(), metadata=self.metadata),
            edges=edges_of(clock, telemetry=self.telemetry),
            roster=told,
            checks=told,
            backfill=Backfill(
                lags=self.lag, threshold=5, order=BackfillOrder.OLDEST, clock=clock, telemetry=self.telemetry
            ),
            turns=LaneTurns(
                lanes=told,
                due=due,
                work={
                    Lane.COPY: LaneSpec(run=self._work(Lane.COPY)),
                    **{
                        lane: LaneSpec(
                            run=self._work(lane),
                            has_work=partial(self._has_work, lane in works),
                            may_act=partial(self._may_act, lane),
                        )
                        for lane in (Lane.FOLLOW, Lane.RECOPY, Lane.RETAIN, Lane.CLEAN)
                    },
                },
            ),
            report=self._report,
        )

    @staticmethod
    def _has_work(answer: bool, partition: TieredPartition) -> bool:
        return answer

    def _may_act(self, lane: Lane, partition: TieredPartition) -> bool:
        return lane not in self.forbidden

    def _work(self, lane: Lane) -> Callable[[TieredPartition], Awaitable[None]]:
        async def work(partition: TieredPartition) -> None:
            self.done.append((lane, partition))

        return work

    def _report(self) -> None:
        self.reports += 1

    async def look(self, *, is_ready: bool = True) -> dict[Lane, str]:
        """The lanes that were started, by their names."""
        if is_ready:
            await self.metadata.assign([TOPIC_ID_PARTITION])
        await self.watch.look()
        return {lane: name for lane, (_, name) in self.rounds.started.items()}


ALL = tuple(Lane)


@pytest.mark.parametrize(
    ("works", "tiered", "is_ready", "lanes"),
    [
        pytest.param(ALL, LED, True, set(ALL), id="a leader does all"),
        pytest.param(ALL, FOLLOWED, True, {Lane.FOLLOW, Lane.RECOPY}, id="a follower pins, and copies again"),
        pytest.param(ALL, LED, False, {Lane.FOLLOW}, id="before its metadata is read, pins are all that is safe"),
        pytest.param((), FOLLOWED, True, set(), id="nothing to do"),
        pytest.param((Lane.RETAIN,), LED, True, {Lane.COPY, Lane.RETAIN}, id="retention is due"),
        pytest.param((Lane.FOLLOW,), LED, True, {Lane.COPY, Lane.FOLLOW}, id="a leader in race mode pins, too"),
        pytest.param((Lane.RECOPY,), LED, True, {Lane.COPY, Lane.RECOPY}, id="the store has lost something"),
    ],
)
async def test_which_lanes_start(
    works: tuple[Lane, ...], tiered: TieredPartition, is_ready: bool, lanes: set[Lane]
) -> None:
    stage = Stage(*works, tiered=tiered)
    assert await stage.look(is_ready=is_ready) == {lane: f"{lane.value} orders-3@4" for lane in lanes}
    for work, _ in stage.rounds.started.values():
        await work()
    assert {lane for lane, _ in stage.done} == lanes, "each does its own work"
    assert all(partition == tiered for _, partition in stage.done)


def no_change(table: PartitionTable) -> None:
    """Two segments are to be copied."""


def refuse(table: PartitionTable) -> None:
    table.refused_topics[TOPIC_ID_PARTITION.topic] = "it is compacted"


def lose(table: PartitionTable) -> None:
    table.local = LogDirsView(partitions={}, faults={LOG_DIR: "Input/output error"})


def hide_pins(table: PartitionTable) -> None:
    table.pins.unread = frozenset({LOG_DIR})


def hide_all_pins(table: PartitionTable) -> None:
    table.pins.unread = None


def copied(table: PartitionTable) -> None:
    table.record(TOPIC_ID_PARTITION).copied_offset = 199


def copied_half(table: PartitionTable) -> None:
    table.record(TOPIC_ID_PARTITION).copied_offset = 99


@pytest.mark.parametrize(
    ("change", "is_copied"),
    [
        pytest.param(lambda table: None, True, id="sealed segments that are not remote"),
        pytest.param(copied_half, True, id="one of them"),
        pytest.param(copied, False, id="all that is sealed is remote"),
        pytest.param(refuse, False, id="the topic cannot be tiered"),
        pytest.param(lose, False, id="its log dir cannot be read"),
        pytest.param(hide_pins, False, id="its pins have not been read: what only they have would be skipped"),
        pytest.param(hide_all_pins, False, id="no pins have been read"),
    ],
)
async def test_when_there_is_something_to_copy(change: Callable[[PartitionTable], None], is_copied: bool) -> None:
    stage = Stage()
    change(stage.table)
    assert (Lane.COPY in await stage.look()) is is_copied


async def test_before_the_pins_have_been_read_no_lane_goes_by_what_is_on_the_disk() -> None:
    """Expiry says where the log begins, and its end, by what is here; a round of any lane asks for itself what it needs."""
    stage = Stage(*ALL)
    hide_all_pins(stage.table)
    assert set(await stage.look()) == {Lane.FOLLOW, Lane.RECOPY}
    assert stage.due.settled == {TOPIC_ID_PARTITION: False}
    stage.table.pins.unread = frozenset()
    assert set(await stage.look()) == set(ALL)


@pytest.mark.parametrize(
    ("change", "tiered", "is_ready", "is_settled"),
    [
        pytest.param(copied, LED, True, True, id="nothing is left to do"),
        pytest.param(no_change, FOLLOWED, True, True, id="its leader copies"),
        pytest.param(no_change, LED, True, False, id="something waits to be copied"),
        pytest.param(refuse, LED, True, False, id="something waits until its topic may be tiered"),
        pytest.param(copied, LED, False, False, id="its metadata is being read"),
        pytest.param(lose, LED, True, False, id="its directory is not proven"),
    ],
)
async def test_a_partition_that_waits_is_due_at_every_look(
    change: Callable[[PartitionTable], None], tiered: TieredPartition, is_ready: bool, is_settled: bool
) -> None:
    stage = Stage(tiered=tiered)
    change(stage.table)
    await stage.look(is_ready=is_ready)
    assert stage.due.settled == {TOPIC_ID_PARTITION: is_settled}


@pytest.mark.parametrize("lane", Lane)
async def test_a_lane_that_failed_runs_once_more_though_its_work_is_done(lane: Lane) -> None:
    """Else the halt is told for ever: the other lanes did it, or an operator."""
    stage = Stage()
    copied(stage.table)
    assert lane not in await stage.look()
    stage.rounds.at_rest = {lane: "the partition is halted: the topic lost what users deleted"}
    assert set(await stage.look()) == {lane}


async def test_a_lane_that_may_not_act_is_not_run_to_end_its_halt() -> None:
    """An operator who pauses deletes to look into a halt would see it go, with its cause still there."""
    stage = Stage()
    copied(stage.table)
    stage.forbidden = {Lane.RETAIN}
    stage.rounds.at_rest = {Lane.RETAIN: "the partition is halted: the copy differs from the log"}
    assert await stage.look() == {}


async def test_a_lane_that_has_work_says_whether_it_may_act() -> None:
    """An undelete is answered though deletes are paused, and the copy lane looks though copies are: neither mends anything."""
    stage = Stage(Lane.FOLLOW, Lane.RETAIN)
    stage.forbidden = {Lane.RETAIN}
    await stage.look()
    assert stage.rounds.may_act == {Lane.FOLLOW: True, Lane.COPY: True, Lane.RETAIN: False}


async def test_a_copy_that_failed_waits_for_pins_that_have_not_been_read() -> None:
    stage = Stage()
    hide_pins(stage.table)
    stage.rounds.at_rest = {Lane.COPY: "the partition is halted: its epochs diverge"}
    assert await stage.look() == {}


async def test_a_partition_that_is_not_ours_any_more_leaves_nothing_behind() -> None:
    stage = Stage()
    await stage.look()
    assert stage.telemetry.value(COPY_LAG_SEGMENTS, topic="orders", partition="3") == 2
    for metric in LEADER_GAUGES:
        stage.telemetry.gauge(metric, 7, topic="orders", partition="3")
    stage.table.record(TOPIC_ID_PARTITION).copy_held_back = "an open transaction"
    stage.table.assignment, stage.rounds.gone = {}, (LED,)
    await stage.look()
    assert stage.rounds.stopped == [TOPIC_ID_PARTITION]
    assert stage.table.record(TOPIC_ID_PARTITION).copy_held_back == ""
    shown = {name for (name, labels), _ in stage.telemetry.values.items() if dict(labels).get("topic") == "orders"}
    assert shown.isdisjoint(metric.name for metric in LEADER_GAUGES)


async def test_a_backfill_ends_with_the_last_partition_that_was_ours() -> None:
    """As of a broker that is drained: no partition is due any more, and the gauges would stay as they were."""
    stage = Stage()
    segments = local_segments(*range(0, 900, 100))
    stage.table.local = LogDirsView(
        partitions={TOPIC_ID_PARTITION: local_partition(segments, epochs=[(4, 0)])}, faults={}
    )
    await stage.look()
    assert stage.telemetry.value(BACKFILL_PARTITIONS) == 1
    stage.table.assignment, stage.rounds.gone = {}, (LED,)
    with capture_logs() as told:
        await stage.look()
        await stage.look()
    assert (stage.telemetry.value(BACKFILL_PARTITIONS), stage.telemetry.value(BACKFILL_BYTES)) == (0, 0)
    assert [one["event"] for one in told].count("copy.backfill.finished") == 1


@pytest.mark.parametrize(
    ("tiered", "is_ready", "is_told"),
    [
        pytest.param(LED, True, True, id="by its leader"),
        pytest.param(FOLLOWED, True, False, id="not by a follower"),
        pytest.param(LED, False, False, id="not before its metadata is read: nothing would seem to be remote"),
    ],
)
async def test_who_tells_the_copy_lag(tiered: TieredPartition, is_ready: bool, is_told: bool) -> None:
    """S-041, S-225."""
    stage = Stage(tiered=tiered)
    await stage.look(is_ready=is_ready)
    assert (TOPIC_ID_PARTITION in stage.lag.known) is is_told
    assert (stage.reports, stage.rounds.checked) == (1, [{"orders"}])


async def test_it_goes_on_when_the_broker_is_away() -> None:
    stage = Stage()
    await stage.metadata.assign([TOPIC_ID_PARTITION])
    stage.rounds.trouble = away = BrokerUnreachableError(address="kafka:9092", reason="connection refused")
    running = asyncio.create_task(stage.watch.run(5.0))
    await stage.rounds.enough.wait()
    assert stage.rounds.noted == [away, None, None]
    assert stage.rounds.waited == [5.0] * 3
    assert Lane.COPY in stage.rounds.started
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


@pytest.mark.parametrize(
    ("tiered", "lanes"),
    [
        pytest.param(LED, {Lane.FOLLOW}, id="another's log is not copied, trimmed, expired or copied again"),
        pytest.param(FOLLOWED, {Lane.FOLLOW, Lane.RECOPY}, id="a follower's says nothing"),
    ],
)
async def test_a_leaders_directory_is_proven_first(tiered: TieredPartition, lanes: set[Lane]) -> None:
    stage = Stage(*ALL, tiered=tiered)
    other = local_partition(local_segments(0, 100, 200), epochs=[(3, 0)])
    stage.table.local = LogDirsView(partitions={TOPIC_ID_PARTITION: other}, faults={})
    assert set(await stage.look()) == lanes


async def test_topics_of_partitions_that_are_not_here_are_checked_too() -> None:
    """One that cannot be tiered at all is missed nowhere."""
    stage = Stage()
    stage.table.assignment, stage.table.unseen = {}, {TOPIC_ID_PARTITION: LED}
    await stage.look()
    assert stage.rounds.checked == [{TOPIC_ID_PARTITION.topic}]
