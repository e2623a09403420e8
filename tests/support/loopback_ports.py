"""TCP ports on loopback: free ones that no other run of ours is handed at the same time, and whether a server is up."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO

# Below Linux's ephemeral range (32768 and up): no outgoing connection takes a port of ours while its server restarts.
_FIRST, _LAST = 15_000, 32_000
_held: dict[int, IO[str]] = {}


def free_port() -> int:
    """Return a port that nothing listens on, ours until this process ends (a lock file says so to other runs)."""
    locks = Path(tempfile.gettempdir()) / f"tiersidecar-ports-{os.getuid()}"
    locks.mkdir(exist_ok=True)
    for port in random.sample(range(_FIRST, _LAST), 500):
        if port not in _held and _is_free(port):
            lock = (locks / str(port)).open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                continue
            _held[port] = lock
            return port
    raise RuntimeError(f"no free port on loopback between {_FIRST} and {_LAST}")


def wait_until_it_listens(port: int, process: subprocess.Popen[bytes], said: Path, *, within_s: float = 20.0) -> None:
    """Return once ``process`` takes connections on ``port``.

    Raises:
        RuntimeError: it ended, or was not up in time; the message has what it wrote to ``said``.
    """
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError(f"{said.stem} did not come up on port {port}:\n{said.read_text()}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
