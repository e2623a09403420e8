from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.support.kafka_admin import wait_until

ROOT = Path(__file__).parents[3]
STARTS_A_SERVER = """
import subprocess, sys, time
from tests.support.reaper import start_reaper
kept = start_reaper()
server = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
print(server.pid, flush=True)
time.sleep(600)
"""


def test_what_a_killed_test_process_started_ends_with_it() -> None:
    tests = subprocess.Popen([sys.executable, "-c", STARTS_A_SERVER], cwd=ROOT, stdout=subprocess.PIPE)
    assert tests.stdout is not None
    server = Path("/proc", tests.stdout.readline().decode().strip())
    assert server.is_dir()
    tests.send_signal(signal.SIGKILL)
    tests.communicate()
    wait_until(lambda: has_ended(server), "the server has ended")


def has_ended(process: Path) -> bool:
    """Also where nobody asks for its exit code, as with a container's first process."""
    try:
        return "zombie" in (process / "status").read_text()
    except OSError:
        return True
