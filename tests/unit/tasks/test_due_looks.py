"""Which partitions a look takes up (issue 20: of thousands, in which nothing happens, none but those that are overdue)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.lane_parts import edges_of, sources_of
from tests.support.manual_clock import ManualClock
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.pins import local_partition
from tests.support.scripted import MemoryStateLog
from tests.support.segments import TOPIC_ID_PARTITION, local_segments
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.errors import RetriableError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.log_dirs import LogDirsView
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.tasks.due_looks import DueLooks
from tiersidecar.tasks.lanes import Backoff, Lane, Lanes
from tiersidecar.tasks.partition_table import PartitionTable

LOOK_S, INTERVAL_S = 5.0, 30.0
A, B, C = (replace(TOPIC_ID_PARTITION, partition=number) for number in (1, 2, 3))


def tiered(topic_id_partition: TopicIdPartition, leader_epoch: int = 4) -> TieredPartition:
    broker = BrokerId(1)
    view = LeaderView(
        topic_id_partition=topic_id_partition,
        leader_id=broker,
        leader_epoch=LeaderEpoch(leader_epoch),
        replicas=(broker,),
        in_sync_replicas=(broker,),
    )
    return TieredPartition(view=view, role=PartitionRole.LEADER, policy=TopicPolicy())


class AppliedTo(MemoryMetadataLog):
    """One event more of a partition where a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets: dict[TopicIdPartition, int] = {}
        self.halted_reason: str | None = None

    @property
    def changes(self) -> int:
        return sum(self.offsets.values())

    def applied_to(self, topic_id_partition: TopicIdPartition) -> int:
        return self.offsets.get(topic_id_partition, 0)


class Stage:
    def __init__(self) -> None:
        self.table, self.clock, self.metadata = PartitionTable(), ManualClock(), AppliedTo()
        self.state = MemoryStateLog()
        self.table.assignment = {one: tiered(one) for one in (A, B, C)}
        self.files = {one: local_partition(local_segments(0, 100), topic_id_partition=one) for one in (A, B, C)}
        self.table.local = LogDirsView(partitions=self.files, faults={})
        self.lanes = Lanes(
            clock=self.clock, ids=edges_of(self.clock).ids, telemetry=NoTelemetry(), backoff=Backoff(jitter=0)
        )
        state: Any = self.state
        self.due = DueLooks(
            sources=sources_of(table=self.table, metadata=self.metadata, state=state),
            edges=edges_of(self.clock),
            lanes=self.lanes,
            interval_s=INTERVAL_S,
        )

    async def look(self, *unsettled: TopicIdPartition, passed_s: float = LOOK_S) -> list[TopicIdPartition]:
        """Those that were due; all but ``unsettled`` settle."""
        await self.clock.advance(passed_s)
        due = self.due.take()
        for partition in due:
            self.due.note(partition, is_settled=partition.view.topic_id_partition not in unsettled)
        return sorted(partition.view.topic_id_partition for partition in due)

    def roll(self, topic_id_partition: TopicIdPartition) -> None:
        self.files = {
            **self.files,
            topic_id_partition: local_partition(local_segments(0, 100, 200), topic_id_partition=topic_id_partition),
        }
        self.table.local = LogDirsView(partitions=self.files, faults={})


@pytest.fixture
async def stage() -> Stage:
    stage = Stage()
    assert [await stage.look() for _ in range(3)] == [[A, B, C], [A, B, C], []], "each is looked at twice to begin with"
    return stage


async def test_where_nothing_happens_each_is_looked_at_once_in_an_interval(stage: Stage) -> None:
    assert [len(await stage.look()) for _ in range(11)] == [0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 3]


async def test_those_that_were_looked_at_at_other_times_are_due_at_other_times(stage: Stage) -> None:
    stage.roll(B)
    assert await stage.look() == [B]
    assert [await stage.look() for _ in range(6)] == [[], [], [], [A, C], [], [B]]


def roll(stage: Stage) -> None:
    stage.roll(B)


def lead_anew(stage: Stage) -> None:
    stage.table.assignment = {**stage.table.assignment, B: tiered(B, 5)}


def apply_event(stage: Stage) -> None:
    stage.metadata.offsets[B] = 7


def say_of_it(stage: Stage) -> None:
    stage.state.said.append(frozenset({(B.topic_id, B.partition)}))


def press(stage: Stage) -> None:
    pressed: Any = {B: None}
    stage.table.pressure_trims = pressed


@pytest.mark.parametrize(
    ("change", "times"),
    [
        pytest.param(roll, 1, id="it has another segment"),
        pytest.param(lead_anew, 2, id="it is led in another epoch"),
        pytest.param(apply_event, 1, id="the metadata topic says something of it"),
        pytest.param(say_of_it, 1, id="the state topic says something of it"),
        pytest.param(press, 3, id="its disk is full: at every look"),
    ],
)
async def test_a_change_of_one_makes_that_one_due(stage: Stage, change: Callable[[Stage], None], times: int) -> None:
    change(stage)
    assert [await stage.look() for _ in range(3)] == [*times * [[B]], *(3 - times) * [[]]]


def halt_metadata(stage: Stage) -> None:
    stage.metadata.halted_reason = "it lost data"


def halt_state(stage: Stage) -> None:
    stage.state.halted_reason = "it lost data"


def read_state_again(stage: Stage) -> None:
    stage.state.readiness_reason = "it is being read"


def pause(stage: Stage) -> None:
    stage.state.said.append(None)


def refuse(stage: Stage) -> None:
    stage.table.refused_topics["orders"] = "it is compacted"


def forbid_trims(stage: Stage) -> None:
    stage.table.untrimmable_topics["orders"] = "retention.ms is 1"


def lose_owner(stage: Stage) -> None:
    stage.table.missing_owners[A.topic_id] = "another store"


def read_pins(stage: Stage) -> None:
    stage.table.pins.unread = frozenset()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(halt_metadata, id="the metadata topic cannot be relied on"),
        pytest.param(halt_state, id="the state topic cannot be relied on"),
        pytest.param(read_state_again, id="the state topic is read anew"),
        pytest.param(pause, id="the state topic says something of topics, or of all"),
        pytest.param(refuse, id="a topic is refused"),
        pytest.param(forbid_trims, id="a topic may not be trimmed"),
        pytest.param(lose_owner, id="an owner is missing"),
        pytest.param(read_pins, id="pins have been read"),
    ],
)
async def test_a_change_of_what_concerns_all_makes_all_due_once(stage: Stage, change: Callable[[Stage], None]) -> None:
    change(stage)
    assert [await stage.look() for _ in range(2)] == [[A, B, C], []]


async def test_they_come_in_the_order_of_the_assignment(stage: Stage) -> None:
    """Simulated runs are to be the same each time."""
    stage.table.assignment = {one: tiered(one, 5) for one in (C, A, B)}
    assert [partition.view.topic_id_partition for partition in stage.due.take()] == [C, A, B]


async def test_what_has_not_settled_is_due_at_every_look(stage: Stage) -> None:
    stage.roll(B)
    assert [await stage.look(B), await stage.look(B), await stage.look(), await stage.look()] == [[B], [B], [B], []]


async def test_what_was_taken_and_not_looked_at_is_due_again(stage: Stage) -> None:
    """A look may end with an error, and the change that made it due was taken note of."""
    stage.roll(B)
    assert [partition.view.topic_id_partition for partition in stage.due.take()] == [B]
    assert [await stage.look(), await stage.look()] == [[B], []]


async def test_what_is_gone_is_due_no_more(stage: Stage) -> None:
    stage.roll(B)
    await stage.look(B)
    stage.table.assignment = {A: stage.table.assignment[A]}
    assert [await stage.look() for _ in range(5)] == [[], [], [], [A], []]


@pytest.mark.parametrize(
    ("ends", "due"),
    [
        pytest.param(None, [[B], [], []], id="a lane that ended well: once, for it may have left something"),
        pytest.param(RetriableError(), [[B], [B], [B]], id="one that is to be tried again: at every look"),
        pytest.param(RuntimeError("a bug"), [[B], [B], [B]], id="one that is halted: at every look"),
    ],
)
async def test_a_lane_that_has_ended(stage: Stage, ends: Exception | None, due: list[list[TopicIdPartition]]) -> None:
    async def work() -> None:
        if ends is not None:
            raise ends

    async with stage.lanes as lanes:
        lanes.start(B, Lane.COPY, work, "copy")
        assert [await stage.look() for _ in range(3)] == due
        lanes.stop(B)
        assert await stage.look() == [], "it was let go"
