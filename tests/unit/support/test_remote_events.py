from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.remote_events import object_keys_in

DIRECTORY = "topic-AAAA/0"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / DIRECTORY).mkdir(parents=True)
    for name in ("1.log", "1.indexes", "1.rsm-manifest", "1.part"):
        (tmp_path / DIRECTORY / name).touch()
    return tmp_path


def test_objects_are_told_by_their_endings(store: Path) -> None:
    assert object_keys_in(store) == {f"{DIRECTORY}/1.{kind}" for kind in ("log", "indexes", "rsm-manifest")}


@pytest.mark.parametrize("nth", [2, 3])
def test_a_directory_that_goes_while_they_are_listed_has_none(
    store: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """A daemon removes the directories that its last delete emptied, between a listing of the parent and theirs."""
    real, calls = os.scandir, 0

    def scandir(path: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            for each in (store / DIRECTORY).iterdir():
                each.unlink()
            (store / DIRECTORY).rmdir()
            (store / DIRECTORY).parent.rmdir()
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert object_keys_in(store) == set()
    assert calls >= nth


def test_a_root_that_is_not_there_is_no_empty_store(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        object_keys_in(tmp_path / "elsewhere")
