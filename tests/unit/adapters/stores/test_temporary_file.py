"""A file on its way to becoming an object."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tiersidecar.adapters.stores.temporary_file import TemporaryFile, make_directories

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
