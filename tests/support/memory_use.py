"""Measuring what a piece of work takes of memory and time at its worst, in a process of its own (Linux)."""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """``peak_bytes`` is how much the resident set grew at most, ``outcome`` what the work said of itself."""

    peak_bytes: int
    elapsed_s: float
    outcome: str


async def measure(work: Callable[[], Awaitable[str]]) -> Use:
    """Do ``work`` here, and say what it took."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before, began_s = _status_bytes("VmRSS"), time.process_time()
    outcome = await work()
    return Use(peak_bytes=_status_bytes("VmHWM") - before, elapsed_s=time.process_time() - began_s, outcome=outcome)


def measured_elsewhere(module: str, *arguments: str, timeout_s: float = 300.0) -> dict[str, Use]:
    """Return what ``python -m module arguments`` prints: a JSON object of names and the fields of :class:`Use`."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {name: Use(**use) for name, use in json.loads(done.stdout).items()}


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
