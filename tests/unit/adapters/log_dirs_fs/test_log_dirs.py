"""The view of log dirs: real brokers' directories, and every odd thing that can lie in one."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.manual_clock import ManualClock
from tests.unit.adapters.log_dirs_fs.broker_files import GOLDEN, TOPIC_ID, ScratchLogDir, topic_id_partition
from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.adapters.log_dirs_fs.log_dirs import FilesystemLogDirs
from tiersidecar.domain.errors import LogDirError, UnformattedLogDirError
from tiersidecar.domain.ids import Uuid, format_uuid
from tiersidecar.domain.segments import LocalPartition
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.log_dirs import LogDirsView

LATER_MS = 2_000_000_000_000
"""Every directory of the tests has been left alone for long at this time."""


@pytest.fixture
async def blocking() -> AsyncIterator[Blocking]:
    async with ThreadBlocking(max_threads=4) as pool:
        yield pool


@pytest.fixture
def scratch(tmp_path: Path) -> ScratchLogDir:
    return ScratchLogDir(tmp_path / "d1")


@pytest.fixture
def log_dirs(scratch: ScratchLogDir, blocking: Blocking) -> FilesystemLogDirs:
    return FilesystemLogDirs([str(scratch.path)], blocking=blocking, clock=ManualClock(LATER_MS))


def offsets(partition: LocalPartition) -> list[tuple[int, int | None]]:
    return [(segment.base_offset, segment.next_base_offset) for segment in partition.segments]


def names(view: LogDirsView) -> list[str]:
    return sorted(map(str, view.partitions))


class TestRealBrokers:
    """Our view of the log dirs equals what Kafka says of them."""

    @pytest.mark.parametrize(
        ("state", "offsets_file"),
        [("clean", "offsets.json"), ("unclean", "offsets-unclean.json")],
        ids=["stopped cleanly", "killed"],
    )
    async def test_segments_sizes_and_topic_ids_are_kafkas(
        self, blocking: Blocking, state: str, offsets_file: str
    ) -> None:
        log_dirs = FilesystemLogDirs([str(GOLDEN / state)], blocking=blocking, clock=ManualClock(LATER_MS))
        view = await log_dirs.scan()
        assert view.faults == {}
        lines = (GOLDEN / "expected" / f"segments-{state}.jsonl").read_text().splitlines()
        expected = {
            row["file"]: row["size"] for row in map(json.loads, lines) if "__cluster_metadata" not in row["file"]
        }
        ours = {
            f"{topic_id_partition}/{segment.base_offset:020d}.log": segment.size_bytes
            for topic_id_partition, partition in view.partitions.items()
            for segment in partition.segments
        }
        assert ours == expected
        kafkas = json.loads((GOLDEN / "expected" / offsets_file).read_text())
        for found in view.partitions:
            assert format_uuid(found.topic_id) == kafkas[str(found)]["topic_id"]

    async def test_all_but_the_last_segment_is_sealed_up_to_the_next(self, blocking: Blocking) -> None:
        log_dirs = FilesystemLogDirs([str(GOLDEN / "clean")], blocking=blocking, clock=ManualClock(LATER_MS))
        partitions = {
            str(topic_id_partition): partition
            for topic_id_partition, partition in (await log_dirs.scan()).partitions.items()
        }
        assert [segment.base_offset for segment in partitions["plain-0"].sealed_segments] == [
            0, 35, 70, 105, 140, 175, 210,
        ]  # fmt: skip
        assert offsets(partitions["empty-0"]) == [(0, None)]
        assert [tuple(entry) for entry in partitions["epochs-0"].leader_epochs] == [(0, 0), (2, 35), (4, 70), (6, 105)]

    async def test_identity_and_high_watermarks(self, blocking: Blocking) -> None:
        log_dirs = FilesystemLogDirs([str(GOLDEN / "clean")], blocking=blocking, clock=ManualClock(LATER_MS))
        (identity,) = await log_dirs.identities()
        assert (identity.cluster_id, identity.node_id) == ("dGllcnNpZGVjYXItdGVzdA", 1)
        assert identity.directory_id == "ldlWAnQgGypqhN_XSdNg2g"
        view = await log_dirs.scan()
        kafkas = json.loads((GOLDEN / "expected" / "offsets.json").read_text())
        watermarks = await log_dirs.high_watermarks()
        assert {str(topic_id_partition): offset for topic_id_partition, offset in watermarks.items()} == {
            name: answer["latest"] for name, answer in kafkas.items()
        }
        assert watermarks.keys() == view.partitions.keys()


class TestNames:
    async def test_what_is_not_ours_is_passed_over(self, scratch: ScratchLogDir, log_dirs: FilesystemLogDirs) -> None:
        """Directories that Kafka itself renames, or that others made, are no partitions."""
        scratch.add_partition("orders-0", 0, 100)
        for name in (
            "orders-1.0123456789abcdef0123456789abcdef-delete",
            "orders-2.0123456789abcdef0123456789abcdef-future",
            "orders-3.0123456789abcdef0123456789abcdef-stray",
            "__cluster_metadata-0",
            "remote-log-index-cache",
            "lost+found",
            "orders",
            "orders-x",
            "orders-01",
        ):
            scratch.add_partition(name, 0, 100)
        (scratch.path / "plain-file-0").write_text("")
        assert names(await log_dirs.scan()) == ["orders-0"]

    async def test_odd_topic_names_are_read_from_the_right(
        self, scratch: ScratchLogDir, log_dirs: FilesystemLogDirs
    ) -> None:
        for name in ("a-delete-0", "retention.deleted_x-0", "t-1-2-3", "__consumer_offsets-49"):
            scratch.add_partition(name, 0)
        view = await log_dirs.scan()
        assert {(found.topic, found.partition) for found in view.partitions} == {
            ("a-delete", 0),
            ("retention.deleted_x", 0),
            ("t-1-2", 3),
            ("__consumer_offsets", 49),
        }

    async def test_files_that_come_and_go_are_no_segments(
        self, scratch: ScratchLogDir, log_dirs: FilesystemLogDirs
    ) -> None:
        scratch.add_partition("orders-0", 100, 200)
        for file in (
            "00000000000000000000.log.deleted",
            "00000000000000000100.log.cleaned",
            "00000000000000000150.log.swap",
            "00000000000000000150.index",
            "00000000000000000250.snapshot",
            "150.log",
            "leader-epoch-checkpoint.tmp",
        ):
            scratch.add_file("orders-0", file)
        view = await log_dirs.scan()
        assert offsets(view.partitions[topic_id_partition("orders")]) == [(100, 200), (200, None)]


class TestFaults:
    async def test_a_partition_without_metadata_is_a_fault_of_its_own(
        self, scratch: ScratchLogDir, log_dirs: FilesystemLogDirs
    ) -> None:
        scratch.add_partition("orders-0", 0)
        directory = scratch.add_partition("orders-1", 0, topic_id=None)
        view = await log_dirs.scan()
        assert names(view) == ["orders-0"]
        assert list(view.faults) == [str(directory)]
        assert "partition.metadata" in view.faults[str(directory)]

    @pytest.mark.parametrize(
        ("file", "content", "said"),
        [
            ("leader-epoch-checkpoint", b"0\n2\n0 0\n", "1 entries where 2 were announced"),
            ("leader-epoch-checkpoint", b"0\n", "version and count are missing"),
            ("partition.metadata", b"version: 0\ntopic_id: nonsense", "topic_id"),
            ("partition.metadata", b"", "version"),
        ],
        ids=["epochs cut short", "epochs without a count", "metadata without an id", "metadata empty"],
    )
    async def test_a_damaged_checkpoint_is_a_fault_that_names_the_file(
        self, scratch: ScratchLogDir, log_dirs: FilesystemLogDirs, file: str, content: bytes, said: str
    ) -> None:
        scratch.add_partition("orders-0", 0)
        directory = scratch.add_partition("orders-1", 0)
        scratch.add_file("orders-1", file, content)
        view = await log_dirs.scan()
        assert names(view) == ["orders-0"]
        assert f"{directory}/{file}" in view.faults[str(directory)]
        assert said in view.faults[str(directory)]

    async def test_a_fault_clears_when_its_cause_is_mended(
        self, scratch: ScratchLogDir, log_dirs: FilesystemLogDirs
    ) -> None:
        scratch.add_partition("orders-0", 0, topic_id=None)
        assert (await log_dirs.scan()).faults
        scratch.add_file("orders-0", "partition.metadata", f"version: 0\ntopic_id: {format_uuid(TOPIC_ID)}".encode())
        view = await log_dirs.scan()
        assert (names(view), view.faults) == (["orders-0"], {})

    @pytest.mark.parametrize("loss", ["gone", "unmounted", "a file", "a dead link"])
    async def test_a_lost_log_dir_takes_only_its_own_partitions_down(
        self, tmp_path: Path, scratch: ScratchLogDir, blocking: Blocking, loss: str
    ) -> None:
        """Several log dirs; one that fails takes only its own partitions down."""
        scratch.add_partition("orders-0", 0)
        other = ScratchLogDir(tmp_path / "d2")
        other.add_partition("orders-1", 0)
        both = [str(scratch.path), str(other.path)]
        log_dirs = FilesystemLogDirs(both, blocking=blocking, clock=ManualClock(LATER_MS))
        assert names(await log_dirs.scan()) == ["orders-0", "orders-1"]
        lose(other.path, loss)
        view = await log_dirs.scan()
        assert names(view) == ["orders-0"]
        assert list(view.faults) == [str(other.path)]
        mend(other.path)
        view = await log_dirs.scan()
        assert (names(view), view.faults) == (["orders-0", "orders-1"], {})

    async def test_a_partition_in_two_log_dirs_is_in_neither(
        self, tmp_path: Path, scratch: ScratchLogDir, blocking: Blocking
    ) -> None:
        """As a broker that finds one refuses to start; the id makes no difference."""
        here = scratch.add_partition("orders-0", 0)
        other = ScratchLogDir(tmp_path / "d2")
        there = other.add_partition("orders-0", 0, topic_id=Uuid(bytes(range(2, 18))))
        other.add_partition("orders-1", 0)
        both, clock = [str(scratch.path), str(other.path)], ManualClock(LATER_MS)
        log_dirs = FilesystemLogDirs(both, blocking=blocking, clock=clock)
        assert names(await log_dirs.scan()) == ["orders-1"]
        await clock.advance(5)
        view = await log_dirs.scan()
        assert names(view) == ["orders-1"]
        assert view.faults.keys() == {str(here), str(there)}
        assert all(str(here) in reason and str(there) in reason for reason in view.faults.values())

    async def test_a_partition_that_moves_between_log_dirs_is_where_it_was(
        self, tmp_path: Path, scratch: ScratchLogDir, blocking: Blocking
    ) -> None:
        """S-017: alter-logdir fills a -future directory until it takes the place of the other."""
        scratch.add_partition("orders-0", 0)
        other = ScratchLogDir(tmp_path / "d2")
        other.add_partition("orders-0.0123456789abcdef0123456789abcdef-future", 0)
        both = [str(scratch.path), str(other.path)]
        view = await FilesystemLogDirs(both, blocking=blocking, clock=ManualClock(LATER_MS)).scan()
        assert view.faults == {}
        assert view.partitions[topic_id_partition("orders")].log_dir == str(scratch.path)

    async def test_a_partition_that_takes_its_new_place_is_in_two_for_a_moment(
        self, tmp_path: Path, scratch: ScratchLogDir, blocking: Blocking
    ) -> None:
        """Kafka renames the -future directory first, then the old one to -delete (``replaceCurrentWithFutureLog``)."""
        here = scratch.add_partition("orders-0", 0)
        other = ScratchLogDir(tmp_path / "d2")
        future = other.add_partition("orders-0.0123456789abcdef0123456789abcdef-future", 0)
        both, clock = [str(scratch.path), str(other.path)], ManualClock(LATER_MS)
        log_dirs = FilesystemLogDirs(both, blocking=blocking, clock=clock)
        await log_dirs.scan()
        future.rename(other.path / "orders-0")
        for _ in range(2):
            view = await log_dirs.scan()
            assert (view.faults, view.partitions[topic_id_partition("orders")].log_dir) == ({}, str(scratch.path))
            await clock.advance(2)
        here.rename(scratch.path / "orders-0.0123456789abcdef0123456789abcdef-delete")
        view = await log_dirs.scan()
        assert (view.faults, view.partitions[topic_id_partition("orders")].log_dir) == ({}, str(other.path))
        await clock.advance(60)
        assert (await log_dirs.scan()).faults == {}

    async def test_a_log_dir_that_hangs_is_a_fault_until_it_answers(
        self, tmp_path: Path, scratch: ScratchLogDir, blocking: Blocking
    ) -> None:
        scratch.add_partition("orders-0", 0)
        other = ScratchLogDir(tmp_path / "d2")
        other.add_partition("orders-1", 0)
        disk = HangingDisk(blocking, str(other.path))
        both = [str(scratch.path), str(other.path)]
        log_dirs = FilesystemLogDirs(both, blocking=disk, clock=ManualClock(LATER_MS), scan_timeout_s=0.5)
        for _ in range(2):
            view = await log_dirs.scan()
            assert names(view) == ["orders-0"]
            assert "hangs" in view.faults[str(other.path)]
        assert disk.asked == 1
        disk.answers.set()
        while (view := await log_dirs.scan()).faults:
            pass
        assert names(view) == ["orders-0", "orders-1"]


class HangingDisk:
    """Does not answer for one log dir until told to."""

    def __init__(self, inner: Blocking, log_dir: str) -> None:
        self._inner, self._log_dir = inner, log_dir
        self.answers = asyncio.Event()
        self.asked = 0

    async def run(self, function, *args):  # type: ignore[no-untyped-def]
        if getattr(getattr(function, "__self__", None), "_log_dir", None) == self._log_dir:
            self.asked += 1
            await self.answers.wait()
        return await self._inner.run(function, *args)


def lose(path: Path, loss: str) -> None:
    shutil.move(path, path.parent / "aside")
    match loss:
        case "unmounted":
            path.mkdir()  # the empty mount point
        case "a file":
            path.write_text("")
        case "a dead link":
            path.symlink_to("nowhere")


def mend(path: Path) -> None:
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    shutil.move(path.parent / "aside", path)


class TestIdentities:
    async def test_an_unreadable_log_dir_is_left_out(
        self, tmp_path: Path, scratch: ScratchLogDir, blocking: Blocking
    ) -> None:
        both = [str(scratch.path), str(tmp_path / "d2")]
        log_dirs = FilesystemLogDirs(both, blocking=blocking, clock=ManualClock(LATER_MS))
        assert [identity.log_dir for identity in await log_dirs.identities()] == [str(scratch.path)]

    async def test_none_readable_is_an_error_that_names_all(self, tmp_path: Path, blocking: Blocking) -> None:
        both = [str(tmp_path / "d1"), str(tmp_path / "d2")]
        with pytest.raises(LogDirError, match=r"No such file or directory.*d1.*No such file or directory.*d2"):
            await FilesystemLogDirs(both, blocking=blocking, clock=ManualClock()).identities()

    async def test_a_directory_that_is_no_log_dir_is_an_error(self, tmp_path: Path, blocking: Blocking) -> None:
        with pytest.raises(UnformattedLogDirError, match=r"no meta\.properties"):
            await FilesystemLogDirs([str(tmp_path)], blocking=blocking, clock=ManualClock()).identities()

    async def test_damaged_properties_are_an_error_that_names_the_file(
        self, scratch: ScratchLogDir, log_dirs: FilesystemLogDirs
    ) -> None:
        (scratch.path / "meta.properties").write_text("version=1\nnode.id=1\n")
        with pytest.raises(LogDirError, match=r"meta\.properties.*no cluster\.id"):
            await log_dirs.identities()


class TestHighWatermarks:
    async def test_a_missing_or_damaged_checkpoint_is_no_bound(
        self, scratch: ScratchLogDir, log_dirs: FilesystemLogDirs
    ) -> None:
        scratch.add_partition("orders-0", 0)
        await log_dirs.scan()
        assert await log_dirs.high_watermarks() == {}
        (scratch.path / "replication-offset-checkpoint").write_text("0\n7\norders 0 120\n")
        assert await log_dirs.high_watermarks() == {}

    async def test_partitions_that_are_not_there_have_none(
        self, scratch: ScratchLogDir, log_dirs: FilesystemLogDirs
    ) -> None:
        scratch.add_partition("orders-0", 0)
        (scratch.path / "replication-offset-checkpoint").write_text("0\n2\norders 0 120\ngone 7 3\n")
        await log_dirs.scan()
        assert await log_dirs.high_watermarks() == {topic_id_partition("orders"): 120}
