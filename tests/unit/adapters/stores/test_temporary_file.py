"""A file on its way to becoming an object."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tiersidecar.adapters.log_dirs_fs.segment_file import resident_slices
from tiersidecar.adapters.stores.temporary_file import TemporaryFile, make_directories
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.store import SourceFile

MIB = 1024 * 1024


@pytest.mark.parametrize("size", [0, 1, 8 * MIB, 8 * MIB + 1], ids=lambda size: f"{size} bytes")
@pytest.mark.parametrize("is_announced", [True, False], ids=["size known", "size not known"])
def test_pieces_of_any_size_are_whole_and_durable_before_the_file_has_its_name(
    tmp_path: Path, size: int, is_announced: bool
) -> None:
    data = os.urandom(size)
    file = TemporaryFile(directory=tmp_path / "aside", name="log")
    file.open(size if is_announced else None)
    file.write(data[:7])
    file.write(data[7:])
    assert file.written_bytes == size
    assert file.make_durable().st_size == size
    assert (tmp_path / "aside" / "log").read_bytes() == data
    file.rename_to(tmp_path / "object", tmp_path)
    assert (tmp_path / "object").read_bytes() == data


def test_the_source_is_read_on_while_its_copy_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy waits for its disk.  If that of the source stood still meanwhile, two slow disks would be half as fast as one."""
    path, data, write = tmp_path / "00000000000000000000.log", os.urandom(10 * MIB + 5), os.write
    with path.open("wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    fileno, written = os.open(path, os.O_RDONLY), 0
    # None of it is in the page cache, and the kernel reads nothing ahead of its own accord.
    os.posix_fadvise(fileno, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(fileno, 0, 0, os.POSIX_FADV_RANDOM)

    def write_slowly(to: int, piece: memoryview) -> int:
        nonlocal written
        written += len(piece)
        expected = min(written + 4 * MIB, len(data))
        until_s = time.monotonic() + 2
        while (came := sum(resident_slices(fileno, expected)) * MIB) < expected and time.monotonic() < until_s:
            time.sleep(0.001)
        assert came >= expected, f"of the source only {came} bytes are there while byte {written} is written"
        return write(to, piece)

    monkeypatch.setattr(os, "write", write_slowly)
    copy = TemporaryFile(directory=tmp_path / "aside", name="log")
    copy.open(len(data))
    copy.copy_slice(SourceFile(fileno=fileno, path=str(path), byte_range=ByteRange(0, len(data))))
    copy.make_durable()
    assert (tmp_path / "aside/log").read_bytes() == data
    os.close(fileno)


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
