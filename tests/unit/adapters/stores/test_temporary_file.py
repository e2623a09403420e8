"""A file on its way to becoming an object: how much of it is in memory (U14)."""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from tiersidecar.adapters.log_dirs_fs.segment_file import resident_slices
from tiersidecar.adapters.stores import temporary_file
from tiersidecar.adapters.stores.temporary_file import TemporaryFile, make_directories

MIB = 1024 * 1024


def resident_mib(path: Path) -> int:
    fileno = os.open(path, os.O_RDONLY)
    try:
        return sum(resident_slices(fileno, path.stat().st_size))
    finally:
        os.close(fileno)


def test_what_the_disk_has_leaves_the_page_cache_while_more_is_written(tmp_path: Path) -> None:
    pieces = [bytes([number]) * MIB for number in range(48)]
    file = TemporaryFile(directory=tmp_path / "aside", name="log")
    file.open()
    most_mib = 0
    for piece in pieces:
        file.write(piece)
        most_mib = max(most_mib, resident_mib(tmp_path / "aside" / "log"))
    assert most_mib <= 3 * temporary_file._WRITE_BACK_BYTES // MIB
    assert file.make_durable().st_size == 48 * MIB
    file.rename_to(tmp_path / "object", tmp_path)
    assert (tmp_path / "object").read_bytes() == b"".join(pieces)


def test_in_small_steps_less_is_in_memory(tmp_path: Path) -> None:
    """U14: nothing takes a core for long, neither handing over to the disk nor letting go."""
    pieces = [bytes([number]) * (64 * 1024) for number in range(200)]
    file = TemporaryFile(directory=tmp_path / "aside", name="log")
    file.open()
    file.take_small_steps()
    most_mib = 0
    for piece in pieces:
        file.write(piece)
        most_mib = max(most_mib, resident_mib(tmp_path / "aside" / "log"))
    assert most_mib <= 4
    assert file.make_durable().st_size == 200 * 64 * 1024
    file.rename_to(tmp_path / "object", tmp_path)
    assert (tmp_path / "object").read_bytes() == b"".join(pieces)


@pytest.mark.parametrize("size", [0, 1, 8 * MIB, 8 * MIB + 1, 20 * MIB], ids=lambda size: f"{size} bytes")
def test_pieces_of_any_size_are_whole(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    file = TemporaryFile(directory=tmp_path / "aside", name="log")
    file.open()
    file.write(data)
    file.write(data[:7])
    assert file.make_durable().st_size == size + len(data[:7])
    file.rename_to(tmp_path / "object", tmp_path)
    assert (tmp_path / "object").read_bytes() == data + data[:7]


@pytest.mark.parametrize(
    ("code", "raises"),
    [
        pytest.param(errno.EIO, True, id="the disk is broken: fsync would not tell it a second time"),
        pytest.param(errno.ENOSPC, True, id="delayed allocation found the disk full"),
        pytest.param(errno.EINVAL, False, id="a file system that cannot do it"),
    ],
)
def test_what_the_disk_did_not_take_is_an_error_before_fsync(
    code: int, raises: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def sync_file_range(self, fileno: int, position: int, size_bytes: int, flags: int) -> int:
            ctypes.set_errno(code)
            return -1

    monkeypatch.setattr(temporary_file, "_LIBC", Refusing())
    file = TemporaryFile(directory=tmp_path / "aside", name="log")
    file.open()
    with pytest.raises(OSError, match=os.strerror(code)) if raises else nullcontext():
        for _ in range(16):
            file.write(bytes(MIB))
    file.discard()


def test_a_directory_that_a_delete_takes_away_while_it_is_made_is_no_object_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mkdir_of_one_that_was_there(directory: Path, mode: int = 0o777) -> None:
        raise FileExistsError(17, "File exists", str(directory))

    monkeypatch.setattr(os, "mkdir", mkdir_of_one_that_was_there)
    with pytest.raises(FileNotFoundError):
        make_directories(tmp_path / "orders", root=tmp_path, mode=0o750)
    (tmp_path / "object").touch()
    with pytest.raises(NotADirectoryError):
        make_directories(tmp_path / "object", root=tmp_path, mode=0o750)
