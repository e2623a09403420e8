"""``state.dir`` and what a daemon writes are its own user's alone (issue 17)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from stat import S_IMODE

import pytest

from tests.support.inline_blocking import InlineBlocking
from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.adapters.copy_journal import NAME, open_copy_journal
from tiersidecar.app.config.top_level import Role
from tiersidecar.app.state_dir import instance_of, state_dir_of
from tiersidecar.domain.ids import Uuid


@pytest.fixture
def open_umask() -> object:
    former = os.umask(0)
    yield
    os.umask(former)


def mode_of(path: Path) -> int:
    return S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("open_umask")
async def test_the_directory_and_its_files_are_private_under_any_umask(tmp_path: Path) -> None:
    config = load(tmp_path, LEAST + f"state.dir: {tmp_path}/state\n")
    with state_dir_of(config, frozenset({Role.TIER})) as directory:
        async with open_copy_journal(directory, blocking=InlineBlocking()):
            assert mode_of(directory) == 0o700
            assert {path.name: mode_of(path) for path in directory.iterdir()} == {"tier.lock": 0o600, NAME: 0o600}


def test_files_that_a_former_release_left_readable_are_no_longer(tmp_path: Path) -> None:
    config = load(tmp_path, LEAST + f"state.dir: {tmp_path}\n")
    own = ["tier.lock", "instance", "copies-in-flight", "remote-log-metadata.tier.sqlite"]
    for name in (*own, "notes"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o644)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").touch(mode=0o644)
    (tmp_path / "remote-log-metadata.link").symlink_to(tmp_path / "elsewhere" / "file")
    with state_dir_of(config, frozenset({Role.READ})):
        assert {mode_of(tmp_path / name) for name in own} == {0o600}
    assert mode_of(tmp_path / "notes") == 0o644, "not ours"
    assert mode_of(tmp_path / "elsewhere" / "file") == 0o644, "not ours either"


def test_the_daemon_sets_its_own_umask(tmp_path: Path) -> None:
    """In a process of its own, for a umask is the whole process's."""
    program = (
        "import os, sys\n"
        "from tiersidecar.app import supervise\n"
        "def stop(): raise SystemExit(print(oct(os.umask(0))))\n"
        "supervise.reuse_freed_memory = stop\n"
        "supervise.run_daemon(None, frozenset(), None)\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert shown.stdout.strip() == "0o77"


def test_the_name_of_the_state_dir_outlives_its_tightening(tmp_path: Path) -> None:
    config = load(tmp_path, LEAST + f"state.dir: {tmp_path}\n")
    with state_dir_of(config, frozenset({Role.READ})) as directory:
        name = instance_of(directory, lambda: Uuid(bytes(16)))
    (tmp_path / "instance").chmod(0o644)
    with state_dir_of(config, frozenset({Role.READ})) as directory:
        assert instance_of(directory, lambda: Uuid(bytes([1]) * 16)) == name
