"""A stopped broker's files: locked, saved, written whole, undone (issue 21)."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tiersidecar.adapters import broker_files
from tiersidecar.adapters.broker_files import Backup, FileChange, locked_log_dirs, write_whole
from tiersidecar.domain.errors import HandoverError

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""


def changes_in(directory: Path) -> list[FileChange]:
    paths = [directory / "first", directory / "second"]
    for path in paths:
        path.write_bytes(b"before " + path.name.encode())
    return [FileChange(path=path, before=path.read_bytes(), after=b"after") for path in paths]


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


def test_files_are_changed_and_given_back(tmp_path: Path) -> None:
    changes, saved = changes_in(tmp_path), tmp_path / "saved"
    assert Backup(saved).apply(changes) == 2
    assert [one.path.read_bytes() for one in changes] == [b"after", b"after"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "saved", "second"], "nothing else stays there"
    assert Backup(saved).undo() == 2
    assert [one.path.read_bytes() for one in changes] == [one.before for one in changes]
    assert Backup(saved).undo() == 0


def test_a_run_that_was_interrupted_goes_on_and_the_first_copy_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, saved = changes_in(tmp_path), tmp_path / "saved"

    def interrupted(path: Path, data: bytes) -> None:
        if path.name == "second":
            raise KeyboardInterrupt
        write_whole(path, data)

    monkeypatch.setattr(broker_files, "write_whole", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Backup(saved).apply(changes)
    monkeypatch.undo()
    again = [FileChange(path=one.path, before=one.path.read_bytes(), after=one.after) for one in changes]
    assert [one.before for one in again] == [b"after", b"before second"]
    assert Backup(saved).apply(again) == 1
    assert Backup(saved).undo() == 2
    assert [one.path.read_bytes() for one in changes] == [b"before first", b"before second"]


def test_what_the_broker_has_written_since_is_neither_changed_nor_undone(tmp_path: Path) -> None:
    changes, saved = changes_in(tmp_path), tmp_path / "saved"
    Backup(saved).apply(changes)
    changes[1].path.write_bytes(b"the broker's")
    with pytest.raises(HandoverError, match="it has changed since"):
        Backup(saved).undo()
    assert changes[0].path.read_bytes() == b"after", "none is touched"
    later = FileChange(path=changes[1].path, before=b"the broker's", after=b"ours again")
    with pytest.raises(HandoverError, match="it has changed since it was saved"):
        Backup(saved).apply([later])


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


def test_damaged_backups_are_refused(tmp_path: Path) -> None:
    changes, saved = changes_in(tmp_path), tmp_path / "saved"
    Backup(saved).apply(changes)
    copy = next(saved.glob("*-second"))
    copy.write_bytes(b"something else")
    with pytest.raises(HandoverError, match="the copy is damaged"):
        Backup(saved).undo()
    assert changes[0].path.read_bytes() == b"after", "none is touched"
    (saved / "backup.json").write_text(json.dumps({"files": {"x": {"unknown": 1}}}))
    with pytest.raises(HandoverError, match="it cannot be read"):
        Backup(saved)
