"""A stopped broker's files: locked, and written whole (issue 21)."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tiersidecar.adapters.broker_files import locked_log_dirs, write_whole
from tiersidecar.domain.errors import HandoverError

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_broker_that_holds_its_lock_is_left_alone(tmp_path: Path) -> None:
    with locked_log_dirs([tmp_path]):
        assert (tmp_path / ".lock").exists()
    assert not (tmp_path / ".lock").exists(), "a broker that ends removes it too"
    (tmp_path / ".lock").touch()
    command = [sys.executable, "-c", HOLDER, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(HandoverError, match="the broker runs"), locked_log_dirs([tmp_path]):
            pytest.fail("it was entered")
        holder.communicate(b"")
    with locked_log_dirs([tmp_path]):
        pass
    assert (tmp_path / ".lock").exists(), "it was there before"


def test_a_directory_that_is_not_there_is_no_log_dir(tmp_path: Path) -> None:
    with pytest.raises(HandoverError, match="No such file"), locked_log_dirs([tmp_path / "none"]):
        pytest.fail("it was entered")


def test_only_the_brokers_user_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another one, root above all, names in the log dirs would be the broker's user's to turn elsewhere (issue 21)."""
    (tmp_path / "meta.properties").touch()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    message = f"its files belong to user {user}, and this is user {user + 1}: run it as the broker's user"
    with pytest.raises(HandoverError, match=message), locked_log_dirs([tmp_path]):
        pytest.fail("it was entered")
    assert not (tmp_path / ".lock").exists()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    log_dir, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    log_dir.mkdir()
    elsewhere.touch()
    (log_dir / ".lock").symlink_to(elsewhere)
    with pytest.raises(HandoverError, match="symbolic links"), locked_log_dirs([log_dir]):
        pytest.fail("it was entered")


def test_a_link_in_the_new_files_place_is_not_followed(tmp_path: Path) -> None:
    path, victim = tmp_path / "file", tmp_path / "victim"
    path.write_bytes(b"before")
    victim.write_bytes(b"secret")
    victim.chmod(0o600)
    (tmp_path / "file.tiersidecar-new").symlink_to(victim)
    write_whole(path, b"after")
    assert (path.read_bytes(), path.is_symlink()) == (b"after", False)
    assert (victim.read_bytes(), stat.S_IMODE(victim.stat().st_mode)) == (b"secret", 0o600)


def test_a_file_that_is_a_link_is_not_replaced(tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    other.write_bytes(b"before")
    path.symlink_to(other)
    with pytest.raises(OSError, match="not a regular file"):
        write_whole(path, b"after")
    assert (path.is_symlink(), other.read_bytes()) == (True, b"before")


def test_mode_stays_and_nothing_is_left_of_a_write_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    path.chmod(0o640)
    write_whole(path, b"after")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"after", 0o640)

    def no_room(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"more")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"after"
