"""Bytes on their way into a file: past the page cache or through it, they are the same bytes, and few are in memory (U14)."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tiersidecar.adapters.log_dirs_fs.segment_file import resident_slices
from tiersidecar.adapters.stores import file_writes
from tiersidecar.adapters.stores.file_writes import FileWrites

KIB, MIB = 1024, 1024 * 1024


def refuse_direct(fileno: int, *, is_on: bool) -> bool:
    return False


def ignore_direct(fileno: int, *, is_on: bool) -> bool:
    return True


@pytest.fixture(params=["past the page cache", "through it", "through it, and the file system does not say so"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The third is ext4's with data=journal: it takes O_DIRECT, and leaves what is written so in the page cache."""
    if request.param == "through it":
        monkeypatch.setattr(file_writes, "_set_direct", refuse_direct)
    elif request.param != "past the page cache":
        monkeypatch.setattr(file_writes, "_set_direct", ignore_direct)
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


@pytest.fixture
def fileno(path: Path) -> Iterator[int]:
    opened = os.open(path, os.O_WRONLY | os.O_CREAT)
    yield opened
    os.close(opened)


def resident_mib(path: Path) -> int:
    fileno = os.open(path, os.O_RDONLY)
    try:
        return sum(resident_slices(fileno, path.stat().st_size))
    finally:
        os.close(fileno)


def is_direct(fileno: int) -> bool:
    return bool(fcntl.fcntl(fileno, fcntl.F_GETFL) & os.O_DIRECT)


def put(writes: FileWrites, data: bytes) -> None:
    """Append as a copy does: into the memory of the file itself."""
    rest = data
    while rest:
        room = writes.room(len(rest))
        room[:] = rest[: len(room)]
        writes.took(len(room))
        rest = rest[len(room) :]


@pytest.mark.parametrize("append", [FileWrites.write, put], ids=["copied", "put in place"])
@pytest.mark.parametrize(
    "size", [0, 1, 4095, 4096, 4 * MIB - 1, 4 * MIB, 8 * MIB + 1, 20 * MIB], ids=lambda size: f"{size} bytes"
)
def test_a_file_of_any_size_is_whole(
    way: str, path: Path, fileno: int, size: int, append: Callable[[FileWrites, bytes], None]
) -> None:
    data = os.urandom(size)
    writes = FileWrites(fileno, None)
    append(writes, data)
    append(writes, data[:7])
    assert writes.taken_bytes == size + len(data[:7])
    writes.finish()
    assert path.read_bytes() == data + data[:7]


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(1, 3 * MIB)), max_size=6))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_however_it_comes_it_is_whole(way: str, tmp_path: Path, parts: list[tuple[bool, bool, int]]) -> None:
    """Pieces and what is put in place, by turns, in large and from some moment on in small steps."""
    path = tmp_path / "file"
    fileno = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        writes, expected = FileWrites(fileno, None), bytearray()
        for number, (is_piece, is_small, size) in enumerate(parts):
            if is_small:
                writes.take_small_steps()
            part = bytes([number + 1]) * size
            (FileWrites.write if is_piece else put)(writes, part)
            expected += part
            assert writes.taken_bytes == len(expected)
        writes.finish()
        assert path.read_bytes() == expected
    finally:
        os.close(fileno)


@pytest.mark.parametrize("append", [FileWrites.write, put], ids=["copied", "put in place"])
@pytest.mark.parametrize(
    ("is_small", "most_mib"), [(False, 12), (True, 4)], ids=["in no hurry to be gentle", "in small steps"]
)
def test_what_the_disk_has_leaves_the_page_cache_while_more_is_written(
    way: str, path: Path, fileno: int, is_small: bool, most_mib: int, append: Callable[[FileWrites, bytes], None]
) -> None:
    """Nothing takes a core for long either, neither handing over to the disk nor letting go."""
    writes, seen = FileWrites(fileno, None), 0
    if is_small:
        writes.take_small_steps()
    for number in range(48 * 4):
        append(writes, bytes([number]) * (256 * KIB))
        seen = max(seen, resident_mib(path))
    writes.finish()
    assert seen <= most_mib
    assert path.read_bytes() == b"".join(bytes([number]) * (256 * KIB) for number in range(48 * 4))


def test_a_step_goes_to_the_disk_at_once_and_no_more(path: Path, fileno: int) -> None:
    """How much is written between two rests is what the broker's own requests wait for."""
    writes, sizes = FileWrites(fileno, None), []
    writes.take_small_steps()
    for _ in range(40):
        put(writes, bytes(100 * KIB))
        sizes.append(path.stat().st_size)
    if is_direct(fileno):
        steps = {after - before for before, after in pairwise(sizes)}
        assert steps == {0, MIB}


def test_a_small_file_goes_through_the_page_cache(fileno: int, path: Path) -> None:
    writes = FileWrites(fileno, 1000)
    assert not is_direct(fileno)
    writes.write(bytes(1000))
    assert path.stat().st_size == 1000, "nothing of it waits in memory"


def test_a_fuse_mount_gets_what_is_written_in_order(fileno: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one write past the page cache it gets several requests at once, in any order; that of an object store takes only what
    continues the file."""
    found = subprocess.run(["stat", "-f", "-c", "%t", path], check=True, capture_output=True, text=True)
    assert file_writes.kind_of_file_system(fileno) == int(found.stdout, 16)
    monkeypatch.setattr(file_writes, "kind_of_file_system", lambda _: 0x65735546)
    writes, data = FileWrites(fileno, None), os.urandom(5 * MIB)
    assert not is_direct(fileno)
    put(writes, data)
    writes.finish()
    assert path.read_bytes() == data


@pytest.mark.parametrize("written", [0, 4096, 4096 * 5 + 100], ids=["at once", "after a block", "within a block"])
def test_a_file_system_that_takes_no_such_write_gets_it_the_other_way(
    written: int, path: Path, fileno: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some take O_DIRECT and refuse the first write, or take a part of one."""
    write = os.write

    def refuse(to: int, data: memoryview) -> int:
        if is_direct(to):
            if not written or path.stat().st_size:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            os.ftruncate(to, 0)
            fcntl.fcntl(to, fcntl.F_SETFL, 0)
            done = write(to, data[:written])
            fcntl.fcntl(to, fcntl.F_SETFL, os.O_DIRECT)
            return done
        return write(to, data)

    monkeypatch.setattr(os, "write", refuse)
    data = os.urandom(9 * MIB + 5)
    writes = FileWrites(fileno, len(data))
    put(writes, data)
    writes.finish()
    assert path.read_bytes() == data
    assert not is_direct(fileno)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT], ids=os.strerror)
def test_what_the_disk_does_not_take_is_an_error(
    way: str, code: int, fileno: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(to: int, data: memoryview) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "write", fail)
    writes = FileWrites(fileno, None)
    with pytest.raises(OSError, match=os.strerror(code)):
        writes.write(bytes(5 * MIB))


@pytest.mark.parametrize(
    ("code", "raises"),
    [
        pytest.param(errno.EIO, True, id="the disk is broken: fsync would not tell it a second time"),
        pytest.param(errno.ENOSPC, True, id="delayed allocation found the disk full"),
        pytest.param(errno.EINVAL, False, id="a file system that cannot do it"),
    ],
)
@pytest.mark.parametrize("when", ["as it is handed over", "while it is waited for"])
def test_what_the_disk_did_not_take_of_the_page_cache_is_an_error_before_fsync(
    when: str, code: int, raises: bool, fileno: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes wrong as pages are handed over may be told only to who does it."""

    class Refusing:
        def sync_file_range(self, fileno: int, position: int, size_bytes: int, flags: int) -> int:
            if (flags == 2) != (when == "as it is handed over"):
                return 0
            ctypes.set_errno(code)
            return -1

    monkeypatch.setattr(file_writes, "_set_direct", refuse_direct)
    writes = FileWrites(fileno, None)
    monkeypatch.setattr(file_writes, "_LIBC", Refusing())
    with pytest.raises(OSError, match=os.strerror(code)) if raises else nullcontext():
        for _ in range(16):
            writes.write(bytes(MIB))
