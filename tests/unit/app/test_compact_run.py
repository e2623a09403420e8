"""A compaction by command beside the cleaner lane, over one store and the real folds (issue 23, S-250, S-273, S-276, S-281)."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.clean_world import CleanWorld, KilledError, live
from tests.support.compacted_logs import committed_records, table
from tests.support.inline_blocking import InlineBlocking
from tests.support.scripted import ScriptedBroker, ScriptedFailpoints
from tests.unit.app.config.config_files import LEAST, load
from tests.unit.tasks.test_clean import PLACES, puts, random_log
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.kafka.broker import KafkaBroker
from tiersidecar.adapters.stores.filesystem import FilesystemStore
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.app.commands.session import Session
from tiersidecar.app.compact_run import Compacting, Compactor, PartitionCompacted
from tiersidecar.app.held_lease import claimed_lease
from tiersidecar.app.repair_run import LEASE
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError, LeaseHeldError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch, Lineage, Offset
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import TrashKind
from tiersidecar.ports.broker import EpochAsked, EpochEndAnswer
from tiersidecar.ports.state_log import TopicState
from tiersidecar.tasks.clean import LONGEST_ROUND_MS

Actions = dict[str, Callable[[], Awaitable[None]]]
MANY = 24 * 10_000
NOTHING_LEFT = "no dirty segment may be cleaned yet"


class LeadersFile(ScriptedBroker):
    """Answers OffsetForLeaderEpoch by the history that the leader's own log has."""

    history = Lineage.of([(0, 0)])
    end = 2**40

    async def end_of_epochs(
        self, asked: Mapping[TopicIdPartition, EpochAsked]
    ) -> dict[TopicIdPartition, EpochEndAnswer]:
        return {owner: self._end_at(one.epoch) for owner, one in asked.items()}

    def _end_at(self, epoch: int) -> EpochEndAnswer:
        at_most = [entry for entry in self.history.entries if entry.epoch <= epoch]
        if not at_most:
            return EpochEndAnswer(epoch=LeaderEpoch(epoch), end_offset=self.history.entries[0].start_offset, error=None)
        end = next((one.start_offset for one in self.history.entries if one.epoch > epoch), Offset(self.end))
        return EpochEndAnswer(epoch=at_most[-1].epoch, end_offset=end, error=None)


@dataclass(slots=True)
class Beside:
    """The lane's world, and an operator's session over the same topics and the same store."""

    world: CleanWorld
    broker: LeadersFile
    session: Session
    root: Path
    scratch: Path

    def compactor(
        self, actions: Actions | None = None, *, dedupe_bytes: int = MANY, settle_s: float = 0.0
    ) -> Compactor:
        wanted = Compacting(
            topic=self.world.owner.topic,
            partition=None,
            scratch=self.scratch,
            dedupe_buffer_bytes=dedupe_bytes,
            settle_s=settle_s,
        )
        return Compactor(self.session, wanted, failpoints=ScriptedFailpoints(actions))

    async def compact(self, actions: Actions | None = None, *, dedupe_bytes: int = MANY) -> PartitionCompacted:
        (done,) = await self.compactor(actions, dedupe_bytes=dedupe_bytes).apply()
        return done

    def elect(self, epoch: int, *history: tuple[int, int]) -> None:
        """Let broker 1 lead in a further epoch, with this history."""
        self.world.lead(epoch)
        self.broker.views = (self.world.partition.view,)
        self.broker.history = self.world.lineages.known = Lineage.of(history)


@pytest.fixture
def beside(tmp_path: Path) -> Beside:
    (root := tmp_path / "store").mkdir()
    (scratch := tmp_path / "scratch").mkdir()
    world, broker = CleanWorld(scratch=tmp_path / "cleaned", broker=LeadersFile()), None
    broker = cast("LeadersFile", world.broker)
    store = FilesystemStore(root=str(root), blocking=InlineBlocking(), ids=SystemIds())
    # The command opens its store by the configuration, so there is none in memory; what is called of it both have.
    world.builder.run = replace(world.builder.run, store=cast("MemoryStore", store))
    world.broker.views = (world.partition.view,)
    world.state.topics[world.owner.topic_id] = TopicState(
        topic=world.owner.topic,
        mode="strict",
        retention_ms=-1,
        retention_bytes=-1,
        local_retention_ms=-2,
        local_retention_bytes=-2,
    )
    session = Session(
        config=load(tmp_path, LEAST.replace("/srv/tier", str(root))),
        broker=cast("KafkaBroker", world.broker),
        state=world.state,
        metadata=world.builder.run.metadata,
        clock=world.clock,
    )
    return Beside(world=world, broker=broker, session=session, root=root, scratch=scratch)


async def test_a_backlog_is_cleaned_in_one_round_whatever_the_ratio_and_the_lane_goes_on_from_there(
    beside: Beside,
) -> None:
    log = random_log(8, steps=60)
    old = await beside.world.add(*log)
    beside.world.configure(segment_bytes="14", min_cleanable_dirty_ratio="1")
    expected = table(committed_records(log))
    done = await beside.compact()
    assert (done.left, done.stopped, len(done.rounds)) == ("", NOTHING_LEFT, 1)
    assert done.cleaner_offset == log[-1].next_base_offset
    assert await beside.world.table_read() == expected
    (claim,) = beside.world.state.cleaner_claims(beside.world.owner)
    assert (claim.leader_epoch, claim.offset, len(claim.segments)) == (0, done.cleaner_offset, len(log))
    assert {one.kind for one in beside.world.state.trash(beside.world.owner)} == {TrashKind.COMPACTION}
    assert beside.world.in_trash() <= {one.remote_log_segment_id.uuid for one in old}
    assert {one.broker_id for one in beside.world.segments()} == {1}, "events name the leader"
    beside.world.configure(min_cleanable_dirty_ratio="0")
    assert (await beside.world.clean()).reason == NOTHING_LEFT, "the claim is the lane's, too"
    await beside.world.add(puts(log[-1].next_base_offset, (b"more", b"1")))
    assert (await beside.world.clean()).cleaner_offset == log[-1].next_base_offset + 1


@pytest.mark.parametrize("seed", range(4))
async def test_it_leaves_byte_for_byte_what_a_round_of_the_lane_leaves(
    beside: Beside, tmp_path: Path, seed: int
) -> None:
    lane = CleanWorld(scratch=tmp_path / "lane", takes_all=True)
    log = random_log(seed, steps=60)
    await lane.add(*log)
    await beside.world.add(*log)
    await lane.clean()
    await beside.compact()
    assert [one.log for one in await beside.world.read()] == [one.log for one in await lane.read()]


async def test_a_map_that_is_smaller_than_the_backlog_takes_more_rounds(beside: Beside) -> None:
    log = [puts(3 * number, *((b"%d-%d" % (number, one), b"v") for one in range(3))) for number in range(5)]
    await beside.world.add(*log, puts(15, (b"0-0", b"new")))
    done = await beside.compact(dedupe_bytes=24 * 8)
    assert (done.left, len(done.rounds) > 1, done.cleaner_offset) == ("", True, 16)
    assert live(await beside.world.table_read())[b"0-0"] == (15, b"new")


async def test_a_look_changesnothing_more_and_says_what_a_round_would_do(beside: Beside) -> None:
    log = random_log(2)
    await beside.world.add(*log)
    before = beside.world.segments()
    (found,) = await beside.compactor().look()
    assert not isinstance(found.planned, str)
    (chunk,) = found.planned.plan.chunks
    assert [one.start_offset for one in chunk] == [one.base_offset for one in log]
    assert (beside.world.segments(), beside.world.state.leases) == (before, {})


async def test_the_lane_waits_meanwhile_and_another_command_is_refused(beside: Beside) -> None:
    await beside.world.add(*random_log(1))
    reasons = list[str]()

    async def look() -> None:
        reasons.append((await beside.world.clean()).reason)

    await beside.compact({"clean.mapped": look, "clean.finished": look})
    assert len(reasons) > 1
    assert all("an erasure, a repair or a compaction acts" in one for one in reasons)


async def test_a_lease_that_another_command_has_taken_ends_it(beside: Beside) -> None:
    """It was held up for longer than its lease lasts, and the other one was not."""
    await beside.world.add(*random_log(1))

    async def take() -> None:
        lease = beside.world.state.leases[LEASE]
        beside.world.state.leases[LEASE] = replace(lease, incarnation="another", term=lease.term + 1)
        await beside.world.clock.advance(61)

    with pytest.raises(LeaseHeldError):
        await beside.compact({"clean.rewritten": take})
    assert beside.world.segments(State.COPY_SEGMENT_STARTED) == []
    assert beside.world.state.cleaner_claims(beside.world.owner) == ()


@pytest.mark.parametrize("place", ["rewritten", "uploaded", "proven", "finishing"])
async def test_one_that_was_stopped_for_longer_than_its_lease_finishes_nothing_afterwards(
    beside: Beside, place: str
) -> None:
    """The lane has cleaned meanwhile, and removed the tombstone of what the command's map knew nothing of."""
    world = beside.world
    world.configure(delete_retention_ms="1000", segment_bytes="14")
    await world.add(puts(0, (b"a", b"1"), (b"b", b"1"), (b"b", b"2")), puts(3, (b"c", b"1")))
    stops = 0

    async def stop() -> None:
        nonlocal stops
        stops += 1
        if stops > 1:
            return
        world.clock.stand_still(100)
        # To the lane's eyes the lease is over.
        world.state.leases.pop(LEASE)
        await world.add(puts(4, (b"a", None)), puts(5, (b"d", b"1")))
        for number in range(4):
            await world.clean()
            world.clock.stand_still(100)
            await world.add(puts(6 + number, (b"e", b"%d" % number)))
        await world.clean()
        assert b"a" not in await world.table_read(), "the tombstone is gone"

    with pytest.raises(LeaseHeldError):
        await beside.compact({f"clean.{place}": stop})
    assert b"a" not in await world.table_read()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("hit", [1, 2])
async def test_killed_anywhere_no_key_is_lost_none_comes_back_and_the_next_run_goes_on(
    beside: Beside, place: str, hit: int
) -> None:
    log, left = random_log(3, steps=60), hit
    await beside.world.add(*log)
    expected = table(committed_records(log))

    async def kill() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KilledError

    try:
        await beside.compact({f"clean.{place}": kill})
        assert place in {"mapped", "published"}
        assert hit == 2
    except KilledError:
        pass
    assert await beside.world.table_read() == expected
    beside.world.clock.jump(0.001)
    done = await beside.compact()
    assert (done.left, done.stopped) == ("", NOTHING_LEFT)
    assert await beside.world.table_read() == expected
    given = {one.remote_log_segment_id.uuid for each in log if (one := beside.world.given(each.base_offset))}
    finished = {one.remote_log_segment_id.uuid for one in beside.world.segments(State.COPY_SEGMENT_FINISHED)}
    assert finished - given == beside.world.in_trash(), "whatever is not read is on its way out, and nothing else is"
    assert all(list(path.iterdir()) == [] for path in beside.scratch.iterdir() if path.name == "cleaned")


async def test_a_round_that_takes_longer_than_its_horizons_bear_is_left_and_the_next_goes_on(beside: Beside) -> None:
    """A reader may get an older value until the last swap, and its tombstone's time has begun with the round."""
    log = random_log(4, steps=60)
    beside.world.configure(delete_retention_ms=str(10 * 86_400_000))
    await beside.world.add(*log)

    async def take_long() -> None:
        beside.world.clock.jump(LONGEST_ROUND_MS / 1000 + 1)

    done = await beside.compact({"clean.trashed": take_long})
    assert "too long" in done.left
    (claim,) = beside.world.state.cleaner_claims(beside.world.owner)
    assert (len(done.rounds), done.cleaner_offset) == (1, claim.offset)
    swapped = [one.start_offset for one in done.rounds[0].swapped]
    assert done.cleaner_offset is not None
    assert swapped[-1] < done.cleaner_offset, "what was swapped is claimed"
    again = await beside.compact()
    assert again.left == ""
    assert again.rounds[0].swapped
    assert all(one.start_offset >= done.cleaner_offset for one in again.rounds[0].swapped), "and not written again"
    assert live(await beside.world.table_read()) == live(table(committed_records(log)))


async def test_of_a_topic_that_is_written_to_all_the_time_what_was_there_at_the_beginning_is_cleaned(
    beside: Beside,
) -> None:
    await beside.world.add(puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"a", b"2")))
    end = 3

    async def write() -> None:
        nonlocal end
        assert end < 100, "it would go on for as long as the topic is written to"
        await beside.world.add(puts(end, (b"a", b"%d" % end)))
        end += 1

    done = await beside.compact({"clean.published": write})
    assert (done.left, len(done.rounds), done.cleaner_offset) == ("", 1, 3)
    assert done.stopped.startswith("clean up to offset 3, ")
    assert "more has come since" in done.stopped


async def test_where_a_round_does_not_reach_that_far_others_do(beside: Beside) -> None:
    log = [puts(3 * number, *((b"%d-%d" % (number, one), b"v") for one in range(3))) for number in range(5)]
    await beside.world.add(*log)
    end = 15

    async def write() -> None:
        nonlocal end
        assert end < 100, "it would go on for as long as the topic is written to"
        await beside.world.add(puts(end, (b"new-%d" % end, b"v")))
        end += 1

    done = await beside.compact({"clean.published": write}, dedupe_bytes=24 * 8)
    assert done.left == ""
    assert done.cleaner_offset is not None
    assert 15 <= done.cleaner_offset <= end
    assert len(done.rounds) > 1


async def test_what_another_history_has_hidesnothing_more_though_no_segment_of_this_one_is_remote(
    beside: Beside,
) -> None:
    """After an unclean election the leader's log lacks what was copied before it.  Of that only the leader knows."""
    world = beside.world
    await world.add(puts(0, (b"a", b"older"), (b"b", b"1")), puts(2, (b"c", b"1")))
    await world.add(puts(3, (b"a", b"lost")))
    beside.elect(1, (0, 0), (1, 3))
    done = await beside.compact()
    assert live(await world.table_read())[b"a"] == (0, b"older")
    assert done.cleaner_offset == 3


async def test_an_election_on_the_way_goes_on_in_the_next_epoch(beside: Beside) -> None:
    log = random_log(4, steps=60)
    await beside.world.add(*log)
    end = log[-1].next_base_offset
    elections = 0

    async def elect() -> None:
        nonlocal elections
        elections += 1
        if elections == 1:
            beside.broker.error = "FENCED_LEADER_EPOCH"
            beside.elect(1, (0, 0), (1, end))

    async def found() -> None:
        beside.broker.error = None

    at_once(beside, 5.0, found)
    done = await beside.compact({"clean.trashed": elect})
    assert (done.left, done.cleaner_offset) == ("", end)
    (claim,) = beside.world.state.cleaner_claims(beside.world.owner)
    assert claim.leader_epoch == 1
    assert live(await beside.world.table_read()) == live(table(committed_records(log)))


@pytest.mark.parametrize("is_elected", [True, False])
async def test_a_leader_that_dies_on_the_way_is_waited_for_and_the_next_one_is_gone_on_with(
    beside: Beside, is_elected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent to it may still arrive until then."""
    log = random_log(4, steps=60)
    await beside.world.add(*log)
    end = log[-1].next_base_offset
    list_offsets, waited = beside.broker.list_offsets, list[float]()

    async def refuses(*_: Any, **__: Any) -> Any:
        raise BrokerUnreachableError(address="broker:9092", reason="connection refused")

    async def die() -> None:
        if len(waited) == 1:
            monkeypatch.setattr(beside.broker, "list_offsets", refuses)

    async def elect() -> None:
        waited.append(30.0)
        if is_elected and len(waited) > 1:  # the first one is for the lane
            monkeypatch.setattr(beside.broker, "list_offsets", list_offsets)
            beside.elect(1, (0, 0), (1, end))

    at_once(beside, 30.0, elect)
    compactor = beside.compactor({"clean.trashed": die}, settle_s=30.0)
    (done,) = await compactor.apply()
    if is_elected:
        assert (done.left, done.cleaner_offset) == ("", end)
    else:
        assert "could not be reached" in done.left
        assert [len(one.swapped) for one in done.rounds] == [1], "what was done is reported"
    assert len(waited) == 2
    assert live(await beside.world.table_read()) == live(table(committed_records(log)))


async def test_a_leader_that_refuses_and_stays_ends_it_with_its_error(beside: Beside) -> None:
    await beside.world.add(*random_log(4))
    beside.broker.error = "NOT_LEADER_OR_FOLLOWER"
    at_once(beside, 5.0, nothing_more)
    with pytest.raises(BrokerRefusedError):
        await beside.compact()


def at_once(beside: Beside, these: float, doing: Callable[[], Awaitable[None]]) -> None:
    """Let waits of this length do something instead."""
    sleep = beside.world.clock.sleep

    async def instead(seconds: float) -> None:
        if seconds == these:
            await doing()
        else:
            await sleep(seconds)

    beside.world.clock.sleep = instead  # type: ignore[method-assign]


async def nothing_more() -> None:
    return None


async def test_while_another_command_has_the_leasenothing_more_begins(beside: Beside) -> None:
    await beside.world.add(*random_log(4))
    async with claimed_lease(beside.session, SystemIds(), LEASE) as lease:
        at_once(beside, 0.5, lease.renew_now)
        with pytest.raises(LeaseHeldError):
            await beside.compact()
    assert (await beside.compact()).left == ""


@pytest.mark.parametrize("seed", range(10))
async def test_beside_a_lane_elections_and_kills_no_key_is_lost_and_none_comes_back(beside: Beside, seed: int) -> None:
    draw, world = random.Random(seed), beside.world
    log, history = random_log(seed, steps=60), [(0, 0)]
    cuts = sorted({0, len(log), draw.randrange(len(log) + 1)})
    for epoch, (start, stop) in enumerate(pairwise(cuts), start=1):
        await world.add(*log[start:stop], epochs=dict(history))
        for _ in range(4):
            doing = beside.compact if draw.random() < 0.5 else world.clean
            actions: Actions = {f"clean.{draw.choice(PLACES)}": _killed} if draw.random() < 0.6 else {}
            with suppress(KilledError):
                await doing(actions)
            world.clock.jump(draw.choice([0.001, 0.001, 2.0]))
            assert live(await world.table_read()) == live(table(committed_records(log[:stop])))
        history.append((epoch, log[stop - 1].next_base_offset))
        beside.elect(epoch, *history)
    assert (await beside.compact()).left == ""
    assert live(await world.table_read()) == live(table(committed_records(log)))


async def _killed() -> None:
    raise KilledError
