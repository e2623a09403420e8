"""Two replicas, unclean elections, and the cleaner: whenever the remote log lacks what the leader's own log has, it is said.

The leader's log is compared as it was written, as if its broker's cleaner had not been there.  The remote log may have less
only where :class:`CleanedByLostRecordsError` is raised once nothing is left to clean; without an unclean election it never is
(docs/design/0017-remote-compaction.md).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.clean_world import CleanWorld, KilledError, live
from tests.unit.tasks.test_clean import puts
from tiersidecar.domain.errors import CleanedByLostRecordsError
from tiersidecar.domain.offsets import Lineage
from tiersidecar.domain.segments import NO_LOG_END
from tiersidecar.domain.states import RemoteLogSegmentState as State

pytestmark = pytest.mark.slow

PLACES = ("mapped", "rewritten", "started", "uploaded", "proven", "finishing", "finished", "trashed", "published")
KEYS, STEPS, SEEDS = 20, 20, 40


@dataclass(frozen=True, slots=True)
class Written:
    """A record of one key, by the leader of that epoch."""

    epoch: int
    key: bytes
    value: bytes | None


class Replica:
    """A log, and the starts of its leader epochs."""

    def __init__(self) -> None:
        self.log: list[Written] = []
        self.starts: list[tuple[int, int]] = [(0, 0)]

    @property
    def lineage(self) -> Lineage:
        return Lineage.of(self.starts)

    def lead(self, epoch: int) -> None:
        self.starts.append((epoch, len(self.log)))

    def follow(self, leader: Replica) -> None:
        """Cut off what the leader does not have, and fetch the rest."""
        self.log, self.starts = list(leader.log), list(leader.starts)


class Partition:
    """``in_sync``: the follower is up, and has all.  ``is_uncertain``: there has been an unclean election."""

    def __init__(self, scratch: Path, seed: int, *, kills: bool) -> None:
        self.world, self.draw, self._kills = CleanWorld(scratch=scratch), random.Random(seed), kills
        self.leader, self.follower, self.in_sync, self.epoch = Replica(), Replica(), True, 0
        self.is_uncertain, self.told = False, list[str]()

    async def step(self, *, unclean: bool) -> None:
        acts: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (6, self.write),
            (2, self.copy),
            (4, self.clean),
            (2, self.lose_follower),
            (1, self.follow),
            (1, self.elect),
            (1, self.delete_foreign),
        ]
        if unclean:
            acts.append((1, self.elect_uncleanly))
        if self._kills:
            acts.append((2, self.killed))
        self.world.clock.jump(self.draw.choice([0.001, 0.1, 1.5]))
        (act,) = self.draw.choices([one for _, one in acts], [weight for weight, _ in acts])
        self.told.append(act.__name__)
        await act()

    async def write(self) -> None:
        for _ in range(self.draw.randint(2, 8)):
            value = None if self.draw.random() < 0.3 else self.draw.randbytes(4)
            self.leader.log.append(Written(self.epoch, b"%d" % self.draw.randrange(KEYS), value))
        if self.in_sync:
            self.follower.follow(self.leader)
        if self.draw.random() < 0.7:
            await self.copy()

    async def copy(self) -> None:
        """All that is not remote, as one segment."""
        lineage, start = self.leader.lineage, self.copied_to
        if start < len(self.leader.log):
            records = [(one.key, one.value) for one in self.leader.log[start:]]
            epochs = {int(epoch): int(first) for epoch, first in lineage.entries_in_range(start, len(self.leader.log))}
            await self.world.add(puts(start, *records), epochs=epochs)

    @property
    def copied_to(self) -> int:
        lineage = self.leader.lineage
        ends = [
            one.next_offset
            for one in self.world.segments(State.COPY_SEGMENT_FINISHED)
            if lineage.contains_segment(one.segment_leader_epochs, one.end_offset, NO_LOG_END)
        ]
        return max(ends, default=0)

    async def clean(self) -> None:
        try:
            await self.world.clean()
        except CleanedByLostRecordsError:
            return

    async def killed(self) -> None:
        left = self.draw.randint(1, 3)

        async def kill() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise KilledError

        try:
            await self.world.clean({f"clean.{self.draw.choice(PLACES)}": kill})
        except (KilledError, CleanedByLostRecordsError):
            return

    async def lose_follower(self) -> None:
        self.in_sync = False

    async def follow(self) -> None:
        self.follower.follow(self.leader)
        self.in_sync = True

    async def elect(self) -> None:
        """The other one leads if it has all; else this one does again, after a restart."""
        if self.in_sync:
            self.leader, self.follower = self.follower, self.leader
        self._lead()

    async def elect_uncleanly(self) -> None:
        if not self.in_sync:
            self.is_uncertain = True
        self.leader, self.follower = self.follower, self.leader
        self._lead()

    def _lead(self) -> None:
        self.epoch += 1
        self.leader.lead(self.epoch)
        if self.in_sync:
            self.follower.follow(self.leader)
        self.world.lead(self.epoch)
        self.world.lineages.known = self.leader.lineage

    async def delete_foreign(self) -> None:
        """What is of another history goes, as expiry has it."""
        lineage = self.leader.lineage
        for one in self.world.segments(State.COPY_SEGMENT_FINISHED):
            if not lineage.contains_segment(one.segment_leader_epochs, one.end_offset, NO_LOG_END):
                for state in (State.DELETE_SEGMENT_STARTED, State.DELETE_SEGMENT_FINISHED):
                    await self.world.builder.move(one, state)

    async def end(self) -> tuple[set[bytes], str]:
        """Return the keys of which the remote log has another value than the leader's, and what is said of it."""
        await self.delete_foreign()
        await self.copy()
        said = ""
        try:
            await self.world.clean_all()
        except CleanedByLostRecordsError as error:
            said = str(error)
        log = {one.key: one.value for one in self.leader.log}
        mine = {key: value for key, value in log.items() if value is not None}
        remote = {key: value for key, (_, value) in live(await self.world.table_read()).items()}
        return {key for key in mine.keys() | remote.keys() if mine.get(key) != remote.get(key)}, said


async def ended(scratch: Path, seed: int, *, unclean: bool, kills: bool = False) -> tuple[Partition, set[bytes], str]:
    partition = Partition(scratch, seed, kills=kills)
    await partition.world.builder.run.metadata.assign([partition.world.owner])
    await partition.write()
    for _ in range(STEPS):
        await partition.step(unclean=unclean)
    differing, said = await partition.end()
    return partition, differing, said


@pytest.mark.parametrize("kills", [False, True], ids=["", "with kills"])
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_what_the_remote_log_lacks_is_said(tmp_path: Path, seed: int, *, kills: bool) -> None:
    partition, differing, said = await ended(tmp_path / "cleaned", seed, unclean=True, kills=kills)
    assert not differing or said, f"{differing}: {partition.told}"
    assert not said or partition.is_uncertain


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_of_clean_elections_nothing_is_said_and_nothing_is_missing(tmp_path: Path, seed: int) -> None:
    partition, differing, said = await ended(tmp_path / "cleaned", seed, unclean=False, kills=True)
    assert (differing, said) == (set(), ""), partition.told


async def test_these_histories_have_what_there_is_to_find(tmp_path: Path) -> None:
    found = [await ended(tmp_path / f"{seed}", seed, unclean=True) for seed in range(SEEDS)]
    assert len([differing for _, differing, _ in found if differing]) >= 3
    assert len([partition for partition, _, said in found if partition.is_uncertain and not said]) >= 3
