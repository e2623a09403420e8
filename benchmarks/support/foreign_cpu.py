"""How much of the machine's processors others use while something is measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_CPUS = os.cpu_count() or 1


class ForeignCpu:
    """CPUs in use by none of the processes that ``pids`` names (asked each time; one that has ended counts for nothing)."""

    def __init__(self, pids: Callable[[], Sequence[int]]) -> None:
        self._pids = pids
        self._before = self._now()

    def since_last(self) -> float:
        """The average since the last call, or since this was made; to a few hundredths, and so it may be below 0."""
        before, self._before = self._before, self._now()
        wall_s, idle_s, own_s = (now - then for now, then in zip(self._before, before, strict=True))
        return _CPUS - (idle_s + own_s) / wall_s

    def _now(self) -> tuple[float, float, float]:
        idle = sum(int(ticks) for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[4:6])
        return time.perf_counter(), idle / _TICKS_PER_S, sum(map(_cpu_s, self._pids()))


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
