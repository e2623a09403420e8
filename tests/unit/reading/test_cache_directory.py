"""Files of a cache on disk: whole or not there, and nobody else's to read (S-127, S-129, S-130)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tiersidecar.reading.disk_cache import CacheDirectory


def names(path: Path) -> set[str]:
    return {one.name for one in path.iterdir()}


def test_it_is_made_with_its_parents_and_nobody_else_may_look_into_it(tmp_path: Path) -> None:
    """Caches hold records in the clear, also of encrypted segments."""
    path = tmp_path / "not" / "there" / "cache"
    assert CacheDirectory(str(path)).open() == {}
    assert path.stat().st_mode & 0o777 == 0o700
    CacheDirectory(str(path)).open()


def test_what_is_there_is_listed_from_the_least_recently_written_on_without_directories(tmp_path: Path) -> None:
    for name, written_s in (("b", 30), ("a", 20), ("c", 10)):
        (tmp_path / name).write_bytes(name.encode() * written_s)
        os.utime(tmp_path / name, (100, written_s))
    (tmp_path / "lost+found").mkdir()
    listed = CacheDirectory(str(tmp_path)).open()
    assert list(listed.items()) == [("c", 10), ("a", 20), ("b", 30)]
    assert names(tmp_path) == {"a", "b", "c", "lost+found"}


def test_what_was_left_unfinished_and_what_was_dropped_goes_at_the_start(tmp_path: Path) -> None:
    for name in ("a.index", "b.index.tmp", "c.index.deleted"):
        (tmp_path / name).write_bytes(b"x")
    assert CacheDirectory(str(tmp_path)).open() == {"a.index": 1}
    assert names(tmp_path) == {"a.index"}


def test_of_a_group_all_files_are_read_or_none(tmp_path: Path) -> None:
    files = CacheDirectory(str(tmp_path))
    files.write({"a": b"1", "b": b"22"})
    assert files.read(["a", "b"]) == {"a": b"1", "b": b"22"}
    assert files.read(["a", "c"]) is None


def test_what_could_not_be_written_whole_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "in the way").write_bytes(b"")
    files = CacheDirectory(str(tmp_path))
    with pytest.raises(OSError, match="b"):
        files.write({"a": b"1", "b": b"22"})
    assert names(tmp_path) == {"a", "b"}


def test_dropped_files_keep_their_bytes_until_they_are_removed_and_one_that_is_gone_already_is_passed_over(
    tmp_path: Path,
) -> None:
    files = CacheDirectory(str(tmp_path))
    files.write({"a": b"1", "c": b"3", "d": b"4"})
    files.mark_deleted(["a", "b", "c"])
    assert names(tmp_path) == {"a.deleted", "c.deleted", "d"}
    files.remove_marked(["a", "b", "c"])
    assert names(tmp_path) == {"d"}
