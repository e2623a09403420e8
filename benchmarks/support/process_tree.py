"""CPU and memory of a session of processes: Spark is a JVM, its workers are that JVM's children."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_EVERY_S = 0.2
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeCost:
    """``peak_rss_bytes`` counts what forked workers share with each other once for each."""

    cpu_s: float
    peak_rss_bytes: int


def cost_of_tree(session: int, wait: Callable[[], str]) -> tuple[TreeCost, str]:
    """What all processes of the session use while ``wait`` runs, and what that gives.

    Looked at five times a second: a process that came and went in between is missed, up to its last look.
    """
    before = {pid: ticks for pid, ticks, _ in _processes(session)}
    ticks_of: dict[int, int] = dict(before)
    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while True:
            seen = _processes(session)
            ticks_of.update({pid: ticks for pid, ticks, _ in seen})
            peak = max(peak, sum(rss for _, _, rss in seen))
            if done.wait(_EVERY_S):
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        said = wait()
    finally:
        done.set()
        watcher.join()
    used = sum(ticks - before.get(pid, 0) for pid, ticks in ticks_of.items())
    return TreeCost(cpu_s=used / _TICKS_PER_S, peak_rss_bytes=peak), said


def _processes(session: int) -> list[tuple[int, int, int]]:
    """Pid, CPU ticks and resident bytes of each."""
    found: list[tuple[int, int, int]] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            found.append((int(entry.name), int(fields[11]) + int(fields[12]), int(fields[21]) * _PAGE_BYTES))
    return found
