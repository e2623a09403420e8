"""Where links can be made, tried and told (issue: EXDEV, EPERM under fs.protected_hardlinks, ENOSPC)."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from tests.unit.adapters.pins_fs.real_segments import copy_log_dir
from tiersidecar.adapters.pins_fs.pins import find_place
from tiersidecar.domain.errors import PinError


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return copy_log_dir(tmp_path)


def listing(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


class FailingLink:
    """os.link that fails with ``number`` where the target is below ``path``."""

    def __init__(self, number: int, path: Path) -> None:
        self._number, self._path = number, path

    def __call__(self, source: str, target: str) -> None:
        if Path(target).is_relative_to(self._path):
            raise OSError(self._number, os.strerror(self._number), source, None, target)
        os.link(source, target)


def test_beside_the_log_dir_for_nobody_else_to_read(tmp_path: Path, log_dir: Path) -> None:
    before = listing(log_dir)
    place = find_place(str(log_dir), [str(log_dir)])
    assert place == f"{log_dir}.tiersidecar-pins"
    assert Path(place).stat().st_mode & 0o777 == 0o700
    assert listing(Path(place)) == set(), "the probe is gone"
    assert listing(log_dir) == before


def test_inside_it_where_its_parent_is_another_mount(tmp_path: Path, log_dir: Path) -> None:
    """EXDEV also between two mounts of one file system: the log dir is the root of a volume."""
    before = listing(log_dir)
    link = FailingLink(errno.EXDEV, tmp_path / "logs.tiersidecar-pins")
    assert find_place(str(log_dir), [str(log_dir)], link=link) == str(log_dir)
    assert listing(tmp_path) == {"logs"}, "no empty directory is left"
    assert listing(log_dir) == before


def test_nowhere_on_a_file_system_whose_links_have_inodes_of_their_own(log_dir: Path) -> None:
    """Some of FUSE: every pin would be taken for one of another file, and be made again at each look."""

    def copy(source: str, target: str) -> None:
        shutil.copy(source, target)

    before = listing(log_dir)
    with pytest.raises(PinError, match="inode"):
        find_place(str(log_dir), [str(log_dir)], link=copy)
    assert listing(log_dir) == before


def test_inside_it_where_its_parent_cannot_be_written(log_dir: Path) -> None:
    (log_dir.parent / "logs.tiersidecar-pins").write_bytes(b"not a directory")
    assert find_place(str(log_dir), [str(log_dir)]) == str(log_dir)


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.ENOSPC])
def test_nowhere_says_why_of_both(tmp_path: Path, log_dir: Path, number: int) -> None:
    with pytest.raises(PinError) as raised:
        find_place(str(log_dir), [str(log_dir)], link=FailingLink(number, tmp_path))
    meaning = {errno.EXDEV: "another mount", errno.EPERM: "fs.protected_hardlinks", errno.ENOSPC: "disk is full"}[
        number
    ]
    assert raised.value.reason.count(meaning) == 2
    assert listing(tmp_path) == {"logs"}


def test_never_a_directory_in_a_log_dir(tmp_path: Path) -> None:
    """Kafka refuses to start on a directory whose name is not a partition's."""
    outer = copy_log_dir(tmp_path)
    inner = outer / "inner"
    shutil.copytree(copy_log_dir(tmp_path / "other"), inner)
    assert find_place(str(inner), [str(outer), str(inner)]) == str(inner)
    assert find_place(str(inner), [str(inner)]) == str(inner), "nor in one of another broker's"


def test_a_probe_left_by_a_crash_is_no_obstacle(log_dir: Path) -> None:
    (log_dir / "tiersidecar-pin.probe").touch()
    beside = Path(f"{log_dir}.tiersidecar-pins")
    beside.mkdir()
    (beside / "tiersidecar-pin.probe").touch()
    assert find_place(str(log_dir), [str(log_dir)]) == str(beside)


def test_a_log_dir_whose_volume_is_not_mounted(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(PinError, match=r"meta\.properties"):
        find_place(str(tmp_path / "empty"), [str(tmp_path / "empty")])
    assert listing(tmp_path) == {"empty"}
