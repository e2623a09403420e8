"""Consumer groups that stand still below the start of the broker's log are told, those that read on are not (issue 20)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from tests.support.manual_clock import ManualClock
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.scripted import MemoryStateLog, ScriptedBroker
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import NO_OFFSET, LeaderEpoch, Offset
from tiersidecar.domain.policy import RetentionMode, TopicPolicy
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.broker import GroupType
from tiersidecar.ports.metrics.retention import GROUP_BELOW_TRIM
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.tasks import groups_below_trim
from tiersidecar.tasks.groups_below_trim import LOOK_INTERVAL_S, MOST_SHOWN, OTHERS, STILL_S, GroupsBelowTrim
from tiersidecar.tasks.partition_table import PartitionTable

LOCAL_START = 100
LOOKS = round(STILL_S / LOOK_INTERVAL_S) + 1
"""Until what has not moved since the first of them is told."""


class World:
    """A topic of two partitions that this broker leads, both with a local log start of 100."""

    def __init__(self) -> None:
        self.table, self.broker, self.clock = PartitionTable(), ScriptedBroker(), ManualClock()
        self.state, self.telemetry, self.resting = MemoryStateLog(), RecordedTelemetry(), ""
        self.topic_id_partitions = [
            TopicIdPartition(topic_id=Uuid(bytes(16)), topic="orders", partition=n) for n in range(2)
        ]
        self.lead()
        self.begin_at(LOCAL_START, LOCAL_START)
        self.watch = GroupsBelowTrim(
            table=self.table,
            broker=self.broker,
            state=self.state,
            clock=self.clock,
            telemetry=self.telemetry,
            rests=lambda: self.resting,
        )

    def begin_at(self, *log_starts: int) -> None:
        for topic_id_partition, log_start in zip(self.topic_id_partitions, log_starts, strict=True):
            self.table.record(topic_id_partition).log_start_offset = log_start

    def lead(self, role: PartitionRole = PartitionRole.LEADER, mode: RetentionMode = RetentionMode.STRICT) -> None:
        self.table.assignment = {
            topic_id_partition: TieredPartition(
                view=LeaderView(
                    topic_id_partition=topic_id_partition,
                    leader_id=BrokerId(1),
                    leader_epoch=LeaderEpoch(0),
                    replicas=(BrokerId(1),),
                    in_sync_replicas=(BrokerId(1),),
                ),
                role=role,
                policy=TopicPolicy(mode=mode),
            )
            for topic_id_partition in self.topic_id_partitions
        }

    def commit(self, group: str, *offsets: int) -> None:
        self.broker.groups.consumers[group] = {("orders", n): offset for n, offset in enumerate(offsets)}

    async def looks(self, count: int = LOOKS, between: Callable[[int], None] = lambda number: None) -> None:
        for number in range(count):
            between(number)
            await self.watch.look()
            await self.clock.advance(LOOK_INTERVAL_S)

    @property
    def told(self) -> dict[str, float]:
        """Offsets by group."""
        return self.telemetry.by_label(GROUP_BELOW_TRIM, "group")


async def test_a_group_that_stands_still_is_told_after_half_an_hour_and_no_longer_once_it_reads_on() -> None:
    world = World()
    world.commit("billing", 40, 150)
    with capture_logs() as logs:
        await world.looks(LOOKS - 1)
        assert world.told == {}
        await world.looks(3)
        assert world.told == {"billing": 60}
        world.commit("billing", 41, 150)
        await world.looks(1)
        assert world.told == {}
    assert [entry["event"] for entry in logs] == ["group.below_trim", "group.below_trim.over"]
    assert (logs[0]["group"], logs[0]["topic"], logs[0]["offsets"]) == ("billing", "orders", 60)


async def test_a_group_that_reads_through_the_gateway_moves_and_is_not_told() -> None:
    world = World()
    await world.looks(2 * LOOKS, lambda number: world.commit("billing", number, 0 + number))
    assert world.told == {}


async def test_a_trim_that_goes_on_is_no_move_of_the_group() -> None:
    world = World()
    world.commit("billing", 40, 150)

    def trim(number: int) -> None:
        world.begin_at(100 + number, 140 + 10 * number)

    await world.looks(LOOKS, trim)
    assert world.told == {"billing": 60 + LOOKS - 1 + (140 + 10 * (LOOKS - 1) - 150)}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda world: world.lead(PartitionRole.FOLLOWER), id="another broker leads"),
        pytest.param(lambda world: world.lead(mode=RetentionMode.RACE), id="the broker's own retention is in charge"),
        pytest.param(lambda world: world.begin_at(NO_OFFSET, NO_OFFSET), id="nothing was trimmed"),
        pytest.param(lambda world: setattr(world, "resting", "another one is its sidecar"), id="it stands by"),
        pytest.param(
            lambda world: setattr(world.broker.groups, "error", "CLUSTER_AUTHORIZATION_FAILED"), id="no right"
        ),
        pytest.param(lambda world: world.broker.groups.errors.update(billing="NOT_COORDINATOR"), id="no answer"),
        pytest.param(lambda world: world.broker.groups.consumers.clear(), id="the group is gone"),
    ],
)
async def test_what_is_no_longer_known_is_told_no_longer(change: Callable[[World], None]) -> None:
    world = World()
    world.commit("billing", 40, 150)
    await world.looks()
    assert world.told == {"billing": 60}
    change(world)
    await world.looks(1)
    assert world.told == {}


async def test_what_a_user_has_deleted_is_no_loss_of_the_group() -> None:
    """Below the remote log start no address has anything."""
    world = World()
    start = PartitionState(remote_log_start_offset=Offset(90), remote_log_start_epoch=LeaderEpoch(0))
    await world.state.publish_partition_state(world.topic_id_partitions[0], start)
    world.commit("billing", 40, 150)
    await world.looks()
    assert world.told == {"billing": 10}


async def test_many_groups_are_asked_for_in_turn_and_the_most_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_below_trim, "MOST_ASKED", 2 * 10)
    world = World()
    for number in range(30):
        world.commit(f"group-{number:02}", number, 150)
    await world.looks(3)
    assert len(world.broker.groups.asked) == 6, "ten groups of two partitions in each look"
    await world.looks(3 * LOOKS)
    told = world.told
    assert len(told) == MOST_SHOWN + 1
    assert (told["group-00"], told[OTHERS]) == (100, sum(100 - number for number in range(20, 30)))


async def test_a_partition_that_another_broker_leads_hides_none_behind_it() -> None:
    world = World()
    first, _ = world.topic_id_partitions
    assignment = world.table.assignment
    world.table.assignment = {**assignment, first: replace(assignment[first], role=PartitionRole.FOLLOWER)}
    world.commit("billing", 40, 60)
    await world.looks()
    assert world.told == {"billing": LOCAL_START - 60}, "of the partition that is led here"


async def test_of_groups_that_are_as_far_below_the_first_by_name_are_told_by_name() -> None:
    world = World()
    names = [f"group-{number:02}" for number in range(MOST_SHOWN + 2)]
    for name in reversed(names):
        world.commit(name, 40, 150)
    await world.looks()
    assert set(world.told) == {*names[:MOST_SHOWN], OTHERS}


async def test_a_fault_of_one_look_ends_neither_the_watch_nor_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.commit("billing", 40, 150)
    answers = world.broker.groups.list_groups
    failures = 1

    async def list_groups() -> dict[str, GroupType]:
        nonlocal failures
        if failures:
            failures -= 1
            raise ValueError("an answer that nobody can read")
        return await answers()

    monkeypatch.setattr(world.broker.groups, "list_groups", list_groups)
    watching = asyncio.create_task(world.watch.run())
    with capture_logs() as logs:
        for _ in range(LOOKS + 2):
            await world.clock.advance(LOOK_INTERVAL_S)
    assert not watching.done()
    watching.cancel()
    assert [entry["event"] for entry in logs] == ["groups.below_trim.look.failed", "group.below_trim"]
    assert world.told == {"billing": 60}
