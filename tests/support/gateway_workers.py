"""The worker processes of a real gateway daemon."""

from __future__ import annotations

from pathlib import Path

from tests.support.daemon import Daemon


def worker_pids(daemon: Daemon) -> list[int]:
    """Return the ids of the workers that run, in the order of their numbers."""
    found: dict[int, int] = {}
    for child in Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split():
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        if b"--gateway-worker" in words:
            place = words[words.index(b"--gateway-worker") + 1]
            found[int(place.split(b",")[0])] = int(child)
    return [found[number] for number in sorted(found)]


def connections_of(pid: int, port: int) -> int:
    """Return how many connections of clients to ``port`` a process has: from the kernel's tables, by the sockets it holds."""
    established = f":{port:04X}"
    inodes = {
        fields[9]
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
        if (fields := line.split())[1].endswith(established) and fields[3] == "01"
    }
    held = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue  # closed this moment
        held += target.startswith("socket:[") and target[len("socket:[") : -1] in inodes
    return held
