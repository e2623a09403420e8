"""How many looks it takes until a log dir shows a change: the simulated one is as late as the real one may be, and never later
(docs/design/0021, How soon something is noticed)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.simulation.chances import Chances
from tests.simulation.file_events import MOST_LOOKS_LATE, FileEvents, SimulatedFileEvents, WatchedLogDirs
from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock, settle
from tests.unit.adapters.log_dirs_fs.broker_files import ScratchLogDir, topic_id_partition
from tiersidecar.adapters.log_dirs_fs.directory_watch import DirectoryWatch
from tiersidecar.adapters.log_dirs_fs.log_dirs import FilesystemLogDirs
from tiersidecar.domain.segments import LocalPartition
from tiersidecar.ports.log_dirs import LogDirsView

NOW_MS = 2_000_000_000_000
LOOK_S, WHOLE_S = 5.0, 30.0
CHANGES = 12
ORDERS, PAYMENTS = topic_id_partition("orders"), topic_id_partition("payments")

Change = Callable[[ScratchLogDir, int], None]


def roll(log_dir: ScratchLogDir, number: int) -> None:
    log_dir.add_file("orders-0", f"{1000 + number:020d}.log")


def delete_first_segment(log_dir: ScratchLogDir, number: int) -> None:
    log_dir.rename("orders-0", f"{number:020d}.log", f"{number:020d}.log.deleted")


def begin_leader_epoch(log_dir: ScratchLogDir, number: int) -> None:
    (log_dir.path / "orders-0" / "scratch").write_text(f"0\n1\n{number + 1} 0\n")
    log_dir.rename("orders-0", "scratch", "leader-epoch-checkpoint")


def files_of(partition: LocalPartition) -> object:
    return [one.base_offset for one in partition.segments], partition.leader_epochs


class Looking:
    """At a log dir with one partition, every 5 s, as the watch of the tier role does it."""

    def __init__(self, path: Path, events: FileEvents | None) -> None:
        self.scratch, self.clock = ScratchLogDir(path), ManualClock(NOW_MS)
        self.scratch.add_partition("orders-0", *range(CHANGES), 999)
        self.log_dirs = self._log_dirs(path, events)
        self._following = asyncio.create_task(self._follow())

    def _log_dirs(self, path: Path, events: FileEvents | None) -> FilesystemLogDirs:
        paths, blocking = [str(path)], InlineBlocking()
        if events is None:
            return FilesystemLogDirs(paths, blocking=blocking, clock=self.clock, whole_every_s=WHOLE_S)
        simulated = SimulatedFileEvents(paths, clock=self.clock, events=events, chances=Chances(0), process="sidecar")
        return WatchedLogDirs(paths, blocking=blocking, clock=self.clock, events=simulated)

    async def _follow(self) -> None:
        async for _ in self.log_dirs.changes():
            pass

    async def look(self) -> LogDirsView:
        await settle(60)
        await self.clock.advance(LOOK_S)
        await settle(60)
        return await self.log_dirs.scan_changed()

    async def looks_until_shown(self, change: Change, number: int) -> int:
        before = files_of((await self.look()).partitions[ORDERS])
        change(self.scratch, number)
        looks = 1
        while files_of((await self.look()).partitions[ORDERS]) == before:
            looks += 1
        return looks

    async def end(self) -> None:
        self._following.cancel()
        await asyncio.wait([self._following])


@pytest.fixture(
    params=[
        pytest.param((None, True, 1), id="file events of the kernel"),
        pytest.param((None, False, 6), id="file events of the kernel, none of which comes"),
        pytest.param((FileEvents.AT_ONCE, True, 1), id="simulated ones, at once"),
        pytest.param((FileEvents.LATE, True, 6), id="simulated ones, late"),
        pytest.param((FileEvents.NEVER, True, 6), id="simulated ones, none of which comes"),
    ]
)
async def looking(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Looking, int]]:
    """With the most looks that a change may take."""
    events, comes, most_looks = request.param
    if not comes:
        note = DirectoryWatch._note
        monkeypatch.setattr(
            DirectoryWatch, "_note", lambda self, one: None if one.endswith("orders-0") else note(self, one)
        )
    looking = Looking(tmp_path / "logs", events)
    for _ in range(3):
        await looking.look()
    yield looking, most_looks
    await looking.end()


def test_the_bound_of_late_events_is_the_whole_scan() -> None:
    assert MOST_LOOKS_LATE * LOOK_S == WHOLE_S


@pytest.mark.parametrize("change", [roll, delete_first_segment, begin_leader_epoch])
async def test_a_change_shows_at_the_next_whole_scan_at_the_latest(
    looking: tuple[Looking, int], change: Change
) -> None:
    one, most_looks = looking
    looks = [await one.looks_until_shown(change, number) for number in range(CHANGES)]
    assert max(looks) <= most_looks
    assert (max(looks) > 1) is (most_looks > 1), "a log dir that is never late tests nothing"


async def test_a_partition_that_comes_shows_at_the_next_look(looking: tuple[Looking, int]) -> None:
    one, _ = looking
    one.scratch.add_partition("payments-0", 0)
    assert PAYMENTS in (await one.look()).partitions


async def test_a_process_that_reads_no_events_sees_all_at_every_look(looking: tuple[Looking, int]) -> None:
    one, _ = looking
    await one.end()
    assert [await one.looks_until_shown(roll, number) for number in range(3)] == [1, 1, 1]
