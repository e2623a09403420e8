"""A compaction by command that takes longer than retention does to the next segment (S-250, S-273, S-281)."""

from __future__ import annotations

import pytest

from tests.property.test_compaction_model import Writing, segment_of
from tests.support.clean_world import live
from tests.support.compacted_logs import ABORT, COMMIT, committed_records, table
from tests.unit.app.test_compact_run import NOTHING_LEFT, Beside, beside
from tests.unit.tasks.test_clean import puts
from tests.unit.tasks.test_clean_undeleted import begins_at, deleted_below
from tiersidecar.adapters.stores.filesystem import FilesystemStore
from tiersidecar.domain.errors import StoreError

__all__ = ["beside"]  # the fixture


async def add_six(beside: Beside) -> None:
    """Add six segments, each of which a round rewrites; the last one has the tombstone of a key in the first."""
    log = [puts(2 * n, (b"a-%d" % n, None), (b"b-%d" % n, b"1")) for n in range(5)]
    await beside.world.add(*log, puts(10, (b"b-0", None), (b"z", b"1")))


@pytest.mark.parametrize(
    ("place", "start"),
    [
        pytest.param("clean.mapped", 4, id="while the map is built"),
        pytest.param("clean.finishing", 2, id="while its replacement goes up"),
        pytest.param("clean.trashed", 6, id="between two swaps"),
    ],
)
async def test_what_retention_gives_up_meanwhile_does_not_end_the_round(beside: Beside, place: str, start: int) -> None:
    world, moved = beside.world, False
    await add_six(beside)

    async def move() -> None:
        nonlocal moved
        if not moved:
            moved = True
            await begins_at(world, start)

    done = await beside.compact({place: move})
    assert (done.left, done.stopped, done.cleaner_offset) == ("", NOTHING_LEFT, 12)
    assert live(await world.table_read()).keys() >= {b"b-3", b"b-4", b"z"}
    world.clock.jump(0.001)
    assert (await world.clean()).reason == NOTHING_LEFT, "the lane takes it for clean, too"


async def test_nor_does_it_where_its_objects_are_deleted_by_then(beside: Beside) -> None:
    world, moved = beside.world, False
    await add_six(beside)

    async def move() -> None:
        nonlocal moved
        if not moved:
            moved = True
            await begins_at(world, 4)
            for start in (0, 2):
                next(beside.root.rglob(f"{start:020d}-*.log")).unlink()

    done = await beside.compact({"clean.mapped": move})
    assert (done.left, done.stopped, done.cleaner_offset) == ("", NOTHING_LEFT, 12)


async def test_an_object_that_is_missing_ends_the_round_where_readers_need_it_and_what_was_done_is_reported(
    beside: Beside,
) -> None:
    await add_six(beside)

    async def lose() -> None:
        next(beside.root.rglob(f"{4:020d}-*.log")).unlink(missing_ok=True)

    done = await beside.compact({"clean.mapped": lose})
    assert "it failed" in done.left
    assert [(len(one.swapped), one.cleaner_offset) for one in done.rounds] == [(2, 4)]
    (claim,) = beside.world.state.cleaner_claims(beside.world.owner)
    assert claim.offset == 4, "what was done before it"


async def test_what_comes_back_of_it_finds_the_tombstones(beside: Beside) -> None:
    world, moved = beside.world, False
    await add_six(beside)

    async def move() -> None:
        nonlocal moved
        if not moved:
            moved = True
            await deleted_below(world, 4)

    assert (await beside.compact({"clean.mapped": move})).left == ""
    world.clock.jump(5 * 86_400)
    await world.add(puts(12, (b"y", b"1")))
    await world.clean_all()
    await begins_at(world, 0, generation=1)  # undelete
    assert b"b-0" not in live(await world.table_read())
    world.clock.jump(0.001)
    await world.clean_all()
    assert live(await world.table_read()).keys() == {b"b-1", b"b-2", b"b-3", b"b-4", b"y", b"z"}


@pytest.mark.parametrize(
    ("hours", "left"),
    [
        pytest.param(0, "", id="at once"),
        pytest.param(2, "it was replaced or deleted meanwhile", id="after the horizons that the round sets"),
    ],
)
async def test_nor_does_anything_come_back_that_a_slow_round_of_the_lane_has_not_cleaned(
    beside: Beside, hours: int, left: str
) -> None:
    """A tombstone whose horizon was over before a segment was given up counts as one that is not needed for it."""
    world, moved = beside.world, False
    world.configure(delete_retention_ms="1000")
    await add_six(beside)

    async def move() -> None:
        nonlocal moved
        if not moved:
            moved = True
            world.clock.stand_still(hours * 3600)
            await deleted_below(world, 4)

    done = await world.clean({"clean.rewritten": move})
    for start in range(12, 15):
        world.clock.jump(3600)
        await world.add(puts(start, (b"y", b"1")))
        await world.clean_all()
    await begins_at(world, 0, generation=1)  # undelete
    assert b"b-0" not in live(await world.table_read())
    assert done.left == left


async def test_what_is_committed_stays_where_the_marker_of_an_aborted_transaction_is_in_what_is_gone(
    beside: Beside,
) -> None:
    """The marker is not seen: what follows must not be taken for more of that transaction."""
    world, moved, log = beside.world, False, Writing()
    log.data([(b"a", b"aborted")], 0, 2)
    log.end(2, ABORT)
    gone = len(log.batches)
    log.data([(b"b", b"1")], 0, 2)
    log.end(2, COMMIT)
    log.data([(b"c", None)], 0, -1)  # or there would be nothing to rewrite
    await world.add(segment_of(log.batches[:gone]), segment_of(log.batches[gone:]))

    async def move() -> None:
        nonlocal moved
        if not moved:
            moved = True
            await begins_at(world, 2)
            next(beside.root.rglob(f"{0:020d}-*.log")).unlink()

    done = await beside.compact({"clean.mapped": move})
    assert (done.left, done.cleaner_offset, len(done.rounds[0].swapped)) == ("", 5, 1)
    assert live(table(committed_records(await world.read(2)))).keys() == {b"b"}


async def test_what_cannot_be_read_for_now_ends_the_round_though_it_is_given_up(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be undeleted, and a transaction in it would have its marker in a segment that was rewritten without it."""
    world = beside.world
    await add_six(beside)

    async def break_off() -> None:
        await begins_at(world, 4)

        async def away(*_: object, **__: object) -> None:
            raise StoreError(verb="get", key="a segment", reason="the service is away", is_away=True)

        monkeypatch.setattr(FilesystemStore, "_feed", away)

    with pytest.raises(StoreError):
        await beside.compact({"clean.mapped": break_off})
