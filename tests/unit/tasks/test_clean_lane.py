"""When a led compacted partition is cleaned (issue 23; S-247)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.clean_world import COMPACTED, CleanWorld, live
from tests.support.compacted_logs import committed_records, table
from tests.unit.tasks.test_clean import puts, random_log
from tiersidecar.decide.topics import PartitionRole, read_cleaner_settings
from tiersidecar.tasks.clean_lane import CleanLane

INTERVAL_S = 10.0


class Lane:
    """The lane of one process over one partition."""

    def __init__(self, scratch: Path) -> None:
        self.world = CleanWorld(scratch=scratch)
        settings = read_cleaner_settings(COMPACTED)
        assert settings is not None
        self.world.table.compacted_topics[self.world.owner.topic] = settings
        self.lane = CleanLane(
            task=self.world.task(),
            table=self.world.table,
            metadata=self.world.builder.run.metadata,
            clock=self.world.clock,
            slots=asyncio.Semaphore(1),
            interval_s=INTERVAL_S,
        )

    @property
    def has_work(self) -> bool:
        return self.lane.has_work(self.world.partition)

    async def run(self) -> None:
        await self.lane.run(self.world.partition)


@pytest.fixture
def lane(tmp_path: Path) -> Lane:
    return Lane(tmp_path / "cleaned")


async def test_a_run_cleans_all_chunks(lane: Lane) -> None:
    log = random_log(1, steps=40)
    await lane.world.add(*log)
    lane.world.configure(segment_bytes="14")
    assert lane.has_work
    await lane.run()
    (claim,) = lane.world.state.cleaner_claims(lane.world.owner)
    assert claim.offset == log[-1].next_base_offset
    assert live(await lane.world.table_read()) == live(table(committed_records(log)))


async def test_it_is_looked_at_again_after_the_interval_if_something_was_copied(lane: Lane) -> None:
    await lane.world.add(puts(0, (b"a", b"1")))
    await lane.run()
    assert not lane.has_work
    await lane.world.clock.advance(INTERVAL_S)
    assert not lane.has_work, "nothing was copied"
    await lane.world.add(puts(1, (b"a", b"2")))
    assert lane.has_work


async def test_what_nothing_was_copied_to_is_looked_at_seldom(lane: Lane) -> None:
    """Its settings may be others by then."""
    await lane.world.add(puts(0, (b"a", b"1")))
    await lane.run()
    await lane.world.clock.advance(39 * INTERVAL_S)
    assert not lane.has_work
    await lane.world.clock.advance(INTERVAL_S)
    assert lane.has_work


async def test_another_epoch_begins_anew(lane: Lane) -> None:
    await lane.world.add(puts(0, (b"a", b"1")))
    await lane.run()
    lane.world.lead(1)
    await lane.world.clock.advance(INTERVAL_S)
    assert lane.has_work


async def test_followers_and_other_topics_clean_nothing(lane: Lane) -> None:
    await lane.world.add(puts(0, (b"a", b"1")))
    lane.world.lead(1, PartitionRole.FOLLOWER)
    found = [lane.has_work]
    lane.world.lead(2)
    found.append(lane.has_work)
    lane.world.table.compacted_topics.clear()
    assert [*found, lane.has_work] == [False, True, False]
