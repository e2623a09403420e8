"""An erasure of a compacted topic beside the cleaner, over one store and the real folds (issue 23)."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest

from tests.support.clean_world import CleanWorld, live
from tests.support.compacted_logs import LogSegment, all_records, committed_records, table
from tests.support.inline_blocking import InlineBlocking
from tests.support.scripted import ScriptedFailpoints
from tests.unit.app.config.config_files import LEAST, load
from tests.unit.app.test_erase_run import PLACES, KilledError
from tests.unit.tasks.test_clean import PLACES as CLEANER_PLACES
from tests.unit.tasks.test_clean import puts, random_log
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.kafka.broker import KafkaBroker
from tiersidecar.adapters.stores.filesystem import FilesystemStore
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.app.commands.session import Session
from tiersidecar.app.erase_partition import erasures_in_trash
from tiersidecar.app.erase_run import Eraser, ErasureResult
from tiersidecar.app.held_lease import claimed_lease
from tiersidecar.app.repair_run import LEASE
from tiersidecar.decide.erasure import Erasing
from tiersidecar.domain.offsets import Lineage
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import TrashKind
from tiersidecar.formats.aiven.keys import planned_keys
from tiersidecar.formats.kafka.records import Record

KEY = b"key-3"
Actions = dict[str, Callable[[], Awaitable[None]]]


@dataclass(slots=True)
class Beside:
    """The cleaner's world, and an operator's session over the same topics and the same store."""

    world: CleanWorld
    session: Session
    root: Path
    scratch: Path

    def eraser(self, actions: Actions | None = None) -> Eraser:
        return Eraser(self.session, {KEY}, self.scratch, failpoints=ScriptedFailpoints(actions))

    async def erase(self, actions: Actions | None = None) -> ErasureResult:
        eraser = self.eraser(actions)
        return await eraser.apply(await eraser.look(self.world.owner.topic))

    async def records(self) -> list[Record]:
        """Return all that a reader is given, but markers."""
        return [one for segment in await self.world.read() for one in all_records(segment.log) if not one.is_control]

    def lose(self, segment: RemoteLogSegmentMetadata) -> None:
        (self.root / planned_keys(segment).in_upload_order[0]).unlink()


@pytest.fixture
def beside(tmp_path: Path) -> Beside:
    (root := tmp_path / "store").mkdir()
    (scratch := tmp_path / "scratch").mkdir()
    world = CleanWorld(scratch=tmp_path / "cleaned")
    store = FilesystemStore(root=str(root), blocking=InlineBlocking(), ids=SystemIds())
    # The command opens its store by the configuration, so there is none in memory; what is called of it both have.
    world.builder.run = replace(world.builder.run, store=cast("MemoryStore", store))
    world.broker.views = (world.partition.view,)
    world.broker.replica_starts = {1: 0}  # the broker has all of it: nothing of a compacted topic is trimmed
    session = Session(
        config=load(tmp_path, LEAST.replace("/srv/tier", str(root))),
        broker=cast("KafkaBroker", world.broker),
        state=world.state,
        metadata=world.builder.run.metadata,
        clock=world.clock,
    )
    return Beside(world=world, session=session, root=root, scratch=scratch)


def planted() -> list[LogSegment]:
    """Two values and a tombstone, each in another segment, among other keys."""
    return [
        puts(0, (KEY, b"older"), (b"a", b"1"), (b"b", b"1")),
        puts(3, (b"a", b"2"), (KEY, b"newer")),
        puts(5, (KEY, None), (b"c", b"1")),
        puts(7, (b"d", b"1")),
    ]


async def test_all_that_is_remote_is_rewritten_whatever_the_brokers_still_have(beside: Beside) -> None:
    old = await beside.world.add(*planted())
    before = await beside.records()
    result = await beside.erase()
    assert [one.records for one in result.erased] == [1, 1, 1]
    assert result.left == []
    assert await beside.records() == [one for one in before if one.key != KEY]
    assert beside.world.in_trash() == {one.remote_log_segment_id.uuid for one in old[:3]}
    assert {one.kind for one in beside.world.state.trash(beside.world.owner)} == {TrashKind.ERASURE}
    (again,) = (await beside.erase()).found
    assert {one.erasing for one in again.steps} == {Erasing.IN_TRASH}


async def test_an_older_value_never_counts_again_while_the_segments_are_swapped(beside: Beside) -> None:
    """They go from the first one up: as long as a value is there, so is what comes after it."""
    await beside.world.add(*planted())
    seen: list[object] = []

    async def look() -> None:
        seen.append(live(await beside.world.table_read()).get(KEY))

    await beside.erase({f"erase.{place}": look for place in PLACES})
    assert seen == [None] * 3 * len(PLACES)


async def test_behind_a_segment_that_cannot_be_read_nothing_is_rewritten(beside: Beside) -> None:
    """It may have a value of which only the tombstone behind it says that it does not count."""
    first, *_ = await beside.world.add(*planted())
    beside.lose(first)
    (found,) = await beside.eraser().look(beside.world.owner.topic)
    assert [one.erasing for one in found.steps] == [Erasing.LEAVE, Erasing.LEAVE]
    assert all("its values would count again" in one.reason for one in found.steps)
    assert [segment.remote_log_segment_id for segment, _ in found.unread] == [first.remote_log_segment_id]


async def test_behind_a_segment_that_was_left_nothing_is_rewritten(beside: Beside) -> None:
    _, second, _, _ = await beside.world.add(*planted())
    hits = 0

    async def lose_it() -> None:
        nonlocal hits
        hits += 1
        if hits == 1:
            beside.lose(second)

    result = await beside.erase({"erase.trashed": lose_it})
    assert [one.step.segment.start_offset for one in result.erased] == [0]
    (failed, reason), (behind, held) = result.left
    assert (failed.segment.start_offset, behind.segment.start_offset) == (second.start_offset, 5)
    assert "it failed" in reason
    assert "its values would count again" in held


async def test_what_the_cleaner_has_replaced_is_not_written_again_and_is_named(beside: Beside) -> None:
    old = await beside.world.add(*planted())
    await beside.world.clean_all()
    result = await beside.erase()
    assert [one.step.segment.start_offset for one in result.erased] == [5], "only the tombstone was left"
    assert KEY not in {one.key for one in await beside.records()}
    (found,) = result.found
    in_trash = {one.segment.remote_log_segment_id.uuid for one in found.of(Erasing.IN_TRASH)}
    assert in_trash == {one.remote_log_segment_id.uuid for one in old[:3]}, "the tombstone has got its horizon"
    assert in_trash <= {uuid for entry in erasures_in_trash(beside.session, found) for uuid in entry.segments}


async def test_a_swap_between_the_look_and_the_deed_is_looked_at_too(beside: Beside) -> None:
    await beside.world.add(*planted())
    eraser = beside.eraser()
    found = await eraser.look(beside.world.owner.topic)
    await beside.world.clean_all()
    cleaned = await beside.records()
    result = await eraser.apply(found)
    assert result.left == []
    assert await beside.records() == [one for one in cleaned if one.key != KEY]


async def test_the_cleaner_waits_while_a_command_acts(beside: Beside) -> None:
    await beside.world.add(*planted())
    async with claimed_lease(beside.session, SystemIds(), LEASE):
        assert "an erasure, a repair or a compaction acts" in (await beside.world.clean()).reason
    assert (await beside.world.clean()).cleaner_offset == 8


async def test_the_cleaner_gives_up_the_swap_in_hand_when_a_command_begins(beside: Beside) -> None:
    await beside.world.add(*planted())
    claim = claimed_lease(beside.session, SystemIds(), LEASE)

    async def begin() -> None:
        await claim.__aenter__()

    done = await beside.world.clean({"clean.proven": begin})
    assert "an erasure, a repair or a compaction acts" in done.left
    assert done.swapped == ()
    await claim.__aexit__(None, None, None)


async def test_the_cleaner_waits_also_where_one_segment_takes_longer_than_the_lease(beside: Beside) -> None:
    await beside.world.add(*planted())
    task, reasons = beside.world.task(), list[str]()

    async def take_long() -> None:
        for _ in range(10):
            await beside.world.clock.advance(10)
            reasons.append((await task.run(beside.world.partition)).reason)

    result = await beside.erase({"erase.started": take_long})
    assert (result.left, len(result.erased) > 1) == ([], True)
    assert all("an erasure, a repair or a compaction acts" in one for one in reasons)


async def test_a_command_that_was_killed_holds_the_cleaner_up_for_its_leases_time_alone(beside: Beside) -> None:
    await beside.world.add(*planted())

    async def kill() -> None:
        raise KilledError

    with pytest.raises(KilledError):
        await beside.erase({"erase.uploaded": kill})
    lease = beside.world.state.lease(LEASE)
    assert lease is not None
    beside.world.state.leases[LEASE] = replace(lease, released=False)  # a killed process releases nothing
    task = beside.world.task()
    assert "an erasure, a repair or a compaction acts" in (await task.run(beside.world.partition)).reason
    await beside.world.clock.advance(lease.duration_ms / 1000)
    assert (await task.run(beside.world.partition)).cleaner_offset == 8


async def _play(beside: Beside, draw: random.Random, expected: dict[bytes, tuple[int, bytes | None]]) -> None:
    """Erasures and rounds of the cleaner in turns, some of them killed; what readers are given is looked at after each."""

    async def kill() -> None:
        raise KilledError

    for _ in range(8):
        is_erasure = draw.random() < 0.5
        name, places = ("erase", PLACES) if is_erasure else ("clean", CLEANER_PLACES)
        actions: Actions = {f"{name}.{draw.choice(places)}": kill} if draw.random() < 0.6 else {}
        try:
            if is_erasure:
                await beside.erase(actions)
            else:
                await beside.world.clean(actions)
        except KilledError:
            pass
        beside.world.clock.jump(draw.choice([0.001, 0.001, 2.0]))
        found = live(await beside.world.table_read())
        assert found.pop(KEY, None) in (None, expected.get(KEY)), "never an older value"
        assert found == {key: one for key, one in expected.items() if key != KEY}


@pytest.mark.parametrize("seed", range(10))
async def test_beside_a_cleaner_and_kills_no_other_key_changes_and_this_one_goes(beside: Beside, seed: int) -> None:
    log, draw = random_log(seed), random.Random(seed)
    expected = live(table(committed_records(log)))
    await beside.world.add(*log)
    await _play(beside, draw, expected)
    assert (await beside.erase()).left == []
    await beside.world.clean_all()
    assert KEY not in {one.key for one in await beside.records()}
    assert live(await beside.world.table_read()) == {key: one for key, one in expected.items() if key != KEY}
    kept = beside.world.segments(State.COPY_SEGMENT_FINISHED)
    kept = [one for one in kept if one.remote_log_segment_id.uuid not in beside.world.in_trash()]
    assert KEY not in {
        one.key for segment in kept for one in all_records(await beside.world.log_of(segment)) if not one.is_control
    }


async def test_a_tombstone_stays_behind_a_value_in_the_front_of_another_historys_segment(beside: Beside) -> None:
    """After an unclean election readers get that front, and it cannot be rewritten."""
    world = beside.world
    await world.add(puts(0, (KEY, b"older"), (b"a", b"1"), (b"b", b"1")), epochs={0: 0, 1: 1})
    await world.add(puts(2, (KEY, None), (b"c", b"1")), epochs={2: 2})
    world.lineages.known = Lineage.of([(0, 0), (1, 1), (2, 2)])
    assert KEY not in live(await world.table_read())
    result = await beside.erase()
    assert KEY not in live(await world.table_read())
    assert (result.erased, len(result.found[0].of(Erasing.LEAVE))) == ([], 2)
