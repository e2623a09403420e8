"""The cleaner lane where a delete may still be undone: what comes back finds the tombstones that were written since."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.property.test_compaction_model import Writing, segment_of
from tests.support.clean_world import CleanWorld, live
from tests.support.compacted_logs import COMMIT
from tests.unit.tasks.test_clean import keys, puts
from tiersidecar.decide.trash import TrashDelays, user_delete
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import TrashEntry
from tiersidecar.ports.state_log import PartitionState

RETENTION_S = 1.0
DELAY_S = 3600


@pytest.fixture
def world(tmp_path: Path) -> CleanWorld:
    return CleanWorld(scratch=tmp_path / "cleaned")


async def begins_at(world: CleanWorld, offset: int, generation: int = 0) -> None:
    """Set the remote log start."""
    state = PartitionState(
        remote_log_start_offset=Offset(offset), remote_log_start_epoch=LeaderEpoch(0), start_generation=generation
    )
    await world.state.publish_partition_state(world.owner, state)


async def deleted_below(world: CleanWorld, offset: int, *, has_entry: bool = True) -> TrashEntry:
    """Delete as a user does: an entry of the trash, then the start."""
    entry = user_delete(
        Offset(offset),
        LeaderEpoch(0),
        generation=0,
        delays=TrashDelays(retention_ms=DELAY_S * 1000, user_ms=DELAY_S * 1000),
        now_ms=world.clock.now_ms(),
        by="a user",
    )
    if has_entry:
        await world.state.put_into_trash(world.owner, [entry])
    await begins_at(world, offset)
    return entry


async def rounds(world: CleanWorld, offset: int, *, count: int = 3) -> int:
    """Clean again and again, each time with a new record and after ``delete.retention.ms``; return the log's end."""
    for number in range(offset, offset + count):
        world.clock.jump(2 * RETENTION_S)
        await world.add(puts(number, (b"new", b"%d" % number)))
        await world.clean_all()
    return offset + count


@pytest.mark.parametrize("has_entry", [pytest.param(True, id="decided"), pytest.param(False, id="no entry is known")])
async def test_a_tombstone_stays_while_a_value_below_the_start_may_come_back(
    world: CleanWorld, has_entry: bool
) -> None:
    await world.add(puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"z", b"1")))
    await world.clean_all()
    await deleted_below(world, 2, has_entry=has_entry)
    world.clock.jump(DELAY_S / 12)
    await world.add(puts(3, (b"a", None)))
    end = await rounds(world, 4)
    await begins_at(world, 0, generation=1)  # undelete
    world.clock.jump(0.001)
    await world.clean_all()
    assert b"a" not in live(await world.table_read())
    await rounds(world, end)
    assert live(await world.table_read()).keys() == {b"b", b"z", b"new"}


async def test_a_tombstone_that_was_there_before_the_delete_goes_when_it_is_due(world: CleanWorld) -> None:
    """The round that has seen it has taken its value out of what was deleted later."""
    await world.add(puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"z", b"1"), (b"a", None)))
    await world.clean_all()
    world.clock.jump(DELAY_S)  # decisions share the begin of a 24th of the delay
    await deleted_below(world, 2)
    await rounds(world, 4)
    assert b"a" not in await world.table_read()
    await begins_at(world, 0, generation=1)  # undelete
    assert live(await world.table_read()).keys() == {b"b", b"z", b"new"}


async def test_tombstones_go_once_what_was_deleted_is_gone(world: CleanWorld) -> None:
    gone, _ = await world.add(puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"z", b"1")))
    await world.clean_all()
    entry = await deleted_below(world, 2)
    world.clock.jump(DELAY_S / 12)
    await world.add(puts(3, (b"a", None)))
    end = await rounds(world, 4)
    assert b"a" in keys(await world.read(2))
    await world.builder.move(gone, State.DELETE_SEGMENT_STARTED)
    await world.builder.move(gone, State.DELETE_SEGMENT_FINISHED)
    await world.state.take_out_of_trash(world.owner, [entry])
    await rounds(world, end)
    assert b"a" not in keys(await world.read(2))


async def test_a_marker_stays_with_the_tombstone(world: CleanWorld) -> None:
    log = Writing(offset=2)
    log.data([(b"a", None)], 0, 7)
    log.end(7, COMMIT)
    await world.add(puts(0, (b"a", b"1"), (b"b", b"1")))
    await deleted_below(world, 2)
    world.clock.jump(DELAY_S / 12)
    await world.add(segment_of(log.batches))
    await rounds(world, 4)
    await begins_at(world, 0, generation=1)  # undelete
    assert live(await world.table_read()).keys() == {b"b", b"new"}
