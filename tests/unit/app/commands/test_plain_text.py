"""The directory of a command's files with records: gone however the command is asked to end."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.console import Console

from tiersidecar.app.commands.plain_text import scratch_of_command

_ENDED = """
import asyncio, os, shutil, signal, sys, threading
from pathlib import Path
from rich.console import Console
from tiersidecar.adapters.ending_loop import run_to_end
from tiersidecar.app.commands.plain_text import scratch_of_command

async def work():
    asked = asyncio.Queue()

    async def send():
        print(await asked.get())
        asked.task_done()

    sending = asyncio.create_task(send())  # as the producer's own task does
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), getattr(signal, sys.argv[2]))).start()
        await asyncio.sleep(60)
    finally:
        await asked.put("the lease is released")
        async with asyncio.timeout(1):
            await asked.join()

# These tests may have been started themselves in the background, without SIGINT, or under nohup, without SIGHUP.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
is_in_background = sys.argv[3] == "in the background"
signal.signal(signal.SIGINT, signal.SIG_IGN if is_in_background else signal.default_int_handler)
if sys.argv[3] == "ignored":
    signal.signal(getattr(signal, sys.argv[2]), signal.SIG_IGN)
    asyncio.sleep = lambda _: asyncio.wait([asyncio.ensure_future(asyncio.wait_for(asyncio.Event().wait(), 0.5))])
if sys.argv[3] == "asked again":
    remove = shutil.rmtree

    def remove_while_asked_again(*arguments, **others):
        for again in ("SIGTERM", "SIGHUP", "SIGINT", "SIGTERM"):
            os.kill(os.getpid(), getattr(signal, again))
        remove(*arguments, **others)

    shutil.rmtree = remove_while_asked_again
with scratch_of_command(Path(sys.argv[1]), "of-ours-", Console(stderr=True)) as directory:
    (directory / "a.log").write_bytes(b"records")
    run_to_end(work())
    print("ended by itself")
"""


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", _ENDED, str(tmp_path), *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("name", "started"),
    [
        ("SIGTERM", "as ever"),
        ("SIGHUP", "as ever"),
        ("SIGINT", "as ever"),
        ("SIGTERM", "in the background"),
        ("SIGHUP", "in the background"),
        ("SIGTERM", "asked again"),
        ("SIGINT", "asked again"),
    ],
)
def test_a_signal_that_asks_it_to_end_leaves_no_file_and_lets_it_release_what_it_holds(
    tmp_path: Path, name: str, started: str
) -> None:
    done = run(tmp_path, name, started)
    assert done.returncode != 0
    assert done.stdout == "the lease is released\n"
    assert list(tmp_path.iterdir()) == []


def test_what_nohup_has_it_ignore_it_ignores(tmp_path: Path) -> None:
    done = run(tmp_path, "SIGHUP", "ignored")
    assert (done.returncode, done.stdout) == (0, "the lease is released\nended by itself\n")


def test_signals_are_as_before_afterwards(tmp_path: Path) -> None:
    all_of_them = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = [signal.getsignal(one) for one in all_of_them]
    with scratch_of_command(tmp_path, "of-ours-", Console(file=io.StringIO())):
        pass
    assert [signal.getsignal(one) for one in all_of_them] == before


def test_where_it_cannot_be_made_the_place_is_named(tmp_path: Path) -> None:
    said = io.StringIO()
    with pytest.raises(typer.Exit) as ended, scratch_of_command(Path("/proc"), "of-ours-", Console(file=said)):
        raise AssertionError("there is none")
    assert ended.value.exit_code == 1
    assert "/proc cannot be written" in said.getvalue()
