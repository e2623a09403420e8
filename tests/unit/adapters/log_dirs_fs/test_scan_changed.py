"""Which directories are read again, by the file events of the real kernel, and when all of them are (issue 20).

What a test changes *unseen* has no file event: a checkpoint is written in place, as where another machine writes the files.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from asyncinotify import Inotify, Mask, Watch
from structlog.testing import capture_logs

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock, settle
from tests.unit.adapters.log_dirs_fs.broker_files import ScratchLogDir, topic_id_partition
from tests.unit.adapters.log_dirs_fs.test_directory_watch import overflow
from tiersidecar.adapters.log_dirs_fs.log_dirs import FilesystemLogDirs
from tiersidecar.ports.log_dirs import LogDirsView

LATER_MS = 2_000_000_000_000
LOOK_S, WHOLE_S = 5.0, 30.0
A, B = topic_id_partition("orders", 0), topic_id_partition("orders", 1)


class Looking:
    """One log dir with two partitions, looked at as the watch does it."""

    def __init__(self, path: Path) -> None:
        self.scratch, self.clock = ScratchLogDir(path), ManualClock(LATER_MS)
        for name in ("orders-0", "orders-1"):
            self.scratch.add_partition(name, 0)
        self.log_dirs = FilesystemLogDirs(
            [str(path)], blocking=InlineBlocking(), clock=self.clock, whole_every_s=WHOLE_S
        )
        self.wakes = 0
        self._following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async for _ in self.log_dirs.changes():
            self.wakes += 1

    async def look(self, passed_s: float = LOOK_S) -> LogDirsView:
        await settle(60)
        await self.clock.advance(passed_s)
        await settle(60)
        return await self.log_dirs.scan_changed()

    async def begin(self) -> None:
        """Until all is watched, and was read whole just now."""
        for _ in range(3):
            await self.look(WHOLE_S)

    def change_unseen(self, name: str, epoch: int) -> None:
        (self.scratch.path / name / "leader-epoch-checkpoint").write_text(f"0\n1\n{epoch} 0\n")
        self.scratch.touch(name)

    async def end(self) -> None:
        self._following.cancel()
        await asyncio.wait([self._following])


def epochs(view: LogDirsView) -> list[int]:
    return [view.partitions[one].leader_epochs[-1].epoch for one in (A, B)]


@pytest.fixture
async def looking(tmp_path: Path) -> AsyncIterator[Looking]:
    looking = Looking(tmp_path / "d1")
    await looking.begin()
    yield looking
    await looking.end()


async def test_only_the_partition_of_an_event_is_read_again(looking: Looking) -> None:
    before = await looking.look()
    looking.scratch.add_file("orders-0", f"{100:020d}.log")
    looking.change_unseen("orders-1", 7)
    view = await looking.look()
    assert [segment.base_offset for segment in view.partitions[A].segments] == [0, 100]
    assert view.partitions[B] is before.partitions[B]


async def test_where_nothing_happens_the_view_is_the_same_object(looking: Looking) -> None:
    assert await looking.look() is await looking.look()


async def test_where_a_whole_scan_finds_nothing_new_the_view_is_the_same_object(looking: Looking) -> None:
    """Beside thousands of partitions another object has each of them compared, by all that goes by the view."""
    before = await looking.look()
    looking.change_unseen("orders-1", 0)
    assert await looking.look(WHOLE_S) is before
    looking.change_unseen("orders-1", 7)
    assert epochs(await looking.look(WHOLE_S)) == [0, 7]


async def test_what_no_event_told_of_is_found_by_the_next_whole_scan(looking: Looking) -> None:
    looking.change_unseen("orders-1", 7)
    seen = [epochs(await looking.look()) for _ in range(6)]
    assert seen == [*5 * [[0, 0]], [0, 7]]


@pytest.mark.parametrize("name", ["orders-0", "orders-1"])
async def test_an_active_segment_that_has_grown_shows_at_the_next_whole_scan(looking: Looking, name: str) -> None:
    with (looking.scratch.path / name / f"{0:020d}.log").open("ab") as file:
        file.write(bytes(1000))
    whole = (await looking.look(WHOLE_S)).partitions[A if name == "orders-0" else B]
    assert whole.segments[-1].size_bytes == 1100


async def test_without_a_reader_of_events_every_scan_is_a_whole_one(tmp_path: Path) -> None:
    """As in a process without the tier role."""
    looking = Looking(tmp_path / "d1")
    await looking.end()
    await looking.look()
    looking.change_unseen("orders-1", 7)
    assert epochs(await looking.look()) == [0, 7]


async def test_once_nobody_reads_events_any_more_every_scan_is_a_whole_one(looking: Looking) -> None:
    """As when the tier role is another process's."""
    await looking.end()
    looking.change_unseen("orders-1", 7)
    assert epochs(await looking.look()) == [0, 7]


async def test_a_partition_that_comes_or_goes_shows_at_once(looking: Looking) -> None:
    looking.scratch.add_partition("orders-2", 0)
    assert len((await looking.look()).partitions) == 3
    (looking.scratch.path / "orders-0").rename(looking.scratch.path / "orders-0.0123456789abcdef-delete")
    assert A not in (await looking.look()).partitions


async def test_after_an_overflow_everything_is_read(looking: Looking) -> None:
    overflow(looking.scratch.path / "orders-0")
    looking.change_unseen("orders-1", 7)
    assert epochs(await looking.look()) == [0, 7]


async def test_a_directory_that_was_made_anew_in_an_overflow_is_watched(looking: Looking) -> None:
    """That the one of before was renamed is among the events that were dropped."""
    path = looking.scratch.path
    overflow(path / "orders-1")
    (path / "orders-0").rename(path / "orders-0.0123456789abcdef-stray")
    looking.scratch.add_partition("orders-0", 0)
    await looking.look()
    looking.scratch.add_file("orders-0", f"{100:020d}.log")
    assert len((await looking.look()).partitions[A].segments) == 2


async def test_a_log_dir_that_another_takes_the_place_of_is_read_whole_at_once(looking: Looking) -> None:
    """As when a volume is mounted over it: no watch of the old directories tells of that."""
    path = looking.scratch.path
    path.rename(path.parent / "aside")
    ScratchLogDir(path).add_partition("orders-1", 0, 100)
    assert list((await looking.look()).partitions) == [B]
    (path / "meta.properties").rename(path.parent / "taken")
    path.rename(path.parent / "aside too")
    path.mkdir()
    view = await looking.look()
    assert (dict(view.partitions), list(view.faults)) == ({}, [str(path)])


async def test_partitions_of_a_log_dir_that_has_taken_the_place_of_another_are_watched(looking: Looking) -> None:
    """The directories of before live on aside, and no event tells that their paths are those of others now."""
    path = looking.scratch.path
    path.rename(path.parent / "aside")
    looking.scratch = ScratchLogDir(path)
    for name in ("orders-0", "orders-1"):
        looking.scratch.add_partition(name, 0)
    for _ in range(2):  # the second finds the log dir's own watch new, and reads all once more
        await looking.look()
    looking.scratch.add_file("orders-1", f"{100:020d}.log")
    assert len((await looking.look()).partitions[B].segments) == 2


async def test_a_faulty_directory_is_read_at_every_look_and_no_other_for_its_sake(looking: Looking) -> None:
    metadata = looking.scratch.path / "orders-0" / "partition.metadata"
    sound = metadata.read_text()
    metadata.write_text("version: 9")
    looking.scratch.touch("orders-0")
    looking.scratch.add_file("orders-0", f"{100:020d}.log")
    view = await looking.look()
    assert (list(view.partitions), list(view.faults)) == ([B], [str(metadata.parent)])

    looking.change_unseen("orders-1", 7)
    assert (await looking.look()) is view
    metadata.write_text(sound)
    view = await looking.look()
    assert (epochs(view), view.faults) == ([0, 0], {})


async def test_a_fault_that_ends_without_an_event_is_no_reason_to_doubt_events(looking: Looking) -> None:
    metadata = looking.scratch.path / "orders-0" / "partition.metadata"
    sound = metadata.read_text()
    metadata.write_text("version: 9")
    looking.scratch.add_file("orders-0", f"{100:020d}.log")
    await looking.look()
    metadata.write_text(sound)
    with capture_logs() as told:
        await looking.look(WHOLE_S)
        await looking.look()
    assert told == []


async def test_a_directory_that_was_just_written_is_read_again_until_it_has_settled(looking: Looking) -> None:
    """What comes within the same tick of the file system's clock has no other mtime."""
    now_s = LATER_MS // 1000 + int(4 * WHOLE_S)
    looking.scratch.add_file("orders-0", f"{100:020d}.log")
    looking.scratch.set_mtime("orders-0", now_s)
    await looking.look()
    looking.change_unseen("orders-0", 7)
    looking.scratch.set_mtime("orders-0", now_s)
    assert epochs(await looking.look()) == [7, 0]


async def test_what_cannot_be_watched_is_read_at_every_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_watch = Inotify.add_watch

    def limited(inotify: Inotify, path: str, mask: Mask) -> Watch:
        if str(path).endswith("orders-1"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return add_watch(inotify, path, mask)

    monkeypatch.setattr(Inotify, "add_watch", limited)
    looking = Looking(tmp_path / "d1")
    await looking.begin()
    looking.change_unseen("orders-0", 7)
    looking.change_unseen("orders-1", 7)
    assert epochs(await looking.look()) == [0, 7]
    await looking.end()


class TestTrust:
    """Events are believed until a whole scan finds what they have not told of."""

    async def test_after_an_untold_change_every_scan_is_a_whole_one(self, looking: Looking) -> None:
        looking.change_unseen("orders-1", 7)
        with capture_logs() as told:
            assert epochs(await looking.look(WHOLE_S)) == [0, 7]
            await looking.look()
            looking.change_unseen("orders-1", 8)
            looking.change_unseen("orders-0", 9)
            assert epochs(await looking.look()) == [9, 8]
        assert [(one["event"], one["count"]) for one in told] == [("log_dirs.watch.untold", 1)]
        assert told[0]["changed"] == [str(looking.scratch.path / "orders-1")]

    async def test_while_events_are_doubted_what_they_do_not_tell_of_is_said_once(self, looking: Looking) -> None:
        with capture_logs() as told:
            for epoch in range(5):
                looking.change_unseen("orders-1", epoch + 1)
                await looking.look(WHOLE_S)
        assert [one["event"] for one in told] == ["log_dirs.watch.untold"]

    async def test_they_are_believed_again_after_an_hour(self, looking: Looking) -> None:
        looking.change_unseen("orders-1", 7)
        await looking.look(WHOLE_S)
        await looking.look()
        await looking.look(3600)
        looking.change_unseen("orders-1", 8)
        assert epochs(await looking.look()) == [0, 7]

    @pytest.mark.parametrize(
        "what",
        [
            pytest.param("directory", id="touch of a directory"),
            pytest.param("segment", id="touch of a file in it"),
            pytest.param("growth", id="an active segment grows"),
            pytest.param("checkpoints", id="the broker's checkpoints, every few seconds"),
            pytest.param("roll", id="a roll, of which its event told"),
            pytest.param("partition", id="a partition is made, of which its event told"),
        ],
    )
    async def test_what_is_no_untold_change(self, looking: Looking, what: str) -> None:
        path = looking.scratch.path
        with capture_logs() as told:
            for number in range(1, 4):
                match what:
                    case "directory":
                        looking.scratch.touch("orders-0")
                    case "segment":
                        (path / "orders-0" / f"{0:020d}.log").touch()
                    case "growth":
                        with (path / "orders-0" / f"{0:020d}.log").open("ab") as file:
                            file.write(b"x")
                    case "checkpoints":
                        (path / "replication-offset-checkpoint.tmp").write_text("0\n0\n")
                        (path / "replication-offset-checkpoint.tmp").rename(path / "replication-offset-checkpoint")
                    case "roll":
                        looking.scratch.add_file("orders-0", f"{number * 100:020d}.log")
                    case _:
                        looking.scratch.add_partition(f"orders-{number + 1}", 0)
                await looking.look(WHOLE_S)
                await looking.look()
            looking.change_unseen("orders-1", 7)
            assert (await looking.look()).partitions[B].leader_epochs[-1].epoch == 0
        assert told == []

    async def test_an_event_that_comes_after_the_scan_was_told_in_time(self, looking: Looking) -> None:
        """A whole scan sees the roll before the loop has read its event."""
        await looking.look(WHOLE_S - LOOK_S)
        await looking.clock.advance(WHOLE_S)
        looking.scratch.add_file("orders-0", f"{100:020d}.log")
        with capture_logs() as told:
            assert len((await looking.log_dirs.scan_changed()).partitions[A].segments) == 2
            await looking.look()
            await looking.look()
        assert told == []
