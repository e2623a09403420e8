"""What the filesystem store does beyond the contract: layout, durability, bad disks, leftovers of the dead."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from stat import S_IMODE
from typing import TypeVar

import pytest

from tiersidecar.adapters.clock import SystemIds, ThreadBlocking
from tiersidecar.adapters.os_errors import explain_os_error
from tiersidecar.adapters.stores import temporary_file
from tiersidecar.adapters.stores.filesystem import FilesystemStore, open_filesystem_store
from tiersidecar.adapters.stores.temporary_file import ObjectModes
from tiersidecar.adapters.stores.wrapped_store import WrappedBody
from tiersidecar.domain.errors import CorruptDataError, ObjectNotFoundError, SegmentChangedError, StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.formats import native
from tiersidecar.formats.native import NativeCore
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.store import BytesBody, SourceFile
from tiersidecar.testing.store_contract import KEY, FailingBody, FileBody, keys_of

T = TypeVar("T")
DAY_MS = 24 * 60 * 60 * 1000


class FixedClock:
    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing waits here")


@pytest.fixture
async def blocking() -> AsyncIterator[Blocking]:
    async with ThreadBlocking(max_threads=4) as pool:
        yield pool


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    path.mkdir()
    return path


@pytest.fixture
def store(root: Path, blocking: Blocking) -> FilesystemStore:
    return FilesystemStore(root=str(root), blocking=blocking, ids=SystemIds())


def files_below(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def mode_of(path: Path) -> int:
    return S_IMODE(path.stat().st_mode)


def names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def open_descriptors() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


def source_file(path: Path, data: bytes) -> tuple[SourceFile, int]:
    path.write_bytes(data)
    fileno = os.open(path, os.O_RDONLY)
    return SourceFile(fileno=fileno, path=str(path), byte_range=ByteRange(0, len(data))), fileno


async def test_an_object_is_a_file_at_root_plus_key(store: FilesystemStore, root: Path) -> None:
    """The layout of Aiven's FileSystemStorage: a native broker finds it there."""
    await store.put_object(KEY, BytesBody(b"segment"))
    assert (root / KEY).read_bytes() == b"segment"


@pytest.mark.parametrize("umask", [0o077, 0o027, 0o022, 0o000], ids=oct)
@pytest.mark.parametrize(
    ("modes", "file", "directory"),
    [
        pytest.param(None, 0o640, 0o750, id="by default owner and group"),
        pytest.param(ObjectModes(file=0o600, directory=0o700), 0o600, 0o700, id="the owner"),
        pytest.param(ObjectModes(file=0o644, directory=0o755), 0o644, 0o755, id="all"),
    ],
)
async def test_who_may_read_an_object_does_not_go_by_the_umask(
    root: Path, blocking: Blocking, umask: int, modes: ObjectModes | None, file: int, directory: int
) -> None:
    """The daemon's umask is 0077; a native broker of the same group reads its objects all the same."""
    store = FilesystemStore(root=str(root), blocking=blocking, ids=SystemIds(), modes=modes)
    former = os.umask(umask)
    try:
        await store.put_object("p/t/0/a.log", BytesBody(b"x"))
        await store.put_object("p/t/0/b.log", BytesBody(b"x"), if_absent=True)
    finally:
        os.umask(former)
    assert {mode_of(root / "p/t/0" / name) for name in ("a.log", "b.log")} == {file}
    assert {mode_of(root / name) for name in ("p", "p/t", "p/t/0")} == {directory}
    assert mode_of(root / ".tiersidecar-tmp") == 0o700 & ~umask


async def test_directories_that_are_there_keep_their_mode_and_new_ones_the_group_of_theirs(
    store: FilesystemStore, root: Path
) -> None:
    (root / "p").mkdir(mode=0o700)
    (root / "p").chmod(0o2711)
    await store.put_object("p/t/a.log", BytesBody(b"x"))
    assert mode_of(root / "p") == 0o2711
    assert mode_of(root / "p" / "t") == 0o2750


async def test_a_mount_that_knows_no_modes_takes_objects_all_the_same(
    store: FilesystemStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chmod(path: object, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(os, "chmod", chmod)
    await store.put_object("p/t/a.log", BytesBody(b"x"))
    assert await store.fetch_object("p/t/a.log", max_bytes=2**30) == b"x"


async def test_a_delete_of_the_last_object_removes_its_directories_but_not_the_root(
    store: FilesystemStore, root: Path
) -> None:
    await store.put_object("p/t/0/a.log", BytesBody(b"x"))
    await store.put_object("p/t/1/a.log", BytesBody(b"x"))
    await store.delete_objects(["p/t/0/a.log"])
    assert not (root / "p/t/0").exists()
    assert (root / "p/t/1").exists()
    await store.delete_objects(["p/t/1/a.log"])
    assert names_in(root) == [".tiersidecar-tmp"]


async def test_a_missing_root_is_an_error_and_never_made_nor_taken_for_an_empty_store(
    tmp_path: Path, blocking: Blocking
) -> None:
    """An unmounted volume: objects are not lost, none are written to the root disk instead, and none count as deleted, for
    their DELETE_SEGMENT_FINISHED would make orphans of them."""
    store = FilesystemStore(root=str(tmp_path / "volume"), blocking=blocking, ids=SystemIds())
    for attempt in (
        lambda: store.put_object(KEY, BytesBody(b"x")),
        lambda: store.fetch_object(KEY, max_bytes=2**30),
        lambda: store.head_object(KEY),
        lambda: store.delete_objects([KEY]),
        lambda: keys_of(store),
        store.check_writable,
    ):
        with pytest.raises(StoreError, match=r"No such file or directory.*volume") as raised:
            await attempt()
        assert not isinstance(raised.value, ObjectNotFoundError)
    assert not (tmp_path / "volume").exists()


async def test_a_root_that_is_a_file_is_named_and_not_taken_for_an_empty_store(
    tmp_path: Path, blocking: Blocking
) -> None:
    (tmp_path / "file").write_text("")
    store = FilesystemStore(root=str(tmp_path / "file"), blocking=blocking, ids=SystemIds())
    for attempt in (
        lambda: store.put_object(KEY, BytesBody(b"x")),
        lambda: store.fetch_object(KEY, max_bytes=2**30),
        lambda: store.head_object(KEY),
        lambda: store.delete_objects([KEY]),
        lambda: keys_of(store),
        store.check_writable,
    ):
        with pytest.raises(StoreError, match=r"Not a directory: .*/file") as raised:
            await attempt()
        assert not isinstance(raised.value, ObjectNotFoundError)


def unmount(root: Path) -> None:
    root.rename(root.with_name("away"))


def become_a_file(root: Path) -> None:
    unmount(root)
    root.write_text("")


def show_what_is_below(root: Path) -> None:
    """As the directory of a mount point does: another file system is there."""
    unmount(root)
    root.symlink_to("/proc")


@pytest.mark.parametrize("goes", [unmount, become_a_file, show_what_is_below])
async def test_a_listing_of_a_root_that_goes_away_meanwhile_is_not_taken_for_whole(
    store: FilesystemStore, root: Path, goes: Callable[[Path], None]
) -> None:
    """What it had not come to counted as missing: reconcile called it lost, and recover left it out."""
    for number in range(3):
        await store.put_object(f"t/{number}/a.log", BytesBody(b"x"))
    listing = store.list_objects()
    assert (await anext(listing)).key == "t/0/a.log"
    goes(root)
    with pytest.raises(StoreError, match=str(root)) as raised:
        await anext(listing)
    assert raised.value.is_away


async def test_a_directory_that_goes_while_the_root_stays_shortens_a_listing(
    store: FilesystemStore, root: Path
) -> None:
    """The last object of a partition is deleted at any time."""
    for number in range(3):
        await store.put_object(f"t/{number}/a.log", BytesBody(b"x"))
    listed: list[str] = []
    async for stored in store.list_objects():
        if not listed:
            await store.delete_objects(["t/1/a.log"])
        listed.append(stored.key)
    assert listed == ["t/0/a.log", "t/2/a.log"]


def test_a_root_that_may_not_be_written_is_named_with_its_cause(tmp_path: Path) -> None:
    """As another user, since root may write anywhere."""
    (tmp_path / "store").mkdir(mode=0o755)
    for directory in (tmp_path, *tmp_path.parents[:2]):  # pytest's own: closed to other users
        directory.chmod(0o755)
    program = (
        "import asyncio, os, sys\n"
        "from tiersidecar.adapters.clock import ThreadBlocking\n"
        "from tiersidecar.adapters.clock import SystemIds\n"
        "from tiersidecar.adapters.stores.filesystem import FilesystemStore\n"
        "from tiersidecar.domain.errors import StoreError\n"
        "os.chmod(sys.argv[1], 0o555)\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "async def main():\n"
        "    async with ThreadBlocking(max_threads=1) as blocking:\n"
        "        await FilesystemStore(root=sys.argv[1], blocking=blocking, ids=SystemIds()).check_writable()\n"
        "try: asyncio.run(main())\n"
        "except StoreError as error: print(error)\n"
    )
    arguments = [sys.executable, "-c", program, str(tmp_path / "store")]
    said = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    assert "Permission denied" in said
    assert str(tmp_path / "store") in said
    assert "the daemon's user may not do that here" in said


def test_a_disk_that_fills_up_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the file size stands for the full disk: write(2) fails in the middle of the object."""
    program = (
        "import asyncio, resource, sys\n"
        "from tiersidecar.testing.store_contract import PiecesBody\n"
        "from tiersidecar.adapters.clock import ThreadBlocking\n"
        "from tiersidecar.adapters.clock import SystemIds\n"
        "from tiersidecar.adapters.stores.filesystem import FilesystemStore\n"
        "from tiersidecar.domain.errors import StoreError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))\n"
        "async def main():\n"
        "    async with ThreadBlocking(max_threads=1) as blocking:\n"
        "        store = FilesystemStore(root=sys.argv[1], blocking=blocking, ids=SystemIds())\n"
        "        await store.put_object('t/0/a.log', PiecesBody([bytes(100_000)] * 3))\n"
        "try: asyncio.run(main())\n"
        "except StoreError as error: print(error)\n"
    )
    arguments = [sys.executable, "-c", program, str(tmp_path)]
    said = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    assert said == "store could not put 't/0/a.log': File too large\n"
    assert files_below(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EROFS, "Read-only file system: '/srv/tier' (it is mounted read-only)"),
        (errno.ENOSPC, "No space left on device: '/srv/tier' (the disk is full)"),
        (errno.EACCES, "Permission denied: '/srv/tier' (the daemon's user may not do that here)"),
        (errno.EXDEV, "Invalid cross-device link: '/srv/tier' (the whole store has to be one file system)"),
        (errno.ENOTDIR, "Not a directory: '/srv/tier'"),
    ],
    ids=["read-only mount", "full disk", "no permission", "a mount inside the store", "a file in the way"],
)
def test_errors_of_the_system_name_path_and_cause(number: int, expected: str) -> None:
    assert explain_os_error(OSError(number, os.strerror(number), "/srv/tier")) == expected


async def test_an_object_in_the_way_of_a_directory_is_an_error_that_names_it(store: FilesystemStore) -> None:
    await store.put_object("t/0", BytesBody(b"x"))
    with pytest.raises(StoreError, match=r"Not a directory: .*t/0"):
        await store.put_object("t/0/a.log", BytesBody(b"x"))
    with pytest.raises(ObjectNotFoundError):
        await store.fetch_object("t/0/a.log", max_bytes=2**30)
    assert await keys_of(store) == ["t/0"]


async def test_no_key_reaches_into_the_directory_of_temporary_files(store: FilesystemStore) -> None:
    with pytest.raises(StoreError, match="being written"):
        await store.put_object(".tiersidecar-tmp/x", BytesBody(b"x"))
    await store.put_object("t/.tiersidecar-tmp/x", BytesBody(b"x"))
    assert await keys_of(store) == ["t/.tiersidecar-tmp/x"]


async def test_links_and_odd_names_are_no_objects(store: FilesystemStore, root: Path) -> None:
    await store.put_object("t/0/a.log", BytesBody(b"x"))
    (root / "t/0/link").symlink_to("a.log")
    (root / "t/loop").symlink_to(root)
    os.mkfifo(root / "t/0/pipe")
    (root / os.fsdecode(b"t/0/not utf-8 \xff")).write_text("")
    assert await keys_of(store) == ["t/0/a.log"]


def plant_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def plant_socket(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(path))


PLANTED = [
    pytest.param(plant_link, "this is a symbolic link", id="a link"),
    pytest.param(os.mkfifo, "this is a named pipe", id="a named pipe"),
    pytest.param(plant_socket, "this is a socket", id="a socket"),
]


@pytest.mark.parametrize(("plant", "reason"), PLANTED)
async def test_what_is_no_plain_file_is_refused_and_is_not_missing(
    store: FilesystemStore, root: Path, plant: Callable[[Path], None], reason: str
) -> None:
    """Whoever may write there could show us files that are not the store's, or have us wait without end."""
    (root / "t").mkdir()
    plant(root / "t/a")
    for attempt in (
        lambda: store.fetch_object("t/a", max_bytes=10),
        lambda: store.fetch_range("t/a", ByteRange(0, 1)),
        lambda: store.feed_range("t/a", ByteRange(0, 1), len),
        lambda: store.feed_with_rests("t/a", ByteRange(0, 1), len),
        lambda: store.head_object("t/a"),
    ):
        with pytest.raises(StoreError, match=f"{reason}, and objects are plain files: remove it: '.*/t/a'") as raised:
            await attempt()
        assert not isinstance(raised.value, ObjectNotFoundError)
    assert await keys_of(store) == []
    await store.delete_objects(["t/a"])
    assert names_in(root) == []
    assert Path("/etc/passwd").exists()


async def test_named_pipes_hold_no_thread(store: FilesystemStore, root: Path) -> None:
    """Each open of one waited for a writer: as many as there are threads ended all use of the store."""
    await store.put_object("t/a", BytesBody(b"x"))
    pipes = [f"t/pipe-{number}" for number in range(8)]
    for pipe in pipes:
        os.mkfifo(root / pipe)
    asked = [asyncio.create_task(store.fetch_object(pipe, max_bytes=10)) for pipe in pipes]
    try:
        async with asyncio.timeout(20):
            await asyncio.wait(asked)
            assert await store.fetch_object("t/a", max_bytes=10) == b"x"
    finally:
        while not all(one.done() for one in asked):  # a thread that waits for a writer gets one
            for pipe in pipes:
                with suppress(OSError):
                    os.close(os.open(root / pipe, os.O_WRONLY | os.O_NONBLOCK))
            await asyncio.sleep(0)


async def test_directories_may_be_links(store: FilesystemStore, root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (root / "t").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/a").write_bytes(b"x")
    assert await store.fetch_object("t/a", max_bytes=10) == b"x"
    assert await store.fetch_range("t/a", ByteRange(0, 1)) == b"x"
    assert (await store.head_object("t/a")).size_bytes == 1


async def test_no_link_leads_the_sweep_of_leftovers_elsewhere(
    store: FilesystemStore, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/a").write_bytes(b"x")
    (root / ".tiersidecar-tmp").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="tiersidecar-tmp"):
        await store.sweep_stale(older_than_ms=2**60)
    assert names_in(tmp_path / "elsewhere") == ["a"]


async def test_a_source_that_became_shorter_is_a_changed_segment(
    store: FilesystemStore, tmp_path: Path, root: Path
) -> None:
    source, fileno = source_file(tmp_path / "00000000000000000000.log", bytes(100_000))
    os.truncate(source.path, 40_000)
    with pytest.raises(SegmentChangedError, match="40000 of 100000"):
        await store.put_object(KEY, FileBody(source))
    os.close(fileno)
    assert files_below(root) == []


async def test_what_a_source_finds_wrong_ends_the_put(store: FilesystemStore, tmp_path: Path, root: Path) -> None:
    """A batch that fails its checksum never becomes part of an object."""
    source, fileno = source_file(tmp_path / "00000000000000000000.log", bytes(3_000_000))
    seen = []

    def look(position: int, part: memoryview) -> None:
        seen.append((position, len(part)))
        if position:
            raise CorruptDataError(where=source.path, position=position, reason="checksum")

    with pytest.raises(CorruptDataError):
        await store.put_object(KEY, FileBody(replace(source, look=look)))
    os.close(fileno)
    assert seen == [(0, 1024 * 1024), (1024 * 1024, 1024 * 1024)]
    assert files_below(root) == []


async def test_a_big_file_is_copied_slice_by_slice(
    store: FilesystemStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary_file, "SLICE_BYTES", 1000)
    data = os.urandom(12_345)
    source, fileno = source_file(tmp_path / "00000000000000000000.log", data)
    await store.put_object(KEY, FileBody(source))
    os.close(fileno)
    assert await store.fetch_object(KEY, max_bytes=2**30) == data


class RationedBody(WrappedBody):
    """Granted 400,000 bytes at a time."""

    async def grant(self, wanted_bytes: int) -> int:
        return min(wanted_bytes, 400_000)


async def test_a_copy_under_a_rate_goes_in_short_turns_with_rests_between(
    store: FilesystemStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U14: the core is given back within a slice, too."""
    data = os.urandom(1_000_000)
    source, fileno = source_file(tmp_path / "00000000000000000000.log", data)
    steps: list[int | str] = []
    monkeypatch.setattr(time, "sleep", lambda _: steps.append("rest"))
    monkeypatch.setattr(native, "core", NativeCore(walks=None, reason="this test counts Python's rests"))
    body = FileBody(replace(source, look=lambda _, part: steps.append(len(part))))
    await store.put_object(KEY, RationedBody(body))
    os.close(fileno)
    slice_steps = [*[65_536, "rest"] * 6, 6_784]
    last_steps = [65_536, "rest", 65_536, "rest", 65_536, "rest", 3_392]
    assert steps == [*slice_steps, *slice_steps, *last_steps], (
        "the last slice is all that was asked for: still no hurry"
    )
    assert await store.fetch_object(KEY, max_bytes=2**30) == data


async def test_without_a_rate_nothing_rests(
    store: FilesystemStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_rest(_: float) -> None:
        raise AssertionError("nobody asked for less than all speed")

    monkeypatch.setattr(time, "sleep", no_rest)
    source, fileno = source_file(tmp_path / "00000000000000000000.log", bytes(3_000_000))
    await store.put_object(KEY, FileBody(source))
    os.close(fileno)


class HookedBlocking:
    """Tells ``hook`` the name of each function before it runs."""

    def __init__(self, inner: Blocking, hook: Callable[[str], None]) -> None:
        self._inner, self._hook = inner, hook

    async def run(self, function: Callable[..., T], *args: object) -> T:
        self._hook(getattr(function, "__name__", ""))
        return await self._inner.run(function, *args)


@pytest.mark.parametrize("step", ["open", "write", "make_durable"])
async def test_a_put_cancelled_at_any_step_before_the_rename_leaves_nothing(
    root: Path, blocking: Blocking, step: str
) -> None:
    def cancel_at(name: str) -> None:
        if name == step:
            put.cancel()

    store = FilesystemStore(root=str(root), blocking=HookedBlocking(blocking, cancel_at), ids=SystemIds())
    put = asyncio.create_task(store.put_object(KEY, BytesBody(b"x")))
    with pytest.raises(asyncio.CancelledError):
        await put
    assert files_below(root) == []


async def test_a_put_whose_directory_is_removed_before_the_rename_makes_it_again(
    root: Path, blocking: Blocking
) -> None:
    plain = FilesystemStore(root=str(root), blocking=blocking, ids=SystemIds())
    await plain.put_object("t/0/old", BytesBody(b"old"))

    def delete_before_rename(name: str) -> None:
        if name == "rename_to":
            (root / "t/0/old").unlink()
            (root / "t/0").rmdir()
            (root / "t").rmdir()

    store = FilesystemStore(root=str(root), blocking=HookedBlocking(blocking, delete_before_rename), ids=SystemIds())
    await store.put_object("t/0/new", BytesBody(b"new"))
    assert await keys_of(plain) == ["t/0/new"]


async def test_file_and_directories_are_synced_before_a_put_returns(
    store: FilesystemStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync
    renamed = threading.Event()

    def record(fileno: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fileno}").readlink().relative_to(root)))
        if (root / "t/0/a.log").exists():
            renamed.set()
        elif renamed.is_set():
            raise AssertionError("gone again")
        fsync(fileno)

    monkeypatch.setattr(os, "fsync", record)
    await store.put_object("t/0/a.log", BytesBody(b"x"))
    assert synced[0].startswith(".tiersidecar-tmp/")
    assert synced[1:] == ["t/0", "t", "."]
    assert renamed.is_set()


async def test_opening_sweeps_old_temporary_files_and_spares_young_ones(root: Path, blocking: Blocking) -> None:
    now_ms = 1_700_000_000_000
    for name, age_ms in (("old", DAY_MS + 1), ("young", DAY_MS - 1)):
        path = root / ".tiersidecar-tmp" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half an object")
        os.utime(path, ns=((now_ms - age_ms) * 1_000_000,) * 2)
    async with open_filesystem_store(root=str(root), blocking=blocking, clock=FixedClock(now_ms), ids=SystemIds()):
        assert names_in(root / ".tiersidecar-tmp") == ["young"]


async def test_a_mount_that_hangs_does_not_hold_up_the_opening_of_a_store(
    root: Path, blocking: Blocking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the other places of the process, which are opened after it; and it was deaf to SIGTERM."""
    may_end, hangs = threading.Event(), threading.Event()

    def hang(directory: Path, older_than_ms: int) -> int:
        hangs.set()
        may_end.wait()
        return 0

    monkeypatch.setattr("tiersidecar.adapters.stores.filesystem.sweep", hang)
    monkeypatch.setattr("tiersidecar.adapters.stores.filesystem._SWEEP_S", 0.01)
    async with (
        asyncio.timeout(10),
        open_filesystem_store(root=str(root), blocking=blocking, clock=FixedClock(0), ids=SystemIds()) as store,
    ):
        await store.put_object(KEY, BytesBody(b"x"))
        assert hangs.is_set()
    may_end.set()


async def test_a_store_that_is_not_there_can_be_opened_and_says_so_when_used(
    tmp_path: Path, blocking: Blocking
) -> None:
    """The daemon starts before its volume is mounted, and check_writable is what tells."""
    opening = open_filesystem_store(root=str(tmp_path / "x"), blocking=blocking, clock=FixedClock(0), ids=SystemIds())
    async with opening as store:
        with pytest.raises(StoreError, match="No such file"):
            await store.check_writable()


async def test_a_failing_body_closes_its_descriptor(store: FilesystemStore) -> None:
    before = open_descriptors()
    for _ in range(5):
        with pytest.raises(ValueError, match="broke"):
            await store.put_object(KEY, FailingBody([b"a", b"b"], failure=ValueError("broke")))
    assert open_descriptors() == before
