"""The directory of a command's files: gone with it, and with the next command where it was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tiersidecar.app.scratch import open_scratch, unwound_by_signals

_KILLED = """
import os, signal, sys
from pathlib import Path
from tiersidecar.app.scratch import open_scratch
with open_scratch(Path(sys.argv[1]), "of-ours-") as directory:
    (directory / "a.log").write_bytes(b"records")
    os.kill(os.getpid(), signal.SIGKILL)
"""

_ENDED = """
import asyncio, os, signal, sys, threading
from pathlib import Path
from tiersidecar.adapters.ending_loop import run_to_end
from tiersidecar.app.scratch import open_scratch, unwound_by_signals

async def work():
    with open_scratch(Path(sys.argv[1]), "of-ours-") as directory:
        (directory / "a.log").write_bytes(b"records")
        threading.Timer(0.2, os.kill, (os.getpid(), getattr(signal, sys.argv[2]))).start()
        await asyncio.sleep(60)

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may have been started under nohup
with unwound_by_signals():
    run_to_end(work())
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_task_that_is_ended_leaves_none(tmp_path: Path, name: str) -> None:
    """Spark's daemon sends its workers SIGHUP when their JVM has gone, as where a service manager ends the whole command."""
    done = subprocess.run([sys.executable, "-c", _ENDED, str(tmp_path), name], check=False, timeout=60)
    assert done.returncode == 128 + signal.Signals[name]
    assert list(tmp_path.iterdir()) == []


def test_outside_of_the_main_thread_no_signal_is_handled() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def handler_meanwhile() -> object:
        with unwound_by_signals():
            return signal.getsignal(signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(handler_meanwhile).result() is before


def test_it_is_gone_with_the_body(tmp_path: Path) -> None:
    with open_scratch(tmp_path, "of-ours-") as directory:
        (directory / "a.log").write_bytes(b"records")
        assert directory.stat().st_mode & 0o077 == 0, "for nobody else to read"
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_goes_when_the_next_one_begins(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False, timeout=60)
    (left,) = tmp_path.iterdir()
    assert (left / "a.log").read_bytes() == b"records"
    with open_scratch(tmp_path, "of-ours-") as directory:
        assert list(tmp_path.iterdir()) == [directory]


def test_those_that_begin_at_once_take_each_others_for_none_that_was_left(tmp_path: Path) -> None:
    """Tasks of one executor do."""

    def begin_often(_: int) -> bool:
        return all(_lasts(tmp_path) for _ in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(begin_often, range(8)))
    assert list(tmp_path.iterdir()) == []


def _lasts(place: Path) -> bool:
    with open_scratch(place, "of-ours-") as directory:
        (directory / "a.log").write_bytes(b"records")
        with open_scratch(place, "of-ours-"):
            return (directory / "a.log").exists()


def test_one_that_is_in_use_another_one_and_what_a_link_names_stay(tmp_path: Path) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "file").touch()
    (tmp_path / "of-ours-link").symlink_to(elsewhere)
    with open_scratch(tmp_path, "of-ours-") as first, open_scratch(tmp_path, "of-ours-") as second:
        assert first.is_dir()
        assert second.is_dir()
    assert {one.name for one in tmp_path.iterdir()} == {"elsewhere", "of-ours-link"}
    assert (elsewhere / "file").exists()
