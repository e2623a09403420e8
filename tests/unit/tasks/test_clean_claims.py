"""What a cleaner claims of a chunk that is not done to its end."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.clean_world import CleanWorld, KilledError, live
from tests.support.compacted_logs import committed_records, table
from tests.unit.tasks.test_clean import PLACES, puts, random_log
from tiersidecar.decide.cleaner_offsets import CleanerOffsets
from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.tasks.clean_claims import Claims


@pytest.fixture
def world(tmp_path: Path) -> CleanWorld:
    world = CleanWorld(scratch=tmp_path / "cleaned")
    world.configure(delete_retention_ms=str(30 * 86_400_000))
    return world


async def add_tombstones(world: CleanWorld) -> None:
    """Add five segments, each of which a round rewrites: it sets a delete horizon."""
    await world.add(*(puts(2 * n, (b"a-%d" % n, None), (b"b-%d" % n, b"1")) for n in range(5)))


async def test_what_a_killed_round_had_claimed_at_intervals_is_not_done_again(world: CleanWorld) -> None:
    await add_tombstones(world)
    seen = 0

    async def a_minute_each() -> None:
        nonlocal seen
        seen += 1
        if seen == 4:
            raise KilledError
        await world.clock.advance(61)

    with pytest.raises(KilledError):
        await world.clean({"clean.trashed": a_minute_each})
    (claim,) = world.state.cleaner_claims(world.owner)
    assert (claim.offset, len(claim.segments)) == (6, 3)
    world.clock.jump(0.001)
    done = await world.clean()
    assert (done.left, done.cleaner_offset) == ("", 10)
    assert [one.start_offset for one in done.swapped] == [6, 8]


async def test_a_short_round_claims_once(world: CleanWorld) -> None:
    await add_tombstones(world)
    await world.clean()
    (claim,) = world.state.cleaner_claims(world.owner)
    assert (claim.offset, claim.revision) == (10, 1)


async def test_an_error_ends_the_round_after_what_was_done_is_claimed(world: CleanWorld) -> None:
    await add_tombstones(world)
    seen = 0

    async def away() -> None:
        nonlocal seen
        seen += 1
        if seen == 4:
            raise MetadataNotReadyError(subject="the store is away")

    with pytest.raises(MetadataNotReadyError):
        await world.clean({"clean.rewritten": away})
    (claim,) = world.state.cleaner_claims(world.owner)
    assert claim.offset == 6


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        pytest.param({"cleanup_policy": "delete"}, "the topic is not compacted", id="the topic is compacted no more"),
        pytest.param({"remote_storage_enable": "true"}, "the broker tiers the topic itself", id="the broker tiers it"),
    ],
)
async def test_what_the_topic_has_become_ends_the_round_and_nothing_is_claimed(
    world: CleanWorld, settings: dict[str, str], left: str
) -> None:
    await add_tombstones(world)

    async def change() -> None:
        world.configure(**settings)

    done = await world.clean({"clean.trashed": change})
    assert (len(done.swapped), done.cleaner_offset) == (1, -1)
    assert done.left.startswith(left)
    assert world.state.cleaner_claims(world.owner) == ()


async def test_it_is_claimed_without_a_gap_and_no_further_than_the_map_reaches(world: CleanWorld) -> None:
    chain = await world.add(
        puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"c", b"1")), puts(3, (b"d", b"1"), (b"e", b"1"))
    )
    first, second, third = chain
    claims = Claims(world.state, world.partition.view, CleanerOffsets(offsets={}), chain)
    assert claims.done_to(Offset(5)) == -1
    claims.note_done(second, None)
    assert claims.done_to(Offset(5)) == -1, "the first one is not done"
    claims.note_done(first, None)
    assert claims.done_to(Offset(5)) == 3
    claims.note_done(third, None)
    assert claims.done_to(Offset(4)) == 4, "the map had no room for the rest"
    assert claims.done_to(Offset(5)) == 5


@pytest.mark.parametrize("seed", range(20))
async def test_killed_again_and_again_with_a_claim_after_each_segment_no_key_is_lost_and_none_comes_back(
    world: CleanWorld, seed: int
) -> None:
    draw, log = random.Random(seed), random_log(seed, steps=80)
    expected = live(table(committed_records(log)))
    await world.add(*log)
    for _ in range(12):
        left = draw.randrange(1, 4)

        async def pass_by() -> None:
            await world.clock.advance(61)

        async def kill() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise KilledError

        world.dedupe_bytes = 24 * draw.choice([64, 256, 10_000])
        with suppress(KilledError):
            await world.clean({"clean.finished": pass_by, f"clean.{draw.choice(PLACES[:5])}": kill})
        assert live(await world.table_read()) == expected
        world.clock.jump(draw.choice([0.001, 86_400.0 * 31]))
    await world.clean_all()
    assert live(await world.table_read()) == expected
    kept = [one.key for one in committed_records(await world.read()) if one.key is not None]
    assert len(set(kept)) == len(kept), "of each key one record is left, wherever the rounds had ended"
    given = {one.remote_log_segment_id.uuid for each in log if (one := world.given(each.base_offset)) is not None}
    finished = {one.remote_log_segment_id.uuid for one in world.segments(State.COPY_SEGMENT_FINISHED)}
    assert finished - given == world.in_trash()
