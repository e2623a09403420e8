"""When a cleaner waits for an operator's command that changes remote segments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.clean_world import CleanWorld
from tests.support.manual_clock import ManualClock
from tests.support.scripted import MemoryStateLog
from tests.unit.tasks.test_clean import puts
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.lease import REPAIR_LEASE, Lease, concerns_of
from tiersidecar.domain.segments import MetadataEvent, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.tasks.rewriting_commands import RewritingCommands

HELD = Lease(
    name=REPAIR_LEASE,
    cluster_id="scripted",
    broker_id=-1,
    incarnation="one",
    term=1,
    host="desk",
    pid=7,
    version="1",
    renewed_ms=0,
    duration_ms=60_000,
)

OWNER = TopicIdPartition(topic_id=Uuid(bytes(15) + b"7"), topic="orders", partition=3)


async def test_it_waits_from_the_claim_to_the_release() -> None:
    state, clock = MemoryStateLog(), ManualClock()
    commands = RewritingCommands(state, clock)
    assert commands.reason_to_wait(OWNER) == ""
    await state.publish_lease(HELD)
    assert commands.reason_to_wait(OWNER) == "an erasure, a repair or a compaction acts: process 7 on desk"
    await state.publish_lease(replace(HELD, released=True, renewal=True))
    assert commands.reason_to_wait(OWNER) == ""


async def test_each_renewal_holds_for_the_whole_duration_by_this_processs_clock() -> None:
    state, clock = MemoryStateLog(), ManualClock()
    commands = RewritingCommands(state, clock)
    await state.publish_lease(HELD)
    assert commands.reason_to_wait(OWNER)
    await clock.advance(59)
    await state.publish_lease(replace(HELD, renewed_ms=59_000, renewal=True))
    assert commands.reason_to_wait(OWNER)
    await clock.advance(59)
    assert commands.reason_to_wait(OWNER)
    await clock.advance(1)
    assert commands.reason_to_wait(OWNER) == "", "its process was killed"


@pytest.mark.parametrize(
    ("named", "waits"),
    [
        pytest.param([], True, id="a lease that names none is of all partitions, as of an erasure"),
        pytest.param([OWNER], True, id="this one"),
        pytest.param([replace(OWNER, partition=33), OWNER], True, id="this one among others"),
        pytest.param([replace(OWNER, partition=33)], False, id="another one of the topic"),
        pytest.param(
            [replace(OWNER, topic_id=Uuid(bytes(15) + b"8"))], False, id="a topic of the same name that is gone"
        ),
    ],
)
async def test_it_waits_where_the_command_acts(named: list[TopicIdPartition], waits: bool) -> None:
    state = MemoryStateLog()
    await state.publish_lease(replace(HELD, concerns=concerns_of(named)))
    assert bool(RewritingCommands(state, ManualClock()).reason_to_wait(OWNER)) is waits


async def test_a_command_that_has_come_to_another_partition_lets_the_one_before_go_on() -> None:
    state, clock = MemoryStateLog(), ManualClock()
    commands, other = RewritingCommands(state, clock), replace(OWNER, partition=4)
    await state.publish_lease(replace(HELD, concerns=concerns_of([OWNER])))
    assert (bool(commands.reason_to_wait(OWNER)), commands.reason_to_wait(other)) == (True, "")
    await clock.advance(59)
    await state.publish_lease(replace(HELD, concerns=concerns_of([other]), renewal=True, renewed_ms=59_000))
    assert (commands.reason_to_wait(OWNER), bool(commands.reason_to_wait(other))) == ("", True)
    await clock.advance(59)
    assert commands.reason_to_wait(other), "it counts from the last renewal, whichever partition was asked about"


async def test_another_ones_lease_is_no_matter() -> None:
    state = MemoryStateLog()
    await state.publish_lease(replace(HELD, name="1"))
    assert RewritingCommands(state, ManualClock()).reason_to_wait(OWNER) == ""


@pytest.mark.parametrize(
    ("looking_s", "left", "left_s"),
    [
        pytest.param(0.0, "", [20.0], id="at once"),
        pytest.param(15.0, "", [5.0], id="the broker takes its time to say that it leads"),
        pytest.param(
            20.0,
            "looking at it took more than 20 s: a command may have begun since",
            [],
            id="so long that it is given up",
        ),
    ],
)
async def test_what_it_finishes_is_durable_soon_after_it_has_looked_at_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looking_s: float, left: str, left_s: list[float]
) -> None:
    """A command waits for longer than that before it acts."""
    world = CleanWorld(scratch=tmp_path)
    await world.add(puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"a", b"2")))
    list_offsets, publish = world.broker.list_offsets, world.builder.run.metadata.publish
    given: list[float] = []

    async def answers_late(*args: Any, **options: Any) -> Any:
        await world.clock.advance(looking_s)
        return await list_offsets(*args, **options)

    async def noting(event: MetadataEvent, *, until_s: float | None = None) -> None:
        if isinstance(event, RemoteLogSegmentMetadataUpdate) and event.state is State.COPY_SEGMENT_FINISHED:
            assert until_s is not None
            given.append(until_s - world.clock.monotonic_s())
        await publish(event, until_s=until_s)

    async def proven() -> None:
        monkeypatch.setattr(world.broker, "list_offsets", answers_late)

    monkeypatch.setattr(world.builder.run.metadata, "publish", noting)
    done = await world.clean({"clean.proven": proven})
    assert (done.left, given) == (left, left_s)


async def test_what_it_has_looked_at_too_long_ago_is_not_finished(tmp_path: Path) -> None:
    """The process was stopped right after the look, and a command has begun and ended meanwhile."""
    world = CleanWorld(scratch=tmp_path)
    await world.add(puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"a", b"2")))

    async def stopped() -> None:
        world.clock.stand_still(20)

    done = await world.clean({"clean.finishing": stopped})
    assert done.left == "the look at it was too long ago: others may have begun since"
    assert (done.swapped, len(world.segments(State.COPY_SEGMENT_FINISHED))) == ((), 2)


async def test_while_a_command_is_at_another_partition_this_one_is_cleaned_and_when_it_comes_here_no_more(
    tmp_path: Path,
) -> None:
    world = CleanWorld(scratch=tmp_path)
    await world.add(puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"a", b"2")))
    other = replace(world.owner, partition=world.owner.partition + 1)
    await world.state.publish_lease(replace(HELD, concerns=concerns_of([other])))
    assert (await world.clean()).cleaner_offset == 3
    await world.add(puts(3, (b"b", b"2")))
    events = len(world.builder.run.metadata.events)

    async def come() -> None:
        await world.state.publish_lease(replace(HELD, concerns=concerns_of([world.owner]), renewal=True))

    done = await world.clean({"clean.rewritten": come})
    assert done.left == "an erasure, a repair or a compaction acts: process 7 on desk"
    assert len(world.builder.run.metadata.events) == events
    (claim,) = world.state.cleaner_claims(world.owner)
    assert claim.offset == 3, "nor is anything claimed"
