"""When a cleaner takes its own leader for one that another has followed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.clean_world import CleanWorld, KilledError
from tests.unit.tasks.test_clean import puts
from tiersidecar.domain.cleaner import CleanerClaim
from tiersidecar.domain.errors import BrokerRefusedError, CleanedByLostRecordsError
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.offsets import ByteRange, EpochEntry, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State


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


async def test_a_look_near_some_offsets_has_what_holds_them_as_the_look_at_all_has_it(world: CleanWorld) -> None:
    await world.add(*(puts(3 * number, (b"a", b"1"), (b"b", b"1"), (b"c", b"%d" % number)) for number in range(4)))
    for start in (12, 15, 18):  # what was replaced is still there, under what hides it
        assert (await world.clean()).swapped
        await world.add(puts(start, (b"d", b"1"), (b"e", b"1"), (b"a", b"%d" % start)))
    looks = world.task()._looks
    whole = await looks.look(world.partition)
    assert len(whole.chain.segments) > 4
    for segment in whole.chain.segments:
        near = await looks.look_near(world.partition, ByteRange(segment.start_offset, segment.next_offset))
        assert near.chain.segments == (segment,)
        assert set(near.segments) == {
            one
            for one in whole.segments
            if one.start_offset <= segment.end_offset and one.end_offset >= segment.start_offset
        }


async def test_a_round_over_many_segments_reads_few_of_them_again(
    world: CleanWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each swap looks twice.  Looks at the whole partition took hours where it has some thousand segments."""
    await world.add(*(puts(2 * number, (b"a", b"%d" % number), (b"b%d" % number, b"1")) for number in range(40)))
    listed, listing = 0, world.builder.run.metadata.list_remote_log_segments

    def counting(*args: Any) -> Iterator[RemoteLogSegmentMetadata]:
        nonlocal listed
        listed += 1
        return listing(*args)

    monkeypatch.setattr(world.builder.run.metadata, "list_remote_log_segments", counting)
    done = await world.clean()
    assert len(done.swapped) == 39
    assert listed == 1


async def cleaned_in_epoch_one(world: CleanWorld) -> None:
    """Clean the first segment by what epoch 1 wrote from offset 2 on."""
    world.lineages.known = Lineage((EpochEntry(LeaderEpoch(0), Offset(0)), EpochEntry(LeaderEpoch(1), Offset(2))))
    world.lead(1)
    await world.add(puts(0, (b"a", b"1"), (b"b", b"1")))
    await world.add(puts(2, (b"a", b"2"), (b"c", b"1")), epochs={1: 2})
    assert len((await world.clean()).swapped) == 1


def elect_uncleanly(world: CleanWorld, *entries: tuple[int, int]) -> None:
    world.lineages.known = Lineage(tuple(EpochEntry(LeaderEpoch(epoch), Offset(start)) for epoch, start in entries))
    world.lead(entries[-1][0])


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param(((0, 0), (2, 2)), id="all that it had is cut off"),
        pytest.param(((0, 0), (1, 2), (2, 3)), id="some of it is"),
    ],
)
async def test_what_was_cleaned_by_records_that_an_unclean_election_has_cut_off_is_reported(
    world: CleanWorld, entries: Sequence[tuple[int, int]]
) -> None:
    """The new leader's log still has what they had replaced (three brokers: found by an attacker)."""
    await cleaned_in_epoch_one(world)
    elect_uncleanly(world, *entries)
    with pytest.raises(CleanedByLostRecordsError, match=f"by records from offset {entries[-1][1]} on"):
        await world.clean_all()


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param(((0, 0), (1, 2), (2, 4)), id="a leader that had all"),
        pytest.param(((0, 0), (1, 2), (5, 9)), id="later, after others had written"),
        pytest.param(((0, 0), (1, 2)), id="one that has written nothing"),
    ],
)
async def test_nothing_is_reported_of_an_election_that_cuts_nothing_off(
    world: CleanWorld, entries: Sequence[tuple[int, int]]
) -> None:
    await cleaned_in_epoch_one(world)
    elect_uncleanly(world, *entries)
    await world.clean_all()


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


async def test_nor_of_a_log_that_was_copied_again_since(world: CleanWorld) -> None:
    await cleaned_in_epoch_one(world)
    elect_uncleanly(world, (0, 0), (2, 2))
    looks = world.task()._looks
    look = await looks.look(world.partition)
    assert look.parted_at == 2
    again = [
        replace(one, remote_log_segment_id=replace(one.remote_log_segment_id, uuid=Uuid(bytes([number]) * 16)))
        for number, one in enumerate(look.chain.segments, 1)
    ]
    assert replace(look, chain=replace(look.chain, segments=tuple(again))).parted_at is None
    assert replace(look, chain=replace(look.chain, segments=())).parted_at is None, "all of it has expired"


@pytest.mark.parametrize("place", ["", "finished", "published"])
async def test_it_is_said_again_after_rounds_of_later_leaders_that_rewrite_all_of_it(
    world: CleanWorld, place: str
) -> None:
    """Their swaps give the segments new names, and the claim that shows it is not kept with names; one is killed in it."""
    await cleaned_in_epoch_one(world)
    for epoch, value in ((2, b"2"), (3, b"3"), (4, b"4")):
        start = 2 * (epoch - 1)
        elect_uncleanly(world, (0, 0), *((one, 2 * (one - 1)) for one in range(2, epoch + 1)))
        await world.add(puts(start, (b"b", value), (b"d", value)), epochs={epoch: start})
        if place and epoch == 2:
            with pytest.raises(KilledError):
                await world.clean({f"clean.{place}": killed})
        with pytest.raises(CleanedByLostRecordsError, match="by records from offset 2 on"):
            await world.clean_all()
        world.clock.jump(1)


async def killed() -> None:
    raise KilledError


async def test_what_a_round_that_was_killed_has_cleaned_below_its_dirty_part_is_reported(world: CleanWorld) -> None:
    world.lineages.known = Lineage.of([(0, 0), (1, 2)])
    world.lead(1)
    await world.add(puts(0, (b"a", b"1"), (b"b", b"1")))
    assert (await world.clean()).cleaner_offset == 2
    await world.add(puts(2, (b"a", b"2"), (b"c", b"1")), puts(4, (b"c", b"2")), epochs={1: 2})
    times = iter(range(2))

    async def second() -> None:
        if next(times):
            raise KilledError

    with pytest.raises(KilledError):
        await world.clean({"clean.rewritten": second})
    elect_uncleanly(world, (0, 0), (2, 2))
    with pytest.raises(CleanedByLostRecordsError, match="by records from offset 2 on"):
        await world.clean_all()


@pytest.mark.parametrize("deleted", [False, True])
async def test_what_was_cleaned_by_a_leader_whose_predecessor_has_come_back_is_reported(
    world: CleanWorld, *, deleted: bool
) -> None:
    """Two unclean elections: offsets say nothing then, since the first leader has as many.  It is still said when the segments
    of the second one are gone."""
    world.lineages.known = Lineage.of([(0, 0), (1, 2)])
    world.lead(1)
    await world.add(puts(0, (b"a", b"1"), (b"b", b"1")))
    await world.add(puts(2, (b"x", b"2"), (b"c", b"1")), epochs={1: 2})
    elect_uncleanly(world, (0, 0), (2, 2))
    (others,) = await world.add(puts(2, (b"a", b"2"), (b"z", b"1")), epochs={2: 2})
    assert len((await world.clean()).swapped) == 1
    elect_uncleanly(world, (0, 0), (1, 2), (3, 4))
    with pytest.raises(CleanedByLostRecordsError, match="by records from offset 2 on"):
        await world.clean_all()
    if deleted:
        await world.builder.move(others, State.DELETE_SEGMENT_STARTED)
        with pytest.raises(CleanedByLostRecordsError, match="by records from offset 2 on"):
            await world.clean_all()
