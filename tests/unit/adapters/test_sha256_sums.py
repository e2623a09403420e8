"""What was fetched is what the repository says, file by file (issue 17)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tiersidecar.spark.jars import wrong_files

FILES = {"a.jar": b"one", "b.jar": b"two"}


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    file = tmp_path / "jars.sha256"
    file.write_text("".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in FILES.items()))
    return file


def test_the_files_of_the_list_are_right_and_others_do_not_count(tmp_path: Path, sums: Path) -> None:
    (tmp_path / "notes.txt").write_text("no jar")
    assert wrong_files(tmp_path, sums) == ()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(lambda at: (at / "a.jar").write_bytes(b"onE"), "a.jar has the SHA-256", id="another content"),
        pytest.param(lambda at: (at / "a.jar").unlink(), "a.jar is missing", id="a file that is missing"),
        pytest.param(lambda at: (at / "c.jar").touch(), "c.jar has no sum", id="a file that nobody asked for"),
    ],
)
def test_each_difference_is_told(tmp_path: Path, sums: Path, spoil: Callable[[Path], object], said: str) -> None:
    spoil(tmp_path)
    (fault,) = wrong_files(tmp_path, sums)
    assert said in fault
