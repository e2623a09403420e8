"""Ends what a test process leaves behind when it cannot clean up itself: after kill -9, or a worker that xdist cut off.

The test process holds a pipe and marks its environment, which all that it starts inherits.  When the pipe closes, for whatever
reason, every process of that mark is killed; after a test process that ended in good order there is none.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

_MARK = "TIERSIDECAR_TEST_PROCESS"


def start_reaper() -> subprocess.Popen[bytes]:
    """Start it; the caller keeps what this returns for as long as children may live."""
    os.environ[_MARK] = uuid.uuid4().hex
    command = [sys.executable, "-I", "-S", __file__, os.environ[_MARK]]
    return subprocess.Popen(command, stdin=subprocess.PIPE, env={}, start_new_session=True)


def _reap(mark: str) -> None:
    wanted = f"{_MARK}={mark}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:  # it has ended, or is another user's
            continue


if __name__ == "__main__":
    sys.stdin.buffer.read()
    _reap(sys.argv[1])
