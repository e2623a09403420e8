"""When a cleaner takes its own leader for one that another has followed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.clean_world import CleanWorld
from tests.unit.tasks.test_clean import puts
from tiersidecar.domain.cleaner import CleanerClaim
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.offsets import LeaderEpoch, Lineage, Offset


@pytest.fixture
def world(tmp_path: Path) -> CleanWorld:
    return CleanWorld(scratch=tmp_path / "cleaned")


async def claimed_later(world: CleanWorld) -> None:
    claim = CleanerClaim(leader_epoch=LeaderEpoch(1), offsets={LeaderEpoch(1): Offset(2)})
    await world.state.publish_cleaner_claim(world.owner, claim)


async def copied_later(world: CleanWorld) -> None:
    await world.add(puts(3, (b"c", b"1")), epochs={0: 0, 1: 3})


@pytest.mark.parametrize("later", [claimed_later, copied_later])
async def test_what_a_later_leader_has_done_ends_it_though_the_broker_says_that_it_leads(
    world: CleanWorld, later: Callable[[CleanWorld], Awaitable[None]]
) -> None:
    await world.add(puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"a", b"2")))
    await later(world)
    before = world.segments()
    with pytest.raises(BrokerRefusedError, match="FENCED_LEADER_EPOCH"):
        await world.clean()
    assert world.segments() == before
    assert [one.leader_epoch for one in world.state.cleaner_claims(world.owner) if one.leader_epoch == 0] == []


async def test_what_comes_while_a_round_goes_on_ends_it_before_the_next_swap(world: CleanWorld) -> None:
    await world.add(puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"a", b"2")))

    async def come() -> None:
        await copied_later(world)

    with pytest.raises(BrokerRefusedError):
        await world.clean({"clean.proven": come})
    assert world.in_trash() == set()


async def test_the_leader_of_the_later_epoch_goes_on(world: CleanWorld) -> None:
    await world.add(puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"a", b"2")))
    await claimed_later(world)
    world.lead(1)
    assert (await world.clean()).cleaner_offset == 3


async def test_what_an_epoch_has_cleaned_in_which_nothing_was_written_is_clean_in_the_next(world: CleanWorld) -> None:
    """Brokers forget such an epoch when the next one begins.  An idle topic would be cleaned anew after each restart."""
    await world.add(puts(0, (b"a", b"1"), (b"b", None)), puts(2, (b"a", b"2")))
    world.lead(1)
    world.lineages.known = Lineage.of([(0, 0), (1, 3)])
    assert (await world.clean()).cleaner_offset == 3
    world.lead(2)
    world.lineages.known = Lineage.of([(0, 0), (2, 3)])
    world.clock.jump(1)
    done = await world.clean()
    assert (done.reason, done.swapped) == ("no dirty segment may be cleaned yet", ())


async def test_what_an_epoch_has_cleaned_that_was_cut_off_is_clean_as_far_as_its_segments_are_those(
    world: CleanWorld,
) -> None:
    await world.add(puts(0, (b"a", b"1"), (b"b", None)), puts(2, (b"a", b"2")))
    world.lead(1)
    world.lineages.known = Lineage.of([(0, 0), (1, 3)])
    await world.add(puts(3, (b"c", b"1")), epochs={1: 3})
    assert (await world.clean()).cleaner_offset == 4
    world.lead(2)
    world.lineages.known = Lineage.of([(0, 0), (2, 3)])  # of an unclean election
    world.clock.jump(1)
    await world.add(puts(3, (b"b", b"2"), (b"d", b"1")), epochs={2: 3})
    done = await world.clean()
    assert (done.left, done.cleaner_offset) == ("", 5)
    assert {one.start_offset for one in done.swapped} <= {0}
    assert {key: one.value for key, one in (await world.table_read()).items()} == {b"a": b"2", b"b": b"2", b"d": b"1"}
