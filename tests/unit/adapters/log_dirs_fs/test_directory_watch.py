"""File events of the real kernel: what wakes a scan, what does not, and what happens at the kernel's limits."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from asyncinotify import Inotify, Mask, Watch
from structlog.testing import capture_logs

from tests.support.manual_clock import settle
from tests.unit.adapters.log_dirs_fs.broker_files import ScratchLogDir
from tiersidecar.adapters.log_dirs_fs import directory_watch
from tiersidecar.adapters.log_dirs_fs.directory_watch import DirectoryWatch

NAME = f"{100:020d}"


class HeldClock:
    """Sleepers stay asleep until :meth:`let_pass`; ``sleeps`` counts them."""

    def __init__(self) -> None:
        self.sleeps = 0
        self._gate = asyncio.Semaphore(0)

    def now_ms(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        await self._gate.acquire()

    def let_pass(self) -> None:
        self._gate.release()


class Watching:
    """Reads the changes of a watch, and counts them."""

    def __init__(self, log_dir: Path) -> None:
        self.clock = HeldClock()
        self.watch = DirectoryWatch([str(log_dir)], clock=self.clock, debounce_s=0.2)
        self.count = 0
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for _ in self.watch.changes():
            self.count += 1

    async def events_since(self, before: int) -> int:
        """Let the loop see what the kernel has queued, end the debounce times, and say how many changes came of it."""
        await settle(50)
        while self.clock.sleeps > self.count:
            self.clock.let_pass()
            await settle(50)
        return self.count - before

    async def events(self) -> int:
        return await self.events_since(self.count)


@pytest.fixture
def scratch(tmp_path: Path) -> ScratchLogDir:
    scratch = ScratchLogDir(tmp_path / "d1")
    scratch.add_partition("orders-0", 0)
    return scratch


@pytest.fixture
async def watching(scratch: ScratchLogDir) -> AsyncIterator[Watching]:
    watching = Watching(scratch.path)
    watching.watch.want([str(scratch.path / "orders-0")])
    assert await watching.events() == 1  # what came before the first watch
    yield watching
    assert not watching.task.done()
    watching.task.cancel()
    await asyncio.wait([watching.task])


async def test_a_roll_is_a_change(scratch: ScratchLogDir, watching: Watching) -> None:
    scratch.add_file("orders-0", f"{NAME}.log")
    assert await watching.events() == 1
    assert await watching.events() == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{0:020d}.log", f"{0:020d}.log.deleted"),
        ("leader-epoch-checkpoint.tmp", "leader-epoch-checkpoint"),
        (f"{NAME}.log.swap", f"{NAME}.log"),
    ],
    ids=["a segment deleted", "a new leader epoch", "a cleaned segment swapped in"],
)
async def test_a_rename_that_matters_is_a_change(
    scratch: ScratchLogDir, watching: Watching, before: str, after: str
) -> None:
    scratch.add_file("orders-0", before)
    before_rename = await watching.events()
    scratch.rename("orders-0", before, after)
    assert await watching.events() == 1
    assert before_rename == 0


async def test_a_producer_snapshot_is_a_change(scratch: ScratchLogDir, watching: Watching) -> None:
    """A segment is not ready before it is there."""
    scratch.add_file("orders-0", f"{NAME}.snapshot")
    assert await watching.events() == 1


async def test_appends_indexes_and_checkpoints_are_none(scratch: ScratchLogDir, watching: Watching) -> None:
    for _ in range(3):
        with (scratch.path / "orders-0" / f"{0:020d}.log").open("ab") as file:
            file.write(b"x" * 1000)
        scratch.add_file("orders-0", f"{NAME}.index")
        scratch.add_file("orders-0", f"{NAME}.timeindex")
        for checkpoint in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
            (scratch.path / f"{checkpoint}.tmp").write_text("0\n0\n")
            (scratch.path / f"{checkpoint}.tmp").rename(scratch.path / checkpoint)
    assert await watching.events() == 0


async def test_the_end_of_a_deleted_segment_is_none(scratch: ScratchLogDir, watching: Watching) -> None:
    """Its renaming was the change; the broker unlinks it a minute later."""
    deleted = scratch.add_file("orders-0", f"{NAME}.log.deleted")
    await watching.events()
    deleted.unlink()
    assert await watching.events() == 0


async def test_a_new_partition_is_a_change_and_is_watched_once_it_is_wanted(
    scratch: ScratchLogDir, watching: Watching
) -> None:
    directory = scratch.add_partition("orders-1", 0)
    assert await watching.events() == 1
    before = watching.count
    watching.watch.want([str(scratch.path / "orders-0"), str(directory)])
    assert await watching.events_since(before) == 1  # it may have rolled before the watch
    scratch.add_file("orders-1", f"{NAME}.log")
    assert await watching.events() == 1


async def test_a_partition_that_is_deleted_is_a_change(scratch: ScratchLogDir, watching: Watching) -> None:
    deleted = scratch.path / "orders-0.0123456789abcdef0123456789abcdef-delete"
    (scratch.path / "orders-0").rename(deleted)
    assert await watching.events() == 1
    (deleted / f"{NAME}.log").write_text("")  # not watched any more
    assert await watching.events() == 0


async def test_a_topic_created_again_under_the_same_name_is_watched(scratch: ScratchLogDir, watching: Watching) -> None:
    (scratch.path / "orders-0").rename(scratch.path / "orders-0.0123456789abcdef0123456789abcdef-delete")
    await watching.events()
    directory = scratch.add_partition("orders-0", 0)
    watching.watch.want([str(directory)])
    await watching.events()
    scratch.add_file("orders-0", f"{NAME}.log")
    assert await watching.events() == 1


async def test_what_is_not_wanted_any_more_is_not_watched(scratch: ScratchLogDir, watching: Watching) -> None:
    watching.watch.want([])
    await watching.events()
    scratch.add_file("orders-0", f"{NAME}.log")
    assert await watching.events() == 0


async def test_many_changes_within_the_debounce_time_are_one(scratch: ScratchLogDir, watching: Watching) -> None:
    for number in range(1, 50):
        scratch.add_file("orders-0", f"{number:020d}.log")
        await settle(2)
    assert watching.clock.sleeps == 2  # one before the first change of all, one now
    assert await watching.events_since(1) == 1


async def test_a_log_dir_that_another_takes_the_place_of_is_watched(scratch: ScratchLogDir, watching: Watching) -> None:
    """As when its volume is mounted over the empty mount point."""
    scratch.path.rename(scratch.path.parent / "aside")
    scratch.path.mkdir()
    watching.watch.want([])
    assert await watching.events() == 1
    scratch.add_partition("orders-7", 0)
    assert await watching.events() == 1


async def test_an_overflow_is_a_change(scratch: ScratchLogDir, watching: Watching) -> None:
    """The kernel queues so many events and drops the rest: anything may have been among them."""
    overflow(scratch.path / "orders-0")
    assert await watching.events() == 1


def overflow(directory: Path) -> None:
    noise = [directory / f"{number}.tmp" for number in range(2)]
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(limit // 2 + 10):  # two events each; the kernel joins those that equal the one before
        noise[number % 2].touch()
        noise[number % 2].unlink()


class TestLimits:
    async def test_without_an_inotify_instance_there_are_no_changes_and_one_warning(
        self, scratch: ScratchLogDir, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(**_: int) -> Inotify:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(directory_watch, "Inotify", refuse)
        with capture_logs() as logs:
            watching = Watching(scratch.path)
            watching.watch.want([str(scratch.path / "orders-0")])
            assert await watching.events() == 0
            assert not watching.task.done()
            watching.task.cancel()
            await asyncio.wait([watching.task])
        assert [(entry["event"], entry["log_level"]) for entry in logs] == [("log_dirs.watch.limited", "warning")]
        assert "max_user_instances" in logs[0]["reason"]

    async def test_out_of_watches_it_keeps_what_it_has_says_so_once_and_tries_again(
        self, scratch: ScratchLogDir, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scratch.add_partition("orders-1", 0)
        both = [str(scratch.path / "orders-0"), str(scratch.path / "orders-1")]
        add_watch, limit = Inotify.add_watch, 2

        def limited(inotify: Inotify, path: str, mask: Mask) -> Watch:
            is_new = Path(path) not in {watch.path for watch in inotify.watches}
            if is_new and len(inotify.watches) >= limit:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return add_watch(inotify, path, mask)

        monkeypatch.setattr(Inotify, "add_watch", limited)
        with capture_logs() as logs:
            watching = Watching(scratch.path)
            for _ in range(3):  # a scan after each tick
                watching.watch.want(both)
                await watching.events()
            scratch.add_file("orders-0", f"{NAME}.log")
            assert await watching.events() == 1
            scratch.add_file("orders-1", f"{NAME}.log")
            assert await watching.events() == 0
            limit = 3
            watching.watch.want(both)
            await watching.events()
            scratch.add_file("orders-1", f"{200:020d}.log")
            assert await watching.events() == 1
        watching.task.cancel()
        await asyncio.wait([watching.task])
        assert [entry["event"] for entry in logs] == ["log_dirs.watch.limited"]
        assert "max_user_watches" in logs[0]["reason"]
