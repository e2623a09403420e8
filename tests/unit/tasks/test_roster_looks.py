"""What each look of the roster tells: of partitions that changed, of log dirs that cannot be read, and when it looks again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.lane_parts import edges_of
from tests.support.manual_clock import ManualClock, settle
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.pins import local_partition
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.scripted import ScriptedBroker
from tests.support.segments import TOPIC_ID_PARTITION, local_segments
from tiersidecar.decide.topics import PartitionRole
from tiersidecar.domain.errors import BrokerUnreachableError, RetriableError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.log_dirs import LogDirsView
from tiersidecar.ports.metrics.process import LOG_DIR_FAULTS
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.roster import Roster, keep_roster

US, OTHER = BrokerId(1), BrokerId(2)
LED = LeaderView(
    topic_id_partition=TOPIC_ID_PARTITION,
    leader_id=US,
    leader_epoch=LeaderEpoch(4),
    replicas=(US, OTHER),
    in_sync_replicas=(US, OTHER),
)


class Dirs:
    """Log dirs with one partition; ``changed`` tells of a file event."""

    def __init__(self) -> None:
        self.faults: Mapping[str, str] = {}
        self.looks = self.whole_looks = 0
        self.view: LogDirsView | None = None
        self.events: asyncio.Queue[str] = asyncio.Queue()

    async def scan(self) -> LogDirsView:
        self.whole_looks += 1
        return await self.scan_changed()

    async def scan_changed(self) -> LogDirsView:
        self.looks += 1
        if self.view is not None:
            return self.view
        return LogDirsView(partitions={TOPIC_ID_PARTITION: local_partition(local_segments(0, 100))}, faults=self.faults)

    async def changes(self) -> AsyncIterator[None]:
        while True:
            await self.events.get()
            yield


class Broker(ScriptedBroker):
    trouble = ""

    async def describe_partitions(self, topics: Any = None) -> tuple[LeaderView, ...]:
        if self.trouble:
            raise BrokerUnreachableError(address="kafka:9092", reason=self.trouble)
        return await super().describe_partitions(topics)


class Stage:
    def __init__(self) -> None:
        self.table, self.dirs, self.broker = PartitionTable(), Dirs(), Broker()
        self.clock, self.telemetry = ManualClock(), RecordedTelemetry()
        self.policy: TopicPolicy | None = TopicPolicy()
        self.metadata = MemoryMetadataLog()
        self.broker.views = (LED,)
        dirs: Any = self.dirs
        self.roster = Roster(
            table=self.table,
            log_dirs=dirs,
            broker=self.broker,
            assignment=self.metadata,
            policy_for=lambda topic: self.policy,
            broker_id=US,
            edges=edges_of(self.clock, telemetry=self.telemetry),
            forget=lambda partition: None,
        )


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_a_look_says_who_leads_what_and_which_topic_has_which_id(stage: Stage) -> None:
    assert await stage.roster.look() == ()
    assert stage.table.topic_ids == {TOPIC_ID_PARTITION.topic: TOPIC_ID_PARTITION.topic_id}
    (tiered,) = stage.table.assignment.values()
    assert (tiered.view, tiered.role) == (LED, PartitionRole.LEADER)


@pytest.mark.parametrize(
    ("now", "policy", "is_let_go"),
    [
        pytest.param(LED, TopicPolicy(), False, id="nothing changed"),
        pytest.param(replace(LED, in_sync_replicas=(US,)), TopicPolicy(), False, id="another replica is out of sync"),
        pytest.param(replace(LED, leader_epoch=LeaderEpoch(5)), TopicPolicy(), True, id="led again, in a later epoch"),
        pytest.param(replace(LED, leader_id=OTHER), TopicPolicy(), True, id="led by another in the epoch that we knew"),
        pytest.param(replace(LED, replicas=(OTHER,)), TopicPolicy(), True, id="moved to other brokers"),
        pytest.param(None, TopicPolicy(), True, id="deleted"),
        pytest.param(LED, TopicPolicy(retention_ms=1000), True, id="its settings are others"),
        pytest.param(LED, None, True, id="not tiered any more"),
    ],
)
async def test_what_is_let_go(
    stage: Stage, now: LeaderView | None, policy: TopicPolicy | None, is_let_go: bool
) -> None:
    await stage.roster.look()
    (before,) = stage.table.assignment.values()
    stage.broker.views, stage.policy = (() if now is None else (now,)), policy
    assert await stage.roster.look() == ((before,) if is_let_go else ())


async def test_nothing_is_decided_anew_where_broker_files_and_policies_say_the_same(stage: Stage) -> None:
    """Issue 20: of thousands of partitions that takes most of what an idle daemon takes."""
    stage.dirs.view = await stage.dirs.scan()
    await stage.roster.look()
    assignment = stage.table.assignment
    assert await stage.roster.look() == ()
    assert stage.table.assignment is assignment
    stage.policy = TopicPolicy(retention_ms=1000)
    assert len(await stage.roster.look()) == 1
    stage.table.departing = {replace(TOPIC_ID_PARTITION, partition=7)}
    await stage.roster.look()
    assert all(map(stage.metadata.is_ready, (TOPIC_ID_PARTITION, *stage.table.departing)))
    stage.dirs.view = LogDirsView(partitions={}, faults={})
    assert len(await stage.roster.look()) == 1


async def test_all_files_are_read_twice_once_another_leader_is_known(stage: Stage) -> None:
    """What was deleted before and after that is told apart by it (``FollowNote``), and not by file events."""
    whole = []
    for views in ((LED,), None, None, (replace(LED, leader_epoch=LeaderEpoch(5)),), None, None):
        stage.broker.views = views or stage.broker.views
        await stage.roster.look()
        whole.append(stage.dirs.whole_looks)
    assert whole == [1, 2, 2, 3, 4, 4]


async def test_while_the_broker_is_away_what_was_known_stays_and_the_files_are_looked_at(stage: Stage) -> None:
    await stage.roster.look()
    known, stage.broker.trouble = dict(stage.table.assignment), "connection refused"
    stage.dirs.faults = {"/logs": "Input/output error"}
    with pytest.raises(BrokerUnreachableError):
        await stage.roster.look()
    assert (stage.table.assignment, stage.table.local.faults) == (known, stage.dirs.faults)


async def test_a_log_dir_that_cannot_be_read_is_told_once_and_measured_until_it_can(stage: Stage) -> None:
    def gauges() -> dict[str, float]:
        return stage.telemetry.by_label(LOG_DIR_FAULTS, "directory")

    with capture_logs() as told:
        for faults in ({"/a": "I/O"}, {"/a": "I/O", "/b": "gone"}, {"/b": "gone"}, {"/b": "gone"}, {}, {"/a": "I/O"}):
            stage.dirs.faults = faults
            await stage.roster.look()
            assert {directory for directory, value in gauges().items() if value == 1} == set(faults)
    assert gauges() == {"/a": 1}, "no series for what is not there"
    assert [(one["event"], one["directory"]) for one in told] == [
        ("log_dir.fault", "/a"),
        ("log_dir.fault", "/b"),
        ("log_dir.fault.cleared", "/a"),
        ("log_dir.fault.cleared", "/b"),
        ("log_dir.fault", "/a"),
    ]


async def test_a_directory_that_is_just_being_made_is_no_fault_until_it_stays_one(stage: Stage) -> None:
    stage.dirs.faults = {
        "/logs/orders-0": "it has no partition.metadata",
        "/logs/orders-1": "it has no partition.metadata",
    }
    with capture_logs() as told:
        await stage.roster.look()
        await stage.clock.advance(1)
        del stage.dirs.faults["/logs/orders-0"]
        await stage.roster.look()
        assert told == []
        await stage.clock.advance(4)
        await stage.roster.look()
    assert [(one["event"], one["directory"]) for one in told] == [("log_dir.fault", "/logs/orders-1")]
    assert stage.telemetry.by_label(LOG_DIR_FAULTS, "directory") == {"/logs/orders-1": 1}


async def test_an_outage_of_the_broker_is_told_once_at_its_begin_and_with_its_length_at_its_end(stage: Stage) -> None:
    """Meanwhile it stays on the table, and what lanes meet of it is counted: of thousands each would tell it at each retry."""
    keeping = asyncio.create_task(keep_roster(stage.roster, 5))
    of_a_lane = BrokerUnreachableError(address="kafka:9092", reason="reset")
    await settle()
    with capture_logs() as told:
        assert not stage.roster.has_logged(of_a_lane), "the first to meet it tells it"
        for trouble in ("refused", "refused", "timed out", "", "timed out"):
            stage.broker.trouble = trouble
            await stage.clock.advance(5)
            assert trouble in stage.table.watch_trouble
            assert bool(stage.table.watch_trouble) is bool(trouble)
            assert stage.roster.has_logged(of_a_lane) is bool(trouble)
            assert not stage.roster.has_logged(RetriableError())
    assert [one["event"] for one in told] == ["broker.away", "broker.back", "broker.away"]
    assert (told[1]["away_ms"], told[1]["failures"]) == (15_000, 6)
    await end(keeping)


async def test_it_looks_at_every_interval_and_at_once_after_a_file_event(stage: Stage) -> None:
    tasks = [asyncio.create_task(one) for one in (keep_roster(stage.roster, 5), stage.roster.follow_changes())]
    await settle()
    assert stage.dirs.looks == 1
    await stage.clock.advance(4.9)
    assert stage.dirs.looks == 1
    await stage.clock.advance(0.1)
    assert stage.dirs.looks == 2
    stage.dirs.events.put_nowait("rolled")
    await settle()
    assert stage.dirs.looks == 3, "an event"
    await settle()
    assert stage.dirs.looks == 3, "one event is one look"
    stage.dirs.events.put_nowait("rolled")
    await settle()
    assert stage.dirs.looks == 4, "the next event"
    await end(*tasks)


async def end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_it_looks_soon_where_somebody_asks_for_it_but_not_all_the_time(stage: Stage) -> None:
    keeping = asyncio.create_task(keep_roster(stage.roster, 5.0))
    await settle()
    assert stage.dirs.looks == 1
    for _ in range(3):
        stage.roster.look_soon()
        await settle()
    assert stage.dirs.looks == 2, "thrice at once is one look"
    await stage.clock.advance(0.5)
    stage.roster.look_soon()
    await settle()
    assert stage.dirs.looks == 3
    await stage.clock.advance(0.9)
    stage.roster.look_soon()
    await settle()
    assert stage.dirs.looks == 3, "nothing new was found: a second apart"
    await stage.clock.advance(0.1)
    stage.broker.views = ()
    stage.roster.look_soon()
    await settle()
    await stage.clock.advance(2.0)
    stage.roster.look_soon()
    await settle()
    await stage.clock.advance(0.5)
    stage.roster.look_soon()
    await settle()
    assert stage.dirs.looks == 6, "another assignment was found: soon again"
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping


async def test_a_process_that_stands_by_forgets_what_it_knew_under_another_leadership(stage: Stage) -> None:
    """Nobody else does there: a copied offset of before an unclean election may be above all that is copied."""
    keeping = asyncio.create_task(keep_roster(stage.roster, 5.0))
    await settle()
    stage.table.record(TOPIC_ID_PARTITION).copied_offset = 99
    await stage.clock.advance(5)
    assert stage.table.record(TOPIC_ID_PARTITION).copied_offset == 99, "nothing has changed"
    stage.broker.views = (replace(LED, leader_epoch=LeaderEpoch(5)),)
    await stage.clock.advance(5)
    assert stage.table.record(TOPIC_ID_PARTITION).copied_offset is None
    await end(keeping)


async def test_whoever_takes_the_role_anew_reads_all_files_twice(stage: Stage) -> None:
    for _ in range(4):
        await stage.roster.look()
    before = stage.dirs.whole_looks
    stage.roster.begin_anew()
    for _ in range(4):
        await stage.roster.look()
    assert stage.dirs.whole_looks - before == 2
